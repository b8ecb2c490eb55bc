"""Steps: nine students, and a class that has reserved, share seven slices.

Those in the queue see position and estimated wait.  Of those who compute nothing, one says "I am
still here", and one is reclaimed for the next in the queue.  Another starts without a GPU, keeps
the position, and moves to the slice.

A course has reserved: who comes is served before the line, the rest goes to the line.  And a
reservation is a promise: nobody gets a lease shortly before that would break it, and its slices are
made before it begins.
"""

from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from miglab_api.gpus import SliceState
from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.reservations import WEEKDAYS, ReservationRequest, ReservationState
from miglab_api.wording import estimated_wait
from miglab_bench.acceptance.run import SLICES, STUDENTS, Run, expect, expect_own_slice, in_parallel
from miglab_bench.harness.pool_operator import SHAPE
from miglab_bench.harness.student import Student, wait_for

STAYS, GOES = 1, 2  # who hold a slice and compute nothing, by number
RESTING = 2  # so many of those who hold a slice
LEAVING = 3  # who stops and makes room
COURSE = "practical"
MEMBER, OTHER = 7, 6  # two who leave, by number; the first is in the course
GRACE_S = 15.0
LEAD_S = 20.0
COUNT = 2
LASTS = timedelta(hours=1)
FAR_ZONE = "Etc/GMT-12"  # where it is noon when it is midnight in UTC
SHAPE_CELL = "import os; print(os.environ['MIGLAB_SHAPE'])"


def sign_in(run: Run) -> str:
    """Nine students sign in through the login form."""
    run.sign_in(STUDENTS)
    return f"{STUDENTS} students signed in"


def seven_get_slices(run: Run) -> str:
    """Seven ask, and hold seven different slices."""
    first = run.students[:SLICES]
    in_parallel(first, lambda student: student.ask(SHAPE))
    wait_for(lambda: len(run.lab.leases()) == SLICES, f"{SLICES} leases")
    in_parallel(first, Student.wait_until_ready)
    uuids = [uuid for lease in run.lab.leases().values() for uuid in lease.uuids]
    expect(len(set(uuids)) == len(uuids) == SLICES, f"slices leased: {uuids}")
    return f"{SLICES} leases, {len(set(uuids))} different slices"


def cells_print_slices(run: Run) -> str:
    """Each runs a cell that prints the slice that the ledger says; five compute on."""
    holding = run.holding
    in_parallel(holding, partial(expect_own_slice, run))
    in_parallel(holding[RESTING:], Student.compute_on)
    return f"{len(holding)} cells printed their own slice; {len(holding) - RESTING} compute on"


def two_wait(run: Run) -> str:
    """The eighth and the ninth wait, with positions 1 and 2 and a likely wait."""
    places = []
    for place, student in enumerate(run.students[SLICES:], 1):
        student.ask(SHAPE)
        places.append(_wait_in_queue(run, student, place))
    expected = {student.name: place for place, student in enumerate(run.waiting, 1)}
    expect(run.lab.positions() == expected, f"places: {run.lab.positions()}")
    return "; ".join(places)


def _wait_in_queue(run: Run, student: Student, place: int) -> str:
    """Wait until somebody who has asked is in the queue, and knows for how long; in words."""
    name = student.name
    wait_for(lambda: run.lab.positions().get(name) == place, f"{name} in the queue at {place}")
    wait_for(lambda: run.lab.tickets()[name].estimate is not None, f"an estimate for {name}")
    run.tickets[name] = run.lab.tickets()[name]
    run.waiting.append(student)
    estimate = run.tickets[name].estimate
    assert estimate is not None
    is_range = 0 <= estimate.low_s <= estimate.likely_s <= estimate.high_s
    expect(is_range, f"the wait of {name} is said to be {estimate}")
    return f"{name} at {place}, {estimated_wait(estimate)}"


def _check_wait(run: Run, student: Student) -> str:
    """Check the wait for a lease against its estimate, and return it in words."""
    ticket, lease = run.tickets[student.name], run.lab.leases()[student.name]
    expect(lease.ticket == ticket.id, f"lease {lease.id} is of another place than {ticket.id}")
    waited_s, estimate = lease.granted_at - ticket.created_at, ticket.estimate
    assert estimate is not None
    expect(
        estimate.low_s <= waited_s <= estimate.high_s,
        f"waited {waited_s:.0f} s, foretold {estimate}",
    )
    return f"{student.name} waited {waited_s:.0f} s"


