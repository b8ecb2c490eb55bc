"""How long a wait is likely to last.  Pure: queue, GPUs and history in, ranges out.

The queue is simulated forward many times with the pool's own decision.  In each run every live
lease ends at a time drawn from how long leases lasted lately, given how long it has lasted
already, but not after its last possible end; who is granted slices in the run holds them for as
long as some lease did; and others come as often as they came lately, with the chance of going
ahead that fair share and a small shape give them.  A slot that is reserved now counts as a lease
that begins; later reservations are not known.  One run of forty lies below the range that is shown,
and one above.

Servers keep slices for hours and measurements for seconds, so each kind has a history of its own.
Where a kind that holds slices or waits has none, only the ends that are set are known: what is told
is then the wait that results if everybody stays until the last possible end.  With neither there is
no estimate, nor is there one where a wait may as well be over soon as last for many hours: that
says nothing.
"""

import heapq
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf

from miglab_api.tickets import WaitEstimate
from miglab_pool.gpu.geometry import Placed
from miglab_pool.queue.order import first_that_fits, hold_for
from miglab_pool.queue.rules import Asker, FairShareUsage, Waiting, in_order
from miglab_pool.state.placement import (
    Choice,
    GpuOccupancy,
    place,
    usable_by_course,
    without_reserved,
)

PlacedOn = tuple[str, Placed]  # the GPU, and what lies there

LEAST_KNOWN = 5  # leases over; fewer are no history
HORIZON_S = 12 * 3600.0  # a day of classes: whoever is not served in it is told this much
RUNS = 60
LOW, HIGH = 0.025, 0.975  # wider than is promised: the model leaves something out
SOON_S, HOURS_S = 3600.0, 4 * 3600.0  # a range from within the one to beyond the other says nothing
_BASIS_ENDS = (
    "if everyone keeps their slice until their time is up; "
    "how long leases really last is not known yet"
)


# -- what is known --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holding:
    """What lies on the GPUs and will become free.

    Attributes:
        slices: its slices, each with its GPU.
        age_s: how long it has lasted.
        last_end_s: until its end if every extension is used; None for no end.
        idle_end_s: until it is reclaimed as idle, unless somebody says "I am still here".
        is_borrow: whether a measurement holds it, and not a server.
    """

    slices: tuple[PlacedOn, ...]
    age_s: float = 0.0
    last_end_s: float | None = None
    idle_end_s: float | None = None
    is_borrow: bool = False


@dataclass(frozen=True)
class Lately:
    """What happened in the last days.

    Attributes:
        lasted_s: how long servers' leases lasted, shortest first.
        comers: examples of who asks, each as likely as it is often here.
        every_s: mean time between two of them; None if nobody comes.
        borrowed_s: how long measurements borrowed, shortest first; seconds where servers' leases
            last hours, so that neither says anything of the other.
    """

    lasted_s: tuple[float, ...] = ()
    comers: tuple[Waiting, ...] = ()
    every_s: float | None = None
    borrowed_s: tuple[float, ...] = ()

    def of(self, *, is_borrow: bool) -> tuple[float, ...]:
        """How long leases of one kind lasted."""
        return self.borrowed_s if is_borrow else self.lasted_s


@dataclass(frozen=True)
class Scene:
    """All that the future is worked out from.

    Attributes:
        queued: who waits, first in front.
        asking: the profiles that a newcomer might ask for.
        gpus: every GPU; the placements of ``holdings`` are part of ``live``.
        usage: what everybody has used lately; its ``now`` is the moment of the estimate.
        lease_s: how long a lease lasts at most if nothing is known; None for no limit.
        borrow_s: the same of what is borrowed.
        longest_wait_s: no measurement waits longer: it is then refused.
    """

    queued: tuple[Waiting, ...]
    gpus: tuple[GpuOccupancy, ...]
    holdings: tuple[Holding, ...]
    lately: Lately
    usage: FairShareUsage
    lease_s: float | None
    borrow_s: float
    longest_wait_s: float
    asking: frozenset[tuple[str, ...]] = frozenset()

    @property
    def is_known(self) -> bool:
        """Whether there is enough to draw from, of each kind that holds slices or waits."""
        kinds = {one.is_borrow for one in self.holdings} | {one.is_borrow for one in self.queued}
        return all(len(self.lately.of(is_borrow=kind)) >= LEAST_KNOWN for kind in kinds or {False})


