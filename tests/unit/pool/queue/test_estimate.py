"""The estimate of a wait: what it is made from, and that the true wait lies in its range."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World
from tests.unit.pool.reservations.test_reservations import RULES, before_class, reserve

from miglab_api.leases import LeaseView
from miglab_api.tickets import Purpose, TicketView, WaitEstimate, borrower_of
from miglab_pool.gpu.geometry import ProfilePlacement
from miglab_pool.queue import gather
from miglab_pool.queue.estimate import Holding, RecentHistory, SimulationInput, estimate_waits
from miglab_pool.queue.rules import WaitingTicket, queue_order
from miglab_pool.state.fair_share import FairShareUsage
from miglab_pool.state.placement import GpuOccupancy

from .test_queue import gpu, next_grant, slice_at

HOUR_S = 3600.0
KNOWN = RecentHistory(tuple(sorted(600.0 + 60 * n for n in range(50))))


def waiting(number: int, *profiles: str) -> WaitingTicket:
    return WaitingTicket(number, profiles or ("1g.5gb",), 0.0, "ml", f"u{number}")


def busy_gpu(
    *ends_s: float | None, age_s: float = 300.0
) -> tuple[GpuOccupancy, tuple[Holding, ...]]:
    """A GPU with one small lease for each end."""
    slices = [slice_at("1g.5gb", n) for n in range(len(ends_s))]
    holdings = [
        Holding((("x", slice_),), age_s, end_s)
        for slice_, end_s in zip(slices, ends_s, strict=True)
    ]
    return gpu("x", *slices), tuple(holdings)


def scene(*ends_s: float | None, queued: int = 1, **fields: object) -> SimulationInput:
    occupancy, holdings = busy_gpu(*ends_s)
    values: dict[str, object] = {
        "queued": tuple(waiting(n) for n in range(1, queued + 1)),
        "gpus": (occupancy,),
        "holdings": holdings,
        "history": RecentHistory(),
        "usage": FairShareUsage(now=0.0),
        "lease_s": None,
        "borrow_s": 1800.0,
        "longest_wait_s": 3600.0,
        **fields,
    }
    return SimulationInput(**values)  # type: ignore[arg-type]


def estimate(queue_scene: SimulationInput, ticket: int = 1) -> WaitEstimate:
    return estimate_waits(queue_scene, random.Random(1))[ticket]


def extensible(queue_scene: SimulationInput) -> SimulationInput:
    """Everybody may extend to 3000 s."""
    return replace(
        queue_scene,
        holdings=tuple(replace(holding, last_end_s=3000.0) for holding in queue_scene.holdings),
    )


TWO_ENDS = scene(*[3000.0] * 5, 2000.0, 1000.0, queued=2)


ENDS = {
    "the first end": (scene(*[3000.0] * 6, 1200.0), 1, 1200.0),
    "the first waits for the first end": (TWO_ENDS, 1, 1000.0),
    "the second waits for the second": (TWO_ENDS, 2, 2000.0),
    "at worst everybody extends as often as they may": (
        extensible(scene(*[1200.0] * 7)), 1, 3000.0,
    ),
    "far behind one waits for the leases of those in front": (
        scene(*[600.0] * 7, queued=8, lease_s=1800.0), 8, 2400.0,
    ),
    "the whole GPU waits for the last end on it": (
        replace(scene(*[600.0] * 6, 1800.0), queued=(waiting(1, "7g.40gb"),)), 1, 1800.0,
    ),
    "four hours are told": (scene(*[4 * HOUR_S] * 7), 1, 14400.0),
}  # fmt: skip


@pytest.mark.parametrize(("queue_scene", "ticket", "longest_wait_s"), ENDS.values(), ids=ENDS)
def test_ends_alone_bound_the_wait(
    queue_scene: SimulationInput, ticket: int, longest_wait_s: float
) -> None:
    """Without a history the longest possible wait is told, and said to be that."""
    wait = estimate(queue_scene, ticket)
    assert (wait.low_s, wait.likely_s, wait.high_s) == (0.0, longest_wait_s, longest_wait_s)
    assert "is not known yet" in wait.basis


@pytest.mark.parametrize(
    "queue_scene", [scene(*[None] * 7), scene(*[600.0] * 7, queued=8), scene(*[5 * HOUR_S] * 7)]
)
def test_nothing_known_is_no_estimate(queue_scene: SimulationInput) -> None:
    """No history, and no end or one in five hours: nothing is said, rather than invented."""
    assert max(queue_scene.queued).id not in estimate_waits(queue_scene, random.Random(1))


MEASURED = tuple(10.0 + n for n in range(30))
BOTH = replace(KNOWN, borrowed_s=MEASURED)


def lending(queue_scene: SimulationInput) -> SimulationInput:
    """The same, but for measurements instead of servers that hold the slices."""
    holdings = tuple(
        replace(holding, is_borrow=True, age_s=5.0) for holding in queue_scene.holdings
    )
    return replace(queue_scene, holdings=holdings)


def borrowing(number: int) -> WaitingTicket:
    return waiting(number)._replace(is_borrow=True)


def test_each_kind_has_its_own_history() -> None:
    """A server behind measurements waits for seconds, a measurement behind servers for minutes."""
    busy = scene(*[1800.0] * 7, history=BOTH)
    behind_servers = estimate(replace(busy, queued=(borrowing(1),)))
    assert estimate(lending(busy)).high_s < 40.0 < behind_servers.likely_s
    turns = estimate(replace(lending(busy), queued=tuple(map(borrowing, range(1, 22)))), 21)
    assert 30.0 < turns.likely_s < turns.high_s < 3 * 40.0


def test_measurements_wait_no_longer_than_they_may_before_any_is_known() -> None:
    """A first class that borrows is told when its last measurement would be refused, at most."""
    busy = lending(scene(*[1800.0] * 7, queued=0, history=KNOWN))
    wait = estimate(replace(busy, queued=tuple(map(borrowing, range(1, 14)))), 13)
    assert wait.likely_s == wait.high_s == 3600.0
    assert "is not known yet" in wait.basis
    after_a_server = replace(busy, queued=(waiting(1), *map(borrowing, range(2, 30))))
    assert estimate(after_a_server, 29).high_s == after_a_server.longest_wait_s


def test_an_old_lease_ends_sooner() -> None:
    """A lease that has lasted nearly as long as any ever did frees its slice soon."""
    fresh, old = (
        replace(scene(*[None] * 7, history=KNOWN), holdings=busy_gpu(*[None] * 7, age_s=age_s)[1])
        for age_s in (0.0, 3400.0)
    )
    assert estimate(old).likely_s < estimate(fresh).likely_s / 2


def test_the_idle_may_go_sooner() -> None:
    """A lease that was warned for idleness is taken back in some futures, and not in all."""
    queue_scene = scene(*[None] * 7, history=KNOWN)
    idle = (replace(queue_scene.holdings[0], idle_end_s=30.0), *queue_scene.holdings[1:])
    wait = estimate(replace(queue_scene, holdings=idle))
    assert wait.low_s == 30.0
    assert wait.high_s > 60.0


def test_no_measurement_waits_longer_than_it_may() -> None:
    """Its range ends where it would be refused; a server's has no such end."""
    late = scene(*[None] * 7, history=KNOWN, longest_wait_s=1000.0, usage=FairShareUsage(now=950.0))
    measurement = estimate(lending(replace(late, queued=(borrowing(1),))))
    assert measurement.high_s <= 50.0 < estimate(late).high_s


