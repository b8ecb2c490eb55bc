"""Who somebody is, is the hub's user id; the ledger's names follow it."""

from pathlib import Path

from sqlalchemy import select
from tests.unit.pool.conftest import World

from miglab_api.roster import ProgressReport
from miglab_api.staff import MessageRequest
from miglab_pool.ledger import tables
from miglab_pool.settings import Course, PoolSettings
from miglab_pool.staff.log import AuditQuery

SHARING = PoolSettings(
    courses={"ml": Course(shapes=("1g.5gb",), default="1g.5gb", shares_progress=True)}
)


def names_of(world: World, table: str = "leases") -> list[str]:
    """Whose the rows of a table are, the oldest first."""
    rows = tables.metadata.tables[table]
    return [row["user"] for row in world.ledger.read(select(rows).order_by(rows.c.id))]


def test_a_rename_takes_everything_along(world: World) -> None:
    """What is live, what is over, and what somebody did; nobody else's, nor a part of a name."""
    people = world.pool.people
    people.rename_user("1t1", "ada")
    over = world.run("ada")
    world.pool.leases.release(over.id, "server:ada/", "done")
    world.end(world.pool.leases.find(over.id))
    lease, other = world.run("ada"), world.run("adaline")
    world.pool.staff.send(MessageRequest(to_user="ada", text="Hello."), "person:ada")
    people.rename_user("1t1", "lovelace")
    assert names_of(world) == ["lovelace", "lovelace", "adaline"]
    assert world.pool.leases.lease_of_server("lovelace", "").id == lease.id
    assert world.pool.leases.lease_of_server("ada", "") is None
    assert world.pool.leases.find(other.id).user == "adaline"
    assert world.pool.leases.find(over.id).is_given_back
    assert len(world.pool.staff.messages_for("lovelace", "", ())) == 1
    causes = {entry.by for entry in world.pool.staff.audit(AuditQuery())}
    assert "person:lovelace" in causes and "person:ada" not in causes
    assert {use.user for use in world.pool.view.lease_uses.all} == {"lovelace", "adaline"}
    assert world.pool.check_invariants() == []


def test_an_old_answer_of_the_hub_takes_a_name_from_nobody(world: World) -> None:
    """Who is met by a name that somebody else bears is called by name and id; no row changes."""
    people = world.pool.people
    people.rename_user("1t1", "ada")
    world.run("ada")
    assert people.name_for_hub_user("2t2", "ada") == "ada (2t2)"
    assert people.name_of("1t1") == "ada" and people.name_of("2t2") is None
    assert names_of(world) == ["ada"]
    assert people.name_for_hub_user("1t1", "lovelace") == "ada"
    assert people.name_for_hub_user("3t3", "bo") == people.name_of("3t3") == "bo"


def test_a_rename_outlives_the_service(world: World) -> None:
    """It is in the ledger, the name and all rows in one step."""
    world.pool.people.rename_user("1t1", "ada")
    world.run("ada")
    world.pool.people.rename_user("1t1", "lovelace")
    world.crash()
    assert world.pool.people.name_of("1t1") == "lovelace"
    assert [lease.user for lease in world.pool.leases.live()] == ["lovelace"]


def test_the_next_bearer_of_a_name_is_somebody_else(world: World) -> None:
    """What the former one has stays theirs, whether the hub says how they are called now or not."""
    people = world.pool.people
    people.rename_user("1t1", "ada")
    lease = world.run("ada")
    people.rename_user("2t2", "ada")
    assert world.pool.leases.lease_of_server("ada", "") is None
    assert world.pool.leases.find(lease.id).user == "ada (1t1)"
    assert world.run("ada", server="lab2").user == "ada"
    people.rename_user("1t1", "lovelace")
    assert names_of(world) == ["lovelace", "ada"]


def test_two_who_swap_their_names(world: World) -> None:
    """Each told after the other."""
    people = world.pool.people
    for number, name in ((1, "ada"), (2, "bob")):
        people.rename_user(f"{number}t1", name)
        world.run(name)
    people.rename_user("1t1", "bob")
    people.rename_user("2t1", "ada")
    assert names_of(world) == ["bob", "ada"]


def test_rows_of_before_are_of_who_has_the_name(world: World) -> None:
    """A ledger that knew no ids; who is told twice by the same name costs nothing."""
    lease = world.run("ada")
    world.pool.people.rename_user("1t1", "ada")
    version = world.pool.version
    world.pool.people.rename_user("1t1", "ada")
    world.pool.people.rename_user("", "ada")
    assert world.pool.version == version
    assert world.pool.leases.lease_of_server("ada", "").id == lease.id


def test_progress_and_notice_go_along(tmp_path: Path) -> None:
    """What is kept of a class, in the ledger and in memory."""
    world = World(tmp_path, SHARING)
    try:
        world.pool.people.rename_user("1t1", "ada")
        world.pool.roster.record_notice_read("ada", "ml")
        world.pool.roster.record_report("ada", ProgressReport(course="ml", sign_age_s=1))
        world.pool.people.rename_user("1t1", "lovelace")
        shared = world.pool.roster.progress_of("ml")
        assert shared.readers == {"lovelace"} and set(shared.reports) == {"lovelace"}
    finally:
        world.close()
