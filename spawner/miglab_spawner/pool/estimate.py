"""How long a wait is likely to last.  Pure: line, GPUs and history in, ranges out.

The line is simulated forward many times with the pool's own decision.  In each run every live
lease ends at a time drawn from how long leases lasted lately, given how long it has lasted
already, but not after its last possible end; who is granted slices in the run holds them for as
long as some lease did; and others come as often as they came lately, with the chance of going
ahead that fair share and a small shape give them.  One run of forty lies below the range that is
shown, and one above.

Without a history only the ends that are set are known: the range is then from now to the wait
that results if everybody stays until the last possible end.  With neither there is no estimate.
"""

import heapq
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from miglab_spawner.gpu.geometry import Placed
from miglab_spawner.messages import WaitEstimate

from .aside import UNKNOWN
from .placement import Choice, place
from .queue import (
    CHARGE_H,
    Ahead,
    Ground,
    Standing,
    Stay,
    Waiting,
    first_that_fits,
    in_line,
    set_aside,
)

RUNS = 60
LEAST_KNOWN = 5  # leases over; fewer are no history
LOW, HIGH = 0.025, 0.975  # wider than is promised: the model leaves something out


@dataclass(frozen=True)
class Holding:
    """What lies on the GPUs and will become free.

    Attributes:
        places: its slices, each with its GPU.
        age_s: how long it has lasted.
        end_s: until its end as it is set now; None for no end.
        last_end_s: until the end if every extension is used; None for no end.
        idle_end_s: until it is taken back as idle, unless somebody says "I am still here".
    """

    places: tuple[tuple[str, Placed], ...]
    age_s: float = 0.0
    end_s: float | None = None
    last_end_s: float | None = None
    idle_end_s: float | None = None


