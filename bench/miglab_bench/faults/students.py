"""Students who come, work, leave and extend, and staff who steer; and what they know themselves.

Each speaks to the pool as a spawner does.  What no answer came to is tried again at the next step;
what a student knows, not what the pool says, is what `checks` compares the pool with.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from miglab_bench.faults.lab import FaultLab
from miglab_bench.faults.servers import StudentServers

SHAPES = ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb")
WORK = "my work"
COME_S = 90.0  # on a busy machine; it is no measurement


@dataclass
class FaultStudent:
    """One student.

    Attributes:
        home: the folder with the student's file.
        ticket: the number of the ticket in the queue, if there is one.
        lease: what was taken, if anything was.
        holder: of the server, from when it was made.
        has_started: whether that server was started.
        lost: places that ended, each with the pool's words.
    """

    name: str
    home: Path
    ticket: int | None = None
    lease: dict[str, Any] | None = None
    holder: str = ""
    has_started: bool = False

    @property
    def fence(self) -> dict[str, Any]:
        """What names this very lease."""
        assert self.lease is not None
        return {"generation": self.lease["generation"], "ledger": self.lease["ledger"]}


class FaultClass:
    """A class of students, and one instructor.

    Attributes:
        words: places in the queue that ended without a word.
    """

    def __init__(self, lab: FaultLab, servers: StudentServers, count: int) -> None:
        self.lab = lab
        self.servers = servers
        self.words: list[str] = []
        self.students = [self._enrol(f"student{number}") for number in range(count)]

    def step(self, rng: Random, times: int) -> None:
        """Let so many students, one after another, do what comes next for them."""
        for _ in range(times):
            self._act(rng, rng.choice(self.students))

    def running(self) -> dict[str, FaultStudent]:
        """The students whose servers run now, by holder."""
        found = {one.holder: one for one in self.students if one.has_started}
        return {holder: one for holder, one in found.items() if self.servers.is_alive(holder)}

    def come(self, student: FaultStudent, shape: str) -> None:
        """Ask for a shape, wait for it and start the server.

        Raises:
            CheckFailed: that takes too long.
        """
        self._ask(student, shape)

        def has_come() -> bool:
            if student.ticket is not None:
                self._wait(student)
            if student.lease is not None and not student.has_started:
                self._begin(student)
            return student.has_started

        self.lab.wait(has_come, COME_S, f"a server for {student.name}")

    def leave(self, student: FaultStudent) -> None:
        """End the server, and say so."""
        self._end_server(student)
        if student.lease is not None:
            path = f"/leases/{student.lease['id']}/release"
            self.lab.ask("POST", path, reason="stopped", **student.fence)
        student.lease = None

    # -- one step ------------------------------------------------------------------------------

    def _enrol(self, name: str) -> FaultStudent:
        home = self.lab.folder / "homes" / name
        home.mkdir(parents=True)
        (home / "work.txt").write_text(f"{WORK} of {name}")
        return FaultStudent(name, home)

    def _act(self, rng: Random, student: FaultStudent) -> None:
        if student.has_started:
            self._work(rng, student)
        elif student.lease is not None:
            self._begin(student)
        elif student.ticket is not None:
            self._wait(student)
        else:
            self._ask(student, rng.choice(SHAPES))

    def _ask(self, student: FaultStudent, shape: str) -> None:
        asked = {"user": student.name, "server": "", "course": "everyone"}
        answer = self.lab.ask("POST", "/tickets", **asked, shape=shape)
        if answer is not None and answer.is_success:
            student.ticket = answer.json()["id"]

    def _wait(self, student: FaultStudent) -> None:
        answer = self.lab.ask("GET", f"/tickets/{student.ticket}")
        if answer is None:
            return
        ticket = answer.json()
        if answer.is_error:  # a restored ledger may not know it; then the answer says so
            self._lose_position(student, str(ticket.get("message", "")))
        elif ticket["state"] in ("offered", "taken"):
            self._take(student)
        elif ticket["state"] != "waiting":
            self._lose_position(student, str(ticket["message"] or ticket["reason"]))

    def _lose_position(self, student: FaultStudent, words: str) -> None:
        if not words:
            self.words.append(f"{student.name}'s place in the queue ended without a word")
        student.ticket = None

    def _take(self, student: FaultStudent) -> None:
        answer = self.lab.ask("POST", f"/tickets/{student.ticket}/take")
        if answer is not None:
            student.ticket = None
            student.lease = answer.json() if answer.is_success else None

    def _begin(self, student: FaultStudent) -> None:
        """Make the server, attach it, and start it only if that is accepted."""
        assert student.lease is not None
        if not student.holder:
            student.holder = self.servers.make(student.lease, student.home)
        path = f"/leases/{student.lease['id']}"
        answer = self.lab.ask("POST", f"{path}/attach", holder=student.holder, **student.fence)
        if answer is None:
            return
        if answer.is_error:
            self._end_server(student)
            student.lease = None
            return
        self.servers.start(student.holder)
        student.has_started = True
        self.lab.ask("POST", f"{path}/running", **student.fence)

    def _work(self, rng: Random, student: FaultStudent) -> None:
        assert student.lease is not None
        if not self.servers.is_alive(student.holder):
            self._end_server(student)
            student.lease = None
            return
        number, path = rng.random(), f"/leases/{student.lease['id']}"
        if number < 0.15:
            self.leave(student)
        elif number < 0.25:  # the server dies, and nobody says so
            self._end_server(student)
            student.lease = None
        elif number < 0.4:
            self.lab.ask("POST", f"{path}/extend", by_s=60)

    def _end_server(self, student: FaultStudent) -> None:
        if student.holder:
            self.servers.end(student.holder)
        student.holder, student.has_started = "", False

    # -- staff ---------------------------------------------------------------------------------

    def steer(self, rng: Random) -> None:
        """The instructor drains a GPU and ends that, or pauses and resumes."""
        gpu = rng.choice(self.lab.gpus)
        if rng.random() < 0.5:
            self.lab.ask("POST", f"/gpus/{gpu}/drain", reason="A look at it.")
            self.lab.ask("POST", f"/gpus/{gpu}/undrain")
        else:
            self.lab.ask("POST", "/pool/pause", reason="A word to all.")
            self.lab.ask("POST", "/pool/resume")

    def tidy(self) -> None:
        """What doctor tells the operator: end servers of no lease, clear and adopt slices."""
        known = {lease["holder"] for lease in self.lab.told("/leases")}
        for holder, student in self.running().items():
            if holder not in known:
                self._end_server(student)
                student.lease = None
        used = {uuid for one in self.running().values() for uuid in (one.lease or {})["uuids"]}
        pool = self.lab.told("/pool")
        for gpu in pool["gpus"]:
            if gpu["draining"]:
                self.lab.ask("POST", f"/gpus/{gpu['uuid']}/undrain")
            for item in gpu["slices"]:
                action = {"quarantined": "clear", "foreign": "adopt"}.get(item["state"])
                if action is not None and item["uuid"] not in used:
                    self.lab.ask("POST", f"/slices/{item['slice_id']}/{action}")
        if pool["paused"]:
            self.lab.ask("POST", "/pool/resume")
