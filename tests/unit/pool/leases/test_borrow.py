"""Slices that are held only while something is measured: tickets and leases of their own kind."""

from collections.abc import Callable

import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, World

from miglab_api.leases import LeaseState, WarningKind
from miglab_api.offers import BORROW
from miglab_api.tickets import Purpose, TicketState, borrower_of
from miglab_pool.leases.transactions import MOST_ENDS
from miglab_pool.queue.quotas import BORROW_OFFER_S
from miglab_pool.reclaim.activity import Reading
from miglab_pool.reclaim.policy import Decision, HardEnd, LeaseFacts, decide
from miglab_pool.refused import Refused
from miglab_pool.settings import Course, Quota, Reclaim

RUNNER = borrower_of("")


def test_only_what_the_course_lends(world: World) -> None:
    """A course lends what it lists, whatever else it offers."""
    assert world.ask("ada", "3g.20gb", server=RUNNER, purpose=Purpose.BORROW).id
    for course, shape in (("everyone", "7g.40gb"), ("vision", "1g.5gb")):
        with pytest.raises(Refused, check=because("shape-not-offered")):
            world.ask("bob", shape, RUNNER, course, purpose=Purpose.BORROW)


def test_what_is_lent_is_offered() -> None:
    """The default may be to borrow, where something is lent; nobody can borrow the CPU."""
    assert Course(shapes=("cpu",), lends=("1g.5gb",), default=BORROW).default == BORROW
    with pytest.raises(ValueError, match="needs shapes to borrow"):
        Course(shapes=("cpu",), default=BORROW)
    with pytest.raises(ValueError, match="no slice"):
        Course(shapes=("cpu",), lends=("cpu",))


@pytest.mark.parametrize("quota_s", [None, 60.0])
def test_it_ends_by_its_time(make_world: Callable[..., World], quota_s: float | None) -> None:
    """At its bound, or a quota's, the pool ends the runner itself: no warning, no extension."""
    quotas = {} if quota_s is None else {"each": Quota(lease_s=quota_s)}
    world = make_world(changed(SETTINGS, quotas=quotas))
    lease = world.borrow("ada")
    borrow_s = quota_s or world.settings.pool.borrow_s
    assert lease.ends_at == world.at + borrow_s
    assert (lease.purpose, lease.extensions_left) == (Purpose.BORROW, 0)
    with pytest.raises(Refused, check=because("no-extension")):
        world.pool.leases.extend(lease.id, 60.0, "ada")
    world.pass_time(borrow_s)
    assert [due.id for due in world.pool.leases.leases_to_stop()] == [lease.id]
    world.pool.leases.release(lease.id, "pool", "time")
    world.work()
    assert world.holders.removed == [lease.holder]
    assert world.pool.leases.find(lease.id).state is LeaseState.RELEASED


def test_what_was_borrowed_hides_no_server_of_which_one_asks(world: World) -> None:
    """However many measurements have ended since."""
    server_lease = world.run("ada")
    world.end(server_lease)
    for _ in range(MOST_ENDS):
        world.end(world.borrow("ada"))
    (end,) = world.pool.leases.ends_since("ada", 0.0, Purpose.SERVER)
    assert end.shape == server_lease.shape
    assert {end.purpose for end in world.pool.leases.ends_since("ada", 0.0)} == {Purpose.BORROW}


def test_a_server_keeps_what_it_has(world: World) -> None:
    """Borrowing has a ticket of its own: neither the server's ticket nor its lease changes."""
    lease = world.borrow("ada")
    waits = world.ask("ada", "7g.40gb")
    status = world.pool.tickets.server_status("ada", "")
    assert status.ticket is not None and status.ticket.id == waits.id
    assert status.lease is None
    assert status.borrowed is not None and status.borrowed.id == lease.id
    assert world.ask("ada", "3g.20gb", RUNNER, purpose=Purpose.BORROW).state is TicketState.WAITING
    status = world.pool.tickets.server_status("ada", "")
    assert status.borrowing is not None and status.borrowing.shape == "3g.20gb"


def test_an_offer_that_no_hub_takes_lapses(world: World) -> None:
    """A hub that died while its student waited holds a slice for seconds, not for minutes."""
    ticket = world.wait("ada", server=RUNNER, purpose=Purpose.BORROW)
    assert ticket.state is TicketState.OFFERED
    world.work_after(BORROW_OFFER_S)
    assert world.pool.tickets.find(ticket.id).state is TicketState.EXPIRED


def policy_on_borrow(now: float, *ends: HardEnd) -> tuple[Decision, WarningKind | None]:
    """What the policy says of a borrowed lease that nobody reports on."""
    facts = LeaseFacts(held_since=0.0, is_borrow=True)
    verdict = decide(None, Reading(), facts, 9, Reclaim(), ends, now)
    return verdict.decision, verdict.kind


def test_nobody_guesses_at_it() -> None:
    """However long it is idle and whoever waits: only its class and maintenance take it back."""
    end = HardEnd(1000.0, WarningKind.MAINTENANCE, "Closed.")
    assert policy_on_borrow(1e6) == (Decision.KEEP, None)
    assert policy_on_borrow(999.0, end) == (Decision.KEEP, None)
    assert policy_on_borrow(1000.0, end) == (Decision.RECLAIM, WarningKind.MAINTENANCE)