# -- one future -----------------------------------------------------------------------------------


class Longest:
    """What a future is made of; here everyone stays to the last end possible, and nobody comes."""

    def __init__(self, scene: Scene) -> None:
        self._lease_s, self._borrow_s = scene.lease_s, scene.borrow_s

    def end_s(self, holding: Holding) -> float | None:
        """When a live lease ends; None for never."""
        return holding.last_end_s

    def lasts_s(self, *, is_borrow: bool) -> float | None:
        """How long a new lease lasts; None for ever."""
        return self._borrow_s if is_borrow else self._lease_s

    def comers(self) -> Iterator[tuple[float, Waiting]]:
        """Who comes, and when."""
        return iter(())


class Future:
    """One future of the queue, until everybody is served or has waited too long."""

    def __init__(self, scene: Scene, source: Longest) -> None:
        self._scene, self._source = scene, source
        self._now = scene.usage.now
        self._queued = list(scene.queued)
        self._gpus = {occupancy.gpu: occupancy for occupancy in scene.gpus}
        self._order = count()
        self._ends: list[tuple[float, int, Iterable[PlacedOn]]] = []
        self._asking = set(scene.asking)
        self._may_serve = True  # something has changed that lets somebody go
        self._first: int | None = None
        self._owners = {one.course for one in scene.gpus}
        self._refused: set[tuple[tuple[str, ...], str]] = set()
        self._left = {one.ticket for one in scene.queued}
        self._waits: dict[Asker, float] = {}
        for holding in scene.holdings:
            self._free_at(source.end_s(holding), holding.slices)

    def waits(self) -> dict[Asker, float]:
        """How long each ticket waits from now on; those not served are missing."""
        comers = self._source.comers()
        comer = next(comers, None)
        at_s = 0.0
        while (self._left or self._asking) and at_s <= HORIZON_S:
            next_s = self._ends[0][0] if self._ends else inf
            if self._may_serve and next_s > at_s:
                self._serve(at_s)
                next_s = self._ends[0][0] if self._ends else inf
            if comer is not None and comer[0] < next_s:
                at_s = comer[0]
                self._join(*comer)
                comer = next(comers, None)
            elif next_s < inf:
                at_s, _, slices = heapq.heappop(self._ends)
                self._free(slices)
            else:
                break
        return self._waits

    # -- leases -------------------------------------------------------------------------------

    def _free_at(self, at_s: float | None, slices: Iterable[PlacedOn]) -> None:
        if at_s is not None:
            heapq.heappush(self._ends, (at_s, next(self._order), slices))

    def _free(self, slices: Iterable[PlacedOn]) -> None:
        self._may_serve = True
        for gpu, placed in slices:
            occupancy = self._gpus[gpu]
            live = list(occupancy.live)
            live.remove(placed)  # once: a reserved slot where a lease still lies stays
            self._gpus[gpu] = replace(occupancy, live=tuple(live))

    def _take(self, one: Waiting, choices: Sequence[Choice], at_s: float) -> None:
        slices = tuple((one.gpu, Placed(one.profile, one.placement)) for one in choices)
        for gpu, placed in slices:
            occupancy = self._gpus[gpu]
            live = (*occupancy.live, placed)
            free = {**occupancy.frees_at, placed.placement.mask: self._set_end(one, at_s)}
            self._gpus[gpu] = replace(occupancy, live=live, warm=(), frees_at=free)
        lasts_s = self._source.lasts_s(is_borrow=one.is_borrow)
        self._free_at(None if lasts_s is None else at_s + lasts_s, slices)

    def _set_end(self, one: Waiting, at_s: float) -> float:
        """What will be set as the end of a lease that begins then."""
        lease_s = self._scene.borrow_s if one.is_borrow else self._scene.lease_s
        return inf if lease_s is None else self._now + at_s + lease_s

    # -- the queue -----------------------------------------------------------------------------

    def _join(self, at_s: float, comer: Waiting) -> None:
        new = comer._replace(ticket=-1 - next(self._order), since=self._now + at_s)
        usage = replace(self._scene.usage, now=self._now + at_s)
        self._queued = in_order([*self._queued, new], usage)
        is_same_first = self._queued[0].ticket == self._first
        self._may_serve = not is_same_first or self._kind(new) not in self._refused

    def _serve(self, at_s: float) -> None:
        gpus = list(self._gpus.values())
        while (grant := first_that_fits(self._queued, gpus)) is not None:
            one = next(one for one in self._queued if one.ticket == grant.ticket)
            self._queued.remove(one)
            if one.ticket in self._left:
                self._left.remove(one.ticket)
                self._waits[one.ticket] = at_s
            self._take(one, grant.choices, at_s)
            gpus = list(self._gpus.values())
        self._may_serve = False
        self._first = self._queued[0].ticket if self._queued else None
        self._refused = {self._kind(one) for one in self._queued}
        self._serve_asking(at_s, gpus)

    def _kind(self, one: Waiting) -> tuple[tuple[str, ...], str]:
        """Who can go nowhere speaks for all who want the same on the same GPUs."""
        return one.profiles, one.course if one.course in self._owners else ""

    def _serve_asking(self, at_s: float, gpus: Sequence[GpuOccupancy]) -> None:
        """Let those who might ask stand at the end; who wants what a ticket wants waits with it.

        They are of no course: what is a course's own is not for them.
        """
        refused = {profiles for profiles, _ in self._refused}
        asking = self._asking - refused
        first = self._queued[0] if self._queued else None
        states = (
            without_reserved(usable_by_course(gpus, ""), hold_for(first, gpus)) if asking else []
        )
        for profiles in asking:
            if place(profiles, states) is not None:
                self._waits[profiles] = at_s
                self._asking.remove(profiles)


