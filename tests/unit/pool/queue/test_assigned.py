"""GPUs of one course alone: who gets leases there, what is kept, offered and promised there."""

from collections.abc import Callable

import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, SHAPES, World
from tests.unit.pool.reservations.test_reservations import TUESDAY, before_class
from tests.unit.pool.reservations.test_reservations import reserve as reserve_class

from miglab_api.tickets import TicketState
from miglab_pool.queue.order import first_that_fits
from miglab_pool.queue.rules import WaitingTicket
from miglab_pool.refused import Refused
from miglab_pool.settings import Course
from miglab_pool.state.placement import GpuOccupancy

from .test_queue import A100, slice_at

MakeWorld = Callable[..., World]

COURSES = {name: Course(title=name, shapes=SHAPES) for name in ("everyone", "vision", "deep")}
RULES = changed(
    SETTINGS, courses=COURSES, assigned={"1": "vision"}, attend_grace_s=7200.0,
    longest_wait_s=24 * 3600.0, reserve_lead_s=900.0,
)  # fmt: skip
ONE = ("1g.5gb",)


def waiting(ticket: int, course: str, *profiles: str) -> WaitingTicket:
    return WaitingTicket(ticket, profiles or ONE, 0.0, course, f"user{ticket}")


def occupancy(gpu: str, course: str = "", *names: str) -> GpuOccupancy:
    """An A100 with these slices leased, lowest first."""
    starts = iter(range(8))
    live = tuple(slice_at(n, next(starts)) for n in names)
    return GpuOccupancy(gpu, A100, live, course=course)


def serve(line: list[WaitingTicket], gpus: list[GpuOccupancy]) -> tuple[int, str] | None:
    grant = first_that_fits(line, gpus)
    return None if grant is None else (grant.ticket, grant.choices[0].gpu)


def test_a_stranger_gets_nothing_there() -> None:
    """However empty it is; the course's own do, and are not held up by who stands in front."""
    full = occupancy("a", "", *ONE * 7)
    of_vision = occupancy("b", "vision")
    assert serve([waiting(1, "deep")], [full, of_vision]) is None
    assert serve([waiting(1, "deep"), waiting(2, "vision")], [full, of_vision]) == (2, "b")
    assert serve([waiting(1, "")], [full, of_vision]) is None
    line = [waiting(1, "deep", "3g.20gb"), waiting(2, "vision", "7g.40gb")]
    assert serve(line, [occupancy("a", "", *ONE * 6), of_vision]) == (2, "b")


def test_of_equal_placements_its_own_is_taken() -> None:
    """Room for all is left to others, unless it suits better or is all; a place set aside, too."""
    both = [occupancy("a"), occupancy("b", "vision")]
    assert serve([waiting(1, "vision")], both) == (1, "b")
    assert serve([waiting(1, "deep")], both) == (1, "a")
    assert serve([waiting(1, "vision")], [occupancy("a", "", *ONE * 6), both[1]]) == (1, "a")
    assert serve([waiting(1, "vision")], [both[0], occupancy("b", "vision", *ONE * 7)]) == (1, "a")
    full = [occupancy("a", "", *ONE * 7), occupancy("b", "vision", *ONE * 7)]
    shapes = [waiting(1, "vision", "7g.40gb"), waiting(2, "deep")]
    half = [*full, occupancy("c", "", "1g.5gb"), occupancy("d", "vision", "1g.5gb")]
    assert serve(shapes, half) == (2, "c")


@pytest.fixture
def lab(make_world: MakeWorld) -> World:
    """Two A100s; the second is vision's."""
    return before_class(make_world, RULES, gpus=2)


def gpus_of(lab: World, course: str) -> list[int]:
    leases = [lease for lease in lab.pool.leases.live() if lease.course == course]
    return sorted(slice_.gpu for lease in leases for slice_ in lease.slices)


def ask(lab: World, count: int, course: str, shape: str = "1g.5gb", name: str = "") -> list[int]:
    users = [f"{name or course}{n}" for n in range(count)]
    tickets = [lab.ask(user, shape, course=course).id for user in users]
    lab.attend_all()
    lab.work()
    return tickets


def test_a_shape_that_only_anothers_gpu_could_hold_is_refused(make_world: MakeWorld) -> None:
    """At once, and in words, as if that GPU were not there."""
    lab = make_world(changed(RULES, assigned={"0": "vision"}))
    with pytest.raises(Refused, check=because("impossible-shape")):
        lab.ask("ada", "1g.5gb", course="deep")
    assert lab.ask("vera", "1g.5gb", course="vision").state is TicketState.WAITING


def test_whole_gpus_too(make_world: MakeWorld) -> None:
    """A GPU with MIG off that is a course's own is leased to nobody else."""
    lab = make_world(RULES, gpus=2, mig=False)
    strangers = ask(lab, 2, "deep", "full")
    states = {lab.pool.tickets.find(ticket).state for ticket in strangers}
    assert states == {TicketState.OFFERED, TicketState.WAITING}
    (vision_ticket,) = ask(lab, 1, "vision", "full")
    assert lab.pool.tickets.find(vision_ticket).state is TicketState.OFFERED


def reserve(lab: World, course: str, count: int) -> None:
    reserve_class(lab, course=course, count=count)


def test_a_class_has_its_slots_on_its_own_gpu_first(lab: World) -> None:
    """So that both classes find theirs, in whichever order they reserved."""
    with pytest.raises(Refused, check=because("impossible-reservation")):
        reserve(lab, "deep", 8)
    reserve(lab, "vision", 7)
    reserve(lab, "deep", 7)
    with pytest.raises(Refused, check=because("reservation-clash")):
        reserve(lab, "vision", 1)
    lab.at = TUESDAY - 600
    lab.work()
    ask(lab, 7, "deep")
    ask(lab, 7, "vision")
    assert gpus_of(lab, "vision") == [1] * 7
    assert gpus_of(lab, "deep") == [0] * 7


def test_who_waits_elsewhere_wants_nothing_of_it(lab: World) -> None:
    """A lease on vision's GPU frees nothing for a stranger, who is offered none of it either."""
    assert [gpu.course for gpu in lab.pool.snapshot().gpus] == ["", "vision"]
    offers = lab.pool.offers(["deep", "vision"], None)
    free = [{s.shape: s.free_now for s in course.shapes}["1g.5gb"] for course in offers.courses]
    assert free == [7, 14]
    for number in range(14):
        lab.run(f"vera{number}", course="vision")

    def waiting_by_gpu() -> list[int]:
        waiting_counts = {
            lease.slices[0].gpu: lease.others_wait for lease in lab.pool.leases.live()
        }
        return [waiting_counts[0], waiting_counts[1]]

    (last,) = ask(lab, 1, "vision", name="last")
    assert waiting_by_gpu() == [1, 1]
    lab.pool.tickets.cancel(last, "last0")
    ask(lab, 1, "deep")
    assert waiting_by_gpu() == [1, 0]
