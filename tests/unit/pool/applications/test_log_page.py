"""The Log page: who reads what of it, what the audit is asked, and that no word becomes markup."""

import datetime as dt
import re
from functools import partial
from urllib.parse import parse_qs
from zoneinfo import ZoneInfo

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.pool.conftest import World

from miglab_api.staff import MessageRequest, SentMessage, display_name
from miglab_pool.staff.log import verb_phrase
from miglab_pool.staff.log_page import (
    ROWS_SHOWN,
    SWAPPED,
    build_query,
    csv_parameters,
    describe_addressee,
    describe_states,
    describe_target,
    read_filters,
)

from .conftest import as_, enqueue
from .fakes import entry

BERLIN = ZoneInfo("Europe/Berlin")
ILSE, ROOT, ALICE = as_("instructor-token"), as_("admin-token"), as_("alice-token")


def note(number: int, **fields: object) -> SentMessage:
    values = {"by": "person:vera", "text": "Hand in.", "at": 1e9, "until": 2e9}
    return SentMessage.model_validate({"id": number, **values, **fields})


@pytest.fixture
def busy(world: World) -> World:
    """What ina did in ml, vera in vision, and root to the whole pool; the newest last."""
    world.pool.staff.reclaim(1, "Exam.", "person:ina", 60.0)
    world.pass_time(60.0)
    world.pool.staff.put_in_front(enqueue(world, "victor", "vision").id, "Presents.", "person:vera")
    world.pool.staff.pause("Repairs.", "person:root")
    return world


def reasons_shown(page: str) -> list[str]:
    """Which of these acts the page tells, the newest first."""
    return re.findall(r"Exam\.|Presents\.|Repairs\.", page)


# What an address asks for.


def test_a_day_lasts_from_midnight_to_midnight() -> None:
    """Where the lab is; the last day is meant with all its hours, and the very last has no end.

    The operator and the pool are found by the words that the page has for them.
    """
    query, problem = read_filters({"since": "2026-11-02", "until": "2026-11-02"})
    filters = build_query(query, None, BERLIN, 9)
    begins = dt.datetime(2026, 11, 2, tzinfo=BERLIN).timestamp()
    assert (problem, filters.since, filters.until) == ("", begins, begins + 86400)
    assert build_query(read_filters({"until": "9999-12-31"})[0], None, BERLIN, 9).until is None
    names = {"the operator of this host": "spawner", "the pool": "pool", "ina": "ina", "": None}
    assert [build_query({"by": name}, None, BERLIN, 9).actor for name in names] == [*names.values()]


def test_the_sheet_is_of_the_same() -> None:
    """All that was asked for but where the page begins; what is open is left out."""
    query = {"since": "2026-01-01", "by": "ina", "course": "ml", "kind": "lease", "before": "77"}
    fields, _ = read_filters(query | {"until": "", "everything": "on", "unknown": "x"})
    query_of_sheet = csv_parameters(fields, ZoneInfo("UTC"), 1000)
    assert query_of_sheet == {
        "since": "1767225600.0", "by": "ina", "kind": "lease", "course": "ml",
        "everything": "True", "limit": "1000", "format": "csv",
    }  # fmt: skip
    assert csv_parameters({}, BERLIN, 5) == {"limit": "5", "format": "csv"}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("since=soon", "A day is written like"),
        ("since=2026-11-08&until=2026-11-02", SWAPPED),
        ("until=1066-10-14", "There was no lab before"),
    ],
)
async def test_days_that_cannot_be_read(
    client: httpx.AsyncClient, busy: World, query: str, problem: str
) -> None:
    """It is said, and all days are shown; the rest of what was asked for holds."""
    page = await client.get(f"/log?{query}&by=ina", headers=ROOT)
    assert page.status_code == 200 and f'role="alert">{problem}' in page.text
    assert set(reasons_shown(page.text)) == {"Exam."}


KEYS = ("since", "until", "by", "course", "kind", "everything", "before")


@given(st.dictionaries(st.sampled_from(KEYS), st.text(max_size=40) | st.from_regex(r"\d{1,30}")))
@example({"before": "9" * 19})
def test_any_address_is_read(query: dict[str, str]) -> None:
    """Nothing breaks it, what is read can be asked of SQLite, and the next page asks the same."""
    fields, _ = read_filters(query)
    before = build_query(fields, None, BERLIN, 9).before
    assert before is None or before < 2**63
    assert read_filters(fields)[0] == fields


# In words.


