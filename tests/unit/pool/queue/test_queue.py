"""Who is next: first come, first served, and nobody idles what the first cannot use."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, Crash, World

from miglab_api.leases import LeaseState
from miglab_pool.gpu.geometry import Placement, ProfilePlacement
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.queue import order as queue
from miglab_pool.queue.order import any_fits, choose_hold, first_that_fits
from miglab_pool.queue.rules import (
    GRAIN_H,
    Grant,
    WaitingTicket,
    queue_order,
)
from miglab_pool.schedule import DAY_S
from miglab_pool.settings import Course
from miglab_pool.state.fair_share import (
    ALL_EQUAL,
    HOUR_S,
    FairShareUsage,
    LeaseUse,
    LeaseUses,
    decayed_slice_hours,
    shifted_to_end_by,
)
from miglab_pool.state.placement import GpuOccupancy
from miglab_pool.state.store import LeaseUseReader

A100 = model_geometry("A100-40GB")


def slice_at(name: str, start: int) -> ProfilePlacement:
    profile = A100.by_name[name]
    return ProfilePlacement(profile, Placement(start, profile.size))


def gpu(
    name: str, *live: ProfilePlacement, usable: bool = True, ends_at: tuple[float, ...] = ()
) -> GpuOccupancy:
    """An A100 on which these lie, each until its end where ends are said."""
    masks = (slice_.placement.mask for slice_ in live)
    frees_at = dict(zip(masks, ends_at, strict=False))
    return GpuOccupancy(name, A100, live, usable=usable, frees_at=frees_at)


def waiting_for(number: int, *profiles: str) -> WaitingTicket:
    return WaitingTicket(number, profiles, float(number))


def next_grant(
    waiting: Iterable[WaitingTicket],
    gpus: Sequence[GpuOccupancy],
    usage: FairShareUsage = ALL_EQUAL,
) -> Grant | None:
    """The grant to one of those who wait, given in any order; None when nobody can go now."""
    return first_that_fits(queue_order(waiting, usage), gpus)


SMALL, BIG = "1g.5gb", "7g.40gb"
FOREIGN = slice_at(SMALL, 0)
SHARED = GpuOccupancy("a", A100, (FOREIGN,), immovable=(FOREIGN,))
HALF_FULL = gpu("a", slice_at("3g.20gb", 0))
EMPTIER = gpu("a", slice_at(SMALL, 0))
FULLER = gpu("b", slice_at("3g.20gb", 4), slice_at(SMALL, 0))


WHO_IS_NEXT = {
    "nobody waits": ([], [gpu("a")], None),
    "there is no GPU": ([waiting_for(1, SMALL)], [], None),
    "the earlier of two": ([waiting_for(2, SMALL), waiting_for(1, SMALL)], [gpu("a")], (1, "a")),
    "of one moment the lower number": (
        [WaitingTicket(5, (SMALL,), 1.0), WaitingTicket(4, (SMALL,), 1.0)], [gpu("a")], (4, "a"),
    ),
    "nobody where it empties for the first": (
        [waiting_for(1, BIG), waiting_for(2, SMALL)], [HALF_FULL], None,
    ),
    "nobody of the first one's shape": (
        [waiting_for(1, BIG), waiting_for(2, BIG)], [HALF_FULL], None,
    ),
    "a small one elsewhere": (
        [waiting_for(1, BIG), waiting_for(2, SMALL)], [EMPTIER, FULLER], (2, "b"),
    ),
    "a small one beside what is kept on the same GPU": (
        [waiting_for(1, "3g.20gb"), waiting_for(2, SMALL)],
        [gpu("a", slice_at(SMALL, 0), slice_at("2g.10gb", 4))], (2, "a"),
    ),
    "whoever comes after a first that no usable GPU can serve": (
        [waiting_for(1, BIG), waiting_for(2, SMALL)], [gpu("b", usable=False), SHARED], (2, "a"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("queued", "gpus", "served"), WHO_IS_NEXT.values(), ids=WHO_IS_NEXT)
def test_who_is_next(
    queued: list[WaitingTicket], gpus: list[GpuOccupancy], served: tuple[int, str] | None
) -> None:
    """First come, first served, and nobody delays the first."""
    grant = next_grant(queued, gpus)
    assert (grant and (grant.ticket, grant.choices[0].gpu)) == served


@pytest.mark.parametrize("ends_at", [0.0, 3600.0, inf])
def test_nobody_starts_in_the_hold(ends_at: float) -> None:
    """Whenever the lease there ends: the room behind the first only empties."""
    half_full = gpu("a", slice_at("3g.20gb", 0), ends_at=(ends_at,))
    assert first_that_fits([waiting_for(1, BIG), waiting_for(2, SMALL)], [half_full]) is None


def test_the_room_that_is_surely_free_soonest() -> None:
    """By the ends that are set, whatever the number of leases; without ends where fewest lie."""
    one_long = gpu("a", slice_at("3g.20gb", 0), ends_at=(9000.0,))
    small = slice_at(SMALL, 0), slice_at(SMALL, 1)
    two_short = gpu("b", *small, ends_at=(60.0, 90.0))
    assert list(choose_hold((BIG,), [one_long, two_short])) == ["b"]
    assert list(choose_hold((BIG,), [gpu("a", *small), gpu("b", slice_at("3g.20gb", 0))])) == ["b"]
    assert choose_hold(("9g.1gb",), [gpu("a")]) == {}


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
    waiting = [waiting_for(number, shape) for number, shape in enumerate(shapes)]
    live: list[tuple[str, ProfilePlacement]] = []
    next_number = len(waiting)
    rounds = 0
    while any(w.id < len(shapes) for w in waiting):
        rounds += 1
        assert rounds < 60 * len(shapes)
        gpus_now = [gpu(str(n), *(p for g, p in live if g == str(n))) for n in range(gpus)]
        grant = next_grant(waiting, gpus_now)
        if grant is None:
            live.pop(ends.randrange(len(live)))  # type: ignore[attr-defined]
            waiting.append(waiting_for(next_number, "1g.5gb"))
            next_number += 1
            continue
        waiting = [w for w in waiting if w.id != grant.ticket]
        live += [(c.gpu, ProfilePlacement(c.profile, c.placement)) for c in grant.choices]


PLACES = [
    slice_at("1g.5gb", 0),
    slice_at("2g.10gb", 2),
    slice_at("3g.20gb", 4),
    slice_at("1g.5gb", 6),
]


@given(
    shapes=st.lists(st.sampled_from(list(A100.by_name)), max_size=6),
    live=st.lists(st.sets(st.sampled_from(PLACES)), min_size=1, max_size=3),
    gpu_course=st.sampled_from(["", "a"]),
)
def test_where_nothing_fits_nobody_goes(
    shapes: list[str], live: list[set[ProfilePlacement]], gpu_course: str
) -> None:
    """Nothing has room exactly if nobody would go, were they the first and only one."""
    gpus = [gpu(str(n), *live_slices) for n, live_slices in enumerate(live)]
    gpus[0] = replace(gpus[0], course=gpu_course)
    queued = [
        WaitingTicket(number, (shape,), 0.0, course="ab"[number % 2])
        for number, shape in enumerate(shapes)
    ]
    alone = any(first_that_fits([request], gpus) for request in queued)
    assert any_fits({(request.profiles, request.course) for request in queued}, gpus) is alone
    assert alone or first_that_fits(queued, gpus) is None


def test_without_room_no_order_is_worked_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While every slice is held the line is not looked at; with the first that ends it is."""
    looks: list[int] = []
    servable_without_slot = queue.servable_without_slot
    monkeypatch.setattr(
        queue, "servable_without_slot", lambda view: looks.append(1) or servable_without_slot(view)
    )
    lease = world.grant("ada", "7g.40gb")
    waiting = world.wait("bob")
    looks.clear()
    world.pass_time(1)
    world.wait("cy")
    assert not looks
    world.pool.leases.release(lease.id, "ada", "done")
    world.work()
    assert looks
    assert world.pool.tickets.find(waiting.id).state == "offered"


