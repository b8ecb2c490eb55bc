"""What a future of the queue is drawn from: ends and newcomers by chance, or what is set alone."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from miglab_pool.decisions.wait_simulation.inputs import Holding, Scene
from miglab_pool.model.queue import Waiting

USUAL_S = 30.0  # a measurement of labkit's, with its runner's start, where none is known yet


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


class Drawn:
    """Ends and newcomers by chance, as they were lately."""

    def __init__(self, scene: Scene, dice: random.Random) -> None:
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


class Set:
    """Everyone stays to the end that is set; nobody comes.

    Without extensions, what is borrowed goes back after a usual measurement: hardly any lasts as
    long as it may.
    """

    def __init__(self, scene: Scene, *, uses_extensions: bool) -> None:
        self._lease_s, self._uses_extensions = scene.lease_s, uses_extensions
        self._borrow_s = scene.borrow_s if uses_extensions else min(USUAL_S, scene.borrow_s)

    def end_s(self, holding: Holding) -> float | None:
        """When a live lease ends."""
        if self._uses_extensions:
            return holding.last_end_s
        if not holding.is_borrow:
            return holding.end_s
        left_s = max(0.0, USUAL_S - holding.age_s)
        return left_s if holding.end_s is None else min(left_s, holding.end_s)

    def lasts_s(self, *, is_borrow: bool) -> float | None:
        """How long a new lease lasts."""
        return self._borrow_s if is_borrow else self._lease_s

    def comers(self) -> Iterator[tuple[float, Waiting]]:
        """Nobody."""
        return iter(())

    def comes(self) -> bool:
        """All who may take up what is reserved, or nobody."""
        return self._uses_extensions
