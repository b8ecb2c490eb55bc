"""A class has its slices at its time: while strangers wait, over restarts, and not for longer."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, SHAPES, World

from miglab_api.reservations import ReservationRequest, ReservationView
from miglab_api.tickets import TicketState
from miglab_pool.refused import Refused
from miglab_pool.reservations import slots as reserved_slots
from miglab_pool.settings import Course, PoolSettings

LEAD_S = 900.0
TUESDAY = dt.datetime(2026, 6, 2, 8, 0, tzinfo=dt.UTC).timestamp()  # 10:00 in Berlin
RULES = changed(
    SETTINGS,
    courses=dict(SETTINGS.courses) | {"deep": Course(title="Deep learning", shapes=SHAPES)},
    attend_grace_s=7200.0,
    offer_s=7200.0,
    longest_wait_s=24 * 3600.0,
    reserve_lead_s=LEAD_S,
    lease_s=1800.0,
)


def weekly_request(**changes: Any) -> ReservationRequest:
    """Tuesdays from 10 to 12 in Berlin, seven of the smallest."""
    values: dict[str, Any] = {
        "course": "deep",
        "shape": "1g.5gb",
        "count": 7,
        "weekdays": ("tue",),
        "from_time": "10:00",
        "to_time": "12:00",
        "tz": "Europe/Berlin",
        "grace_s": 900.0,
    }
    return ReservationRequest(**(values | changes))


def before_class(
    make_world: Callable[..., World], rules: PoolSettings = RULES, by_s: float = 3600.0, **gpus: Any
) -> World:
    """A world so long before the class on a Tuesday."""
    world = make_world(rules, **gpus)
    world.at = TUESDAY - by_s
    world.pool.reconcile()
    world.pool.sample()
    return world


@pytest.fixture
def lab(make_world: Callable[..., World]) -> World:
    """One A100, an hour before the class on a Tuesday."""
    return before_class(make_world)


def reserve(lab: World, **changes: Any) -> ReservationView:
    return lab.pool.reservations.make(weekly_request(**changes), "ina")


def go_to(lab: World, seconds: float) -> None:
    """To so many seconds after the class begins, with everybody's ticket attended."""
    lab.at = TUESDAY + seconds
    lab.attend_all()
    lab.work()


def state_of(lab: World, ticket: int) -> TicketState:
    return lab.pool.tickets.find(ticket).state


def refusal(lab: World, **changes: Any) -> Refused:
    with pytest.raises(Refused) as error:
        reserve(lab, **changes)
    return error.value


def test_made(lab: World) -> None:
    """A reservation says when it is next, and from when to when its places are kept."""
    reservation = reserve(lab, reason="week 1")
    assert (reservation.starts_at, reservation.ends_at) == (TUESDAY, TUESDAY + 7200)
    assert (reservation.reserved_from, reservation.reserved_until) == (
        TUESDAY - LEAD_S,
        TUESDAY + 900,
    )
    assert (reservation.state, reservation.in_use, reservation.made_by, reservation.message) == (
        "planned",
        0,
        "ina",
        "week 1",
    )
    assert lab.pool.reservations.all() == [reservation]
    for seconds in (0, 900):
        go_to(lab, seconds)
    noted = [transition["to_state"] for transition in lab.ledger.history("reservation")]
    assert noted == ["open", "reserved", "planned"]
    need = reserve(lab, course="vision", shape="at least 9 GiB", count=3, weekdays=("wed",))
    assert need.shape == "1g.10gb", "what students get who ask by need"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"course": "nowhere"}, "not-in-course"),
        ({"shape": "9g.1gb"}, "bad-shape"),
        ({"shape": "nonsense"}, "bad-shape"),
        ({"shape": "cpu"}, "bad-shape"),
        ({"course": "vision", "shape": "3g.20gb"}, "shape-not-offered"),
        ({"tz": "Mars/Olympus"}, "bad-time"),
        ({"tz": "../../etc/passwd"}, "bad-time"),
        ({"from_time": "12:00", "to_time": "12:00"}, "bad-time"),
        ({"from_time": "22:00", "to_time": "02:00"}, "bad-time"),
        ({"weekdays": ()}, "bad-time"),
        ({"weekdays": (), "date": "2026-06-09", "until": "2026-06-10"}, "bad-time"),
        ({"date": "2026-06-20", "until": "2026-06-10"}, "bad-time"),
        ({"date": "9999-12-31"}, "bad-time"),
        (
            {"weekdays": (), "date": "2027-03-28", "from_time": "02:00", "to_time": "03:00"},
            "bad-time",
        ),
        ({"weekdays": (), "date": "2026-06-01"}, "in-the-past"),
        ({"weekdays": (), "date": "0001-01-01"}, "in-the-past"),
        ({"weekdays": (), "date": "2026-06-02", "from_time": "08:59"}, "in-the-past"),
        ({"until": "2026-06-01", "date": "2026-01-01"}, "in-the-past"),
        ({"count": 8}, "impossible-reservation"),
        ({"shape": "3g.20gb", "count": 3}, "impossible-reservation"),
        ({"shape": "full", "count": 1}, "impossible-reservation"),
    ],
)
def test_refused_with_the_reason(lab: World, changes: dict[str, Any], reason: str) -> None:
    """What makes no sense is refused when it is made, in words, and the ledger has it."""
    error = refusal(lab, **changes)
    assert error.reason == reason
    assert len(error.message) > 20
    noted = lab.ledger.history("reservation")[0]
    assert (noted["to_state"], noted["by"], noted["reason"]) == ("refused", "ina", error.message)
    assert lab.pool.reservations.all() == []


