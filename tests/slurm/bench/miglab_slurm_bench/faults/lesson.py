"""Eight students on four slices: what they do, and what hub and Slurm say of their servers."""

import json
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import httpx

from miglab_bench.harness.student import Student
from miglab_slurm_bench.lab import SlurmLab

SHAPE = "1g.5gb"
STUDENTS = 8
PENDING, RUNNING = "PENDING", "RUNNING"


@dataclass(frozen=True)
class JobSeen:
    """A job of the lab, as squeue tells it."""

    id: int
    state: str
    user: str
    node: str


class SlurmLesson:
    """A class: students come, wait, go."""

    def __init__(self, on: SlurmLab) -> None:
        self.on = on
        self.stopped: set[str] = set()
        self._asking = ThreadPoolExecutor(2 * STUDENTS)
        self.students = [on.lab.signed_in(f"student-{number}") for number in range(STUDENTS)]

    def act(self, rng: Random) -> None:
        """Somebody comes or goes; what cannot be done while something is down is left.

        The hub answers a start only when it is over or takes long, and nobody waits for that: a
        fault is to strike in the middle of it.
        """
        student = rng.choice(self.students)
        if student.has_no_server():
            self._asking.submit(_ask, student)
        elif rng.random() < 0.3 and student.is_ready():
            self.stopped.add(student.name)
            student.stop()

    def come_back(self, waiting: Collection[str]) -> None:
        """Students who waited and find no start of theirs any more ask again, as people do."""
        for student in self.students:
            if student.name in waiting and student.has_no_server():
                self._asking.submit(_ask, student)

    def jobs(self) -> list[JobSeen]:
        """The lab's jobs that are not over."""
        output = self.on.cluster.command("squeue", "-h", "-a", "-o", "%i|%T|%N|%k")
        return list(_jobs_in(output))

    def ready(self) -> dict[str, int]:
        """Students whose server the hub calls ready and which answers; name to its own job."""
        return {student.name: _own_job(student) for student in self.students if student.is_ready()}

    def wrong(self) -> list[str]:
        """What does not hold now, in words; empty when servers and jobs agree."""
        try:
            jobs, ready = self.jobs(), self.ready()
        except (OSError, ValueError, httpx.HTTPError) as error:
            return [f"cannot look: {error}"]
        return [*self._per_student(jobs, ready), *self._nobodys(jobs)]

    def _per_student(self, jobs: list[JobSeen], ready: dict[str, int]) -> Iterator[str]:
        running = {job.id: job.user for job in jobs if job.state != PENDING}
        for name, count in Counter(running.values()).items():
            if count > 1:
                yield f"{name} has {count} running jobs"
        for name, count in Counter(job.user for job in jobs if job.state == PENDING).items():
            if count > 1:
                yield f"{name} waits with {count} jobs"
        for name, job in ready.items():
            if running.get(job) != name:
                yield f"the hub says that {name}'s server is ready, and it is job {job}"

    def _nobodys(self, jobs: list[JobSeen]) -> Iterator[str]:
        with_server = {student.name for student in self.students if not student.has_no_server()}
        for job in jobs:
            if job.user not in with_server:
                yield f"job {job.id} of {job.user} is {job.state}, and no server is its"

    def close(self) -> None:
        """Close the browsers."""
        self._asking.shutdown()
        for student in self.students:
            student.close()


def _own_job(student: Student) -> int:
    """What the student's server says; 0 where something else answers."""
    answer = student.page(f"/user/{student.name}/environment")
    return int(json.loads(answer)["SLURM_JOB_ID"]) if answer.startswith("{") else 0


def _ask(student: Student) -> None:
    with suppress(httpx.HTTPError):  # what is down does not answer
        student.ask_by_api(shape=SHAPE, course="everyone")


def _jobs_in(text: str) -> Iterator[JobSeen]:
    for line in text.splitlines():
        number, state, node, comment = line.split("|", 3)
        try:
            user = str(json.loads(comment)["user"])
        except (ValueError, KeyError, TypeError):
            continue  # somebody else's job
        if state != "COMPLETING":
            yield JobSeen(int(number), state, user, node)
