"""How long a wait is likely to last.  Pure: queue, GPUs and history in, ranges out.

The queue is simulated forward many times with the pool's own decision.  In each run every live
lease ends at a time drawn from how long leases lasted lately, given how long it has lasted
already, but not after its last possible end; who is granted slices in the run holds them for as
long as some lease did; and others come as often as they came lately, with the chance of going
ahead that fair share and a small shape give them.  What is reserved for later is kept in every run,
and a share of it, drawn anew for each, is taken up.  One run of forty lies below the range that is
shown, and one above.

Servers keep slices for hours and measurements for seconds, so each kind has a history of its own.
Where a kind that holds slices or waits has none, only the ends that are set are known: what is told
is then the wait that results if everybody stays until the last possible end.  With neither there is
no estimate, nor is there one where a wait may as well be over soon as last for many hours: that
says nothing.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

from miglab_api.tickets import WaitEstimate
from miglab_pool.queue.rules import Asker, Waiting
from miglab_pool.queue.simulation import HORIZON_S, Future, Holding, Longest, Scene

RUNS = 60
LOW, HIGH = 0.025, 0.975  # wider than is promised: the model leaves something out
SOON_S, HOURS_S = 3600.0, 4 * 3600.0  # a range from within the one to beyond the other says nothing
_BASIS_ENDS = (
    "if everyone keeps their slice until their time is up; "
    "how long leases really last is not known yet"
)


class Lengths:
    """How long leases last, estimated after Kaplan and Meier (1958).

    A lease that still lives is counted as lasting longer than it has; left out it would make
    leases seem short, as the long ones are the last to be over.

    Args:
        seen: lengths in seconds, each with whether the lease is over.
        dice: what is drawn with.
    """

    def __init__(self, seen: Sequence[tuple[float, bool]], dice: random.Random) -> None:
        self._dice = dice
        self._lasted_s: list[float] = []
        self._shares: list[float] = []  # of all leases, how many lasted at most so long
        alive = 1.0
        for at_risk, (lasted_s, is_over) in zip(range(len(seen), 0, -1), sorted(seen), strict=True):
            if is_over:
                alive -= alive / at_risk
                self._lasted_s.append(lasted_s)
                self._shares.append(1.0 - alive)

    def draw(self, beyond_s: float = -1.0) -> float:
        """A length, of those beyond what a lease has lasted already.

        One that outlasts all that are known lasts as long again as any.
        """
        known = bisect_right(self._lasted_s, beyond_s)
        below = self._shares[known - 1] if known else 0.0
        index = bisect_left(self._shares, self._dice.uniform(below, 1.0), known)
        if index < len(self._lasted_s):
            return self._lasted_s[index]
        longest_s = max(beyond_s, *self._lasted_s[-1:], 0.0)
        return longest_s + (self._dice.choice(self._lasted_s) if self._lasted_s else 0.0)


class Drawn(Longest):
    """Ends and newcomers by chance, as they were lately."""

    def __init__(self, scene: Scene, dice: random.Random) -> None:
        super().__init__(scene)
        self._dice, self._lately = dice, scene.lately
        self._lengths = {kind: _lengths(scene, dice, is_borrow=kind) for kind in (False, True)}
        self._share: float | None = None

    def end_s(self, holding: Holding) -> float | None:
        """When a live lease ends."""
        lengths = self._lengths[holding.is_borrow]
        end_s = lengths.draw(beyond_s=holding.age_s) - holding.age_s
        ends = [end_s] if holding.last_end_s is None else [end_s, holding.last_end_s]
        if holding.idle_end_s is not None and self._dice.random() < 0.5:  # nobody knows who stays
            ends.append(holding.idle_end_s)
        return max(0.0, min(ends))

    def lasts_s(self, *, is_borrow: bool) -> float | None:
        """How long a new lease lasts."""
        return self._lengths[is_borrow].draw()

    def comers(self) -> Iterator[tuple[float, Waiting]]:
        """Who comes, and when."""
        every_s, comers = self._lately.every_s, self._lately.comers
        at_s = 0.0
        while every_s and comers:
            at_s += self._dice.expovariate(1 / every_s)
            yield at_s, self._dice.choice(comers)

    def comes(self) -> bool:
        """Whether somebody claims a reserved slot: nobody knows beforehand how many will."""
        if self._share is None:
            self._share = self._dice.random()
        return self._dice.random() < self._share


def _lengths(scene: Scene, dice: random.Random, *, is_borrow: bool) -> Lengths:
    """Of one kind of lease; drawn anew for each run, since the history itself is a sample."""
    seen = [(lasted_s, True) for lasted_s in scene.lately.of(is_borrow=is_borrow)]
    seen += [(one.age_s, False) for one in scene.holdings if one.is_borrow == is_borrow]
    return Lengths(dice.choices(seen, k=len(seen)) if seen else [], dice)


def simulate(scene: Scene, dice: random.Random, runs: int = RUNS) -> dict[Asker, WaitEstimate]:
    """How long everybody will wait.

    Args:
        scene: the moment.
        dice: seeded by the caller.
        runs: how many futures are drawn.

    Returns:
        The estimate of each ticket and each of ``asking``; none for whom nothing is known.
    """
    if scene.is_known:
        waits = [Future(scene, Drawn(scene, dice)).waits() for _ in range(runs)]
        found = {one: _range(scene, one, waits) for one in _watched(scene)}
    else:
        found = _by_ends(scene)
    return {one: said for one, said in found.items() if _says_something(said)}


def _says_something(said: WaitEstimate) -> bool:
    return said.low_s >= SOON_S or said.high_s <= HOURS_S


def _by_ends(scene: Scene) -> dict[Asker, WaitEstimate]:
    """The wait by the last ends that are possible; no measurement waits longer than it may."""
    late, found = Future(scene, Longest(scene)).waits(), {}
    for one in _watched(scene):
        most_s = _most_s(scene, one)
        wait_s = late.get(one, most_s if _is_borrow(scene, one) else None)
        if wait_s is not None:
            wait_s = min(most_s, wait_s)
            found[one] = WaitEstimate(low_s=0.0, likely_s=wait_s, high_s=wait_s, basis=_BASIS_ENDS)
    return found


def _watched(scene: Scene) -> list[Asker]:
    return [*(one.ticket for one in scene.queued), *scene.asking]


def _queued(scene: Scene, one: Asker) -> Waiting | None:
    return next((each for each in scene.queued if each.ticket == one), None)


def _is_borrow(scene: Scene, one: Asker) -> bool:
    asked = _queued(scene, one)
    return asked is not None and asked.is_borrow


def _most_s(scene: Scene, one: Asker) -> float:
    """How far its wait is looked at: to the horizon, or to when a measurement is refused."""
    asked = _queued(scene, one)
    if asked is None or not asked.is_borrow:
        return HORIZON_S
    return max(0.0, asked.since + scene.longest_wait_s - scene.usage.now)


def _range(scene: Scene, one: Asker, runs: Sequence[Mapping[Asker, float]]) -> WaitEstimate:
    most_s = _most_s(scene, one)
    waits = sorted(min(run.get(one, most_s), most_s) for run in runs)
    return WaitEstimate(
        low_s=_at(waits, LOW),
        likely_s=_at(waits, 0.5),
        high_s=_at(waits, HIGH),
        basis=_basis(scene),
    )


def _basis(scene: Scene) -> str:
    servers, borrowed = len(scene.lately.lasted_s), len(scene.lately.borrowed_s)
    known = [f"{servers} leases"] if servers else []
    known += [f"{borrowed} measurements on borrowed slices"] if borrowed else []
    return f"from how long the last {' and '.join(known)} lasted"


def _at(waits: Sequence[float], share: float) -> float:
    """A quantile, between the two nearest."""
    rank = share * (len(waits) - 1)
    below = int(rank)
    above = min(below + 1, len(waits) - 1)
    return waits[below] + (waits[above] - waits[below]) * (rank - below)
