"""A student through the day: comes, waits, works, is away, leaves; and the student's server.

Every time is in seconds since midnight.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from miglab_api.leases import KernelSignal, LeaseState, LeaseView, Signals
from miglab_api.tickets import Purpose
from miglab_bench.class_day.assumptions import Day
from miglab_bench.class_day.lab import DayLab
from miglab_bench.class_day.plan import Leave, PhaseKind, Plan, StudentPhase, StudentSession

AT_REST = 0.003  # CPU seconds per second of a server that does nothing


@dataclass(slots=True)
class DayServer:
    """A running server; times are seconds since midnight.

    Attributes:
        lease: what it holds.
        uuids: the slices.
        started_at: when.
        ran_at: when a kernel last ran something; None if none ever did.
        is_busy: whether one runs something now.
        told_at: when anything last came from it or its pages that a hub can see.
        touched_at: when a person last did something in its page.
        is_open: whether a page is connected.
        closes_at: when a page that was left open loses its connection.
        run_left_s: what is left of a run that nobody looks at.
        is_silent: whether that run prints nothing.
        cpu_s: what its processes used.
    """

    lease: int
    uuids: tuple[str, ...]
    started_at: float
    told_at: float
    touched_at: float
    ran_at: float | None = None
    is_busy: bool = False
    is_open: bool = True
    closes_at: float | None = None
    run_left_s: float = 0.0
    is_silent: bool = False
    cpu_s: float = 0.0

    def ran(self, until: float, seconds: float, *, prints: bool = True) -> None:
        """A kernel has run until then, for so long."""
        self.is_busy = True
        self.ran_at = until
        self.cpu_s += seconds
        if prints:
            self.told_at = until

    def rest(self, until: float) -> None:
        """Time has passed; an open page's connection is traffic, whoever looks at it."""
        if self.closes_at is not None and until >= self.closes_at:
            self.told_at = max(self.told_at, self.closes_at)
            self.is_open, self.closes_at = False, None
        if self.is_open:
            self.told_at = until

    def leave_page(self, at: float, open_s: float) -> None:
        """Nobody looks any more; the connection lasts on for a while."""
        self.is_open = open_s > 0
        self.closes_at = at + open_s if open_s > 0 else None

    def open_page(self) -> None:
        """Somebody is back."""
        self.is_open, self.closes_at = True, None

    def signals(self, at: float) -> Signals:
        """What its extension reports."""
        kernels: tuple[KernelSignal, ...] = ()
        if self.ran_at is not None:
            age_s = 0.0 if self.is_busy else at - self.ran_at
            kernels = (KernelSignal(busy=self.is_busy, last_execution_age_s=age_s),)
        return Signals(
            kernels=kernels,
            terminals=0,
            browsers=int(self.is_open),
            browser_age_s=at - self.touched_at if self.is_open else None,
            unsaved=0,
            cpu_s=self.cpu_s + AT_REST * (at - self.started_at),
        )


@dataclass
class DayTotals:
    """What came of one student's day.

    Attributes:
        useful_s: how long something ran that was wanted and was not cut off.
        redone_s: how long something ran again because variables were lost.
        held_s: how long slices were held.
        waits_s: of each time a server was needed, until there was one or the student gave up.
        never_served: how often one gave up.
        ended: how often somebody else ended the server.
        unjust: how often something ran on it then.
        interrupted: how often the student was not done then.
        ended_for_need: how often it ended because somebody else needed its slices.
        busy_ended_for_need: how often of these something ran on it.
    """

    useful_s: float = 0.0
    redone_s: float = 0.0
    held_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    never_served: int = 0
    ended: int = 0
    unjust: int = 0
    interrupted: int = 0
    ended_for_need: int = 0
    busy_ended_for_need: int = 0


@dataclass(slots=True)
class SliceWait:
    """A slice is needed.

    Attributes:
        since: from when on.
        again_at: when the student asks next, without a ticket.
        purpose: for a server, or to borrow it.
        ticket: the ticket that waits for it.
        asked_at: since when.
    """

    since: float
    again_at: float
    purpose: Purpose = Purpose.SERVER
    ticket: int | None = None
    asked_at: float = 0.0


