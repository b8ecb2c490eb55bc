"""The estimate of a wait: what it is made from, and that the true wait lies in its range."""

import heapq
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from miglab_spawner.gpu.geometry import Placed
from miglab_spawner.messages import WaitEstimate
from miglab_spawner.pool.estimate import Holding, Lately, Scene, forecast
from miglab_spawner.pool.queue import Ground, Standing, Waiting, in_line, next_in_line

from .test_queue import gpu, placed

HOUR_S = 3600.0
KNOWN = Lately(tuple(sorted(600.0 + 60 * n for n in range(50))))


def waiting(number: int, *profiles: str) -> Waiting:
    return Waiting(number, profiles or ("1g.5gb",), 0.0, "ml", f"u{number}")


def full(*ends_s: float | None, age_s: float = 300.0) -> tuple[Ground, tuple[Holding, ...]]:
    """A GPU with one small lease for each end."""
    slices = [placed("1g.5gb", n) for n in range(len(ends_s))]
    found = [
        Holding((("x", item),), age_s, end_s, end_s)
        for item, end_s in zip(slices, ends_s, strict=True)
    ]
    return gpu("x", *slices), tuple(found)


def scene(*ends_s: float | None, line: int = 1, **more: object) -> Scene:
    ground, holdings = full(*ends_s)
    values: dict[str, object] = {
        "line": tuple(waiting(n) for n in range(1, line + 1)),
        "grounds": (ground,),
        "holdings": holdings,
        "lately": Lately(),
        "standing": Standing(now=0.0),
        **more,
    }
    return Scene(**values)  # type: ignore[arg-type]


def estimate(one: Scene, ticket: int = 1) -> WaitEstimate | None:
    return forecast(one, random.Random(1)).get(ticket)


def test_nothing_known_is_no_estimate() -> None:
    """Leases without an end and no history: nothing is said, rather than something invented."""
    assert estimate(scene(*[None] * 7)) is None


def test_ends_alone_bound_the_wait() -> None:
    """Without a history the range is from now to the first end, and it says what it is made of."""
    found = estimate(scene(*[3000.0] * 6, 1200.0))
    assert found is not None
    assert (found.low_s, found.likely_s, found.high_s) == (0.0, 1200.0, 1200.0)
    assert "is not known yet" in found.why


def test_extensions_put_the_bound_off() -> None:
    """Without a history the worst is that everybody extends as often as they may."""
    one = scene(*[1200.0] * 7)
    late = tuple(replace(holding, last_end_s=3000.0) for holding in one.holdings)
    found = estimate(replace(one, holdings=late))
    assert found is not None
    assert (found.likely_s, found.high_s) == (1200.0, 3000.0)


def test_the_second_waits_for_the_second_end() -> None:
    """Each in line waits for an end of their own."""
    one = scene(*[3000.0] * 5, 2000.0, 1000.0, line=2)
    assert [estimate(one, n).high_s for n in (1, 2)] == [1000.0, 2000.0]  # type: ignore[union-attr]


def test_a_new_lease_ends_too() -> None:
    """Who is far behind waits for the leases of those in front, if these have an end."""
    one = scene(*[600.0] * 7, line=8)
    assert estimate(one, 8) is None
    found = estimate(replace(one, lease_s=1800.0), 8)
    assert found is not None
    assert found.high_s == 2400.0


def test_a_big_shape_waits_for_all_its_place() -> None:
    """Somebody who wants the whole GPU waits for the last end on it."""
    one = scene(*[600.0] * 6, 1800.0)
    found = estimate(replace(one, line=(waiting(1, "7g.40gb"),)))
    assert found is not None
    assert found.high_s == 1800.0


def test_history_gives_a_range() -> None:
    """How long leases lasted gives three figures in order, and never beyond the last end."""
    found = estimate(scene(*[None] * 7, lately=KNOWN))
    assert found is not None
    assert 0 < found.low_s < found.likely_s < found.high_s
    assert "50 leases" in found.why
    capped = estimate(scene(*[100.0] * 7, lately=KNOWN))
    assert capped is not None
    assert capped.high_s <= 100.0


def test_an_old_lease_ends_sooner() -> None:
    """A lease that has lasted nearly as long as any ever did frees its slice soon."""
    fresh, old = (
        replace(scene(*[None] * 7, lately=KNOWN), holdings=full(*[None] * 7, age_s=age_s)[1])
        for age_s in (0.0, 3400.0)
    )
    assert estimate(old).likely_s < estimate(fresh).likely_s / 2  # type: ignore[union-attr]


def test_the_idle_may_go_sooner() -> None:
    """A lease that was warned for idleness is taken back in some futures, and not in all."""
    one = scene(*[None] * 7, lately=KNOWN)
    idle = (replace(one.holdings[0], idle_end_s=30.0), *one.holdings[1:])
    found = estimate(replace(one, holdings=idle))
    assert found is not None
    assert found.low_s == 30.0
    assert found.high_s > 60.0


def test_nobody_waits_longer_than_one_may() -> None:
    """The range ends where the ticket would be refused."""
    one = scene(*[None] * 7, lately=KNOWN, longest_wait_s=1000.0, standing=Standing(now=950.0))
    found = estimate(one)
    assert found is not None
    assert found.high_s <= 50.0