HALF = {"shape": "2g.10gb", "count": 1}
TWO_HALVES = (
    HALF | {"from_time": "10:00", "to_time": "11:00"},
    HALF | {"from_time": "10:30", "to_time": "11:30"},
)
LATER = {"from_time": "11:30", "to_time": "13:00"}
AT_FOUR = {"weekdays": ("mon",), "from_time": "16:00", "to_time": "17:00"}
IN_NEW_YORK = {
    "weekdays": ("mon",), "from_time": "11:00", "to_time": "12:00", "tz": "America/New_York",
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "changes", "message_parts"),
    [
        ([{"count": 4}], LATER | {"weekdays": ("mon", "tue"), "count": 4},
         ["reservation 1 (4 times 1g.5gb for deep", "2026-06-02 at 11:30"]),
        ([{"count": 4}], LATER | {"count": 3}, []),
        (TWO_HALVES, {"shape": "4g.20gb", "count": 1}, ["reservation"]),  # beside each it would fit
        (TWO_HALVES, HALF | {"count": 2}, ["reservation"]),
        (TWO_HALVES, HALF, []),
        ([{}], {}, ["reservation 1"]),
        ([{}], {"from_time": "12:00", "to_time": "14:00"}, []),  # it begins as the other ends
        ([{}], {"weekdays": ("wed",)}, []),
        ([AT_FOUR], IN_NEW_YORK, ["2026-10-26"]),  # only when the clocks have changed
    ],
)  # fmt: skip
def test_clash_is_refused(
    lab: World, before: list[dict[str, Any]], changes: dict[str, Any], message_parts: list[str]
) -> None:
    """Classes that do not fit at the same time: the last hears with whom, and when."""
    for earlier_changes in before:
        reserve(lab, **earlier_changes)
    if not message_parts:
        assert reserve(lab, **changes).state == "planned"
        return
    error = refusal(lab, **changes)
    assert error.reason == "reservation-clash"
    assert [part for part in message_parts if part not in error.message] == []


def test_no_gpu_has_answered(lab: World) -> None:
    """Without any GPU's answer nothing can be promised."""
    lab.pool.store.infos.clear()
    lab.pool.store.publish_change(list(lab.ledger.state.gpus))
    assert refusal(lab).reason == "gpus-unknown"


def offer_of(lab: World, course: str, shape: str = "1g.5gb") -> Any:
    (course_offers,) = lab.pool.offers([course]).courses
    return next(shape_offer for shape_offer in course_offers.shapes if shape_offer.shape == shape)