def test_lighter_newcomers_are_reckoned_with() -> None:
    """Where others with less use keep coming, the heavy one's range reaches further."""
    busy = replace(KNOWN, arrivals=(waiting(0),), interval_s=120.0)
    heavy = FairShareUsage(now=0.0, users={"u1": 9.0}, ageing_s=3000.0)
    alone, passed = (
        estimate(scene(*[None] * 7, history=lately, usage=heavy)) for lately in (KNOWN, busy)
    )
    assert passed.likely_s > 2 * alone.likely_s


def test_who_might_ask_is_told_too() -> None:
    """A shape that nobody asked for yet has an estimate: of whoever would ask now."""
    busy = scene(*[900.0] * 7, queued=1, prospective=frozenset({("1g.5gb",), ("7g.40gb",)}))
    waits = estimate_waits(replace(busy, lease_s=600.0), random.Random(1))
    assert [waits[r].high_s for r in (1, ("1g.5gb",), ("7g.40gb",))] == [900.0, 900.0, 1500.0]


SEEDS = (1, 2, 3, 4)
RUN_S = 24 * HOUR_S

Duration = Callable[[random.Random], float]


class Class:
    """Students who come, wait, work and leave on one A100 in simulated time.

    Every third who has to wait is told an estimate; what came true is kept beside it.
    """

    def __init__(self, seed: int, lasts_s: Duration, every_s: float) -> None:
        self.dice = random.Random(seed)
        self.lasts_s, self.every_s = lasts_s, every_s
        self.now, self.number = 0.0, 0
        self.queued: list[WaitingTicket] = []
        self.live: list[tuple[float, int, float, WaitingTicket, str, ProfilePlacement]] = []
        self.lasted: list[float] = []
        self.requests: list[WaitingTicket] = []
        self.users: dict[str, float] = {}
        self.estimate_of: dict[int, tuple[WaitEstimate, float]] = {}
        self.estimates_and_waits: list[tuple[WaitEstimate, float]] = []

    def run(self, until: float) -> list[tuple[WaitEstimate, float]]:
        comes = 0.0
        while self.now < until:
            ends = self.live[0][0] if self.live else inf
            self.now = min(comes, ends)
            if self.now == ends:
                self._end()
            else:
                self._come()
                comes += self.dice.expovariate(1 / self.every_s)
            while self._grant():
                pass
            self._tell()
        return self.estimates_and_waits

    def _come(self) -> None:
        self.number += 1
        shape, size = self.dice.choice([("1g.5gb", 1)] * 5 + [("2g.10gb", 2), ("3g.20gb", 4)])
        user = f"u{min(39, int(self.dice.expovariate(1 / 12)))}"
        request = WaitingTicket(self.number, (shape,), self.now, "ml", user, size=size)
        self.queued.append(request)
        self.requests.append(request)

    def _end(self) -> None:
        ended_at, _, started_at, served, _, _ = heapq.heappop(self.live)
        self.lasted.append(ended_at - started_at)
        self.users[served.user] = (
            self.users.get(served.user, 0.0) + served.size * (ended_at - started_at) / HOUR_S
        )

    def _grant(self) -> bool:
        grant = next_grant(self.queued, [self._occupancy()], self._usage())
        if grant is None:
            return False
        served = next(request for request in self.queued if request.id == grant.ticket)
        self.queued.remove(served)
        if served.id in self.estimate_of:
            estimated_wait, asked_at = self.estimate_of.pop(served.id)
            self.estimates_and_waits.append((estimated_wait, self.now - asked_at))
        (choice,) = grant.choices
        new_slice = ProfilePlacement(choice.profile, choice.placement)
        ends = self.now + self.lasts_s(self.dice)
        heapq.heappush(self.live, (ends, served.id, self.now, served, choice.gpu, new_slice))
        return True

    def _tell(self) -> None:
        new = [r for r in self.queued if r.since == self.now and r.id % 3 == 0]
        if len(self.lasted) < 20 or not new:
            return
        waits = estimate_waits(self._scene(), random.Random(self.number))
        for request in (request for request in new if request.id in waits):
            self.estimate_of[request.id] = waits[request.id], self.now

    def _scene(self) -> SimulationInput:
        lately = RecentHistory(
            tuple(sorted(self.lasted[-200:])),
            tuple(self.requests[-200:]),
            self.now / len(self.requests),
        )
        holdings = tuple(
            Holding(((gpu_, on_gpu),), self.now - started_at, None)
            for _, _, started_at, _, gpu_, on_gpu in self.live
        )
        queued = tuple(queue_order(self.queued, self._usage()))
        return SimulationInput(
            queued,
            (self._occupancy(),),
            holdings,
            lately,
            self._usage(),
            lease_s=None,
            borrow_s=HOUR_S,
            longest_wait_s=12 * HOUR_S,
        )

    def _occupancy(self) -> GpuOccupancy:
        return gpu("x", *(lease[5] for lease in self.live))

    def _usage(self) -> FairShareUsage:
        users = dict(self.users)
        for lease in self.live:
            users[lease[3].user] = users.get(lease[3].user, 0.0) + lease[3].size
        return FairShareUsage(self.now, {}, users, {}, 1800.0)


