"""Fair share: who used less goes first, courses take turns, and nobody starves."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.pool_settings import changed

from miglab_api.leases import LeaseState
from miglab_pool.queue.rules import (
    DAY_S,
    GRAIN_H,
    HOUR_S,
    FairShareUsage,
    UsageTotals,
    Use,
    Waiting,
    decayed,
    in_order,
    over_by,
)
from miglab_pool.settings import Course
from miglab_pool.state.store import Uses

from .conftest import SETTINGS, Crash, World

MakeWorld = Callable[..., World]
HALF_LIFE_S = 2 * DAY_S


def ticket(number: int, user: str = "", course: str = "a", **more: object) -> Waiting:
    values: dict[str, object] = {"profiles": ("1g.5gb",), "since": float(number), **more}
    return Waiting(number, course=course, user=user or f"u{number}", **values)  # type: ignore[arg-type]


def order(waiting: list[Waiting], **usage: object) -> list[int]:
    return [one.ticket for one in in_order(waiting, FairShareUsage(**usage))]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(8))
def test_each_turn_is_the_least_share(seed: int) -> None:
    """The order is what looking at everyone before each turn would make it."""
    dice = random.Random(seed)
    waiting = [
        ticket(n, f"u{dice.randrange(12)}", dice.choice("abc"), size=dice.choice((1, 2, 4)))
        for n in range(40)
    ]
    courses = {name: dice.uniform(0.0, 9.0) for name in "abc"}
    users = {f"u{n}": dice.uniform(0.0, 9.0) for n in range(12)}
    expected, left = [], list(waiting)
    charged, used = dict(courses), dict(users)
    while left:
        one = min(
            left,
            key=lambda one: (
                int(charged[one.course] / GRAIN_H),
                int(used[one.user] / GRAIN_H),
                one.since,
                one.ticket,
            ),
        )
        left.remove(one)
        charged[one.course] += one.size / (2.0 if one.course == "a" else 1.0)
        used[one.user] += one.size
        expected.append(one.ticket)
    assert order(waiting, courses=courses, users=users, weights={"a": 2.0}) == expected


def test_aged_go_by_arrival() -> None:
    """Who has waited `ageing_s` goes before who has not, the earliest first, whatever was used."""
    queued = [ticket(n, since=t) for n, t in ((1, 0.0), (2, 10.0), (3, 95.0))]
    users = {"u1": 50.0, "u2": 5.0, "heavy": 90.0}
    assert order(queued, now=99.0, ageing_s=100.0, users=users) == [3, 2, 1]
    assert order(queued, now=115.0, ageing_s=100.0, users=users) == [1, 2, 3]
    reserved = ticket(4, "heavy", since=100.0, reserved=True)
    assert order([*queued, reserved], now=115.0, ageing_s=100.0, users=users) == [4, 1, 2, 3]


def use(number: int, began: float | None, ended: float | None, size: int = 1) -> Use:
    return Use(number, "ada", "everyone", "", size, began, ended)


@pytest.mark.parametrize("ahead_s", [60 * DAY_S, 2100 * DAY_S])
def test_use_from_a_clock_that_was_ahead_never_grows(ahead_s: float) -> None:
    """It was corrected since: what ended then counts as if it had ended now."""
    now = 10_000 * DAY_S
    assert over_by(use(1, now + ahead_s - HOUR_S, now + ahead_s), now) == use(1, now - HOUR_S, now)
    assert over_by(use(1, now - HOUR_S, now - 1), now) == use(1, now - HOUR_S, now - 1)
    assert decayed(use(1, now + ahead_s, None), now, HALF_LIFE_S) == 0.0
    totals = UsageTotals(HALF_LIFE_S, now + ahead_s, {("", "ada"): 2.0})
    assert totals.fair_share(now, {}, 0.0).users == {"ada": 2.0}


def test_decay_is_the_integral() -> None:
    """The closed form agrees with summing up minute by minute; what never ran costs nothing."""
    began, ended, now = 0.0, 5 * HOUR_S, 3 * DAY_S
    minutes = (began + 60 * (n + 0.5) for n in range(300))
    summed = sum(4 / 60 * 0.5 ** ((now - t) / HALF_LIFE_S) for t in minutes)
    assert decayed(use(1, began, ended, 4), now, HALF_LIFE_S) == pytest.approx(summed, rel=1e-6)
    assert decayed(use(1, None, None), now, HALF_LIFE_S) == 0.0


def test_sums_agree_with_the_ledger(world: World) -> None:
    """What is kept up lease by lease is what a fresh reading of the ledger gives."""
    for user, shape in (("ada", "3g.20gb"), ("bob", "1g.5gb"), ("ada", "2x1g.5gb")):
        lease = world.run(user, shape)
        world.pool.view.usage.fair_share(world.at, {}, 1.0)
        world.pass_time(3 * HOUR_S)
        world.end(lease)
    world.run("cy", "1g.5gb")
    assert world.pool.view.usage.fair_share(world.at, {}, 1.0).users["cy"] == 1.0, "at once"
    world.pass_time(2 * HOUR_S)
    read = Uses(world.ledger, SETTINGS.pool.fair_half_life_s).totals(world.at)
    kept, fresh = (one.fair_share(world.at, {}, 1.0) for one in (world.pool.view.usage, read))
    assert kept.users == pytest.approx(fresh.users)
    assert kept.courses == pytest.approx(fresh.courses)
    of_ada = 12 * 0.5 ** (9.5 / 48) + 6 * 0.5 ** (3.5 / 48)
    assert kept.users["ada"] == pytest.approx(of_ada, rel=1e-3)
    assert kept.users["cy"] == pytest.approx(2.0, rel=0.1)


def test_an_end_after_one_rolled_back_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end that was rolled back is forgotten, though nobody counted before the lease ended.

    It is counted from memory: whoever decides next would wait for the ledger.
    """
    row = world.ledger.state.leases[world.run("ada").id]
    uses = world.pool.store.uses
    for ended_at in (world.at, world.at + HOUR_S):
        with pytest.raises(Crash), world.ledger.write(world.at, durable=False) as tx:
            tx.put(replace(row, state=LeaseState.RELEASED, ended_at=ended_at))
            with monkeypatch.context() as patch:
                patch.setattr(world.ledger, "rows", None)
                assert [one.ended for one in uses.totals(ended_at).all] == [ended_at]
            raise Crash
    assert [one.ended for one in uses.totals(world.at).all] == [None]


