"""Steps: a course has reserved; who comes is served before the line, the rest goes to the line.

And a reservation is a promise: nobody gets a lease shortly before that would break it, and its
slices are made before it begins.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from miglab_api.gpus import SliceState
from miglab_api.reservations import WEEKDAYS, ReservationRequest, ReservationState
from miglab_bench.acceptance.run import SLICES, Run, expect, expect_own_slice, in_parallel
from miglab_bench.acceptance.waiting import waited
from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.student import Student, wait_for

COURSE = "practical"
MEMBER, OTHER = 7, 6  # two who leave, by number; the first is in the course
MEMBERS = (f"student-{MEMBER}",)
GRACE_S = 15.0
LEAD_S = 20.0
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


def class_soon(now: datetime) -> ReservationRequest:
    """The same of a class that begins with the first minute that is a lead and a little off."""
    begins = (now + timedelta(seconds=LEAD_S + 70)).replace(second=0, microsecond=0)
    return class_now(begins).model_copy(update={"count": SLICES})


def promise_is_kept(run: Run) -> str:
    """A class has reserved all: who asks before waits; all is made in time, and a member has one.

    What nobody takes up goes to who waits, when the grace is over.
    """
    member, other, reserved = run.student(MEMBER), run.student(OTHER), run.reserved
    assert reserved is not None
    view = run.lab.reserve(class_soon(datetime.now(UTC)), reserved.id)
    expect(view.certain == SLICES and not view.outlook, f"it says: {view.outlook}")
    other.ask(SHAPE)
    wait_for(lambda: other.name in run.lab.positions(), f"{other.name} in the queue")
    said = run.lab.tickets()[other.name].message
    expect("kept for a class" in said, f"{other.name} reads: {said}")
    starts_at = view.starts_at or 0.0
    wait_for(lambda: _made(run) == SLICES, f"{SLICES} slices", LEAD_S + 80)
    early_s = starts_at - run.lab.snapshot().at
    expect(early_s > 0, f"the slices were made {-early_s:.1f} s late")
    member.ask(SHAPE)
    wait_for(lambda: member.name in run.lab.leases(), f"a slice for {member.name}")
    until = run.lab.leases()[member.name].guaranteed_until
    expect(until == view.ends_at, f"guaranteed until {until}, the class ends at {view.ends_at}")
    expect(run.lab.positions() == {other.name: 1}, f"places: {run.lab.positions()}")
    member.wait_until_ready()
    member.compute_on()  # while somebody waits what is idle is reclaimed within seconds
    wait_for(lambda: other.name in run.lab.leases(), f"a slice for {other.name}", 120)
    other.wait_until_ready()
    in_parallel([member, other], Student.leave)
    wait_for(lambda: run.is_empty, "the GPU to be empty")
    return f"{SLICES} made {early_s:.1f} s before the start; guaranteed to the end; {said}"


def _made(run: Run) -> int:
    """How many of the slots that are reserved now have their slice, which is free."""
    snapshot = run.lab.snapshot()
    free = {(gpu.uuid, one.start) for gpu in snapshot.gpus for one in gpu.slices
            if one.state is SliceState.FREE}  # fmt: skip
    return sum((slot.gpu, slot.start) in free for slot in snapshot.reserved_slots)


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
