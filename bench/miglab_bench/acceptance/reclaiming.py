"""Steps: two who compute nothing are warned; one says "I am still here", one is reclaimed."""

from functools import partial

from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_bench.acceptance.run import Run, expect, expect_own_slice
from miglab_bench.acceptance.waiting import waited
from miglab_bench.harness.student import Student, wait_for

STAYS, GOES = 1, 2  # the students who compute nothing, by number


def idle_are_warned(run: Run) -> str:
    """Those who compute nothing while others wait are warned; nobody who computes is."""
    idle = {run.student(number).name for number in (STAYS, GOES)}
    wait_for(lambda: idle <= _warned(run).keys(), f"{' and '.join(sorted(idle))} to be warned")
    warned = _warned(run)
    expect(warned.keys() == idle, f"warned: {sorted(warned)}")
    lease = warned[run.student(GOES).name]
    assert lease.warning is not None
    expect(lease.warning.kind is WarningKind.IDLE, f"warned about: {lease.warning}")
    for number in (STAYS, GOES):
        wait_for(partial(_is_told, run.student(number)), "the warning in JupyterLab")
    left_s = lease.warning.reclaim_at - lease.warning.at
    return f"2 of {len(run.holding)} warned, {left_s:.0f} s before: {lease.warning.reason}"


def still_here_keeps_it(run: Run) -> str:
    """One says "I am still here" in JupyterLab, and is not warned any more."""
    student = run.student(STAYS)
    left = student.lease()["warning"]["keepalives_left"]
    student.keepalive()
    lease = run.lab.leases()[student.name]
    expect(lease.state is LeaseState.RUNNING and lease.warning is None, f"the lease: {lease}")
    return f"{student.name} keeps {lease.shape}; may say so {left - 1} times more"


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
    return f"{leaving.name} reads: {news}; {waited(run, served)}; {run.positions()}"


def _is_told(student: Student) -> bool:
    return student.lease()["warning"] is not None


def _warned(run: Run) -> dict[str, LeaseView]:
    leases = run.lab.leases().items()
    return {user: lease for user, lease in leases if lease.state is LeaseState.WARNED}
