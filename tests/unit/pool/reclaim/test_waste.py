"""Open leases end for students who are there and use what is made free; for nobody else."""

import itertools
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.pool_settings import changed
from tests.unit.pool.conftest import Keep

from miglab_api.leases import LeaseState
from miglab_api.tickets import TicketState, TicketView
from miglab_pool.ledger.rows import MOST_WASTED
from miglab_pool.queue.wasteful_students import WHY

from .test_round import LIMITS, POOL, ReclaimWorld

GUARANTEED_S, OFFER_S, WARNING_S, DAY_S, FOREVER = 60.0, 120.0, 120.0, 86_400.0, 1e6
RULES = changed(
    POOL, lease_s=GUARANTEED_S, offer_s=OFFER_S, attach_s=OFFER_S, attend_grace_s=240.0,
    longest_wait_s=FOREVER, idle_s=FOREVER, idle_wanted_s=FOREVER, warning_s=WARNING_S,
)  # fmt: skip
LONG = LIMITS.model_copy(update={"idle_s": FOREVER, "idle_wanted_s": FOREVER})


class BusyPool(ReclaimWorld):
    """One GPU whose seven slices are leased, openly by now, to students who work."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, RULES, limits=LONG)
        self.worker_numbers = itertools.count(1)
        self.refill()

    def refill(self) -> None:
        """Somebody works on every free slice until the lease is open."""
        while len(self.ledger.state.leases) < 7:
            self.busy.add(self.run(f"worker{next(self.worker_numbers)}").id)
        self.live(GUARANTEED_S + 30)

    def wait_for_an_end(self) -> None:
        """Wait until a lease that was needed is being released, or would have been long ago."""
        for _ in range(int(WARNING_S / 15) + 4):
            self.live(15)
            if self.releasing():
                return

    def releasing(self) -> list[str]:
        """The holders of the leases that are being released."""
        leases = self.ledger.state.leases.values()
        return [lease.holder or "" for lease in leases if lease.state == LeaseState.RELEASING]

    def let_go(self) -> None:
        """The servers end whose leases are being released, and the queue is served."""
        self.holders.present -= set(self.releasing())
        self.pass_time(1)
        self.work()

    @property
    def ended_for_others(self) -> int:
        """How many leases were ended because somebody needed their slices."""
        return self.reclaims.count("needed")


@pytest.fixture
def lab(tmp_path: Path, keep: Keep[BusyPool]) -> BusyPool:
    return keep(BusyPool(tmp_path))


def lapse(lab: BusyPool, ticket: TicketView) -> None:
    lab.let_go()
    lab.live(OFFER_S + 30)
    lab.work()


def cancel_the_offer(lab: BusyPool, ticket: TicketView) -> None:
    lab.let_go()
    lab.pool.tickets.cancel(ticket.id, "mallory")


def cancel_before_the_offer(lab: BusyPool, ticket: TicketView) -> None:
    lab.pool.tickets.cancel(ticket.id, "mallory")
    lab.let_go()


def ask_for_another_shape(lab: BusyPool, ticket: TicketView) -> None:
    lab.let_go()
    other = lab.ask("mallory", "7g.40gb", server=ticket.server)
    lab.pool.tickets.cancel(other.id, "mallory")


def take_and_never_come(lab: BusyPool, ticket: TicketView) -> None:
    lab.let_go()
    if lab.pool.tickets.find(ticket.id).state is TicketState.OFFERED:
        lab.pool.tickets.take(ticket.id)
    lab.live(OFFER_S + 30)
    lab.work()


def take_and_give_back(lab: BusyPool, ticket: TicketView) -> None:
    lab.let_go()
    if lab.pool.tickets.find(ticket.id).state is TicketState.OFFERED:
        lease = lab.pool.tickets.take(ticket.id)
        lab.pool.leases.release(lease.id, "mallory", "changed my mind")


def go_away(lab: BusyPool, ticket: TicketView) -> None:
    lab.absent.add(ticket.id)
    lab.live(270)
    lab.work()
    lab.let_go()


WAYS: dict[str, Callable[[BusyPool, TicketView], None]] = {
    way.__name__: way
    for way in (
        lapse,
        cancel_the_offer,
        cancel_before_the_offer,
        ask_for_another_shape,
        take_and_never_come,
        take_and_give_back,
        go_away,
    )
}


def ask_for_nothing(lab: BusyPool, way: str, server: str = "") -> None:
    """Mallory asks, waits until somebody's lease has ended for it, and does not use the slice."""
    ticket = lab.ask("mallory", server=server)
    lab.wait_for_an_end()
    WAYS[way](lab, ticket)
    lab.pool.tickets.cancel(ticket.id, "mallory")
    lab.let_go()
    lab.refill()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_made_free_in_vain_is_made_free_twice_a_day(lab: BusyPool, way: str) -> None:
    """However a ticket avoids being used, by whichever server: the third ends nobody's lease."""
    for server in ("", "b", "c", "d"):
        ask_for_nothing(lab, way, server)
    assert lab.ended_for_others == MOST_WASTED
    ticket = lab.ask("mallory")
    assert lab.pool.tickets.find(ticket.id).message == WHY


