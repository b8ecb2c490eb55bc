"""The end of a server: what is released, and what is left when the pool refuses."""

import logging
from types import SimpleNamespace

import pytest
from tests.refusals import because
from tests.unit.pool.applications.fakes import lease_view, ticket_view

from miglab_api.leases import LeaseState, LeaseView, RequestedLease
from miglab_api.tickets import TicketRequest, TicketState
from miglab_spawner.backends import RefusedByBackend
from miglab_spawner.borrower import Borrower
from miglab_spawner.containers.host_config import SavedLease
from miglab_spawner.local import MIGLocalSpawner

DISK_FULL = RefusedByBackend("bad-disk", "The lab's disk is full: nothing was changed.", 507)
TOO_OFTEN = RefusedByBackend("too-often", "Ask again in a minute.", 429)
STALE = RefusedByBackend("stale-lease", "Lease 1 is not the one you meant.", 409)
UNKNOWN = RefusedByBackend("unknown-lease", "There is no lease 1.", 404)
ENDED = (LeaseState.RELEASED, LeaseState.EXPIRED)


class LeasesOfOneServer:
    """A pool with the leases of a server; it refuses to release those of `refusals`."""

    def __init__(self, *leases: LeaseView) -> None:
        self.by_id = {lease.id: lease for lease in leases}
        self.refusals: dict[int, RefusedByBackend] = {}
        self.calls: list[str] = []

    async def release(
        self, lease: int, _generation: int, reason: str, _ledger: str = ""
    ) -> LeaseView:
        self.calls.append(f"release {lease}")
        if lease in self.refusals:
            raise self.refusals[lease]
        if self.by_id[lease].state not in ENDED:
            changes = {"state": LeaseState.RELEASING, "reason": reason}
            self.by_id[lease] = self.by_id[lease].model_copy(update=changes)
        return self.by_id[lease]

    async def leases(self, _user: str, _server: str) -> list[LeaseView]:
        self.calls.append("list")
        return [lease for lease in self.by_id.values() if lease.state not in ENDED]

    async def lease(self, lease: int) -> LeaseView:
        self.calls.append(f"look at {lease}")
        ended = self.by_id[lease].model_copy(update={"state": LeaseState.RELEASED})
        self.by_id[lease] = ended
        return ended

    async def request_lease(self, request: TicketRequest) -> RequestedLease:
        self.calls.append("request")
        if any(lease.state not in ENDED for lease in self.by_id.values()):
            raise RefusedByBackend("still-attached", "An earlier start holds its slice.", 409)
        lease = held(1 + max(self.by_id), LeaseState.GRANTED)
        ticket = ticket_view(1, request.user, state=TicketState.TAKEN)
        return RequestedLease(ticket=ticket, taken_lease=lease)

    async def server_status(self, _user: str, _server: str) -> SimpleNamespace:
        return SimpleNamespace(ticket=None)


class EndingSpawner(MIGLocalSpawner):
    """A spawner of ada's server, which asks a pool in memory and has nothing to kill."""

    fake_pool: LeasesOfOneServer

    @property
    def backend(self) -> LeasesOfOneServer:
        return self.fake_pool

    async def end_holder(self, holder: str) -> None:
        self.fake_pool.calls.append(f"end {holder}")


def spawner_with(pool: LeasesOfOneServer) -> EndingSpawner:
    """Return ada's spawner; her hub remembers lease 1."""
    spawner = EndingSpawner()
    spawner.user = SimpleNamespace(name="ada", id=1, db=None)
    spawner.log = logging.getLogger("spawner-that-ends")
    spawner.fake_pool = pool
    spawner.take_over_lease(SavedLease(1, 1, "ada", "", ("MIG-1",), ""), "process:1")
    return spawner


def held(number: int, state: LeaseState = LeaseState.RUNNING) -> LeaseView:
    return lease_view(number, "ada", state=state, holder=f"process:{number}")


async def test_a_live_lease_takes_one_request() -> None:
    """The lease that the hub remembers is the server's: nothing else is looked for."""
    pool = LeasesOfOneServer(held(1))
    await spawner_with(pool).give_back()
    assert pool.calls == ["end process:1", "release 1"]


@pytest.mark.parametrize("state", ENDED)
async def test_a_lease_that_has_ended_hides_no_later_one(state: LeaseState) -> None:
    """A hub with a restored database remembers an earlier lease; the later one is released, too."""
    pool = LeasesOfOneServer(held(1, state), held(2))
    await spawner_with(pool).give_back()
    assert pool.calls == ["end process:1", "release 1", "list", "end process:2", "release 2"]
    assert pool.by_id[2].state is LeaseState.RELEASING


@pytest.mark.parametrize("refusal", [STALE, UNKNOWN])
async def test_a_lease_that_the_pool_does_not_know(refusal: RefusedByBackend) -> None:
    """What the pool has of the server is released instead; one that ends meanwhile is no error."""
    pool = LeasesOfOneServer(held(2), held(3))
    pool.refusals = {1: refusal, 2: refusal}
    await spawner_with(pool).give_back()
    assert pool.by_id[3].state is LeaseState.RELEASING


@pytest.mark.parametrize("refusal", [DISK_FULL, TOO_OFTEN])
@pytest.mark.parametrize("refused_lease", [1, 2])
async def test_a_pool_that_cannot_release_now(
    refusal: RefusedByBackend, refused_lease: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says that the release waits and why, never that the lease is not known."""
    pool = LeasesOfOneServer(held(1, LeaseState.RELEASED), held(2))
    pool.refusals = {refused_lease: refusal}
    with caplog.at_level(logging.INFO):
        await spawner_with(pool).run_post_stop_hook()
    assert caplog.messages == [f"ada's release waits: {refusal}"]


@pytest.mark.parametrize("is_attached", [False, True])
async def test_a_start_ends_an_earlier_server_only_if_there_is_one(is_attached: bool) -> None:
    """The pool's refusal tells of it: a start without one takes a single request."""
    pool = LeasesOfOneServer(held(1, LeaseState.RUNNING if is_attached else LeaseState.RELEASED))
    request = TicketRequest(user="ada", course="everyone", shape="1g.5gb")
    lease = await spawner_with(pool)._request_lease(request)
    assert lease is not None and lease.id == 2
    ends = ["list", "end process:1", "release 1", "end process:1", "look at 1", "request"]
    assert pool.calls == ["request", *(ends if is_attached else [])]


async def test_a_start_says_what_keeps_the_earlier_server() -> None:
    """The earlier server's lease cannot be released: the student reads the pool's sentence."""
    pool = LeasesOfOneServer(held(1))
    pool.refusals = {1: DISK_FULL}
    with pytest.raises(RefusedByBackend, match="disk is full", check=because("bad-disk")):
        await spawner_with(pool).end_earlier_servers()


@pytest.mark.parametrize(("refusal", "is_logged"), [(STALE, False), (DISK_FULL, True)])
async def test_borrowed_slices_that_cannot_be_released_now(
    refusal: RefusedByBackend, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log, too; a borrow that is over needs no word."""
    pool = LeasesOfOneServer(held(1))
    pool.refusals = {1: refusal}
    borrower = Borrower(lambda: "ada", "1t1", "", "ml", pool, NotImplemented, 0.0)
    await borrower.end()
    assert [str(refusal) in message for message in caplog.messages] == [True] * is_logged