def idle_are_warned(run: Run) -> str:
    """Those who compute nothing while others wait are warned; nobody who computes is."""
    idle = {run.student(number).name for number in (STAYS, GOES)}
    wait_for(
        lambda: idle <= _in_state(run, LeaseState.WARNED).keys(),
        f"{' and '.join(sorted(idle))} to be warned",
    )
    warned = _in_state(run, LeaseState.WARNED)
    expect(warned.keys() == idle, f"warned: {sorted(warned)}")
    lease = warned[run.student(GOES).name]
    assert lease.warning is not None
    expect(lease.warning.kind is WarningKind.IDLE, f"warned about: {lease.warning}")
    for number in (STAYS, GOES):
        wait_for(run.student(number).is_warned, "the warning in JupyterLab")
    left_s = lease.warning.reclaim_at - lease.warning.at
    return f"2 of {len(run.holding)} warned, {left_s:.0f} s before: {lease.warning.reason}"


def still_here_keeps_it(run: Run) -> str:
    """One says "I am still here" in JupyterLab, and is not warned any more."""
    student = run.student(STAYS)
    keepalives = student.lease()["warning"]["keepalives_left"]
    student.keepalive()
    lease = run.lab.leases()[student.name]
    expect(lease.state is LeaseState.RUNNING and lease.warning is None, f"the lease: {lease}")
    return f"{student.name} keeps {lease.shape}; may say so {keepalives - 1} times more"


def next_is_served(run: Run) -> str:
    """The other's slice is reclaimed, which its hub page explains; the next in the queue has it."""
    leaving, served = run.student(GOES), run.waiting.pop(0)
    wait_for(lambda: leaving.name not in run.lab.leases(), f"{leaving.name}'s slice to be free")
    wait_for(leaving.has_no_server, f"the server of {leaving.name} to stop")
    news = leaving.news()
    expect("reclaimed: Nothing has happened on it" in news, f"the hub page says: {news}")
    expect(run.student(STAYS).name in run.lab.leases(), "who said to be there lost the slice")
    served.wait_until_ready()
    expect_own_slice(run, served)
    served.compute_on()
    return f"{leaving.name} reads: {news}; {_check_wait(run, served)}; {run.positions()}"


def starts_on_cpu(run: Run) -> str:
    """The last in the queue starts without a GPU; JupyterLab shows the same position."""
    student = run.waiting[-1]
    before = run.tickets[student.name]
    student.start_alternative("cpu")
    student.wait_until_ready()
    text = student.run_cell(SHAPE_CELL).strip()
    expect(text == "cpu", f"{student.name}'s server has {text}")
    wait_for(lambda: student.lease()["ticket"] is not None, "the position in JupyterLab")
    ticket = student.lease()["ticket"]
    is_kept = ticket["id"] == before.id and ticket["state"] == "waiting"
    expect(is_kept and student.name not in run.lab.leases(), f"JupyterLab shows {ticket}")
    return f"{student.name} runs on CPU, still at {ticket['position']} of {ticket['waiting']}"


def moves_to_the_slice(run: Run) -> str:
    """One stops; the slice is offered in JupyterLab, and one click restarts the server with it."""
    leaving, served = run.student(LEAVING), run.waiting.pop(0)
    leaving.leave()
    wait_for(served.is_offered, "the offer in JupyterLab")
    left_s = served.lease()["ticket"]["left_s"]
    served.move()
    wait_for(
        lambda: served.name in _in_state(run, LeaseState.RUNNING),
        f"a server with a slice for {served.name}",
    )
    served.wait_until_ready()
    expect_own_slice(run, served)
    served.compute_on()
    offer = f"offered for {left_s:.0f} s"
    return f"{leaving.name} left; {offer}; {_check_wait(run, served)}; {run.positions()}"


