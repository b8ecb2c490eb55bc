"""The place set aside for the first in line: who may go ahead on it, and that it delays nobody."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool_settings import changed

from miglab_api.tickets import TicketState
from miglab_pool.gpu.geometry import Placed
from miglab_pool.model.gpu import UNKNOWN, Ground, Stay
from miglab_pool.model.queue import Ahead, Waiting
from miglab_pool.rules.backfill import Aside, aside, first_that_fits
from miglab_pool.rules.queue_order import in_line
from miglab_pool.settings import Course, Quota

from .conftest import SETTINGS, World
from .test_queue import gpu, placed

MakeWorld = Callable[..., World]
HOUR_S = 3600.0
BIG = Waiting(1, ("7g.40gb",), 0.0)


def ground(name: str, *stays: tuple[Placed, Stay]) -> Ground:
    """A GPU on which these lie for so long."""
    by_mask = {item.placement.mask: stay for item, stay in stays}
    return replace(gpu(name, *(item for item, _ in stays)), stays=by_mask)


def until(at: float) -> Stay:
    return Stay(at, at)


def small(lasts_s: float) -> Waiting:
    return Waiting(2, ("1g.5gb",), 1.0, lasts_s=lasts_s)


def served(one: Waiting, on: Ground, not_before: float = inf) -> int | None:
    """Who is served at moment 0 with a whole GPU's worth waiting in front."""
    grant = first_that_fits([BIG, one], [on], Ahead(0.0, {BIG.ticket: not_before}))
    return None if grant is None else grant.ticket


HALF = placed("3g.20gb", 0)


@pytest.mark.parametrize(("lasts_s", "who"), [(HOUR_S, 2), (HOUR_S + 1, None), (inf, None)])
def test_only_what_ends_sooner_goes_ahead(lasts_s: float, who: int | None) -> None:
    """A small one begins on the place set aside if it is gone when the last there is to end."""
    assert served(small(lasts_s), ground("a", (HALF, until(HOUR_S)))) == who


@pytest.mark.parametrize(
    "stay", [UNKNOWN, Stay(HOUR_S, -inf)], ids=["no end is set", "it was warned"]
)
def test_what_may_go_at_any_moment_holds_nobody_back(stay: Stay) -> None:
    """Where nothing says how long a lease stays nobody goes ahead: the big one might begin now."""
    assert served(small(60.0), ground("a", (HALF, stay))) is None


def test_one_lease_without_an_end_is_enough() -> None:
    """A place on which some lease has no end is promised to nobody, so nothing can be sooner."""
    both = ground("a", (HALF, until(HOUR_S)), (placed("1g.5gb", 6), UNKNOWN))
    assert served(small(60.0), both) is None


@pytest.mark.parametrize(("not_before", "who"), [(1800.0, 2), (1799.0, None), (-inf, None)])
def test_people_leave_early(not_before: float, who: int | None) -> None:
    """It must be gone before the first is likely to be served as leases lasted lately, too."""
    assert served(small(1800.0), ground("a", (HALF, until(HOUR_S))), not_before) == who


def test_without_an_outlook_nobody_goes_ahead() -> None:
    """A decision that is told nothing of the time ahead keeps the place clear."""
    assert first_that_fits([BIG, small(1.0)], [ground("a", (HALF, until(HOUR_S)))]) is None


def test_beside_is_better_than_on_it() -> None:
    """Where there is room elsewhere a short one goes there, and the place only empties."""
    busy = ground("b", (placed("3g.20gb", 4), until(9 * HOUR_S)))
    grounds = [ground("a", (HALF, until(HOUR_S))), busy]
    grant = first_that_fits([BIG, small(60.0)], grounds, Ahead(0.0, {1: inf}))
    assert grant is not None
    assert grant.choices[0].gpu == "b"


def test_the_place_that_is_surely_empty_soonest() -> None:
    """By the ends that are set, whatever the number of leases; without ends where fewest lie."""
    one_long = ground("a", (HALF, until(3 * HOUR_S)))
    two_short = ground("b", (placed("1g.5gb", 0), until(60.0)), (placed("1g.5gb", 1), until(90.0)))
    found = aside(BIG.profiles, [one_long, two_short])
    assert (list(found.kept), found.until, found.not_before) == (["b"], 90.0, 90.0)
    endless = [gpu("a", placed("1g.5gb", 0), placed("1g.5gb", 1)), gpu("b", HALF)]
    assert list(aside(BIG.profiles, endless).kept) == ["b"]