# -- many -----------------------------------------------------------------------------------------


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


def _lengths(scene: Scene, dice: random.Random, *, is_borrow: bool) -> Lengths:
    """Of one kind of lease; drawn anew for each run, since the history itself is a sample."""
    seen = [(lasted_s, True) for lasted_s in scene.lately.of(is_borrow=is_borrow)]
    seen += [(one.age_s, False) for one in scene.holdings if one.is_borrow == is_borrow]
    return Lengths(dice.choices(seen, k=len(seen)) if seen else [], dice)


def simulate(scene: Scene, dice: random.Random) -> dict[Asker, WaitEstimate]:
    """How long everybody will wait.

    Args:
        scene: the moment.
        dice: seeded by the caller.

    Returns:
        The estimate of each ticket and each of ``asking``; none for whom nothing is known.
    """
    is_known, found = scene.is_known, {}
    futures = (Drawn(scene, dice) for _ in range(RUNS)) if is_known else iter([Longest(scene)])
    runs = [Future(scene, source).waits() for source in futures]
    for one, most_s in _most_s(scene).items():
        waits = sorted(min(run.get(one, most_s), most_s) for run in runs)
        low_s = _at(waits, LOW) if is_known else 0.0
        likely_s, high_s = _at(waits, 0.5), _at(waits, HIGH)
        if low_s >= SOON_S or high_s <= HOURS_S:
            basis = _basis(scene.lately) if is_known else _BASIS_ENDS
            found[one] = WaitEstimate(low_s=low_s, likely_s=likely_s, high_s=high_s, basis=basis)
    return found


def _most_s(scene: Scene) -> dict[Asker, float]:
    """How far each wait is looked at: to the horizon, or to when a measurement is refused."""
    refused_s = scene.longest_wait_s - scene.usage.now
    far: dict[Asker, float] = dict.fromkeys(scene.asking, HORIZON_S)
    return far | {
        one.ticket: max(0.0, one.since + refused_s) if one.is_borrow else HORIZON_S
        for one in scene.queued
    }


def _basis(lately: Lately) -> str:
    servers, borrowed = len(lately.lasted_s), len(lately.borrowed_s)
    known = [f"{servers} leases"] if servers else []
    known += [f"{borrowed} measurements on borrowed slices"] if borrowed else []
    return f"from how long the last {' and '.join(known)} lasted"


def _at(waits: Sequence[float], share: float) -> float:
    """A quantile."""
    return waits[round(share * (len(waits) - 1))]