class DayStudent:
    """See the module.

    Attributes:
        server: the running server with a slice; None if there is none.
        tally: what came of it so far.
        due_at: until then nothing happens that others could notice; at a look, always.
    """

    def __init__(self, plan: Plan, day: Day) -> None:
        self.plan = plan
        self.server: DayServer | None = None
        self.tally = DayTotals()
        self.due_at = plan.sessions[0].at if plan.sessions else math.inf
        self._day = day
        self._todo = deque(plan.sessions)
        self._session: StudentSession | None = None
        self._phases: deque[StudentPhase] = deque()
        self._left_s = 0.0  # of the first phase
        self._done_s = 0.0  # what the variables of this session took to compute
        self._run_done_s = 0.0
        self._wait: SliceWait | None = None
        self._lived_to = 0.0
        self._ready_at = 0.0  # before that, something starts

    # -- time passes --------------------------------------------------------------------------

    def live_to(self, until: float) -> None:
        """What happens by itself until then."""
        if until > self._lived_to:
            self.pass_time(self._lived_to, until)
            self._lived_to = until

    def is_due(self, at: float, lab: DayLab) -> bool:
        """Whether it has something to do."""
        return self.due_at <= at

    def pass_time(self, at: float, until: float) -> None:
        """What happens by itself between two moments."""
        at = max(at, self._ready_at)
        if self.server is not None:
            self.server.is_busy = False
            self._run_on(self.server, at, until)
        while at < until and self._phases and self._wait is None:
            at = self._go_on(at, until)
        if self.server is not None:
            self.server.rest(until)

    def _run_on(self, server: DayServer, at: float, until: float) -> None:
        """The run that was left alone."""
        seconds = min(server.run_left_s, until - at)
        if seconds <= 0:
            return
        server.run_left_s -= seconds
        self.tally.useful_s += seconds
        self._run_done_s += seconds
        server.ran(at + seconds, seconds, prints=not server.is_silent)
        server.is_busy = server.run_left_s > 0

    def _go_on(self, at: float, until: float) -> float:
        """Go on with the first phase; returns until when."""
        phase = self._phases[0]
        if phase.kind is PhaseKind.BUSY and self.server is None:
            self._wait = SliceWait(at, at)  # only now it is seen that the server is gone
            return at
        seconds = min(self._left_s, until - at)
        self._left_s -= seconds
        if self.server is not None:
            self._spend(self.server, phase, at + seconds, seconds)
        if self._left_s <= 0:
            self._end_phase(phase, at + seconds)
        return at + seconds

    def _end_phase(self, phase: StudentPhase, at: float) -> None:
        if phase.kind is PhaseKind.BUSY and not phase.is_again:
            self._done_s += phase.s
        self._phases.popleft()
        self._begin_phase()

    def _spend(self, server: DayServer, phase: StudentPhase, until: float, seconds: float) -> None:
        if phase.kind is PhaseKind.PAUSE:
            server.is_open = phase.is_open
            server.is_busy = False
            return
        server.open_page()
        server.touched_at = until
        if phase.kind is PhaseKind.THINK:
            server.is_busy = False
            return
        server.ran(until, seconds)
        server.is_busy = self._left_s > 0
        self._count(phase, seconds)

    def _count(self, phase: StudentPhase, seconds: float) -> None:
        if phase.is_again:
            self.tally.redone_s += seconds
        else:
            self.tally.useful_s += seconds

    def _begin_phase(self) -> None:
        self._left_s = self._phases[0].s if self._phases else 0.0

    # -- the server is taken away -------------------------------------------------------------

    def cut_off(self, at: float, *, is_needed: bool = False) -> None:
        """Somebody ended the server.  What was running is lost, and so are the variables."""
        server = self.server
        assert server is not None
        self.tally.ended += 1
        self.tally.ended_for_need += is_needed
        self.tally.busy_ended_for_need += is_needed and server.is_busy
        self.tally.unjust += server.is_busy and not is_needed
        if server.run_left_s > 0:
            self.tally.useful_s -= self._run_done_s
        if self._phases:
            self.tally.interrupted += 1
            self._lose()
        self._end_server(at)

    def _lose(self) -> None:
        """The cell that ran runs anew, after those whose results it needs."""
        first = self._phases[0]
        if first.kind is PhaseKind.BUSY and not first.is_again:
            self.tally.useful_s -= first.s - self._left_s
        rest = [phase for phase in self._phases if not phase.is_again]
        where = next((n for n, phase in enumerate(rest) if phase.kind is PhaseKind.BUSY), len(rest))
        again_s = min(self._day.redo_most_s, self._day.redo_share * self._done_s)
        if again_s > 0 and where < len(rest):
            rest.insert(where, StudentPhase(PhaseKind.BUSY, again_s, is_again=True))
        self._phases = deque(rest)

    def _end_server(self, at: float) -> None:
        assert self.server is not None
        self.tally.held_s += at - self.server.started_at
        self.server = None

    # -- what the student does ----------------------------------------------------------------

    def act(self, at: float, lab: DayLab) -> None:
        """Come, ask, answer, give up, leave."""
        self._act(at, lab)
        self.due_at = self._due_at(at)

    def _due_at(self, at: float) -> float:
        session, wait = self._session, self._wait
        if session is None:
            return self._todo[0].at if self._todo and self._todo[0].at > at else math.inf
        if wait is None:
            ends_at = max(self._lived_to, self._ready_at) + self._left_s
        elif wait.ticket is None:
            ends_at = wait.again_at
        else:
            ends_at = wait.asked_at + session.patience_s
        return min(session.until, ends_at)

    def _act(self, at: float, lab: DayLab) -> None:
        if self._session is None:
            self._come(at)
        if self._session is None:
            return
        if at >= self._session.until or not (self._phases or self._wait):
            self._leave(at, lab, self._session)
        elif self._wait is not None:
            self._ask(at, lab, self._wait, self._session)
        elif self.server is not None:
            self._answer(at, lab, self.server)

    def _come(self, at: float) -> None:
        is_running = self.server is not None and self.server.run_left_s > 0
        if not self._todo or at < self._todo[0].at or is_running:
            return
        self._session = self._todo.popleft()
        self._done_s = 0.0
        self._phases = deque(self._session.phases)
        self._begin_phase()
        if self.server is None:
            self._start_anew(at)
        else:
            self.server.open_page()
            self.server.touched_at = at
            self.tally.waits_s.append(0.0)

    def _start_anew(self, at: float) -> None:
        """There is no server to come back to."""
        self._wait = SliceWait(at, at)

    def _ask(self, at: float, lab: DayLab, wait: SliceWait, session: StudentSession) -> None:
        if wait.ticket is None:
            if at >= wait.again_at:
                wait.ticket, wait.asked_at = lab.ask(self.plan, wait.purpose), at
                wait.again_at = at + session.retry_s
            return
        if lab.attend(wait.ticket) is None:
            wait.ticket, wait.again_at = None, at + session.retry_s
        elif at - wait.asked_at >= session.patience_s:
            lab.cancel(wait.ticket, self.plan.name)
            wait.ticket, wait.again_at = None, at + session.retry_s

    def take_offer(self, at: float, lab: DayLab) -> None:
        """Start what the slice is for, if there is one."""
        wait = self._wait
        if wait is None or wait.ticket is None or not lab.is_offered(wait.ticket):
            return
        self._ready_at = at + self._start(at, lab.start(wait.ticket), lab, wait.purpose)
        self.tally.waits_s.append(self._ready_at - wait.since)
        self._wait = None
        self._begin_phase()
        self.due_at = self._due_at(at)

    def _start(self, at: float, lease: LeaseView, lab: DayLab, purpose: Purpose) -> float:
        """Start the server; returns how many seconds that takes."""
        self.server = DayServer(lease.id, lease.uuids, at, told_at=at, touched_at=at)
        return self._day.start_s

    def _answer(self, at: float, lab: DayLab, server: DayServer) -> None:
        is_there = self._phases[0].kind is PhaseKind.PAUSE and self._phases[0].answers
        if not is_there or lab.lease_state(server.lease) is not LeaseState.WARNED:
            return
        if lab.keepalive(server.lease, self.plan.name):
            server.touched_at = at

    def _leave(self, at: float, lab: DayLab, session: StudentSession) -> None:
        self.give_up(at, lab)
        self._session = None
        self._phases.clear()
        server = self.server
        if server is None:
            return
        if session.run_s:
            server.run_left_s, server.is_silent = session.run_s, session.is_silent
            self._run_done_s = 0.0
        elif session.leave is Leave.STOP:
            lab.stop(server.lease, "hub", "stopped")
            self._end_server(at)
            return
        server.leave_page(at, session.tab_s if session.leave is Leave.TAB else 0.0)

    def give_up(self, at: float, lab: DayLab) -> None:
        """Wait no longer."""
        if self._wait is None:
            return
        if self._wait.ticket is not None:
            lab.cancel(self._wait.ticket, self.plan.name)
        self.tally.waits_s.append(at - self._wait.since)
        self.tally.never_served += 1
        self._wait = None

    def end_day(self, at: float, lab: DayLab) -> None:
        """Draw the line."""
        self.give_up(at, lab)
        if self.server is not None:
            self._end_server(at)