def exponential(dice: random.Random) -> float:
    return dice.expovariate(1 / 2400)


def lognormal(dice: random.Random) -> float:
    return min(2 * HOUR_S, dice.lognormvariate(7.4, 0.8))


def two_kinds(dice: random.Random) -> float:
    """Some look in for some minutes, others stay for a lesson."""
    return dice.uniform(120, 600) if dice.random() < 0.4 else dice.uniform(4000, 5400)


@pytest.mark.parametrize(
    ("lasts_s", "every_s", "seeds"),
    [
        (lognormal, 700, SEEDS[2:]),
        pytest.param(lognormal, 700, SEEDS[:2], marks=pytest.mark.long),
        pytest.param(exponential, 800, SEEDS, marks=pytest.mark.long),
        pytest.param(two_kinds, 800, SEEDS, marks=pytest.mark.long),
    ],
)
def test_the_true_wait_lies_in_the_range(
    lasts_s: Duration, every_s: float, seeds: Sequence[int]
) -> None:
    """Of those who were told a range at least four of five then waited as long as it says.

    Whatever way leases last, with heavy users whom others pass, and shapes of three sizes.
    """
    pairs = [pair for seed in seeds for pair in Class(seed, lasts_s, every_s).run(RUN_S)]
    inside = sum(wait.low_s <= waited <= wait.high_s for wait, waited in pairs)
    assert len(pairs) >= 30
    assert inside / len(pairs) >= 0.8