def test_offers_while_slots_are_reserved(lab: World) -> None:
    """The class sees its places as free; others see that a class keeps them, and until when."""
    reserve(lab, count=5)
    assert offer_of(lab, "everyone").free_now == offer_of(lab, "deep").free_now == 7
    go_to(lab, 0)
    assert (offer_of(lab, "everyone").free_now, offer_of(lab, "deep").free_now) == (2, 7)
    big, course_offer = offer_of(lab, "everyone", "3g.20gb"), offer_of(lab, "deep", "3g.20gb")
    assert (big.free_now, big.reserved_s, big.is_held) == (0, 900.0, False)
    assert course_offer.free_now == 0
    lab.run("d1", course="deep")
    assert offer_of(lab, "deep").free_now == 6
    go_to(lab, 900)
    assert offer_of(lab, "everyone").free_now == offer_of(lab, "deep").free_now == 6


def test_who_waits_for_a_class_is_told(lab: World) -> None:
    """A stranger reads why what is free is not for them; a student of the class need not."""
    reserve(lab)
    leases = [lab.run(f"s{n}") for n in range(7)]
    go_to(lab, 300)
    student = lab.ask("d1", course="deep")
    stranger = lab.wait("s8")
    assert lab.pool.tickets.find(stranger.id).message == ""
    lab.pool.tickets.cancel(student.id, "d1")
    lab.end(leases[0])
    message = lab.pool.tickets.find(stranger.id).message
    assert message == lab.pool.snapshot().waiting[0].message
    assert message.startswith("What is free is kept for a class")
    assert message.endswith("free for all in at most 10 min.")


HALF_FOR_ALL = {"shape": "3g.20gb", "count": 1}
NEXT_CLASS = {"course": "everyone", "from_time": "12:00", "to_time": "14:00"}