MakeWorld = Callable[..., World]
HALF_LIFE_S = 2 * DAY_S


def ticket(number: int, user: str = "", course: str = "a", **fields: object) -> WaitingTicket:
    values: dict[str, object] = {"profiles": ("1g.5gb",), "since": float(number), **fields}
    return WaitingTicket(number, course=course, user=user or f"u{number}", **values)  # type: ignore[arg-type]


def order(waiting: list[WaitingTicket], **usage: object) -> list[int]:
    return [request.id for request in queue_order(waiting, FairShareUsage(**usage))]  # type: ignore[arg-type]


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
    expected, remaining = [], list(waiting)
    charged, used = dict(courses), dict(users)
    while remaining:
        served = min(
            remaining,
            key=lambda request: (
                int(charged[request.course] / GRAIN_H),
                int(used[request.user] / GRAIN_H),
                request.since,
                request.id,
            ),
        )
        remaining.remove(served)
        charged[served.course] += served.size / (2.0 if served.course == "a" else 1.0)
        used[served.user] += served.size
        expected.append(served.id)
    assert order(waiting, courses=courses, users=users, weights={"a": 2.0}) == expected


def test_aged_go_by_arrival() -> None:
    """Who has waited `ageing_s` goes before who has not, the earliest first, whatever was used."""
    queued = [ticket(n, since=t) for n, t in ((1, 0.0), (2, 10.0), (3, 95.0))]
    users = {"u1": 50.0, "u2": 5.0, "heavy": 90.0}
    assert order(queued, now=99.0, ageing_s=100.0, users=users) == [3, 2, 1]
    assert order(queued, now=115.0, ageing_s=100.0, users=users) == [1, 2, 3]
    reserved = ticket(4, "heavy", since=100.0, reserved=True)
    assert order([*queued, reserved], now=115.0, ageing_s=100.0, users=users) == [4, 1, 2, 3]


