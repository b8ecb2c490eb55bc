"""Steps: a course has reserved; who comes is served before the line, the rest goes to the line."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from miglab_api.gpus import SliceState
from miglab_api.reservations import WEEKDAYS, ReservationRequest, ReservationState
from miglab_bench.acceptance.run import SHAPE, Run, expect, expect_own_slice, in_parallel
from miglab_bench.acceptance.waiting import waited
from miglab_bench.harness.student import Student, wait_for

COURSE = "practical"
MEMBER, OTHER = 7, 6  # two who leave, by number; the first is in the course
MEMBERS = (f"student-{MEMBER}",)
GRACE_S = 15.0
COUNT = 2
LASTS = timedelta(hours=1)
FAR_ZONE = "Etc/GMT-12"  # where it is noon when it is midnight in UTC


def class_now(now: datetime) -> ReservationRequest:
    """A reservation of a class that has begun in this minute and is held today.

    The grace time ends so long from now, not from the minute's begin.  Pure.

    Args:
        now: the moment, with its time zone.
    """
    utc = now.astimezone(UTC)
    tz = "UTC" if 1 <= utc.hour < 22 else FAR_ZONE  # a class ends on its day
    local = utc.astimezone(ZoneInfo(tz))
    return ReservationRequest(
        course=COURSE,
        shape=SHAPE,
        count=COUNT,
        weekdays=(WEEKDAYS[local.weekday()],),
        until=local.date(),
        from_time=local.strftime("%H:%M"),
        to_time=(local + LASTS).strftime("%H:%M"),
        tz=tz,
        grace_s=local.second + GRACE_S,
        reason="an acceptance run",
    )


def class_is_served(run: Run) -> str:
    """Two slices become free and are kept; the line waits on; a student of the class has one."""
    member, other = run.student(MEMBER), run.student(OTHER)
    run.reserved = run.lab.reserve(class_now(datetime.now(UTC)))
    in_parallel([member, other], Student.leave)
    wait_for(lambda: _free(run) == COUNT, f"{COUNT} free slices")
    expect(run.lab.positions() == {run.waiting[0].name: 1}, f"places: {run.lab.positions()}")
    member.ask(SHAPE)
    wait_for(lambda: member.name in run.lab.leases(), f"a slice for {member.name}")
    expect(run.lab.positions() == {run.waiting[0].name: 1}, f"places: {run.lab.positions()}")
    at = run.lab.snapshot().at
    until = run.reserved.reserved_until or 0.0
    expect(at < until, f"the grace of {GRACE_S:.0f} s was over before all had come")
    return f"{COUNT} kept, {member.name} has one at once; {run.positions()}"


def no_show_goes_to_the_queue(run: Run) -> str:
    """When the grace is over, the slice that nobody has taken up goes to the first in the queue."""
    first, reserved = run.waiting.pop(0), run.reserved
    assert reserved is not None
    wait_for(lambda: first.name in run.lab.leases(), f"a slice for {first.name}")
    late_s = run.lab.leases()[first.name].granted_at - (reserved.reserved_until or 0.0)
    expect(late_s >= 0, f"{first.name} was served {-late_s:.1f} s before the grace was over")
    first.wait_until_ready()
    run.student(MEMBER).wait_until_ready()
    for student in (first, run.student(MEMBER)):
        expect_own_slice(run, student)
    (view,) = run.lab.reservations()
    is_right = view.state is ReservationState.OPEN and view.drawn == 1
    expect(is_right, f"the reservation is {view.state}, {view.drawn} drawn")
    return f"{late_s:.1f} s after the grace of {GRACE_S:.0f} s; {waited(run, first)}"


def _free(run: Run) -> int:
    gpus = run.lab.snapshot().gpus
    return sum(one.state is SliceState.FREE for gpu in gpus for one in gpu.slices)