WHO_IS_SERVED = {
    "all before the lead": ([{}], -LEAD_S - 121, [(1, "everyone")], [1]),
    "nobody else from the lead on": ([{}], -LEAD_S, [(1, "everyone")], [0]),
    "whoever asks in its course": ([{}], 0, [(1, "everyone"), (1, "deep")], [0, 1]),
    "the class, as many as reserved": ([{}], 60, [(3, "everyone"), (8, "deep")], [0, 7]),
    "the class within its grace": ([{}], 899, [(6, "everyone"), (1, "deep")], [0, 1]),
    "everybody after its grace": ([{}], 900, [(6, "everyone"), (1, "deep")], [6, 1]),
    "others of what is not reserved": (
        [HALF_FOR_ALL], 0, [(5, "everyone"), (1, "deep", "3g.20gb")], [4, 1],
    ),
    "as many of the class as reserved, then all in turn": (
        [{"count": 2}], 0, [(2, "deep"), (5, "everyone"), (1, "deep")], [2, 4, 1],
    ),
    "two classes at once, whoever comes first": (
        [HALF_FOR_ALL, {"course": "everyone", "count": 3}], 0,
        [(3, "everyone"), (1, "deep", "3g.20gb")], [3, 1],
    ),
    "nobody of what the next class has reserved": (
        [{}, NEXT_CLASS], 7200 - 60, [(1, "deep"), (1, "vision")], [0, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("reserved", "at_s", "asking", "offered"), WHO_IS_SERVED.values(), ids=WHO_IS_SERVED
)
def test_who_is_served(
    lab: World,
    reserved: list[dict[str, Any]],
    at_s: float,
    asking: list[tuple[int, str, str]],
    offered: list[int],
) -> None:
    """So many of each group are, who ask one after the other; the same people are in all groups."""
    for changes in reserved:
        reserve(lab, **changes)
    go_to(lab, at_s)
    groups = [
        [lab.ask(f"u{n}", *shape, server=f"{group}", course=course).id for n in range(count)]
        for group, (count, course, *shape) in enumerate(asking)
    ]
    lab.work()
    assert [sum(state_of(lab, n) == "offered" for n in group) for group in groups] == offered


def test_until_its_end_the_class_goes_first(lab: World) -> None:
    """After the grace a student of the class is next when something becomes free."""
    reserve(lab)
    go_to(lab, 1000)
    leases = [lab.run(f"s{n}") for n in range(7)]
    stranger = lab.ask("s8")
    student = lab.ask("d1", course="deep")
    assert lab.pool.tickets.find(student.id).position == 1
    lab.end(leases[0])
    assert (state_of(lab, student.id), state_of(lab, stranger.id)) == ("offered", "waiting")
    go_to(lab, 7200)
    late = lab.ask("d2", course="deep")
    lab.end(leases[1])
    assert (state_of(lab, stranger.id), state_of(lab, late.id)) == ("offered", "waiting")


def test_created_before_the_start(lab: World) -> None:
    """From the lead on slots are chosen and cut, whatever lay there, until they are drawn."""
    lab.end(lab.run("s1", "7g.40gb"))
    assert [row.profile for row in lab.ledger.state.slices.values()] == ["7g.40gb"]
    reservation = reserve(lab, shape="2g.10gb", count=3)
    go_to(lab, -LEAD_S - 1)
    assert lab.pool.snapshot().reserved_slots == ()
    go_to(lab, -LEAD_S)
    slots = lab.pool.snapshot().reserved_slots
    assert {(slot.reservation, slot.course) for slot in slots} == {(reservation.id, "deep")}
    assert sorted((slot.gpu, "2g.10gb", slot.start) for slot in slots) == sorted(lab.raw())
    assert sorted((slot.start, slot.size) for slot in slots) == [(0, 2), (2, 2), (4, 2)]
    assert set(lab.states()) == {"free"}
    student = lab.ask("d1", "2g.10gb", course="deep")
    lab.pool.turn()
    assert state_of(lab, student.id) == "offered", "nothing is to be made for it"
    assert len(lab.pool.snapshot().reserved_slots) == 2


def test_each_who_waits_takes_one_slot(lab: World) -> None:
    """Of two reservations of one course and shape at one time: both are counted on by nobody."""
    reserve(lab, count=3)
    reserve(lab, count=4)
    go_to(lab, 0)
    for number in range(5):
        lab.ask(f"d{number}", course="deep")
    assert len(reserved_slots.claimants_with_slot(lab.pool.view)) == 5
    assert offer_of(lab, "deep").free_now == 2
    assert [
        len(slots) for _, slots in reserved_slots.reservations_with_claimants(lab.pool.view)
    ] == [3, 2]


def test_a_lease_that_runs_already_counts(lab: World) -> None:
    """The course holds seven in all: who came early is one of them."""
    reserve(lab)
    early = lab.run("d1", course="deep")
    go_to(lab, 0)
    assert lab.pool.reservations.all()[0].in_use == 1
    students = [lab.ask(f"e{n}", course="deep") for n in range(6)]
    lab.work()
    assert {state_of(lab, student_ticket.id) for student_ticket in students} == {"offered"}
    strangers = [lab.ask(f"s{n}") for n in range(2)]
    lab.end(early)
    again = lab.wait("d1", course="deep")
    assert state_of(lab, again.id) == "offered"
    assert {state_of(lab, stranger_ticket.id) for stranger_ticket in strangers} == {"waiting"}


def test_cancelled(lab: World) -> None:
    """Cancelling frees what was kept at once, says by whom and why, and ends no lease."""
    reservation = reserve(lab)
    go_to(lab, 0)
    lease = lab.run("d1", course="deep")
    stranger = lab.wait("s1")
    cancelled = lab.pool.reservations.cancel(reservation.id, "olaf", "the class is ill")
    assert (cancelled.state, cancelled.message) == ("cancelled", "the class is ill")
    lab.work()
    assert state_of(lab, stranger.id) == "offered"
    assert lab.pool.leases.find(lease.id).state == "running"
    noted = lab.ledger.history("reservation")[0]
    assert (noted["by"], noted["reason"], noted["course"]) == ("olaf", "the class is ill", "deep")
    assert reserve(lab).id != reservation.id


def test_changed(lab: World) -> None:
    """Under the same number it is another time and count; itself it does not clash with."""
    reservation = reserve(lab, count=7)
    go_to(lab, 0)
    stranger = lab.ask("s1")
    lab.pool.reservations.change(reservation.id, weekly_request(count=6), "ina")
    lab.work()
    assert state_of(lab, stranger.id) == "offered"
    assert len(lab.pool.snapshot().reserved_slots) == 6
    other = weekly_request(count=5, from_time="11:00", to_time="13:00", reason="later")
    changed = lab.pool.reservations.change(reservation.id, other, "olaf")
    assert [r.id for r in lab.pool.reservations.all()] == [reservation.id]
    assert (changed.count, changed.from_time, changed.message) == (5, "11:00", "later")
    assert (changed.made_at, changed.starts_at) == (reservation.made_at, TUESDAY + 3600)
    noted = lab.ledger.history("reservation")[0]
    assert (noted["by"], noted["action"], noted["reason"]) == ("olaf", "change", "later")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 8}, "impossible-reservation"),
        ({"count": 5, "from_time": "13:00", "to_time": "14:00"}, "reservation-clash"),
        ({"tz": "Mars/Olympus"}, "bad-time"),
    ],
)
def test_a_refused_change_changes_nothing(lab: World, changes: dict[str, Any], reason: str) -> None:
    """It is as it was, and the ledger says what was refused."""
    reservation = reserve(lab, count=3)
    reserve(lab, count=3, from_time="13:00", to_time="14:00")
    with pytest.raises(Refused) as error:
        lab.pool.reservations.change(reservation.id, weekly_request(**changes), "ina")
    assert error.value.reason == reason
    assert reservation in lab.pool.reservations.all()
    assert error.value.message in lab.ledger.history("reservation")[0]["reason"]