def test_an_end_that_memory_does_not_have_is_read(world: World) -> None:
    """After a failed transaction memory is read anew: the file tells how a lease ended."""
    lease = world.run("ada")
    uses = Uses(world.ledger, HALF_LIFE_S)
    assert [one.ended for one in uses.totals(world.at).all] == [None]
    world.end(lease)
    with pytest.raises(Crash), world.ledger.write(world.at, durable=False) as tx:
        tx.put(replace(next(iter(world.ledger.state.gpus.values())), reason="tried"))
        raise Crash
    assert [one.ended for one in uses.totals(world.at).all] == [world.at]


COURSES = {"everyone": SETTINGS.courses["everyone"], "b": Course(title="B", shapes=("1g.5gb",))}


def test_time_alone_moves_people(make_world: MakeWorld) -> None:
    """Who used less goes before; when somebody has aged that changes, and who waits is told."""
    world = make_world(changed(SETTINGS, courses=COURSES, ageing_s=60.0))
    leases = [world.run(f"student{n}") for n in range(7)]
    world.pass_time(HOUR_S)
    world.end(leases[0])
    world.run("other")
    heavy = world.ask("student0").id
    world.pass_time(30)
    light = world.ask("new").id
    assert [world.pool.tickets.find(one).position for one in (heavy, light)] == [2, 1]
    before = world.pool.version
    world.pass_time(31)
    world.pool.turn()
    assert world.pool.version > before
    assert [world.pool.tickets.find(one).position for one in (heavy, light)] == [1, 2]