def test_lighter_newcomers_are_reckoned_with() -> None:
    """Where others with less use keep coming, the heavy one's range reaches further."""
    comers = (waiting(0),)
    busy = replace(KNOWN, comers=comers, every_s=60.0)
    heavy = Standing(now=0.0, users={"u1": 9.0}, ageing_s=3000.0)
    alone, passed = (
        estimate(scene(*[None] * 7, lately=lately, standing=heavy)) for lately in (KNOWN, busy)
    )
    assert alone is not None
    assert passed is not None
    assert passed.likely_s > 2 * alone.likely_s


def test_who_might_ask_is_told_too() -> None:
    """A shape that nobody asked for yet has an estimate: of whoever would ask now."""
    one = scene(*[900.0] * 7, line=1, asking={-7: ("1g.5gb",), -8: ("7g.40gb",)})
    found = forecast(replace(one, lease_s=600.0), random.Random(1))
    assert (found[1].high_s, found[-7].high_s, found[-8].high_s) == (900.0, 900.0, 1500.0)


# -- calibration ----------------------------------------------------------------------------------

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
        self.line: list[Waiting] = []
        self.live: list[tuple[float, int, float, Waiting, str, Placed]] = []
        self.lasted: list[float] = []
        self.came: list[Waiting] = []
        self.users: dict[str, float] = {}
        self.told: dict[int, tuple[WaitEstimate, float]] = {}
        self.kept: list[tuple[WaitEstimate, float]] = []

    def run(self, until: float) -> list[tuple[WaitEstimate, float]]:
        comes = 0.0
        while self.now < until:
            if self.live and self.live[0][0] <= comes:
                self._end()
            else:
                self.now = comes
                self._come()
                comes += self.dice.expovariate(1 / self.every_s)
            while self._grant():
                pass
            self._tell()
        return self.kept

    def _come(self) -> None:
        self.number += 1
        shape, size = self.dice.choice([("1g.5gb", 1)] * 5 + [("2g.10gb", 2), ("3g.20gb", 4)])
        user = f"u{min(39, int(self.dice.expovariate(1 / 12)))}"
        one = Waiting(self.number, (shape,), self.now, "ml", user, size=size)
        self.line.append(one)
        self.came.append(one)

    def _end(self) -> None:
        ends, _, began, one, _, _ = heapq.heappop(self.live)
        self.now = ends
        self.lasted.append(ends - began)
        self.users[one.user] = self.users.get(one.user, 0.0) + one.size * (ends - began) / HOUR_S

    def _grant(self) -> bool:
        grant = next_in_line(self.line, [self._ground()], self._standing())
        if grant is None:
            return False
        one = next(each for each in self.line if each.ticket == grant.ticket)
        self.line.remove(one)
        if one.ticket in self.told:
            found, at = self.told.pop(one.ticket)
            self.kept.append((found, self.now - at))
        (choice,) = grant.choices
        made = Placed(choice.profile, choice.placement)
        ends = self.now + self.lasts_s(self.dice)
        heapq.heappush(self.live, (ends, one.ticket, self.now, one, choice.gpu, made))
        return True

    def _tell(self) -> None:
        new = [one for one in self.line if one.since == self.now and one.ticket % 3 == 0]
        if len(self.lasted) < 20 or not new:
            return
        found = forecast(self._scene(), random.Random(self.number))
        for one in new:
            self.told[one.ticket] = found[one.ticket], self.now

    def _scene(self) -> Scene:
        lately = Lately(
            tuple(sorted(self.lasted[-200:])),
            tuple(self.came[-200:]),
            self.now / len(self.came),
        )
        holdings = tuple(
            Holding(((gpu_, made),), self.now - began, HOUR_S * 2 - (self.now - began), None)
            for _, _, began, _, gpu_, made in self.live
        )
        line = tuple(in_line(self.line, self._standing()))
        grounds = (self._ground(),)
        return Scene(line, grounds, holdings, lately, self._standing(), longest_wait_s=12 * HOUR_S)

    def _ground(self) -> Ground:
        return gpu("x", *(lease[5] for lease in self.live))

    def _standing(self) -> Standing:
        users = dict(self.users)
        for lease in self.live:
            users[lease[3].user] = users.get(lease[3].user, 0.0) + lease[3].size
        return Standing(self.now, {}, users, {}, 1800.0)


def exponential(dice: random.Random) -> float:
    return dice.expovariate(1 / 2400)


def lognormal(dice: random.Random) -> float:
    return min(2 * HOUR_S, dice.lognormvariate(7.4, 0.8))


def two_kinds(dice: random.Random) -> float:
    """Some look in for some minutes, others stay for a lesson."""
    return dice.uniform(120, 600) if dice.random() < 0.4 else dice.uniform(4000, 5400)


@pytest.mark.parametrize(
    ("lasts_s", "every_s"), [(exponential, 800), (lognormal, 700), (two_kinds, 800)]
)
def test_the_true_wait_lies_in_the_range(lasts_s: Duration, every_s: float) -> None:
    """Of those who were told a range at least four of five then waited as long as it says.

    Whatever way leases last, with heavy users whom others pass, and shapes of three sizes.
    """
    kept = [pair for seed in SEEDS for pair in Class(seed, lasts_s, every_s).run(RUN_S)]
    inside = sum(found.low_s <= waited <= found.high_s for found, waited in kept)
    assert len(kept) >= 30
    assert inside / len(kept) >= 0.8
