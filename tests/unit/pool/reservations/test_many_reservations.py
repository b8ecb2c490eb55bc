"""Four hundred reservations: a limit for each person, and decisions that do not grow with them."""

import datetime as dt
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, Keep, World

from miglab_api.reservations import ReservationRequest
from miglab_pool.ledger.rows import ReservationRow
from miglab_pool.refused import Refused
from miglab_pool.reservations.certainty import reservable_by_hour, week_outlooks
from miglab_pool.reservations.feasible import broken_promises, choose_slots, feasible_if_empty
from miglab_pool.reservations.rules import ReservationInForce, phase
from miglab_pool.schedule import Occurrence, occurrences
from miglab_pool.state.placement import GpuOccupancy
from miglab_pool.state.reservation_times import ReservationTimes, schedule_of
from miglab_pool.state.slot_choice import SlotCandidate

MONDAY = dt.datetime(2026, 3, 2, 8, tzinfo=dt.UTC).timestamp()
HOUR_S, DAY_S = 3600.0, 86400.0
FEW, MANY, MONTH_H = 4, 400, 30 * 24


def single(number: int, starts: dt.datetime, hours: int = 1, tz: str = "UTC") -> ReservationRow:
    ends = min(starts.hour + hours, 23)
    return ReservationRow(
        number, ("everyone", "vision")[number % 2], "1g.5gb", 3, 0, starts.date().isoformat(), "",
        f"{starts.hour:02}:00", f"{ends:02}:59", tz, 900.0, "person:ina", MONDAY, "planned",
    )  # fmt: skip