def test_what_is_over_or_never_was(lab: World) -> None:
    """It can be neither changed nor cancelled."""
    reservation = reserve(lab)
    lab.pool.reservations.cancel(reservation.id, "ina")
    for number, reason in ((reservation.id, "reservation-over"), (99, "unknown-reservation")):
        with pytest.raises(Refused, check=because(reason)):
            lab.pool.reservations.change(number, weekly_request(), "ina")
        with pytest.raises(Refused, check=because(reason)):
            lab.pool.reservations.cancel(number, "ina")


def test_once_and_over(lab: World) -> None:
    """A single class is over after its end, and no longer listed; a weekly one is planned again."""
    weekly = reserve(lab, count=4)
    once = reserve(lab, weekdays=(), date="2026-06-02", from_time="09:30", count=3)
    assert [reservation.id for reservation in lab.pool.reservations.all()] == [once.id, weekly.id]
    go_to(lab, 7200)
    assert [reservation.id for reservation in lab.pool.reservations.all()] == [weekly.id]
    assert lab.pool.reservations.all()[0].starts_at == TUESDAY + 7 * 86400
    assert lab.ledger.history("reservation", str(once.id))[0]["to_state"] == "over"
    with pytest.raises(Refused, check=because("reservation-over")):
        lab.pool.reservations.cancel(once.id, "ina")


def test_whole_gpus(make_world: Callable[..., World]) -> None:
    """GPUs with MIG off are reserved by number."""
    lab = before_class(make_world, gpus=2, mig=False)
    assert refusal(lab, shape="full", count=3).reason == "impossible-reservation"
    reserve(lab, shape="full", count=1)
    go_to(lab, 0)
    strangers = [lab.ask(f"s{n}", "full") for n in range(2)]
    lab.work()
    assert [state_of(lab, stranger.id) for stranger in strangers] == ["offered", "waiting"]
    student = lab.wait("d1", "full", course="deep")
    assert [state_of(lab, t.id) for t in (student, strangers[1])] == ["offered", "waiting"]


def test_a_slice_that_cannot_be_created(lab: World) -> None:
    """What fails is tried again after a pause, not for ever at once; then the class has it.

    NVML gives what is cut the id of a slice that is gone, but is still to be cleared.
    """
    lab.at = TUESDAY - 60
    lease = lab.run("s1")
    lab.fail("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE)
    lab.end(lease)
    lab.machine.reboot()
    reserve(lab)
    lab.work(max_jobs=20)
    go_to(lab, 0)
    assert [profile for _, profile, _ in lab.raw()] == ["1g.5gb"] * 7


def test_what_is_borrowed_is_back_before_the_class(lab: World) -> None:
    """A measurement that begins shortly before the class ends in time for it."""
    reserve(lab)
    lab.at = TUESDAY - LEAD_S - 200
    lab.pool.reconcile()
    assert lab.borrow("ada").ends_at == TUESDAY - 120


def test_a_measurement_draws_on_the_reservation(lab: World) -> None:
    """Whoever borrows the reserved shape in the course gets one of the slices that are kept."""
    reserve(lab, course="everyone")
    go_to(lab, 60)
    lab.borrow("ada")
    assert [reservation.in_use for reservation in lab.pool.reservations.all()] == [1]
