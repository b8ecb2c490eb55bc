"""Who is next: first come, first served, and nobody idles what the first cannot use."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miglab_pool.gpu.geometry import Geometry, Placed, Placement, Profile
from miglab_pool.queue import order as queue
from miglab_pool.queue.backfill import any_fits, first_that_fits, hold
from miglab_pool.queue.rules import Waiting, in_order
from miglab_pool.state.placement import GpuOccupancy, beside

from .conftest import World
from .queueing import next_grant

A100 = Geometry(
    8,
    (
        Profile("1g.5gb", 19, 0, 1, 1, 14, 4864, 7, tuple(range(7))),
        Profile("2g.10gb", 14, 1, 2, 2, 28, 9856, 3, (0, 2, 4)),
        Profile("3g.20gb", 9, 2, 3, 4, 42, 19968, 2, (0, 4)),
        Profile("7g.40gb", 0, 4, 7, 8, 98, 40192, 1, (0,)),
    ),
)


def placed(name: str, start: int) -> Placed:
    profile = A100.by_name[name]
    return Placed(profile, Placement(start, profile.size))


def gpu(name: str, *live: Placed, usable: bool = True) -> GpuOccupancy:
    return GpuOccupancy(name, A100, live, usable=usable)


def one(number: int, *profiles: str) -> Waiting:
    return Waiting(number, profiles, float(number))


def test_first_come() -> None:
    """Of two who fit the earlier goes."""
    grant = next_grant([one(2, "1g.5gb"), one(1, "1g.5gb")], [gpu("a")])
    assert grant is not None
    assert grant.ticket == 1


def test_ties_by_number() -> None:
    """Of two who came in the same moment the lower number goes."""
    queued = in_order([Waiting(5, (), 1.0), Waiting(4, (), 1.0)])
    assert [each.ticket for each in queued] == [4, 5]


def test_nobody() -> None:
    """Nobody waits, or there is no GPU: nobody goes."""
    assert next_grant([], [gpu("a")]) is None
    assert next_grant([one(1, "1g.5gb")], []) is None


def test_small_one_does_not_delay_the_first() -> None:
    """The place that empties for the first in line is not given to who came later."""
    half_full = gpu("a", placed("3g.20gb", 0))
    queued = [one(1, "7g.40gb"), one(2, "1g.5gb")]
    assert next_grant(queued, [half_full]) is None


def test_small_one_goes_elsewhere() -> None:
    """Who came later goes ahead where it does not delay the first."""
    queued = [one(1, "7g.40gb"), one(2, "1g.5gb")]
    emptier = gpu("a", placed("1g.5gb", 0))
    fuller = gpu("b", placed("3g.20gb", 4), placed("1g.5gb", 0))
    grant = next_grant(queued, [emptier, fuller])
    assert grant is not None
    assert (grant.ticket, grant.choices[0].gpu) == (2, "b")


def test_rest_of_the_gpu_is_used() -> None:
    """Only the place kept is kept: beside it, on the same GPU, others go."""
    occupancy = gpu("a", placed("1g.5gb", 0), placed("2g.10gb", 4))
    grant = next_grant([one(1, "3g.20gb"), one(2, "1g.5gb")], [occupancy])
    assert grant is not None
    assert grant.ticket == 2
    kept = 0 if grant.choices[0].placement.start >= 4 else 4
    assert abs(grant.choices[0].placement.start - kept) >= 1


def test_foreign_placement_is_not_waited_for() -> None:
    """Where something foreign lies nothing is set aside: it will not become free."""
    foreign = placed("1g.5gb", 0)
    occupancy = GpuOccupancy("a", A100, (foreign,), fixed=(foreign,))
    other = gpu("b", placed("3g.20gb", 0), placed("3g.20gb", 4))
    gpus = [occupancy, other]
    (free, kept) = beside(gpus, hold(("7g.40gb",), gpus))
    assert free == occupancy
    assert len(kept.live) == 3


def test_impossible_first_blocks_nobody() -> None:
    """Who can be served by no usable GPU keeps the place in line, and delays nobody."""
    queued = [one(1, "7g.40gb"), one(2, "1g.5gb")]
    broken = gpu("b", usable=False)
    foreign = placed("1g.5gb", 0)
    shared = GpuOccupancy("a", A100, (foreign,), fixed=(foreign,))
    grant = next_grant(queued, [broken, shared])
    assert grant is not None
    assert grant.ticket == 2


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


@pytest.mark.parametrize("count", [1, 7])
def test_same_shape_never_passes(count: int) -> None:
    """Who wants the same as the first is never served before."""
    full = gpu("a", *(placed("1g.5gb", n) for n in range(count)), placed("1g.5gb", 6))
    grant = next_grant([one(1, "7g.40gb"), one(2, "7g.40gb")], [full])
    assert grant is None


# -- whether a look at the line is worth it -------------------------------------------------------

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
    waiting = world.ask("bob")
    world.work()
    looks.clear()
    world.pass_time(1)
    world.ask("cy")
    world.work()
    assert not looks
    world.pool.leases.release(held.id, "ada", "done")
    world.work()
    assert looks
    assert world.pool.tickets.find(waiting.id).state == "offered"