def crowded(folder: Path, reservations: int) -> World:
    """Eight GPUs, twenty leases, and the first of 400 hours spread over the next month."""
    world = World(folder, changed(SETTINGS, lease_s=4 * HOUR_S, queue_limit=1000), gpus=8)
    world.at = MONDAY
    world.crash()
    first = dt.datetime(2026, 3, 2, 10)
    with world.pool.store.write() as tx:
        for number in range(1, reservations + 1):
            starts = first + dt.timedelta(hours=(number - 1) * MONTH_H // MANY)
            tx.put(single(number, starts.replace(hour=min(starts.hour, 22))))
    for number in range(20):
        world.run(f"student{number}")
    return world


def least_ms(work: Callable[[], object]) -> float:
    """The least processor time of several runs: what else runs here adds to it, nothing lessens."""
    work()
    times = []
    for _ in range(7):
        started_s = time.process_time()
        work()
        times.append(time.process_time() - started_s)
    return min(times) * 1000


def costs_ms(world: World) -> dict[str, float]:
    """What is decided and drawn again and again, each at a new second."""
    names = count()
    week = (MONDAY, MONDAY + 7 * DAY_S)

    def later() -> None:
        world.pass_time(1.0)
        world.pool.store.publish_change()

    def ask_and_go() -> None:
        later()
        ticket = world.ask(f"asker{next(names)}")
        world.pool.turn()
        world.pool.tickets.cancel(ticket.id, "asker")

    def look(question: Callable[[], object]) -> Callable[[], None]:
        def ask() -> None:
            later()
            question()

        return ask

    pool = world.pool
    return {
        "turn": least_ms(look(pool.turn)),
        "ticket": least_ms(ask_and_go),
        "snapshot": least_ms(look(pool.snapshot)),
        "spawn page": least_ms(look(lambda: pool.offers(["everyone", "vision"]))),
        "estimate": least_ms(look(pool.estimate)),
        "free hours": least_ms(
            look(lambda: reservable_by_hour(pool.view, "everyone", "1g.5gb", *week))
        ),
    }


def test_decisions_cost_no_more_with_four_hundred(tmp_path: Path, keep: Keep[World]) -> None:
    """At most one and a half times what they do with the first four of them; measured in one run.

    Half a millisecond is given to the clock.
    """
    few, many = (keep(crowded(tmp_path / str(number), number)) for number in (FEW, MANY))
    before, after = costs_ms(few), costs_ms(many)
    ratios = {name: after[name] / (before[name] + 0.5) for name in before}
    assert max(ratios.values()) <= 1.5, ratios


def test_what_looks_a_month_ahead_takes_no_seconds(tmp_path: Path, keep: Keep[World]) -> None:
    """A drain asks of each moment at which something is reserved; most are alike, and one answers.

    It took 3.7 s.
    """
    world = keep(crowded(tmp_path, MANY))
    started_s = time.process_time()
    broken = broken_promises(world.pool.view, dict(world.pool.view.gpus))
    week = week_outlooks(world.pool.view, MONDAY, MONDAY + 7 * DAY_S, "UTC")
    assert time.process_time() - started_s < 0.5
    assert (broken, week) == ([], {})


ZONES = ("UTC", "Europe/Berlin", "Pacific/Kiritimati", "Pacific/Pago_Pago")


@st.composite
def rows(draw: st.DrawFn) -> list[ReservationRow]:
    """Single and weekly reservations around a day on which Europe's clocks go forward."""
    numbers: Iterator[int] = count(1)
    reservations = []
    for _ in range(draw(st.integers(0, 8))):
        day = dt.datetime(2026, 3, 29) + dt.timedelta(days=draw(st.integers(-9, 9)))
        starts = day.replace(hour=draw(st.integers(0, 22)))
        row = single(next(numbers), starts, draw(st.integers(0, 20)), draw(st.sampled_from(ZONES)))
        reservations.append(row)
    return reservations


@given(rows=rows(), offset_h=st.floats(-250, 250), length_h=st.floats(0, 30))
def test_near_ones_are_all_that_take_place(
    rows: list[ReservationRow], offset_h: float, length_h: float
) -> None:
    """What is found by time is what each reservation's own schedule says, in every time zone."""
    since = dt.datetime(2026, 3, 29, tzinfo=dt.UTC).timestamp() + offset_h * HOUR_S
    until = since + length_h * HOUR_S
    times = ReservationTimes({row.id: row for row in rows})
    near = {row.id for row in times.between(since, until)}
    assert near == {row.id for row in rows if any(occurrences(schedule_of(row), since, until))}
    over = {row.id for row in times.over_by(since)}
    assert over == {row.id for row in rows if phase(row, since, 0.0)[0] == "over"}


def test_a_person_reserves_so_many_times_for_a_course(world: World) -> None:
    """One more is refused in words; for another course, or by a colleague, it is not."""
    world.settings = changed(world.settings, reservations_each=2)
    world.crash()
    days = iter(range(1, 20))

    def reserve(course: str = "everyone", person: str = "person:ina") -> None:
        day = dt.date(1970, 1, 12) + dt.timedelta(days=next(days))
        request = ReservationRequest(
            course=course, shape="1g.5gb", count=1, date=day, from_time="10:00", to_time="11:00",
            tz="UTC", weekdays=(),
        )  # fmt: skip
        world.pool.reservations.make(request, person)

    reserve()
    reserve()
    with pytest.raises(Refused, check=because("too-many-reservations")):
        reserve()
    reserve(course="vision")
    reserve(person="person:ilse")


def in_force(number: int, course: str, count: int) -> ReservationInForce:
    """A reservation of that number, as far as its place depends on it."""
    row = replace(single(number, dt.datetime(2026, 3, 2, 10)), course=course, count=count)
    return ReservationInForce(row, Occurrence(0.0, 1.0), False, True, count)


@given(
    claims=st.lists(
        st.tuples(st.sampled_from(("everyone", "vision", "ml")), st.integers(1, 9)), max_size=4
    )
)
def test_courses_without_gpus_of_their_own_are_alike(
    world_with_a_gpu_of_vision: World, claims: list[tuple[str, int]]
) -> None:
    """One answer serves them all, and it is each one's own; whose GPU it is has another."""
    view = world_with_a_gpu_of_vision.pool.view
    reservations = [in_force(number, *claim) for number, claim in enumerate(claims, 1)]
    gpus = [SlotCandidate(GpuOccupancy(gpu.uuid, gpu.geometry, course=gpu.course))
            for gpu in view.gpus.values() if gpu.geometry]  # fmt: skip
    own_answer = choose_slots(reservations, gpus, {})
    assert feasible_if_empty(view, reservations).counts == own_answer.counts


@pytest.fixture(scope="module")
def world_with_a_gpu_of_vision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two GPUs, one of which takes leases of a single course."""
    of_vision = changed(SETTINGS, assigned={"1": "vision"})
    world = World(tmp_path_factory.mktemp("of-vision"), of_vision, gpus=2)
    yield world
    world.close()
