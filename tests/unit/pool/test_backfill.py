"""The hold for the first in the queue: who may start in it, and that it delays nobody."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool_settings import changed

from miglab_api.leases import WarningKind
from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Placed
from miglab_pool.queue.backfill import NO_HOLD, first_that_fits, hold
from miglab_pool.queue.rules import Waiting, in_order
from miglab_pool.settings import Course, Quota
from miglab_pool.state.placement import SOON, GpuOccupancy

from .conftest import SETTINGS, World
from .test_queue import gpu, placed

MakeWorld = Callable[..., World]
HOUR_S = 3600.0
BIG = Waiting(1, ("7g.40gb",), 0.0)


def occupancy(name: str, *live: tuple[Placed, float]) -> GpuOccupancy:
    """A GPU on which these lie, each until its end."""
    by_mask = {item.placement.mask: ends_at for item, ends_at in live}
    return replace(gpu(name, *(item for item, _ in live)), frees_at=by_mask)


def small(lasts_s: float) -> Waiting:
    return Waiting(2, ("1g.5gb",), 1.0, lasts_s=lasts_s)


def served(one: Waiting, on: GpuOccupancy) -> int | None:
    """Who is served at moment 0 with a whole GPU's worth waiting in front."""
    grant = first_that_fits([BIG, one], [on], 0.0)
    return None if grant is None else grant.ticket


HALF = placed("3g.20gb", 0)


@pytest.mark.parametrize(("lasts_s", "who"), [(HOUR_S, 2), (HOUR_S + 1, None), (inf, None)])
def test_only_what_ends_sooner_goes_ahead(lasts_s: float, who: int | None) -> None:
    """A small one starts in the hold if it is over by the last end that is set there."""
    assert served(small(lasts_s), occupancy("a", (HALF, HOUR_S))) == who


@pytest.mark.parametrize("ends_at", [inf, SOON], ids=["no end is set", "it is being cleared"])
def test_nobody_goes_ahead_of_what_may_end_at_any_moment(ends_at: float) -> None:
    """Where no end is set, or the room is nearly free, the big one might start now."""
    assert served(small(60.0), occupancy("a", (HALF, ends_at))) is None


def test_one_lease_without_an_end_is_enough() -> None:
    """Room on which some lease has no end is promised to nobody, so nothing can be sooner."""
    both = occupancy("a", (HALF, HOUR_S), (placed("1g.5gb", 6), inf))
    assert served(small(60.0), both) is None


def test_beside_is_better_than_on_it() -> None:
    """Where there is room elsewhere a short one goes there, and the hold only empties."""
    busy = occupancy("b", (placed("3g.20gb", 4), 9 * HOUR_S))
    grant = first_that_fits([BIG, small(60.0)], [occupancy("a", (HALF, HOUR_S)), busy], 0.0)
    assert grant is not None
    assert grant.choices[0].gpu == "b"


def test_the_room_that_is_surely_free_soonest() -> None:
    """By the ends that are set, whatever the number of leases; without ends where fewest lie."""
    one_long = occupancy("a", (HALF, 3 * HOUR_S))
    two_short = occupancy("b", (placed("1g.5gb", 0), 60.0), (placed("1g.5gb", 1), 90.0))
    held = hold(BIG.profiles, [one_long, two_short])
    assert (list(held.held), held.frees_at) == (["b"], 90.0)
    endless = [gpu("a", placed("1g.5gb", 0), placed("1g.5gb", 1)), gpu("b", HALF)]
    assert list(hold(BIG.profiles, endless).held) == ["b"]


def test_nothing_is_held_for_the_impossible() -> None:
    """For what no GPU can hold there is no room, and so none in which to go ahead."""
    held = hold(("9g.1gb",), [gpu("a")])
    assert held == NO_HOLD
    assert not held.allows(0.0)


# -- by simulation --------------------------------------------------------------------------------

SHAPES = ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")
LONGEST_S = 2 * HOUR_S
EVERY_S = 200.0


@dataclass
class BackfillLease:
    gpu: str
    placed: Placed
    set_end: float
    ends: float