@dataclass(frozen=True)
class Lately:
    """What happened in the last days.

    Attributes:
        lasted_s: how long leases lasted, shortest first.
        comers: examples of who asks, each as likely as it is often here.
        every_s: mean time between two of them; None if nobody comes.
    """

    lasted_s: tuple[float, ...] = ()
    comers: tuple[Waiting, ...] = ()
    every_s: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is enough to draw from."""
        return len(self.lasted_s) >= LEAST_KNOWN


@dataclass(frozen=True)
class Scene:
    """All that the future is worked out from.

    Attributes:
        line: who waits, first in front.
        asking: shapes that a newcomer might ask for, with a number that stands for the newcomer.
        grounds: every GPU; the places of ``holdings`` are part of ``live``.
        standing: what everybody has used lately; its ``now`` is the moment of the forecast.
        lease_s: how long a lease lasts at most if nothing is known; None for no limit.
        longest_wait_s: nobody waits longer: the ticket is then refused.
        not_before: by ticket: before when it is hardly ever served, as was worked out last.
    """

    line: tuple[Waiting, ...]
    grounds: tuple[Ground, ...]
    holdings: tuple[Holding, ...]
    lately: Lately
    standing: Standing
    lease_s: float | None = None
    longest_wait_s: float = 3600.0
    asking: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    not_before: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecast:
    """The last estimates of the pool, and when they were made."""

    at: float = 0.0
    of_tickets: Mapping[int, WaitEstimate] = field(default_factory=dict)
    of_shapes: Mapping[str, WaitEstimate] = field(default_factory=dict)

    def ahead(self, now: float) -> Ahead:
        """Before when those in line are hardly ever served."""
        return Ahead(now, {one: self.at + said.low_s for one, said in self.of_tickets.items()})


def forecast(scene: Scene, dice: random.Random, runs: int = RUNS) -> dict[int, WaitEstimate]:
    """How long everybody will wait.

    Args:
        scene: the moment.
        dice: seeded by the caller.
        runs: how many futures are drawn.

    Returns:
        The estimate of each ticket and each number of ``asking``; none for whom nothing is known.
    """
    if scene.lately.is_known:
        passing = _who_may_pass(scene)
        waits = [_Run(scene, _Drawn(scene, dice), passing).waits() for _ in range(runs)]
        return {one: _range(scene, one, waits) for one in _watched(scene)}
    soon = _Run(scene, _Stay(scene, uses_extensions=False)).waits()
    late = _Run(scene, _Stay(scene, uses_extensions=True)).waits()
    return {
        one: WaitEstimate(low_s=0.0, likely_s=soon[one], high_s=late[one], why=_WHY_ENDS)
        for one in _watched(scene)
        if one in soon and one in late
    }


_WHY_ENDS = (
    "if everyone keeps their slice until their time is up; "
    "how long leases really last is not known yet"
)


def _watched(scene: Scene) -> list[int]:
    return [*(one.ticket for one in scene.line), *scene.asking]


def _range(scene: Scene, one: int, runs: Sequence[Mapping[int, float]]) -> WaitEstimate:
    since = {each.ticket: each.since for each in scene.line}.get(one, scene.standing.now)
    most_s = max(0.0, since + scene.longest_wait_s - scene.standing.now)
    waits = sorted(min(run.get(one, most_s), most_s) for run in runs)
    return WaitEstimate(
        low_s=_at(waits, LOW),
        likely_s=_at(waits, 0.5),
        high_s=_at(waits, HIGH),
        why=f"from how long the last {len(scene.lately.lasted_s)} leases lasted",
    )


def _at(waits: Sequence[float], share: float) -> float:
    """A quantile, between the two nearest."""
    place = share * (len(waits) - 1)
    below = int(place)
    above = min(below + 1, len(waits) - 1)
    return waits[below] + (waits[above] - waits[below]) * (place - below)


# -- what a run is drawn from ---------------------------------------------------------------------


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
        place = bisect_left(self._shares, self._dice.uniform(below, 1.0), known)
        if place < len(self._lasted_s):
            return self._lasted_s[place]
        longest_s = max(beyond_s, *self._lasted_s[-1:], 0.0)
        return longest_s + (self._dice.choice(self._lasted_s) if self._lasted_s else 0.0)


class _Drawn:
    """Ends and newcomers by chance, as they were lately."""

    def __init__(self, scene: Scene, dice: random.Random) -> None:
        self._dice, self._lately = dice, scene.lately
        seen = [(lasted_s, True) for lasted_s in scene.lately.lasted_s]
        seen += [(holding.age_s, False) for holding in scene.holdings]
        # Drawn anew for each run: the history itself is a sample.
        self._lengths = Lengths(dice.choices(seen, k=len(seen)), dice)

    def end_s(self, holding: Holding) -> float | None:
        """When a live lease ends."""
        end_s = self._lengths.draw(beyond_s=holding.age_s) - holding.age_s
        ends = [end_s] if holding.last_end_s is None else [end_s, holding.last_end_s]
        if holding.idle_end_s is not None and self._dice.random() < 0.5:  # nobody knows who stays
            ends.append(holding.idle_end_s)
        return max(0.0, min(ends))

    def lasts_s(self) -> float | None:
        """How long a new lease lasts."""
        return self._lengths.draw()

    def comers(self) -> Iterator[tuple[float, Waiting]]:
        """Who comes, and when."""
        every_s, comers = self._lately.every_s, self._lately.comers
        at_s = 0.0
        while every_s and comers:
            at_s += self._dice.expovariate(1 / every_s)
            yield at_s, self._dice.choice(comers)


def _who_may_pass(scene: Scene) -> frozenset[tuple[str, str]]:
    """The courses and users of those newcomers who would go ahead of somebody who waits now."""
    known = {(one.course, one.user): one for one in scene.lately.comers}
    return frozenset(key for key, one in known.items() if _may_pass(one, scene))


def _may_pass(comer: Waiting, scene: Scene) -> bool:
    """Whether somebody who came now would not be the last in line."""
    line = in_line(
        [*scene.line, replace(comer, ticket=-1, since=scene.standing.now)], scene.standing
    )
    return bool(scene.line) and line[-1].ticket != -1


class _Stay:
    """Everyone stays to the end that is set; nobody comes."""

    def __init__(self, scene: Scene, *, uses_extensions: bool) -> None:
        self._lease_s, self._uses_extensions = scene.lease_s, uses_extensions

    def end_s(self, holding: Holding) -> float | None:
        """When a live lease ends."""
        return holding.last_end_s if self._uses_extensions else holding.end_s

    def lasts_s(self) -> float | None:
        """How long a new lease lasts."""
        return self._lease_s

    def comers(self) -> Iterator[tuple[float, Waiting]]:
        """Nobody."""
        return iter(())


# -- one future -----------------------------------------------------------------------------------


class _Run:
    """One future of the line, until everybody is served or has waited too long."""

    def __init__(
        self,
        scene: Scene,
        source: _Drawn | _Stay,
        passing: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        self._scene, self._source, self._passing = scene, source, passing
        self._now = scene.standing.now
        self._courses, self._users = dict(scene.standing.courses), dict(scene.standing.users)
        self._line = list(scene.line)
        self._grounds = {ground.state.gpu: ground for ground in scene.grounds}
        self._order = count()
        self._ends: list[tuple[float, int, tuple[tuple[str, Placed], ...]]] = []
        self._asking = dict(scene.asking)
        self._may_serve = True  # something has changed that lets somebody go
        self._first: int | None = None
        self._refused: set[tuple[str, ...]] = set()
        self._left = {one.ticket for one in scene.line}
        self._waits: dict[int, float] = {}
        for holding in scene.holdings:
            self._hold(holding.places, source.end_s(holding))

    def waits(self) -> dict[int, float]:
        """How long each ticket waits from now on; those not served are missing."""
        comers = self._source.comers()
        comer = next(comers, None)
        at_s = 0.0
        while (self._left or self._asking) and at_s <= self._scene.longest_wait_s:
            if self._may_serve:
                self._serve(at_s)
            end_s = self._ends[0][0] if self._ends else None
            if comer is not None and (end_s is None or comer[0] < end_s):
                at_s = comer[0]
                self._join(*comer)
                comer = next(comers, None)
            elif end_s is not None:
                at_s = end_s
                self._free()
            else:
                break
        return self._waits

    def _hold(self, places: tuple[tuple[str, Placed], ...], end_s: float | None) -> None:
        if end_s is not None:
            heapq.heappush(self._ends, (end_s, next(self._order), places))

    def _free(self) -> None:
        self._may_serve = True
        for gpu, placed in heapq.heappop(self._ends)[2]:
            ground = self._grounds[gpu]
            live = list(ground.state.live)
            live.remove(placed)  # once: a place kept by a reservation stays
            state = replace(ground.state, live=tuple(live))
            self._grounds[gpu] = replace(ground, state=state)

    def _join(self, at_s: float, comer: Waiting) -> None:
        new = replace(comer, ticket=-1 - next(self._order), since=self._now + at_s)
        if (comer.course, comer.user) not in self._passing:
            self._line.append(new)  # last, but may take room that the first leaves
        else:
            standing = replace(
                self._scene.standing, now=self._now + at_s, courses=self._courses, users=self._users
            )
            self._line = in_line([*self._line, new], standing)
        is_same_first = self._line[0].ticket == self._first
        self._may_serve = not is_same_first or new.profiles not in self._refused

    def _serve(self, at_s: float) -> None:
        grounds = list(self._grounds.values())
        ahead = Ahead(self._now + at_s, self._scene.not_before)
        while (grant := first_that_fits(self._line, grounds, ahead)) is not None:
            self._note(next(one for one in self._line if one.ticket == grant.ticket), at_s)
            self._take(grant.choices, at_s)
            grounds = list(self._grounds.values())
        self._may_serve = False
        self._first = self._line[0].ticket if self._line else None
        self._refused = {one.profiles for one in self._line}
        self._serve_asking(at_s, grounds)

    def _serve_asking(self, at_s: float, grounds: Sequence[Ground]) -> None:
        """Let those who might ask stand at the end; who wants what somebody in line wants waits."""
        asking = [one for one in self._asking if self._asking[one] not in self._refused]
        if not asking:
            return
        wanted = self._line[0].profiles if self._line else ()
        states = set_aside(wanted, grounds)
        for number in asking:
            if place(self._asking[number], states) is not None:
                self._waits[number] = at_s
                del self._asking[number]

    def _note(self, one: Waiting, at_s: float) -> None:
        self._line.remove(one)
        cost = one.size * CHARGE_H
        weight = self._scene.standing.weights.get(one.course, 1.0)
        self._courses[one.course] = self._courses.get(one.course, 0.0) + cost / weight
        self._users[one.user] = self._users.get(one.user, 0.0) + cost
        if one.ticket in self._left:
            self._left.remove(one.ticket)
            self._waits[one.ticket] = at_s

    def _take(self, choices: Sequence[Choice], at_s: float) -> None:
        places = tuple((one.gpu, Placed(one.profile, one.placement)) for one in choices)
        for gpu, placed in places:
            ground = self._grounds[gpu]
            state = replace(ground.state, live=(*ground.state.live, placed), warm=())
            stays = {**ground.stays, placed.placement.mask: self._stay(at_s)}
            self._grounds[gpu] = replace(ground, state=state, stays=stays)
        lasts_s = self._source.lasts_s()
        self._hold(places, None if lasts_s is None else at_s + lasts_s)

    def _stay(self, at_s: float) -> Stay:
        """What will be set as the end of a lease that begins then."""
        if self._scene.lease_s is None:
            return UNKNOWN
        ends_at = self._now + at_s + self._scene.lease_s
        return Stay(ends_at, ends_at)
