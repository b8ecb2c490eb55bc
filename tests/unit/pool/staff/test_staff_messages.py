"""Messages of staff and the audit: who is told, who did what, and what is forgotten when."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy.dialects import sqlite
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.applications.fakes import entry
from tests.unit.pool.conftest import SETTINGS, World

from miglab_api.staff import MINUTES_MAX, TEXT_MAX, MessageRequest, display_name
from miglab_api.tickets import borrower_of
from miglab_api.wording import server_in_words
from miglab_pool.ledger.rows import MessageRow
from miglab_pool.ledger.tables import open_read_only
from miglab_pool.refused import Refused
from miglab_pool.staff.actions import MESSAGES_MAX, is_for
from miglab_pool.staff.log import AuditQuery, build_select, describe_change, verb_phrase

MakeWorld = Callable[..., World]

INA, JO = "person:ina", "person:jo"


def note(**to: Any) -> MessageRequest:
    return MessageRequest(text="Come to room 2.", **to)


def texts(world: World, user: str, server: str = "", *courses: str) -> list[str]:
    return [message.text for message in world.pool.staff.messages_for(user, server, courses)]


@pytest.mark.parametrize(
    ("to", "is_shown"),
    [
        ({"to_user": "ada"}, True),
        ({"to_user": "ada", "to_server": "lab2"}, True),
        ({"to_user": "ada", "to_server": ""}, False),
        ({"to_user": "bob"}, False),
        ({"to_course": "vision"}, True),
        ({"to_course": "everyone"}, False),
        ({"all": True}, True),
    ],
)
def test_whom_a_message_is_shown_to(world: World, to: dict[str, Any], is_shown: bool) -> None:
    """To the user's servers, to the one named, to the course's, or to all; to nobody else."""
    world.pool.staff.send(note(**to), INA)
    assert texts(world, "ada", "lab2", "vision") == ["Come to room 2."] * is_shown


def test_a_message_ends_by_itself(world: World) -> None:
    """It says by whom and until when; then it is not shown, and the ledger keeps it as over."""
    message = world.pool.staff.send(note(all=True, minutes=1.0), INA)
    until = world.at + 60
    world.pass_time(59.0)
    world.pool.staff.send(note(all=True), "spawner")
    newest, oldest = world.pool.staff.messages_for("ada", "", ())
    assert (newest.by, oldest.by, oldest.until) == (OPERATOR, "ina", until)
    world.pass_time(1.0)
    assert world.pool.staff.messages_for("ada", "", ()) == (newest,)
    before = world.pool.version
    world.pool.turn()
    assert world.pool.version > before
    assert world.ledger.history("message", str(message.id))[0]["to_state"] == "over"


def test_a_message_is_taken_back(world: World) -> None:
    """To the letter it outlives the pool, until anybody of staff ends it, once, and says why."""
    hostile = "<script>alert(1)</script> \x1b[2J “José 🎓”; DROP TABLE notes"
    message = world.pool.staff.send(MessageRequest(text=hostile, to_user="ada"), INA)
    world.crash()
    (stored,) = world.pool.staff.messages()
    assert stored == message and stored.text == hostile
    assert world.pool.staff.send(note(to_user="bob"), INA).id > message.id
    world.pool.staff.end_message(message.id, JO, "Wrong room.")
    assert texts(world, "ada") == []
    step = world.ledger.history("message", str(message.id))[0]
    assert (step["action"], step["by"], step["reason"]) == ("end", JO, "Wrong room.")
    for number in (message.id, 10**30):
        with pytest.raises(Refused, check=because("unknown-message")) as caught:
            world.pool.staff.end_message(number, JO)
        assert caught.value.status == 404


def test_only_so_many_messages(world: World) -> None:
    """So that no page drowns; what is over does not count, nor what is to no course."""
    with pytest.raises(Refused, check=because("not-in-course")):
        world.pool.staff.send(note(to_course="visoin"), INA)
    for _ in range(MESSAGES_MAX):
        world.pool.staff.send(note(all=True, minutes=1.0), INA)
    with pytest.raises(Refused, check=because("too-many-messages")) as caught:
        world.pool.staff.send(note(all=True), INA)
    assert caught.value.status == 429
    world.pass_time(61.0)
    assert world.pool.staff.send(note(all=True), INA).text


def test_many_messages_are_sent_all_or_none(world: World) -> None:
    """Where there is no room for all, nobody gets one, and the refusal says what to do."""
    world.pool.staff.send(note(all=True, minutes=1.0), INA)
    each = [note(to_user=f"ada{number}") for number in range(MESSAGES_MAX)]
    with pytest.raises(Refused, match=r"only 199 more .* send to all of the class") as caught:
        world.pool.staff.send_each(each, INA)
    assert (caught.value.reason, texts(world, "ada0")) == ("too-many-messages", ["Come to room 2."])
    world.pass_time(61.0)
    assert len(world.pool.staff.send_each(each, INA)) == MESSAGES_MAX


def test_a_refused_message_takes_the_others_with_it(world: World) -> None:
    """They are one transaction: the first is not sent, either."""
    each = [note(to_user="ada"), note(to_course="visoin")]
    with pytest.raises(Refused, check=because("not-in-course")):
        world.pool.staff.send_each(each, INA)
    assert world.pool.staff.messages() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"all": True, "to_user": "ada"},
        {"to_user": "ada", "to_course": "vision"},
        {"to_server": "lab2", "to_course": "vision"},
        {"to_server": "lab2", "all": True},
        {"all": True, "text": ""},
        {"all": True, "text": " \n "},
        {"all": True, "text": "x" * (TEXT_MAX + 1)},
        {"all": True, "minutes": 0},
        {"all": True, "minutes": MINUTES_MAX + 1},
        {"all": True, "minutes": float("nan")},
        {"all": True, "colour": "red"},
    ],
)
def test_a_message_that_cannot_be_read(wrong: dict[str, Any]) -> None:
    """No addressee, or two; no text, or too much; no time, or too much."""
    with pytest.raises(ValidationError):
        MessageRequest.model_validate({"text": "Hello.", **wrong})


names = st.sampled_from(["ada", "bob", "", "vision"])
maybe = st.one_of(st.none(), names)


@given(user=names, server=names, courses=st.sets(names), to=st.tuples(maybe, maybe, maybe))
def test_nobody_reads_what_is_for_others(
    user: str, server: str, courses: set[str], to: tuple[str | None, str | None, str | None]
) -> None:
    """Whatever the addressee: who reads it is that user at that server, or in that course."""
    row = MessageRow(1, 0.0, INA, *to, text="Hello.", until=1.0)
    if is_for(row, user, server, courses):
        assert row.to_user in (None, user)
        assert row.to_user is None or row.to_server in (None, server)
        assert row.to_user is not None or row.to_course in (None, *courses)


def busy(world: World) -> None:
    """Two instructors, two courses, a student and the pool itself."""
    lease = world.run("ada", course="vision")
    gpu = world.pool.snapshot().gpus[0].uuid
    world.pool.staff.drain(gpu, "Fan.", INA)
    world.pass_time(10.0)
    world.pool.staff.undrain(gpu, "", "spawner")
    world.pool.staff.reclaim(lease.id, "Exam.", JO, 60.0)
    world.pass_time(10.0)
    world.pool.staff.pause("Repairs.", INA)
    world.pool.staff.send(note(to_course="vision"), JO)


def acts(world: World, **question_fields: Any) -> list[tuple[str, str]]:
    entries = world.pool.staff.audit(AuditQuery(**question_fields))
    return [(audit_entry.action, display_name(audit_entry.by)) for audit_entry in entries]


OPERATOR = "the operator of this host"
ALL = [
    ("message", "jo"), ("pause", "ina"), ("reclaim", "jo"), ("undrain", OPERATOR), ("drain", "ina"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("question_fields", "expected"),
    [
        ({}, ALL),
        ({"limit": 2}, ALL[:2]),
        ({"actor": "ina"}, [ALL[1], ALL[4]]),
        ({"actor": "person:ina"}, [ALL[1], ALL[4]]),
        ({"actor": "in%"}, []),
        ({"kind": "gpu"}, ALL[3:]),
        ({"kind": "lease", "target": "1"}, [ALL[2]]),
        ({"courses": ("vision",)}, [ALL[0], ALL[2]]),
        ({"courses": ()}, []),
        ({"since": 1_000_010.0}, ALL[:4]),
        ({"since": 1_000_010.0, "until": 1_000_020.0}, ALL[2:4]),
        ({"until": 0.0}, []),
    ],
)
def test_who_did_what(
    world: World, question_fields: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """The newest first, of these times, people, things and courses; the operator's acts too."""
    busy(world)
    assert acts(world, **question_fields) == expected