def one_comes_back(run: Run) -> str:
    """Who has left asks again, and waits again."""
    back = run.student(LEAVING)
    back.ask(SHAPE)
    return _wait_in_queue(run, back, 1)


def survives_kill(run: Run) -> str:
    """Hub and pool are killed and started again: every lease and every place is still right."""
    before, places = _leased_uuids(run), run.lab.positions()
    run.lab.kill("hub", "pool")
    expect(_leased_uuids(run) == before, f"leases before {before}, after {_leased_uuids(run)}")
    expect(run.lab.positions() == places, f"places before {places}, after {run.lab.positions()}")
    last = run.waiting[0]
    last.ask(SHAPE)
    wait_for(lambda: run.lab.positions() == places, f"{last.name} back at place 1")
    for student in run.holding:
        wait_for(student.is_ready, f"the hub to know the server of {student.name} again")
    return f"{len(before)} leases unchanged; {run.positions()}"


def all_leave(run: Run) -> str:
    """All leave, and the GPU is empty."""
    in_parallel(run.holding, Student.leave)
    wait_for(lambda: run.is_empty, "the GPU to be empty")
    expect(not run.lab.servers(), f"servers still run: {run.lab.servers()}")
    broken = run.lab.broken_invariants()
    expect(not broken, f"invariants: {broken}")
    return "no lease, nobody waits, no slice in use; the ledger's invariants hold"


def _leased_uuids(run: Run) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {user: (lease.id, lease.uuids) for user, lease in run.lab.leases().items()}


def _in_state(run: Run, state: LeaseState) -> dict[str, LeaseView]:
    return {user: lease for user, lease in run.lab.leases().items() if lease.state is state}


# -- a class has reserved --------------------------------------------------------------------------


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


def _class_soon(now: datetime) -> ReservationRequest:
    """Return a reservation of a class that begins a little more than the lead time from now."""
    begins = (now + timedelta(seconds=LEAD_S + 70)).replace(second=0, microsecond=0)
    return class_now(begins).model_copy(update={"count": SLICES})


def class_is_served(run: Run) -> str:
    """Two slices become free and are kept; the line waits on; a student of the class has one."""
    member, other = run.student(MEMBER), run.student(OTHER)
    run.reserved = run.lab.reserve(class_now(datetime.now(UTC)))
    in_parallel([member, other], Student.leave)
    wait_for(lambda: _count_free(run) == COUNT, f"{COUNT} free slices")
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
    is_right = view.state is ReservationState.OPEN and view.in_use == 1
    expect(is_right, f"the reservation is {view.state}, {view.in_use} in use")
    return f"{late_s:.1f} s after the grace of {GRACE_S:.0f} s; {_check_wait(run, first)}"


def promise_is_kept(run: Run) -> str:
    """A class has reserved all: who asks before waits; all is made in time, and a member has one.

    What nobody takes up goes to who waits, when the grace is over.
    """
    member, other, reserved = run.student(MEMBER), run.student(OTHER), run.reserved
    assert reserved is not None
    view = run.lab.reserve(_class_soon(datetime.now(UTC)), reserved.id)
    expect(view.certain == SLICES and not view.outlook, f"it says: {view.outlook}")
    other.ask(SHAPE)
    wait_for(lambda: other.name in run.lab.positions(), f"{other.name} in the queue")
    message = run.lab.tickets()[other.name].message
    expect("kept for a class" in message, f"{other.name} reads: {message}")
    starts_at = view.starts_at or 0.0
    wait_for(lambda: _count_created(run) == SLICES, f"{SLICES} slices", LEAD_S + 80)
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
    return f"{SLICES} made {early_s:.1f} s before the start; guaranteed to the end; {message}"


def _count_created(run: Run) -> int:
    """Return how many reserved slots have their slice, still free."""
    snapshot = run.lab.snapshot()
    free = {(gpu.uuid, s.start) for gpu in snapshot.gpus for s in gpu.slices
            if s.state is SliceState.FREE}  # fmt: skip
    return sum((slot.gpu, slot.start) in free for slot in snapshot.reserved_slots)


def _count_free(run: Run) -> int:
    gpus = run.lab.snapshot().gpus
    return sum(s.state is SliceState.FREE for gpu in gpus for s in gpu.slices)
