"""The steps of the acceptance run that apply on Slurm, over a real slurmctld of two nodes.

What a reservation, a ledger and simulated GPUs have to do with is Slurm's there.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

from miglab_bench.acceptance.run import Run, expect, in_parallel
from miglab_bench.harness.student import Student, wait_for
from miglab_slurm_bench.cluster import missing
from miglab_slurm_bench.lab import SlurmLab, slurm_lab

SHAPE = "1g.5gb"
GRES = {SHAPE: 2, "3g.20gb": 1}
SLICES, STUDENTS = 4, 6
MORE = """
[reclaim]
idle_wanted_s = 20
warning_s = 30
"""
TESTING = (
    "reclaim = {every_s = 1, report_s = 2, stale_s = 10, holding_factor = 1, cpu_busy_pct = 50}"
)
CELL = (
    "import json, os; print(json.dumps([os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'], "
    "os.environ.get('SLURM_JOB_GPUS', '')]))"
)
CLUSTER_PAGE = "/services/pool/"
STAYS, GOES, LEAVES = 0, 1, 2
"""Of those with a slice: who says to be there, whose slice is reclaimed, and who stops."""


class SlurmRun(Run):
    """What the steps share.

    Attributes:
        jobs: of those who have a slice, by name.
        waiting_jobs: first in front.
    """

    def __init__(self, on: SlurmLab) -> None:
        super().__init__(on.lab)
        self.cluster = on.cluster
        self.jobs: dict[str, int] = {}
        self.waiting_jobs: list[int] = []

    @property
    def holding(self) -> list[Student]:
        """Those who have a slice."""
        return [student for student in self.students if student.name in self.jobs]

    def queue(self, *states: str, partition: str = "lab") -> list[int]:
        """Slurm's own word: the jobs in these states."""
        command = ("squeue", "-h", "-t", ",".join(states), "-p", partition, "-o", "%i", "-S", "i")
        return [int(line) for line in self.cluster.command(*command).split()]


def sign_in(run: SlurmRun) -> str:
    """The students sign in through the login form."""
    run.sign_in(STUDENTS)
    return f"{STUDENTS} students signed in"


def all_slices_are_used(run: SlurmRun) -> str:
    """As many as there are slices each get one of their own; two then compute on."""
    first = run.students[:SLICES]
    in_parallel(first, lambda student: student.ask(SHAPE))
    in_parallel(first, Student.wait_until_ready)
    slices = [_where(student) for student in first]
    expect(len({(node, gpu) for _, node, gpu in slices}) == SLICES, f"slices: {slices}")
    run.jobs = {student.name: job for student, (job, _, _) in zip(first, slices, strict=True)}
    expect(sorted(run.jobs.values()) == run.queue("RUNNING"), f"jobs: {run.jobs}")
    in_parallel(first[GOES + 1 :], Student.compute_on)
    return f"{SLICES} jobs with a slice each: {sorted(run.jobs.values())}"


def two_wait(run: SlurmRun) -> str:
    """The next two wait, with positions 1 and 2 and a likely wait."""
    messages = []
    for number, student in enumerate(run.students[SLICES:], 1):
        student.ask(SHAPE)
        wait_for(student.waiting, f"{student.name} to wait")
        message = student.waiting()["message"]
        position = ("1st of 1 in the queue", "2nd of 2 in the queue")[number - 1]
        expect(position in message, f"{student.name} reads: {message}")
        messages.append(message)
    run.waiting_jobs = run.queue("PENDING")
    expect(len(run.waiting_jobs) == 2, f"waiting jobs: {run.waiting_jobs}")
    return " / ".join(messages)


def staff_see_the_cluster(run: SlurmRun) -> str:
    """The instructor sees who holds and who waits, a reservation and a node; a student does not."""
    names, staff = [student.name for student in run.students], run.lab.signed_in("instructor")
    reservation = (
        "create",
        "reservation",
        "reservationname=exam",
        "starttime=now+2hours",
        "duration=60",
    )
    node = run.cluster.nodes[0]
    run.cluster.command("scontrol", *reservation, f"nodes={node}", "users=root")
    expected = [*names, node, "scontrol delete reservationname=exam"]

    def is_shown() -> bool:
        page = staff.page(CLUSTER_PAGE)
        return all(text in page for text in expected)

    wait_for(is_shown, f"the instructor's page to show {expected}", 30)
    staff.close()
    run.cluster.command("scontrol", "delete", "reservationname=exam")
    student_page = run.students[0].page(CLUSTER_PAGE)
    names_seen = [name for name in names[1:] if name in student_page]
    expect(node in student_page and not names_seen, f"a student's page shows {names_seen}")
    return f"{len(names)} names, the nodes, and a reservation with its command"