def use(number: int, started_at: float | None, ended_at: float | None, size: int = 1) -> LeaseUse:
    return LeaseUse(number, "ada", "everyone", "", size, started_at, ended_at)


@pytest.mark.parametrize("ahead_s", [60 * DAY_S, 2100 * DAY_S])
def test_use_from_a_clock_that_was_ahead_never_grows(ahead_s: float) -> None:
    """It was corrected since: what ended then counts as if it had ended now."""
    now = 10_000 * DAY_S
    assert shifted_to_end_by(use(1, now + ahead_s - HOUR_S, now + ahead_s), now) == use(
        1, now - HOUR_S, now
    )
    assert shifted_to_end_by(use(1, now - HOUR_S, now - 1), now) == use(1, now - HOUR_S, now - 1)
    assert decayed_slice_hours(use(1, now + ahead_s, None), now, HALF_LIFE_S) == 0.0
    uses = LeaseUses(HALF_LIFE_S, now + ahead_s, {("", "ada"): 2.0})
    assert uses.fair_share(now, {}, 0.0).users == {"ada": 2.0}


def test_decay_is_the_integral() -> None:
    """The closed form agrees with summing up minute by minute; what never ran costs nothing."""
    started_at, ended_at, now = 0.0, 5 * HOUR_S, 3 * DAY_S
    minutes = (started_at + 60 * (n + 0.5) for n in range(300))
    summed = sum(4 / 60 * 0.5 ** ((now - t) / HALF_LIFE_S) for t in minutes)
    assert decayed_slice_hours(use(1, started_at, ended_at, 4), now, HALF_LIFE_S) == pytest.approx(
        summed, rel=1e-6
    )
    assert decayed_slice_hours(use(1, None, None), now, HALF_LIFE_S) == 0.0


def test_sums_agree_with_the_ledger(world: World) -> None:
    """What is kept up lease by lease is what a fresh reading of the ledger gives."""
    for user, shape in (("ada", "3g.20gb"), ("bob", "1g.5gb"), ("ada", "2x1g.5gb")):
        lease = world.run(user, shape)
        world.pool.view.lease_uses.fair_share(world.at, {}, 1.0)
        world.pass_time(3 * HOUR_S)
        world.end(lease)
    world.run("cy", "1g.5gb")
    assert world.pool.view.lease_uses.fair_share(world.at, {}, 1.0).users["cy"] == 1.0, "at once"
    world.pass_time(2 * HOUR_S)
    read_anew = LeaseUseReader(world.ledger, SETTINGS.pool.fair_half_life_s).uses_at(world.at)
    incremental, fresh = (
        uses.fair_share(world.at, {}, 1.0) for uses in (world.pool.view.lease_uses, read_anew)
    )
    assert incremental.users == pytest.approx(fresh.users)
    assert incremental.courses == pytest.approx(fresh.courses)
    of_ada = 12 * 0.5 ** (9.5 / 48) + 6 * 0.5 ** (3.5 / 48)
    assert incremental.users["ada"] == pytest.approx(of_ada, rel=1e-3)
    assert incremental.users["cy"] == pytest.approx(2.0, rel=0.1)


def test_an_end_after_one_rolled_back_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end that was rolled back is forgotten, though nobody counted before the lease ended.

    It is counted from memory: whoever decides next would wait for the ledger.
    """
    row = world.ledger.state.leases[world.run("ada").id]
    reader = world.pool.store.lease_use_reader
    for ended_at in (world.at, world.at + HOUR_S):
        with pytest.raises(Crash), world.ledger.write(world.at, durable=False) as tx:
            tx.put(replace(row, state=LeaseState.RELEASED, ended_at=ended_at))
            with monkeypatch.context() as patch:
                patch.setattr(world.ledger, "rows", None)
                assert [u.ended_at for u in reader.uses_at(ended_at).all] == [ended_at]
            raise Crash
    assert [u.ended_at for u in reader.uses_at(world.at).all] == [None]


def test_an_end_that_memory_does_not_have_is_read(world: World) -> None:
    """After a failed transaction memory is read anew: the file tells how a lease ended."""
    lease = world.run("ada")
    reader = LeaseUseReader(world.ledger, HALF_LIFE_S)
    assert [u.ended_at for u in reader.uses_at(world.at).all] == [None]
    world.end(lease)
    with pytest.raises(Crash), world.ledger.write(world.at, durable=False) as tx:
        tx.put(replace(next(iter(world.ledger.state.gpus.values())), reason="tried"))
        raise Crash
    assert [u.ended_at for u in reader.uses_at(world.at).all] == [world.at]


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
    assert [world.pool.tickets.find(ticket_id).position for ticket_id in (heavy, light)] == [2, 1]
    before = world.pool.version
    world.pass_time(31)
    world.pool.turn()
    assert world.pool.version > before
    assert [world.pool.tickets.find(ticket_id).position for ticket_id in (heavy, light)] == [1, 2]