MakeWorld = Callable[..., World]
OF_AN_HOUR = changed(SETTINGS, lease_s=3600.0, extensions=0)


@pytest.fixture
def busy_world(make_world: MakeWorld) -> tuple[World, list[LeaseView]]:
    """Seven leases of an hour, begun five minutes apart, without extensions."""
    world = make_world(OF_AN_HOUR)
    leases = []
    for n in range(7):
        leases.append(world.run(f"student{n}"))
        world.pass_time(300)
    return world, leases


def free_in(world: World, lease: LeaseView) -> float:
    """When its guarantee, and then a warning, is over."""
    assert lease.guaranteed_until is not None
    return lease.guaranteed_until + 300 - world.at


def wait_of(world: World, ticket: TicketView) -> WaitEstimate:
    world.pool.estimate()
    wait = world.pool.tickets.find(ticket.id).estimate
    assert wait is not None
    return wait


def test_what_is_told(busy_world: tuple[World, list[LeaseView]]) -> None:
    """Without a history the ends of the leases, which come nearer, with the ticket and the offer.

    For several slices: who waits for one is told the longest wait (test_longest_wait.py).
    What is new wakes who waits for news, and the same again does not.
    """
    world, leases = busy_world
    world.pool.estimate()
    offers = {
        offer.shape: offer.wait for offer in world.pool.offers(["everyone"]).courses[0].shapes
    }
    for shape, lease in (("2x1g.5gb", leases[1]), ("7g.40gb", leases[6])):
        wait = offers[shape]
        assert wait is not None and wait.high_s == pytest.approx(free_in(world, lease))
    assert offers["cpu"] is None
    for user, lease in (("ada", leases[1]), ("bob", leases[3])):
        ticket = world.ask(user, "2x1g.5gb")
        assert ticket.estimate is None
        before = world.pool.version
        estimate_now = wait_of(world, ticket)
        assert world.pool.version > before
        assert (estimate_now.low_s, estimate_now.high_s) == (
            0.0,
            pytest.approx(free_in(world, lease)),
        )
    again = world.pool.version
    world.pool.estimate()
    assert world.pool.version == again
    world.pass_time(60)
    later = world.pool.tickets.find(ticket.id).estimate
    assert later is not None and later.high_s == pytest.approx(estimate_now.high_s - 60)
    for lease in leases[3:]:
        world.pool.leases.release(lease.id, "ada", "stop")
    assert wait_of(world, ticket).high_s == 0.0, "what is being released ends in seconds"