def idle_are_warned(run: SlurmRun) -> str:
    """Those who compute nothing while others wait are warned in JupyterLab; nobody who computes."""
    idle = run.students[: GOES + 1]
    for student in idle:
        wait_for(student.is_warned, f"{student.name} to be warned")
    busy = [student.name for student in run.students[LEAVES:SLICES] if student.is_warned()]
    expect(not busy, f"warned, though they compute: {busy}")
    warning = idle[GOES].lease()["warning"]
    run.students[STAYS].keepalive()
    expect(not run.students[STAYS].is_warned(), "“I am still here” ended no warning")
    return f"{warning['reason']} One said to be still there, and keeps it."


def starts_on_cpu(run: SlurmRun) -> str:
    """The last in the queue starts without a GPU; the job that waits stays where it is."""
    student = run.students[-1]
    student.start_alternative("cpu")
    student.wait_until_ready()
    job, _, gpu = _where(student)
    expect(not gpu and job not in run.waiting_jobs, f"job {job} has slice {gpu}")
    expect(run.waiting_jobs[1] in run.queue("PENDING", "RUNNING"), "the position is lost")
    wait_for(lambda: student.lease()["ticket"] is not None, "the position in JupyterLab")
    ticket = student.lease()["ticket"]
    expect(ticket["id"] == run.waiting_jobs[1], f"JupyterLab shows {ticket}")
    return f"job {job} on CPU; job {ticket['id']} still {ticket['state']}"


def next_is_served(run: SlurmRun) -> str:
    """The idle slice is reclaimed, its student reads why, and the next in the queue has it."""
    leaving, served = run.students[GOES], run.students[SLICES]
    wait_for(leaving.has_no_server, f"the server of {leaving.name} to stop")
    news = leaving.news()
    expect("reclaimed: Nothing has happened on it" in news, f"the hub page says: {news}")
    served.wait_until_ready()
    job, _, gpu = _where(served)
    expect(
        job == run.waiting_jobs[0] and bool(gpu), f"{served.name} runs as job {job}, slice {gpu}"
    )
    del run.jobs[leaving.name]
    run.jobs[served.name] = job
    served.compute_on()
    return f"{leaving.name} reads: {news}"


def moves_to_the_slice(run: SlurmRun) -> str:
    """One stops; the slice is offered in JupyterLab, and one click restarts the server with it."""
    leaving, served = run.students[LEAVES], run.students[-1]
    leaving.leave()
    del run.jobs[leaving.name]
    wait_for(served.is_offered, "the offer in JupyterLab")
    served.move()
    wait_for(lambda: not run.queue("RUNNING", partition="labcpu"), "the job on CPU to be over")
    served.wait_until_ready()
    job, _, gpu = _where(served)
    expect(
        job == run.waiting_jobs[1] and bool(gpu), f"{served.name} runs as job {job}, slice {gpu}"
    )
    run.jobs[served.name] = run.waiting_jobs[1]
    served.compute_on()
    return f"{served.name} runs as job {run.waiting_jobs[1]}, which had waited"


def survives_kill(run: SlurmRun) -> str:
    """Hub and reclaimer are killed and started again: every job is still its student's server."""
    run.lab.kill("hub", "reclaimer")
    for student in run.holding:
        wait_for(student.is_ready, f"the hub to know the server of {student.name} again")
        expect(_where(student)[0] == run.jobs[student.name], f"{student.name} has another job")
    expect(run.queue("RUNNING") == sorted(run.jobs.values()), f"jobs: {run.queue('RUNNING')}")
    return f"{len(run.jobs)} servers unchanged"


def all_leave(run: SlurmRun) -> str:
    """All leave, and no job is left in any partition."""
    in_parallel(run.holding, Student.leave)
    wait_for(lambda: not run.cluster.command("squeue", "-h"), "no job left")
    return "no job is left"


def lab() -> AbstractContextManager[SlurmLab]:
    """The lab of the run: two nodes with four small slices."""
    return slurm_lab(gres=GRES, tables=MORE, testing=TESTING)


def _where(student: Student) -> tuple[int, str, str]:
    """A cell's own word: job, node, and slice; empty for none."""
    job, node, gpu = json.loads(student.run_cell(CELL))
    return int(job), node, gpu


__all__ = ["STEPS", "SlurmRun", "lab", "missing"]
STEPS: tuple[tuple[str, Callable[[SlurmRun], str]], ...] = (
    ("six students sign in", sign_in),
    ("four get a slice each, all different, each in a job", all_slices_are_used),
    ("two wait, with positions 1 and 2 and an estimated wait", two_wait),
    ("the instructor sees who holds and who waits", staff_see_the_cluster),
    ("idle students are warned, busy ones are not; “I am still here”", idle_are_warned),
    ("one in the queue starts on CPU and keeps the position", starts_on_cpu),
    ("an idle slice goes to the next in the queue", next_is_served),
    ("one stops, and the one on CPU moves to the slice", moves_to_the_slice),
    ("hub and reclaimer are killed: every server is right", survives_kill),
    ("all leave, and no job is left", all_leave),
)