def test_reading_waits_for_nobody(world: World) -> None:
    """Not even while a decision has its transaction open; that it sees when it is done."""
    busy(world)
    with world.pool.store.write() as tx:
        tx.pause("", INA, None)
        assert acts(world) == ALL
    assert acts(world) == [("resume", "ina"), *ALL]
    with open_read_only(world.ledger.path) as connection:  # what happens meanwhile is in no answer
        count = "SELECT count(*) FROM tickets"
        before = connection.exec_driver_sql(count).scalar_one()
        world.ask("ada")
        assert connection.exec_driver_sql(count).scalar_one() == before


def test_an_entry_says_everything(world: World) -> None:
    """When, who, what to what, from which state to which, why, and whose it was."""
    busy(world)
    (entry,) = world.pool.staff.audit(AuditQuery(kind="lease"))
    assert entry.model_dump(exclude={"id"}) == {
        "at": 1_000_010.0, "by": JO, "action": "reclaim", "kind": "lease", "target": "1",
        "from_state": "running", "to_state": "warned", "reason": "Exam.", "course": "vision",
        "user": "ada",
    }  # fmt: skip
    everything = world.pool.staff.audit(AuditQuery(is_all=True, kind="lease", limit=10**9))
    assert [e.to_state for e in everything] == ["warned", "running", "attached", "granted"]