@settings(max_examples=5, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    ways=st.lists(st.sampled_from(sorted(WAYS)), min_size=3, max_size=5),
    restarts=st.sets(st.integers(0, 4)),
)
def test_no_mixture_of_ways_ends_more(ways: list[str], restarts: set[int]) -> None:
    """In any order, over restarts of the pool: a student wastes two leases of others in a day."""
    with tempfile.TemporaryDirectory() as folder, closing(BusyPool(Path(folder))) as lab:
        for number, way in enumerate(ways):
            if number in restarts:
                lab.crash()
            ask_for_nothing(lab, way)
        assert lab.ended_for_others == MOST_WASTED


def test_the_slice_that_ends_for_somebody_behind_is_theirs(lab: BusyPool) -> None:
    """Whoever wastes does not get it because they came first; nor does another lease end for it."""
    for _ in range(MOST_WASTED):
        ask_for_nothing(lab, "lapse")
    before = lab.ended_for_others
    idler, student = lab.ask("mallory"), lab.ask("zoe")
    lab.wait_for_an_end()
    lab.let_go()
    assert lab.pool.tickets.find(student.id).state is TicketState.OFFERED
    assert lab.pool.tickets.find(idler.id).state is TicketState.WAITING
    assert lab.ended_for_others == before + 1


def test_who_has_used_a_slice_is_trusted_again(lab: BusyPool) -> None:
    """One that nobody else wanted will do: then leases end for them as for everybody."""
    for _ in range(MOST_WASTED):
        ask_for_nothing(lab, "lapse")
    lab.end(lab.pool.leases.lease_of_server("worker1", "") or lab.pool.leases.brief_views()[0])
    lab.end(lab.run("mallory"))
    lab.refill()
    before = lab.ended_for_others
    lab.ask("mallory")
    lab.wait_for_an_end()
    assert lab.ended_for_others == before + 1


def test_a_day_later_it_is_forgotten(lab: BusyPool) -> None:
    """It is a rule of the day, not a mark on a person."""
    for _ in range(MOST_WASTED):
        ask_for_nothing(lab, "cancel_the_offer")
    before = lab.ended_for_others
    lab.pass_time(DAY_S)
    lab.ask("mallory")
    lab.wait_for_an_end()
    assert lab.ended_for_others == before + 1


def test_nobodys_lease_ends_for_a_ticket_whose_holder_is_gone(lab: BusyPool) -> None:
    """While two minutes pass without anybody asking after it; the warning ends, and comes again."""
    ticket = lab.ask("ada")
    lab.absent.add(ticket.id)
    lab.live(30)
    assert LeaseState.WARNED in {lease.state for lease in lab.ledger.state.leases.values()}
    lab.live(WARNING_S + 30)
    assert not lab.ended_for_others
    lab.absent.clear()
    lab.wait_for_an_end()
    assert lab.ended_for_others == 1


def test_what_staff_cancel_is_nobodys_waste(lab: BusyPool) -> None:
    """An instructor who clears the queue takes nothing from its students."""
    for _ in range(MOST_WASTED + 1):
        ticket = lab.ask("ada")
        lab.wait_for_an_end()
        lab.let_go()
        lab.pool.tickets.cancel(ticket.id, "person:ina")
        lab.refill()
    assert lab.ended_for_others == MOST_WASTED + 1