def test_history_is_used(world: World) -> None:
    """Once some leases are over the estimate is made from how long they lasted."""
    for n in range(6):
        lease = world.run(f"early{n}")
        world.pass_time(600 + 60 * n)
        world.end(lease)
    for n in range(7):
        world.run(f"student{n}")
    wait = wait_of(world, world.ask("ada"))
    assert "6 leases" in wait.basis
    assert 550 < wait.low_s <= wait.high_s < 910


def test_who_waits_behind_measurements_waits_for_their_starts_too(world: World) -> None:
    """On a busy host a start takes as long as the measurement: the slice is kept from the grant on.

    Counted from the attachment alone, the history would promise seven seconds for twenty.
    """
    for n in range(6):
        lease = world.grant(f"early{n}", server=borrower_of(""), purpose=Purpose.BORROW)
        world.pass_time(13)
        holder = world.new_holder()
        world.pool.leases.attach(lease.id, lease.generation, holder)
        world.pool.leases.running(lease.id)
        world.pass_time(7)
        world.end(world.pool.leases.find(lease.id))
    history = gather.gather_input(world.pool.view).history
    assert history.borrowed_s == pytest.approx([20 + world.settings.tuning.probe_s] * 6)
    for n in range(7):
        world.grant(f"student{n}", server=borrower_of(""), purpose=Purpose.BORROW)
    world.pass_time(5)
    ages_s = {holding.age_s for holding in gather.gather_input(world.pool.view).holdings}
    assert ages_s == {5.0}, "those that start have begun to last"
    ticket = world.ask("ada", server=borrower_of(""), purpose=Purpose.BORROW)
    assert wait_of(world, ticket).low_s >= 14


def test_history_is_short(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long leases last is told by those that ended last, who comes by those that began last."""
    monkeypatch.setattr(gather, "MOST_HISTORY", 2)
    leases = []
    for user in ("a", "b", "c"):
        leases.append(world.run(user))
        world.pass_time(100)
    for after_s, lease in ((0, leases[1]), (200, leases[2]), (500, leases[0])):
        world.pass_time(after_s)
        world.end(lease)
    history = gather.gather_input(world.pool.view).history
    assert [round(lasted_s, -2) for lasted_s in history.lasted_s] == [300, 1000]
    assert [comer.user for comer in history.arrivals] == ["b", "c"]


def test_arrivals_come_as_often_as_in_the_last_hour(world: World) -> None:
    """Three starts in an hour are one in twenty minutes."""
    for user in ("a", "b", "c"):
        world.run(user)
    assert gather.gather_input(world.pool.view).history.interval_s == 1200


def test_slots_reserved_now_are_told_as_well(make_world: MakeWorld) -> None:
    """While a class keeps all that is free, strangers are told the end of the class at worst."""
    world = before_class(make_world, changed(RULES, lease_s=3000.0, extensions=0), by_s=60)
    reserve(world)
    world.work()
    student, stranger = world.ask("ada", course="deep"), world.ask("bob")
    wait = wait_of(world, stranger)
    assert wait.high_s == 60 + 2 * 3600
    assert world.pool.tickets.find(student.id).estimate is None  # it has its place
