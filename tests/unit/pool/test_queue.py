"""Who is next: first come, first served, and nobody idles what the first cannot use."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miglab_pool.gpu.geometry import Placed, Placement
from miglab_pool.gpu.simulated.models import model_named
from miglab_pool.queue import order as queue
from miglab_pool.queue.order import any_fits, first_that_fits, hold
from miglab_pool.queue.rules import ALL_EQUAL, FairShareUsage, Grant, Waiting, in_order
from miglab_pool.state.placement import GpuOccupancy

from .conftest import World

A100 = model_named("A100-40GB").geometry


def placed(name: str, start: int) -> Placed:
    profile = A100.by_name[name]
    return Placed(profile, Placement(start, profile.size))


def gpu(
    name: str, *live: Placed, usable: bool = True, ends_at: tuple[float, ...] = ()
) -> GpuOccupancy:
    """An A100 on which these lie, each until its end where ends are said."""
    masks = (item.placement.mask for item in live)
    frees_at = dict(zip(masks, ends_at, strict=False))
    return GpuOccupancy(name, A100, live, usable=usable, frees_at=frees_at)


def one(number: int, *profiles: str) -> Waiting:
    return Waiting(number, profiles, float(number))


def next_grant(
    waiting: Iterable[Waiting], gpus: Sequence[GpuOccupancy], usage: FairShareUsage = ALL_EQUAL
) -> Grant | None:
    """The grant to one of those who wait, given in any order; None when nobody can go now."""
    return first_that_fits(in_order(waiting, usage), gpus)


SMALL, BIG = "1g.5gb", "7g.40gb"
FOREIGN = placed(SMALL, 0)
SHARED = GpuOccupancy("a", A100, (FOREIGN,), fixed=(FOREIGN,))
HALF_FULL = gpu("a", placed("3g.20gb", 0))
EMPTIER = gpu("a", placed(SMALL, 0))
FULLER = gpu("b", placed("3g.20gb", 4), placed(SMALL, 0))


WHO_IS_NEXT = {
    "nobody waits": ([], [gpu("a")], None),
    "there is no GPU": ([one(1, SMALL)], [], None),
    "the earlier of two": ([one(2, SMALL), one(1, SMALL)], [gpu("a")], (1, "a")),
    "of one moment the lower number": (
        [Waiting(5, (SMALL,), 1.0), Waiting(4, (SMALL,), 1.0)], [gpu("a")], (4, "a"),
    ),
    "nobody where it empties for the first": ([one(1, BIG), one(2, SMALL)], [HALF_FULL], None),
    "nobody of the first one's shape": ([one(1, BIG), one(2, BIG)], [HALF_FULL], None),
    "a small one elsewhere": ([one(1, BIG), one(2, SMALL)], [EMPTIER, FULLER], (2, "b")),
    "a small one beside what is kept on the same GPU": (
        [one(1, "3g.20gb"), one(2, SMALL)], [gpu("a", placed(SMALL, 0), placed("2g.10gb", 4))],
        (2, "a"),
    ),
    "whoever comes after a first that no usable GPU can serve": (
        [one(1, BIG), one(2, SMALL)], [gpu("b", usable=False), SHARED], (2, "a"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("queued", "gpus", "served"), WHO_IS_NEXT.values(), ids=WHO_IS_NEXT)
def test_who_is_next(
    queued: list[Waiting], gpus: list[GpuOccupancy], served: tuple[int, str] | None
) -> None:
    """First come, first served, and nobody delays the first."""
    grant = next_grant(queued, gpus)
    assert (grant and (grant.ticket, grant.choices[0].gpu)) == served


@pytest.mark.parametrize("ends_at", [0.0, 3600.0, inf])
def test_nobody_starts_in_the_hold(ends_at: float) -> None:
    """Whenever the lease there ends: the room behind the first only empties."""
    half_full = gpu("a", placed("3g.20gb", 0), ends_at=(ends_at,))
    assert first_that_fits([one(1, BIG), one(2, SMALL)], [half_full]) is None


def test_the_room_that_is_surely_free_soonest() -> None:
    """By the ends that are set, whatever the number of leases; without ends where fewest lie."""
    one_long = gpu("a", placed("3g.20gb", 0), ends_at=(9000.0,))
    small = placed(SMALL, 0), placed(SMALL, 1)
    two_short = gpu("b", *small, ends_at=(60.0, 90.0))
    assert list(hold((BIG,), [one_long, two_short])) == ["b"]
    assert list(hold((BIG,), [gpu("a", *small), gpu("b", placed("3g.20gb", 0))])) == ["b"]
    assert hold(("9g.1gb",), [gpu("a")]) == {}


@settings(max_examples=settings.default.max_examples // 2)
@given(
    shapes=st.lists(
        st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]), min_size=1, max_size=12
    ),
    gpus=st.integers(1, 3),
    ends=st.randoms(use_true_random=False),
)
def test_nobody_starves(shapes: list[str], gpus: int, ends: object) -> None:
    """While leases end, everyone is served, however many small ones keep coming behind."""
    waiting = [one(number, shape) for number, shape in enumerate(shapes)]
    live: list[tuple[str, Placed]] = []
    next_number = len(waiting)
    rounds = 0
    while any(each.ticket < len(shapes) for each in waiting):
        rounds += 1
        assert rounds < 60 * len(shapes)
        there = [gpu(str(n), *(p for g, p in live if g == str(n))) for n in range(gpus)]
        grant = next_grant(waiting, there)
        if grant is None:
            live.pop(ends.randrange(len(live)))  # type: ignore[attr-defined]
            waiting.append(one(next_number, "1g.5gb"))
            next_number += 1
            continue
        waiting = [each for each in waiting if each.ticket != grant.ticket]
        live += [(c.gpu, Placed(c.profile, c.placement)) for c in grant.choices]


PLACES = [placed("1g.5gb", 0), placed("2g.10gb", 2), placed("3g.20gb", 4), placed("1g.5gb", 6)]


@given(
    shapes=st.lists(st.sampled_from(list(A100.by_name)), max_size=6),
    live=st.lists(st.sets(st.sampled_from(PLACES)), min_size=1, max_size=3),
    whose=st.sampled_from(["", "a"]),
)
def test_where_nothing_fits_nobody_goes(
    shapes: list[str], live: list[set[Placed]], whose: str
) -> None:
    """Nothing has room exactly if nobody would go, were they the first and only one."""
    gpus = [gpu(str(n), *there) for n, there in enumerate(live)]
    gpus[0] = replace(gpus[0], course=whose)
    queued = [
        Waiting(number, (shape,), 0.0, course="ab"[number % 2])
        for number, shape in enumerate(shapes)
    ]
    alone = any(first_that_fits([each], gpus) for each in queued)
    assert any_fits({(each.profiles, each.course) for each in queued}, gpus) is alone
    assert alone or first_that_fits(queued, gpus) is None


def test_without_room_no_order_is_worked_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every slice is held the line is not looked at; with the first that ends it is."""
    looks: list[int] = []
    without_slot = queue.without_slot
    monkeypatch.setattr(queue, "without_slot", lambda view: looks.append(1) or without_slot(view))
    held = world.grant("ada", "7g.40gb")
    waiting = world.wait("bob")
    looks.clear()
    world.pass_time(1)
    world.wait("cy")
    assert not looks
    world.pool.leases.release(held.id, "ada", "done")
    world.work()
    assert looks
    assert world.pool.tickets.find(waiting.id).state == "offered"