def test_nothing_is_set_aside_for_the_impossible() -> None:
    """For what no GPU can hold there is no place, and so none on which to go ahead."""
    found = aside(("9g.1gb",), [gpu("a")])
    assert found == Aside()
    assert not found.lets_by(0.0, 1, Ahead(0.0, {1: inf}))


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
        self.line: list[Waiting] = []
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
            self.line.append(Waiting(self.number, (shape,), self.now, lasts_s=lasts_s))
        while self._grant():
            pass

    def _grant(self) -> bool:
        first = in_line(self.line)[0] if self.line else None
        before = self._promise(first)
        nobody_leaves_early = dict.fromkeys((one.ticket for one in self.line), inf)
        ahead = Ahead(self.now, nobody_leaves_early)
        grant = first_that_fits(in_line(self.line), self.grounds(), ahead)
        if grant is None:
            return False
        one = next(each for each in self.line if each.ticket == grant.ticket)
        self.line.remove(one)
        assert self.now <= self.promised.get(one.ticket, inf), "served later than was promised"
        ends = self.now + one.lasts_s
        leaves = self.now + one.lasts_s * self.dice.uniform(1 - self.early, 1.0)
        (choice,) = grant.choices
        made = Placed(choice.profile, choice.placement)
        self.live.append(BackfillLease(choice.gpu, made, ends, leaves))
        if first is not None and one is not first:
            self.went_ahead += self._is_on_aside(first, choice.gpu, made, before)
        return True

    def _promise(self, first: Waiting | None) -> float:
        """When the first is surely served; it never moves back."""
        if first is None:
            return inf
        found = aside(first.profiles, self.grounds()).until
        now = max(found, self.now) + EVERY_S  # the next look comes so much later at most
        self.promised[first.ticket] = min(now, self.promised.get(first.ticket, inf))
        assert now <= self.promised[first.ticket] + EVERY_S, "the promise moved back"
        return found

    def _is_on_aside(self, first: Waiting, gpu_: str, made: Placed, before: float) -> bool:
        after = aside(first.profiles, self.grounds())
        assert after.until <= before, "the promise moved back"
        return any(made.placement.mask & one.placement.mask for one in after.kept.get(gpu_, ()))

    def grounds(self) -> list[Ground]:
        return [self._ground(name) for name in self.names]

    def _ground(self, name: str) -> Ground:
        mine = [lease for lease in self.live if lease.gpu == name]
        return ground(name, *((lease.placed, until(lease.set_end)) for lease in mine))


@settings(max_examples=settings.default.max_examples // 3)
@given(seed=st.integers(0, 10**6), gpus=st.integers(1, 2), early=st.sampled_from([0.0, 0.5, 1.0]))
def test_nobody_starves_and_nobody_is_delayed(seed: int, gpus: int, early: float) -> None:
    """However many short ones go ahead, the moment promised to the first never moves back.

    It is served by then, though the demand is more than the GPUs can ever serve.
    """
    lab = BackfillWorld(random.Random(seed), gpus, early)
    for _ in range(40):
        lab.step()
    watched = {one.ticket for one in lab.line}
    for _ in range(len(watched) * int(LONGEST_S / EVERY_S + 2)):
        lab.step()
        if watched.isdisjoint(one.ticket for one in lab.line):
            return
    assert watched.isdisjoint(one.ticket for one in lab.line)


def test_short_ones_do_go_ahead() -> None:
    """The simulation above is about something: on the place set aside much is begun."""
    lab = BackfillWorld(random.Random(3), 2, 0.5)
    for _ in range(120):
        lab.step()
    assert lab.went_ahead >= 5


# -- in the pool ----------------------------------------------------------------------------------

QUICK = {"quick looks are short": Quota(course="quick", lease_s=600.0)}


def lab(make_world: MakeWorld, **more: object) -> World:
    """One A100 with a history of leases that all lasted an hour; leases of "quick" last 10 min."""
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
    world = make_world(changed(SETTINGS, **values))
    early = [world.run(f"early{n}") for n in range(6)]
    world.pass_time(HOUR_S)
    for lease in early:
        world.end(lease)
    return world


def test_a_quick_look_goes_ahead_of_a_whole_gpu(make_world: MakeWorld) -> None:
    """A course whose leases are short begins on the place that a big shape waits for."""
    world = lab(make_world)
    world.run("ada", "3g.20gb")
    big, long, quick = (
        world.ask("bob", "7g.40gb"),
        world.ask("cy", "1g.5gb"),
        world.ask("dee", "1g.5gb", course="quick"),
    )
    world.work()
    assert world.pool.ticket(quick.id).state == TicketState.WAITING  # nothing was worked out yet
    world.pool.estimate()
    world.work()
    states = [world.pool.ticket(one.id).state for one in (big, long, quick)]
    assert states == [TicketState.WAITING, TicketState.WAITING, TicketState.OFFERED]


def test_extensions_count(make_world: MakeWorld) -> None:
    """What could still be extended beyond that moment stays in line."""
    world = lab(make_world, extensions=1)
    world.run("ada", "3g.20gb")
    world.ask("bob", "7g.40gb")
    quick = world.ask("dee", "1g.5gb", course="quick")
    world.pool.estimate()
    world.work()
    assert world.pool.ticket(quick.id).state == TicketState.WAITING