def test_entries_in_words() -> None:
    """GPUs by their number, people by their names, states as a change only where there is one."""
    entries = [
        entry(4),
        entry(3, kind="gpu", target="GPU-a", action="drain", from_state="ok", to_state="ok"),
        entry(2, kind="gpu", target="GPU-gone", action="undrain", by="spawner"),
        entry(1, kind="pool", target="", action="pause", from_state="granting", to_state="paused"),
        entry(0, kind="message", target="7", action="", by="pool", from_state="", to_state="shown"),
    ]
    descriptions = [
        (
            display_name(audit_entry.by),
            describe_target(audit_entry, {"GPU-a": "GPU 3"}),
            verb_phrase(audit_entry.action, audit_entry.to_state),
        )
        for audit_entry in entries
    ]
    states = map(describe_states, entries)
    assert [
        (*description, state) for description, state in zip(descriptions, states, strict=True)
    ] == [
        ("ina", "lease 1", "reclaimed it", "running → warned"),
        ("ina", "GPU 3", "drained it", "ok"),
        ("the operator of this host", "GPU-gone", "ended its draining", "running → warned"),
        ("ina", "the pool", "paused it", "granting → paused"),
        ("the pool", "message 7", "displayed it", "shown"),
    ]


@pytest.mark.parametrize(
    ("to", "recipients"),
    [
        ({}, "everybody"),
        ({"to_course": "ml"}, "all of ml"),
        ({"to_user": "ada"}, "ada"),
        ({"to_user": "ada", "to_server": ""}, "ada"),
        ({"to_user": "ada", "to_server": "lab2"}, "ada, server “lab2”"),
    ],
)
def test_to_whom_a_message_is(to: dict[str, str], recipients: str) -> None:
    """One, one of their servers, a course, or all."""
    assert describe_addressee(note(1, **to)) == recipients


# Who reads it.


async def test_an_admin_chooses_a_course(client: httpx.AsyncClient, busy: World) -> None:
    """Of all there are; chosen, it stays so in the form and in the sheet."""
    assert len(set(reasons_shown((await client.get("/log", headers=ROOT)).text))) == 3
    page = (await client.get("/log?course=vision&kind=ticket", headers=ROOT)).text
    assert set(reasons_shown(page)) == {"Presents."}
    assert '<option value="vision" selected>' in page and '<option value="ml">' in page
    assert "/api/audit?course=vision&amp;kind=ticket&amp;limit=1000&amp;format=csv" in page


async def test_pages(client: httpx.AsyncClient, world: World) -> None:
    """So many on each; the last leads to no older one, and only the newest not to the newest."""
    page = (await client.get("/log", headers=ROOT)).text
    assert "No entries match." in page and "shown now" not in page
    for number in range(ROWS_SHOWN + 1):
        (world.pool.staff.resume if number % 2 else partial(world.pool.staff.pause, "Lunch."))(
            "person:ina"
        )
    page = (await client.get("/log?kind=pool", headers=ROOT)).text
    assert page.count("<tr>") == ROWS_SHOWN + 1
    (older,) = re.findall(r'href="[^"]*/log\?([^"]*before=[^"]*)"', page)
    page = (await client.get(f"/log?{older.replace('&amp;', '&')}&by=ina", headers=ROOT)).text
    assert page.count("<tr>") == 1 + 1
    (newest,) = re.findall(r'href="[^"]*/log\?([^"]*)"', page.split("Pages of the log")[1])
    assert parse_qs(newest.replace("&amp;", "&")) == {"by": ["ina"], "kind": ["pool"]}


# Messages.


async def test_messages_that_are_shown(client: httpx.AsyncClient, world: World) -> None:
    """To whom, by whom and until when; whoever may withdraw one finds the way to it.

    What others told everybody, staff read in the details, but do not withdraw.
    """
    for to in ({"to_course": "ml"}, {"all": True}, {"to_user": "bob"}):
        world.pool.staff.send(MessageRequest(text="Room 2.", **to), "person:vera")  # type: ignore[arg-type]
    page = (await client.get("/log", headers=ILSE)).text
    assert "To all of ml, by vera, until" in page and "1 Jun 2026" in page
    assert "To everybody" in page and "To bob" not in page
    assert re.findall(r'data-details="([^"]*)"', page) == ["message/1"]
    for token, may in (("instructor-token", False), ("vision-token", True), ("admin-token", True)):
        details = await client.get("/details/message/2", headers=as_(token))
        assert ('data-path="messages/2"' in details.text) is may