class BackfillWorld:
    """Students who never cease to come, long leases and short ones, and people who leave early."""

    def __init__(self, dice: random.Random, gpus: int, early: float) -> None:
        self.dice, self.early = dice, early
        self.names = [str(n) for n in range(gpus)]
        self.now, self.number, self.went_ahead = 0.0, 0, 0
        self.queued: list[Waiting] = []
        self.live: list[BackfillLease] = []
        self.promised: dict[int, float] = {}

    def step(self) -> None:
        """Some leases end, somebody comes, and all are served who may be."""
        self.now += EVERY_S
        self.live = [lease for lease in self.live if lease.ends > self.now]
        for _ in range(self.dice.randrange(2)):
            self.number += 1
            lasts_s = self.dice.choice((0.1, 0.25, 1.0)) * LONGEST_S
            shape = self.dice.choice(SHAPES)
            self.queued.append(Waiting(self.number, (shape,), self.now, lasts_s=lasts_s))
        while self._grant():
            pass

    def _grant(self) -> bool:
        first = in_order(self.queued)[0] if self.queued else None
        before = self._promise(first)
        grant = first_that_fits(in_order(self.queued), self.gpus(), self.now)
        if grant is None:
            return False
        one = next(each for each in self.queued if each.ticket == grant.ticket)
        self.queued.remove(one)
        assert self.now <= self.promised.get(one.ticket, inf), "served later than was promised"
        ends = self.now + one.lasts_s
        leaves = self.now + one.lasts_s * self.dice.uniform(1 - self.early, 1.0)
        (choice,) = grant.choices
        made = Placed(choice.profile, choice.placement)
        self.live.append(BackfillLease(choice.gpu, made, ends, leaves))
        if first is not None and one is not first:
            self.went_ahead += self._is_in_hold(first, choice.gpu, made, before)
        return True

    def _promise(self, first: Waiting | None) -> float:
        """When the first is surely served; it never moves back."""
        if first is None:
            return inf
        found = hold(first.profiles, self.gpus()).frees_at
        now = max(found, self.now) + EVERY_S  # the next look comes so much later at most
        self.promised[first.ticket] = min(now, self.promised.get(first.ticket, inf))
        assert now <= self.promised[first.ticket] + EVERY_S, "the promise moved back"
        return found

    def _is_in_hold(self, first: Waiting, gpu_: str, made: Placed, before: float) -> bool:
        after = hold(first.profiles, self.gpus())
        assert after.frees_at <= before, "the promise moved back"
        return any(made.placement.mask & one.placement.mask for one in after.held.get(gpu_, ()))

    def gpus(self) -> list[GpuOccupancy]:
        return [self._occupancy(name) for name in self.names]

    def _occupancy(self, name: str) -> GpuOccupancy:
        mine = [lease for lease in self.live if lease.gpu == name]
        return occupancy(name, *((lease.placed, lease.set_end) for lease in mine))


@settings(max_examples=settings.default.max_examples // 3)
@given(seed=st.integers(0, 10**6), gpus=st.integers(1, 2), early=st.sampled_from([0.0, 0.5, 1.0]))
def test_nobody_starves_and_nobody_is_delayed(seed: int, gpus: int, early: float) -> None:
    """However many short ones go ahead, the moment promised to the first never moves back.

    It is served by then, though the demand is more than the GPUs can ever serve.
    """
    lab = BackfillWorld(random.Random(seed), gpus, early)
    for _ in range(40):
        lab.step()
    watched = {one.ticket for one in lab.queued}
    for _ in range(len(watched) * int(LONGEST_S / EVERY_S + 2)):
        lab.step()
        if watched.isdisjoint(one.ticket for one in lab.queued):
            return
    assert watched.isdisjoint(one.ticket for one in lab.queued)


def test_short_ones_do_go_ahead() -> None:
    """The simulation above is about something: many start in the hold."""
    lab = BackfillWorld(random.Random(3), 2, 0.5)
    for _ in range(120):
        lab.step()
    assert lab.went_ahead >= 5


# -- in the pool ----------------------------------------------------------------------------------

QUICK = {"quick looks are short": Quota(course="quick", lease_s=600.0)}


def lab(make_world: MakeWorld, **more: object) -> World:
    """One A100 whose leases last an hour at most; those of "quick" last ten minutes."""
    courses = {**SETTINGS.courses, "quick": Course(title="Quick", shapes=("1g.5gb",))}
    values: dict[str, object] = {
        "courses": courses,
        "quotas": QUICK,
        "lease_s": HOUR_S,
        "extensions": 0,
        "ageing_s": 0.0,  # else who used less goes first anyway
        "longest_wait_s": 4 * HOUR_S,
        "attend_grace_s": 4 * HOUR_S,
        **more,
    }
    return make_world(changed(SETTINGS, **values))


def test_a_quick_look_goes_ahead_of_a_whole_gpu(make_world: MakeWorld) -> None:
    """A course whose leases are short starts in the room that a big shape waits for."""
    world = lab(make_world)
    world.run("ada", "3g.20gb")
    big, long, quick = (
        world.ask("bob", "7g.40gb"),
        world.ask("cy", "1g.5gb"),
        world.ask("dee", "1g.5gb", course="quick"),
    )
    world.work()
    states = [world.pool.tickets.find(one.id).state for one in (big, long, quick)]
    assert states == [TicketState.WAITING, TicketState.WAITING, TicketState.OFFERED]


def test_extensions_count(make_world: MakeWorld) -> None:
    """What could still be extended beyond that moment stays in line."""
    world = lab(make_world, extensions=1)
    world.run("ada", "3g.20gb")
    world.ask("bob", "7g.40gb")
    quick = world.ask("dee", "1g.5gb", course="quick")
    world.work()
    assert world.pool.tickets.find(quick.id).state == TicketState.WAITING


def test_who_was_warned_is_reckoned_to_go(make_world: MakeWorld) -> None:
    """A warning is an end that is set: who would not be over by then stays in the queue."""
    world = lab(make_world)
    lease = world.run("ada", "3g.20gb")
    world.pool.leases.warn(lease.id, WarningKind.IDLE, "It is idle.", world.at + 300.0)
    world.ask("bob", "7g.40gb")
    quick = world.ask("dee", "1g.5gb", course="quick")
    world.work()
    assert world.pool.tickets.find(quick.id).state == TicketState.WAITING
    world.pool.leases.keepalive(lease.id, "ada")
    world.work()
    assert world.pool.tickets.find(quick.id).state == TicketState.OFFERED
