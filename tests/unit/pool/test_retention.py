"""What is old is deleted from the ledger, and no number comes again."""

from dataclasses import replace
from pathlib import Path

import pytest

from miglab_pool.ledger import retention
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.retention import DAY_S, delete_old
from miglab_pool.ledger.rows import LeaseRow, TicketRow

from .conftest import World

NOW = 1000 * DAY_S
LONG_AGO, LATELY = NOW - 500 * DAY_S, NOW - 5 * DAY_S
TICKET = TicketRow(
    id=1, user="ada", server="", course="c", shape="1g.5gb", asked="1g.5gb", state="cancelled",
    created_at=LONG_AGO, attended_at=LONG_AGO,
)  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Four tickets: two old, one of them a lease's; one old that waits; the newest."""
    made = Ledger(tmp_path / "ledger.sqlite")
    with made.write(LONG_AGO, durable=True) as tx:
        tx.put(TICKET, by="server:ada/")
        tx.put(replace(TICKET, id=2, state="expired"))
        tx.put(LeaseRow(
            id=1, ticket=2, generation=1, user="ada", server="", course="c", shape="1g.5gb",
            state="released", granted_at=LONG_AGO, slices=(),
        ))  # fmt: skip
        tx.put(replace(TICKET, id=3, state="waiting"))
        tx.record(TICKET, "person:instructor", "in your favour", "next")
    with made.write(LATELY, durable=True) as tx:
        tx.put(replace(TICKET, id=4, created_at=LATELY))
    return made


def all_rows(ledger: Ledger) -> list[int]:
    """The ids of all transitions in the ledger."""
    return sorted(row["id"] for row in ledger.history(limit=10_000))


def test_what_is_old_is_deleted(ledger: Ledger) -> None:
    """Not what waits, what a lease came of, what is new, or what staff did."""
    assert delete_old(ledger, NOW, 400, 1200) == 5
    assert [row["action"] for row in ledger.history()] == ["", "next"]
    assert ledger.find(TicketRow, 2) and ledger.find(TicketRow, 3) and not ledger.find(TicketRow, 1)
    assert delete_old(ledger, NOW, 400, 1200) == 0


def test_staffs_actions_have_an_age_of_their_own(ledger: Ledger) -> None:
    """They may go sooner, later, or never; 0 keeps all."""
    assert delete_old(ledger, NOW, 0, 0) == 0
    assert all_rows(ledger) == [1, 2, 3, 4, 5, 6]
    assert delete_old(ledger, NOW, 0, 400) == 1


def test_no_number_comes_again(ledger: Ledger) -> None:
    """With everything old, the newest ticket stays to count from."""
    later = NOW + 1000 * DAY_S
    delete_old(ledger, later, 400, 400)
    path = ledger.path
    ledger.close()
    assert Ledger(path).new_id("ticket") == 5


def test_a_round_is_bounded(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is old, a round deletes so many rows of a table."""
    monkeypatch.setattr(retention, "MOST", 2)
    assert [delete_old(ledger, NOW, 400, 1200) for _ in range(3)] == [3, 2, 0]


def test_the_pool_deletes_it_under_its_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads write to the same connection: their transactions would be ended in between."""
    store, owned = world.pool.store, []
    read = store.ledger.read

    def watched(query: object) -> object:
        owned.append(store.lock._is_owned())  # type: ignore[attr-defined]
        return read(query)

    monkeypatch.setattr(store.ledger, "read", watched)
    world.pool.delete_old()
    assert owned and all(owned)