def test_an_assigned_gpu_is_the_courses(make_world: MakeWorld) -> None:
    """What is done to it, and to slices on it that nobody holds, the course's staff find."""
    world = make_world(changed(SETTINGS, assigned={"0": "vision"}))
    world.end(world.run("ada", course="vision"))
    (gpu,) = world.pool.snapshot().gpus
    world.pool.staff.drain(gpu.slices[0].slice_id, "Errors.", INA)
    world.pool.staff.drain(gpu.uuid, "Fan.", INA)
    assert acts(world, courses=("vision",)) == [("drain", "ina")] * 2
    assert acts(world, courses=("everyone",)) == []


def test_what_students_do_in_jupyterlab_is_found_by_their_name(make_world: MakeWorld) -> None:
    """An extension and a release; nobody else's, and only for who asks by name or for all."""
    world = make_world(changed(SETTINGS, lease_s=600.0, extensions=1, extension_s=60.0))
    lease, other = world.run("ada"), world.run("ada_")
    world.pool.leases.extend(lease.id, 60.0, "server:ada/lab")
    world.pool.leases.release(lease.id, "server:ada/lab", "done")
    world.pool.leases.release(other.id, "server:ada_/lab", "done")
    entries = world.pool.staff.audit(AuditQuery(actor="ada"))
    assert [verb_phrase(audit_entry.action, audit_entry.to_state) for audit_entry in entries] == [
        "released it",
        "gave it more time",
    ]
    assert len(world.pool.staff.audit(AuditQuery(actor="ada_"))) == 1
    assert acts(world) == []
    world.pool.staff.pause("Repairs.", INA)
    users = {
        audit_entry.kind: audit_entry.user
        for audit_entry in world.pool.staff.audit(AuditQuery(is_all=True))
    }
    assert (users["lease"], users["pool"]) == ("ada", "")


def test_the_audit_is_found_by_its_index(world: World) -> None:
    """What people did is not looked for among all that ever happened."""
    statement = build_select(AuditQuery()).compile(dialect=sqlite.dialect())
    plan = world.ledger.connection.exec_driver_sql(
        f"EXPLAIN QUERY PLAN {statement}", tuple(statement.params.values())
    ).all()
    world.ledger.connection.rollback()
    assert any("transitions_by_hand" in str(step) for step in plan)


@pytest.mark.parametrize(
    ("principal", "name"),
    [
        ("person:ina", "ina"), ("service:cull:er", "cull:er"), ("server:ada/lab2", "ada"),
        ("spawner", OPERATOR), ("pool", "the pool"), ("reclaimer", "the reclaimer"),
        ("person:", "person:"), ("", ""), ("ada", "ada"),
    ],
)  # fmt: skip
def test_how_people_are_called(principal: str, name: str) -> None:
    """By their own name, or by what they are."""
    assert display_name(principal) == name


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("", ""), ("lab2", "server “lab2”"), (borrower_of(""), "borrowed"),
        (borrower_of("lab2"), "borrowed by server “lab2”"),
    ],
)  # fmt: skip
def test_servers_in_words(server: str, expected: str) -> None:
    """Nobody reads the name under which a server borrows."""
    assert server_in_words(server) == expected


@pytest.mark.parametrize(
    ("transition", "expected"),
    [
        ((INA, "drain", "ok", "Fan."), "ina drained it 1 minute ago (“Fan.”)"),
        (("pool", "", "gone", ""), "the pool destroyed it 1 minute ago"),
        ((JO, "cancelled", "cancelled", ""), "jo cancelled it 1 minute ago"),
        ((JO, "", "odd", ""), "jo changed its state to “odd” 1 minute ago"),
        ((JO, "", "", ""), "jo changed it 1 minute ago"),
    ],
)
def test_who_did_what_in_words(transition: tuple[str, str, str, str], expected: str) -> None:
    """A clause for the person who comes second."""
    principal, action, to_state, reason = transition
    last = entry(1, at=0.0, by=principal, action=action, to_state=to_state, reason=reason)
    assert describe_change(last, 60.0) == expected
