"""Students who come, work, extend and leave through hub and proxy, each at an own pace.

What no answer came to is tried again at the next act.  What must hold after each fault is seen from
outside: what a student knows, servers and GPUs, against the pool's words.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from miglab_api.reservations import WEEKDAYS
from miglab_bench.faults.engine import ObservedServer, StudentServers
from miglab_bench.faults.lab import FaultLab
from miglab_bench.faults.recorded_hub import AnsweredStart
from miglab_bench.faults.series import Act
from miglab_bench.harness.student import CheckFailed, Student
from miglab_hub import lab_secrets
from miglab_pool.reclaim.policy import FILES_ARE_KEPT

AGAIN_S = 1.0
TIMEOUT_S = 5.0  # of one request: an act that finds nobody is over then
COURSE = "everyone"
USING = frozenset({"attached", "running", "warned"})
STARTS_ANEW = "the same server starts anew"
LEAVES, DIES, EXTENDS, GIVES_UP = 0.3, 0.4, 0.55, 0.25
NO_ANSWER = (httpx.HTTPError, CheckFailed, KeyError, OSError)
RESERVATION = {
    "course": COURSE,
    "shape": "1g.5gb",
    "count": 1,
    "weekdays": WEEKDAYS,
    "from_time": "00:05",
    "to_time": "23:55",
    "tz": "UTC",
    "reason": "The class of every day.",
}


class FaultStudent(Student):
    """One student in a browser.

    Attributes:
        server: what the student works on; None from when it is to end.
        ended: the server that is to end, though perhaps nobody was there to hear it.
        may_end: every server that student, staff or operator asked to end: a request that nobody
            heard, or that is late, may still end it.
        ticket: the number of the ticket in the queue, if there is one.
        written: the notes that the server has acknowledged.
    """

    def __init__(self, lab: FaultLab, servers: StudentServers, name: str) -> None:
        url, password = lab.settings.public_url, lab_secrets.read_passwords(lab.settings).student
        super().__init__(url, name, password)
        self._http.timeout = httpx.Timeout(TIMEOUT_S)
        self._lab = lab
        self._servers = servers
        self.server: ObservedServer | None = None
        self.ended = ""
        self.may_end: set[str] = set()
        self.ticket: int | None = None
        self.written: list[str] = []

    def act(self, act: Act) -> None:
        """Carry out the act that its number selects; a missing answer is no error."""
        try:
            if self.server is not None:
                self._work(act.number, self.server)
            elif self.ticket is not None and act.number < GIVES_UP:
                self.give_up()
            else:
                self.come(act.shape)
        except NO_ANSWER:
            return

    def come(self, shape: str) -> None:
        """Ask for a server, and do not wait for it."""
        body = {"shape": shape, "course": COURSE}
        answer = self._api("POST", f"/hub/api/users/{self.name}/server", body)
        if "already running" in answer.text:  # whoever was to end it did not hear it, or not yet
            self.ended = ""

    def lose(self) -> None:
        """Give the server up: from now on it may end at any time."""
        self.ended = self.server.holder if self.server else ""
        self.may_end.add(self.ended)
        self.server = None

    def leave(self) -> None:
        """End the server, and do not wait for that."""
        self.lose()
        self.stop()

    def give_up(self) -> None:
        """Leave the queue."""
        self.start_alternative("")
        self.ticket = None

    def is_reached(self) -> bool:
        """Whether the server answers through the proxy, or the hub need not know of it."""
        self._lab.hub_log.read()
        if self.server is None or not self._lab.hub_log.must_know(self.server.holder):
            return True
        try:
            is_ready = self.is_ready() and self.server.holder in self._lab.hub_log.ready
            return is_ready and self._lab.reaches(f"user/{self.name}/")
        except NO_ANSWER:
            return False

    def _work(self, number: float, server: ObservedServer) -> None:
        if number < LEAVES:
            self.leave()
        elif number < DIES:
            self.lose()
            self._servers.end(server.holder)
        elif number < EXTENDS:
            self._extend(server)
        else:
            self._write()

    def _write(self) -> None:
        line = f"{self.name} {len(self.written)}"
        answer = self._http.post(f"{self._url}/user/{self.name}/notes", content=line)
        if answer.status_code == 200:
            self.written.append(line)

    def _extend(self, server: ObservedServer) -> None:
        url = f"{self._lab.settings.student_api_url}/api/lease/extend"
        headers = {"Authorization": f"Bearer {server.token}"}
        self._http.post(url, headers=headers, json={"by_s": 60})

    def _api(self, method: str, path: str, body: object = None) -> httpx.Response:
        answer = super()._api(method, path, body)
        if answer.status_code not in (401, 403):
            return answer
        self._http.cookies.clear()  # the hub does not know them (any more)
        self.sign_in()
        return super()._api(method, path, body)


class FaultClass:
    """A class of students, and the staff.

    Attributes:
        without_words: places in the queue that ended without a word.
        seen_running: the servers that were seen running, by holder.
    """

    def __init__(self, lab: FaultLab, servers: StudentServers, count: int) -> None:
        self.lab = lab
        self.servers = servers
        self.without_words: list[str] = []
        self.seen_running: dict[str, AnsweredStart] = {}
        self._over: set[str] = set()
        self.students = [FaultStudent(lab, servers, f"student{number}") for number in range(count)]

    def close(self) -> None:
        """Close the browsers."""
        for student in self.students:
            student.close()

    def look(self) -> None:
        """Update what students see: running servers, their tickets, and tickets that have ended."""
        servers = self.servers.all()
        running = {server.user: server for server in servers.values() if server.is_running}
        self.seen_running |= {
            server.holder: AnsweredStart(server.user, server.lease) for server in running.values()
        }
        waiting = {ticket["user"]: ticket["id"] for ticket in self.lab.must_get("/pool")["waiting"]}
        for student in self.students:
            server = running.get(student.name)
            if student.server is None and server is not None and server.holder != student.ended:
                student.server = server
            if student.ticket is not None and student.ticket != waiting.get(student.name):
                self._record_ticket_end(student, student.ticket)
            student.ticket = waiting.get(student.name, student.ticket)

    def _record_ticket_end(self, student: FaultStudent, ticket: int) -> None:
        answer = self.lab.ask("GET", f"/tickets/{ticket}")
        if answer is None:
            return
        ticket_view = answer.json()
        is_over = answer.is_error or ticket_view["state"] not in ("waiting", "offered", "taken")
        if is_over and not (ticket_view.get("message") or ticket_view.get("reason")):
            self.without_words.append(f"{student.name}'s place in the queue ended without a word")
        student.ticket = None

    def come(self, student: FaultStudent, shape: str, bound_s: float) -> None:
        """Let a student come, and wait until the server runs.

        Raises:
            CheckFailed: that takes too long.
        """

        def has_come() -> bool:
            self.look()
            if student.server is None:
                student.act(Act(0, 1.0, shape))
                time.sleep(AGAIN_S)
            return student.server is not None

        self.lab.wait(has_come, bound_s, f"a server for {student.name}")

    def ends_unannounced(self) -> list[str]:
        """Whose servers ran and are gone, though nobody announced it; each is said once.

        The hub announces it by giving a start up; the pool, by the reason in its ledger; everybody
        else, before they ask.  All that ran is looked for: also what ended between two looks.
        """
        self.lab.hub_log.read()
        ran = {**self.seen_running, **self.lab.hub_log.started}
        ended = self.servers.ended(ran.keys() - self._over)
        self.lab.hub_log.read()  # a start is given up before its server is ended
        vanished = {holder: ran[holder] for holder in ended}
        self._over |= vanished.keys()
        users = [
            server.user
            for holder, server in vanished.items()
            if not self._is_announced(holder, server)
        ]
        for holder, server in vanished.items():
            self._announce(server.user, holder)
        return users

    def _is_announced(self, holder: str, server: AnsweredStart) -> bool:
        student = self._student(server.user)
        if holder in student.may_end or holder in self.lab.hub_log.given_up:
            return True
        answer = self.lab.must_ask(f"/leases/{server.lease}")
        lease = {} if answer.is_error else answer.json()  # an older ledger may not know it
        reason = lease.get("reason", "") if lease.get("holder") == holder else ""
        return bool(reason.endswith(FILES_ARE_KEPT)) or reason == STARTS_ANEW

    def _student(self, name: str) -> FaultStudent:
        """The student of this name; the pool calls one "ada (ID)" whose account a lost hub had."""
        account, _, _ = name.partition(" (")
        return next(student for student in self.students if student.name == account)

    # -- staff ---------------------------------------------------------------------------------

    def steer(self, steering: str, draw: float) -> None:
        """Act as an instructor; ``draw``, between 0 and 1, chooses the GPU or the lease."""
        gpu = self.lab.gpus[int(draw * len(self.lab.gpus))]
        if steering == "drain":
            self.lab.ask("POST", f"/gpus/{gpu}/drain", reason="A look at it.")
        elif steering == "pause":
            self.lab.ask("POST", "/pool/pause", reason="A word to all.")
        elif steering == "reserve":
            self.lab.ask("POST", "/reservations", **RESERVATION)
        elif leases := [
            lease for lease in self.lab.get("/leases") or () if lease["state"] == "running"
        ]:
            lease = leases[int(draw * len(leases))]
            body: dict[str, Any] = {"by_s": 600}
            if steering == "reclaim":
                self._announce(lease["user"], lease["holder"])
                body = {"reason": "Another class needs it.", "warning_s": 0}
            self.lab.ask("POST", f"/leases/{lease['id']}/{steering}", **body)

    def tidy(self) -> None:
        """Do what doctor advises: end servers without a lease, clear and adopt slices."""
        known_holders = {lease["holder"] for lease in self.lab.must_get("/leases")}
        servers = self.servers.all()
        for holder, server in servers.items():
            if server.uuids and holder not in known_holders:
                self._announce(server.user, holder)
                self.servers.end(holder)
        used = {
            uuid
            for holder, server in servers.items()
            if holder in known_holders
            for uuid in server.uuids
        }
        pool: dict[str, Any] = self.lab.must_get("/pool")
        for gpu in pool["gpus"]:
            if gpu["draining"]:
                self.lab.ask("POST", f"/gpus/{gpu['uuid']}/undrain")
            for slice_ in gpu["slices"]:
                action = {"quarantined": "clear", "foreign": "adopt"}.get(slice_["state"])
                if action is not None and slice_["uuid"] not in used:
                    self.lab.ask("POST", f"/slices/{slice_['slice_id']}/{action}")
        if pool.get("paused"):
            self.lab.ask("POST", "/pool/resume")
        for reservation in self.lab.must_get("/reservations"):
            if reservation["state"] in ("planned", "reserved", "open"):
                self.lab.ask("DELETE", f"/reservations/{reservation['id']}")

    def _announce(self, user: str, holder: str) -> None:
        """Record that a server is about to be ended on purpose."""
        student = self._student(user)
        student.may_end.add(holder)
        if student.server is not None and student.server.holder == holder:
            student.lose()


# -- what must hold --------------------------------------------------------------------------------


def unsettled(lesson: FaultClass) -> str:
    """Return what the lab must still do to be well again, in words; empty if it is well.

    A server must be reached, unless the hub has given its start up or lost its database since.
    """
    health, leases = lesson.lab.get("/health"), lesson.lab.get("/leases")
    if health is None or leases is None or not lesson.lab.answers():
        return "to answer"
    if not health["ok"]:
        return f"health: {health}"
    servers = lesson.servers.all()
    for lease in leases:
        if lease["state"] == "releasing":
            return f"to release lease {lease['id']}"
        if lease["state"] in USING and lease["holder"] not in servers:
            return f"to notice the end of {lease['user']}'s server"
    return _unsettled_servers(lesson, servers)


def _unsettled_servers(lesson: FaultClass, servers: Mapping[str, ObservedServer]) -> str:
    lesson.look()
    lesson.lab.hub_log.read()
    if forgotten := lesson.servers.orphans(lesson.lab.hub_log.to_start):
        return f"to end {min(forgotten)}, which the engine has forgotten"
    for student in lesson.students:
        server = student.server
        observed = servers.get(server.holder) if server is not None else None
        if observed is not None and observed.is_running and not student.is_reached():
            return f"to reach {student.name}'s server"
    return ""


def breaches(lesson: FaultClass, *, is_ledger_older: bool) -> list[str]:
    """Return the breaches of what must hold after a fault, in words.

    Args:
        lesson: the class.
        is_ledger_older: whether the ledger is from before some servers were started: it may not
            know them, but must not touch them, nor give away what they hold.
    """
    before = lesson.servers.all()
    leases = {lease["holder"]: lease for lease in lesson.lab.must_get("/leases")}
    view = lesson.lab.machine.view()
    broken = lesson.lab.must_get("/invariants")
    after = lesson.servers.all()
    # What ran before the ledger was read and runs after it ran when it was read.
    running = {
        holder: server
        for holder, server in after.items()
        if server.is_running and holder in before and before[holder].is_running
    }
    slices = {s["uuid"] for gpu in view["gpus"] for s in gpu["slices"]}
    return [
        *_shared_slices(running),
        *_lease_mismatches(running, leases, slices, is_ledger_older=is_ledger_older),
        *broken,
        *(f"{user}'s server was ended by nobody" for user in lesson.ends_unannounced()),
        *(
            f"of {student.name}'s notes {len(lost)} are lost"
            for student in lesson.students
            if (lost := set(student.written) - set(lesson.servers.notes(student.name)))
        ),
        *lesson.without_words,
    ]


def _shared_slices(running: Mapping[str, ObservedServer]) -> Iterator[str]:
    """Yield the slices on which several servers run (invariants 1 and 2)."""
    counts = Counter(uuid for server in running.values() for uuid in server.uuids)
    for uuid, count in counts.items():
        if count > 1:
            yield f"{count} servers run on slice {uuid}"


def _lease_mismatches(
    running: Mapping[str, ObservedServer],
    leases: Mapping[str, dict[str, Any]],
    slices: set[str],
    *,
    is_ledger_older: bool,
) -> Iterator[str]:
    """Yield servers without their lease or their slices (invariants 3 and 4)."""
    for holder, server in running.items():
        lease = leases.get(holder)
        if lease is None and server.uuids and not is_ledger_older:
            yield f"{server.user}'s server runs, and no lease is its"
        elif lease is not None and tuple(lease["uuids"]) != server.uuids:
            yield f"{server.user}'s server has other slices than its lease"
        for uuid in set(server.uuids) - slices:
            yield f"slice {uuid} is gone under {server.user}'s server"
