"""A student through the day: comes, waits, works, is away, leaves; with a server, or borrowing.

One who borrows does so for the seconds of a cell, and a while for the next one; what takes longer
than a borrow may is run on a leased slice, as under miglab: a long cell, and the run that is left
alone in the end.  Every time is in seconds since midnight.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from miglab_api.leases import KernelSignal, LeaseState, Signals
from miglab_api.tickets import Purpose
from miglab_bench.class_day.lab import MIDNIGHT, DayLab
from miglab_bench.class_day.plan import Day, PhaseKind, Plan, StudentPhase, StudentSession

AT_REST = 0.003  # CPU seconds per second of a server that does nothing


@dataclass(slots=True)
class DayServer:
    """A running server.

    Attributes:
        lease: what it holds.
        uuids: the slices.
        started_at: when.
        ran_at: when a kernel last ran something; None if none ever did.
        is_busy: whether one runs something now.
        last_activity_at: when anything last came from it or its pages that a hub can see.
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
    last_activity_at: float
    touched_at: float
    ran_at: float | None = None
    is_busy: bool = False
    is_open: bool = True
    closes_at: float | None = None
    run_left_s: float = 0.0
    is_silent: bool = False
    cpu_s: float = 0.0

    def record_run(self, until: float, seconds: float, *, prints: bool = True) -> None:
        """Record that a kernel has run for ``seconds``, until ``until``."""
        self.ran_at = until
        self.cpu_s += seconds
        if prints:
            self.last_activity_at = until

    def run_on(self, at: float, until: float) -> float:
        """Continue the run that was left alone, and return for how many seconds."""
        seconds = max(0.0, min(self.run_left_s, until - at))
        self.run_left_s -= seconds
        self.is_busy = seconds > 0 and self.run_left_s > 0
        if seconds:
            self.record_run(at + seconds, seconds, prints=not self.is_silent)
        return seconds

    def pass_time(self, until: float) -> None:
        """Let time pass: the connection of an open page is traffic, whoever looks at it."""
        if self.closes_at is not None and until >= self.closes_at:
            self.last_activity_at = max(self.last_activity_at, self.closes_at)
            self.is_open, self.closes_at = False, None
        if self.is_open:
            self.last_activity_at = until

    def touch(self, at: float) -> None:
        """Record that a person is active in the page."""
        self.is_open, self.closes_at, self.touched_at = True, None, at

    def leave_page(self, at: float, open_s: float) -> None:
        """Leave the page, whose connection stays open for ``open_s``."""
        self.is_open = open_s > 0
        self.closes_at = at + open_s if open_s > 0 else None

    def signals(self, at: float) -> Signals:
        """Return the signals that the server's extension reports."""
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


@dataclass(slots=True)
class DayLoan:
    """A borrowed slice, and the runner on it.

    Attributes:
        granted_at: when it was granted.
        ends_at: when the pool ends it.
        lingers_to: until when it waits for the next cell; infinite while one runs.
    """

    lease: int
    granted_at: float
    ends_at: float
    lingers_to: float = math.inf

    @property
    def lingers(self) -> bool:
        """Whether nothing runs on it."""
        return self.lingers_to < math.inf

    def takes_another(self, at: float) -> bool:
        """Whether it may be given another cell, as `miglab_spawner.borrower` decides."""
        half_s = (self.ends_at - self.granted_at) / 2
        return self.lingers and at < self.lingers_to and self.ends_at - at >= half_s


@dataclass
class DayTotals:
    """The totals of one student's day.

    Attributes:
        useful_s: how long something ran that was wanted and was not cut off.
        redone_s: how long something ran again because variables were lost.
        held_s: how long slices were held.
        waits_s: of each time a slice was needed, until there was one or the student gave up.
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
    """A student's need of a slice.

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

    Args:
        plan: what the student does.
        day: how long things take.
        borrows: whether cells borrow a slice, and no server has one.

    Attributes:
        server: the running server with a slice; None if there is none.
        tally: what came of it so far.
        due_at: until then nothing happens that others could notice; at a look, always.
    """

    def __init__(self, plan: Plan, day: Day, *, borrows: bool = False) -> None:
        self.plan = plan
        self.server: DayServer | None = None
        self.tally = DayTotals()
        self.due_at = plan.sessions[0].at if plan.sessions else math.inf
        self._day = day
        self._borrows = borrows
        self._loan: DayLoan | None = None
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
        """Advance the student to that time: everything that happens without a decision."""
        if until <= self._lived_to:
            return
        at, self._lived_to = max(self._lived_to, self._ready_at), until
        if self.server is not None:
            seconds = self.server.run_on(at, until)
            self.tally.useful_s += seconds
            self._run_done_s += seconds
        while at < until and self._phases and self._wait is None:
            at = self._go_on(at, until)
        if self.server is not None:
            self.server.pass_time(until)

    def _go_on(self, at: float, until: float) -> float:
        """Continue the first phase, and return the time that it has reached."""
        phase, loan, ends_at = self._phases[0], self._loan, until
        if phase.kind is PhaseKind.BUSY and self.server is None:
            if loan is None or loan.lingers:  # only now it is seen that there is no slice
                return self._need_slice(phase, at)
            ends_at = max(at, min(until, loan.ends_at))
        seconds = min(self._left_s, ends_at - at)
        self._left_s -= seconds
        if self.server is not None:
            self._spend(self.server, phase, at + seconds, seconds)
        if phase.is_again:
            self.tally.redone_s += seconds
        elif phase.kind is PhaseKind.BUSY:
            self.tally.useful_s += seconds
        if self._left_s > 0:
            return until
        if phase.kind is PhaseKind.BUSY and not phase.is_again:
            self._done_s += phase.s
            if loan is not None:
                loan.lingers_to = at + seconds + self._day.linger_s
        self._phases.popleft()
        self._begin_phase()
        return at + seconds

    def _need_slice(self, phase: StudentPhase, at: float) -> float:
        """Run the next cell on a runner that lingers, or begin to wait for a slice."""
        day, loan = self._day, self._loan
        if loan is not None and loan.takes_another(at):
            loan.lingers_to = math.inf
            self._ready_at = at + day.again_s
            self.tally.waits_s.append(day.again_s)
            self._rebuild_first()
            return self._ready_at
        fits = phase.s + day.runner_s + day.rebuild_s <= day.borrow_s
        purpose = Purpose.BORROW if self._borrows and fits else Purpose.SERVER
        self._wait = SliceWait(at, at, purpose)
        return at

    def _spend(self, server: DayServer, phase: StudentPhase, until: float, seconds: float) -> None:
        server.is_busy = phase.kind is PhaseKind.BUSY and self._left_s > 0
        if phase.kind is PhaseKind.PAUSE:
            server.is_open = phase.is_open
            return
        server.touch(until)
        if phase.kind is PhaseKind.BUSY:
            server.record_run(until, seconds)

    def _begin_phase(self) -> None:
        self._left_s = self._phases[0].s if self._phases else 0.0

    def _rebuild_first(self) -> None:
        """Put a rebuild of the variables before a cell that borrows."""
        if self._day.rebuild_s:
            again = StudentPhase(PhaseKind.BUSY, self._day.rebuild_s, is_again=True)
            self._phases.appendleft(again)
        self._begin_phase()

    # -- the slice is taken away --------------------------------------------------------------

    def cut_off(self, at: float, *, is_needed: bool = False) -> None:
        """Somebody else ends the server: what was running is lost, and so are the variables."""
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
            self._repeat_lost_work(min(self._day.redo_most_s, self._day.redo_share * self._done_s))
        self._end_server(at)

    def _repeat_lost_work(self, again_s: float) -> None:
        """Let the interrupted cell run again, after the cells that it depends on."""
        first = self._phases[0]
        if first.kind is PhaseKind.BUSY and not first.is_again:
            self.tally.useful_s -= first.s - self._left_s
        phases = [phase for phase in self._phases if not phase.is_again]
        position = next(
            (n for n, phase in enumerate(phases) if phase.kind is PhaseKind.BUSY), len(phases)
        )
        if again_s > 0 and position < len(phases):
            phases.insert(position, StudentPhase(PhaseKind.BUSY, again_s, is_again=True))
        self._phases = deque(phases)

    def _end_server(self, at: float) -> None:
        assert self.server is not None
        self.tally.held_s += at - self.server.started_at
        self.server = None

    def _end_loan_in_time(self, at: float, lab: DayLab, loan: DayLoan) -> None:
        if loan.lingers:
            is_over = at >= min(loan.lingers_to, loan.ends_at) or self._wait is not None
            if is_over or lab.is_needed(loan.lease):
                self._give_back(at, lab)
        elif at >= loan.ends_at:  # and the cell is not: what it did is lost
            self._give_back(at, lab)
            self.tally.ended += 1
            self.tally.unjust += 1
            self._repeat_lost_work(0.0)
            self._need_slice(self._phases[0], at)

    def _give_back(self, at: float, lab: DayLab) -> None:
        if self._loan is not None:
            self.tally.held_s += at - self._loan.granted_at
            lab.stop(self._loan.lease, "measured")
            self._loan = None

    # -- what the student does ----------------------------------------------------------------

    def is_due(self, at: float, lab: DayLab) -> bool:
        """Whether there is something to do; a runner that lingers is given to who waits."""
        return self.due_at <= at or bool(self._loan and self._loan.lingers and lab.open_tickets)

    def act(self, at: float, lab: DayLab) -> None:
        """Come, ask, answer, give up, leave."""
        if self._loan is not None:
            self._end_loan_in_time(at, lab, self._loan)
        if self._session is None:
            self._come(at)
        elif self._is_done and self._borrows and self._session.run_s and self.server is None:
            self._wait = SliceWait(at, at)  # for the run that is left alone, which needs a server
        if self._session is not None:
            self._act(at, lab, self._session)
        self.due_at = self._due_at(at)

    @property
    def _is_done(self) -> bool:
        return not (self._phases or self._wait)

    def _act(self, at: float, lab: DayLab, session: StudentSession) -> None:
        server = self.server
        if at >= session.until or self._is_done:
            self._leave(at, lab, session)
        elif self._wait is not None:
            self._ask(at, lab, self._wait, session)
        elif server is not None and self._phases[0].answers:
            is_warned = lab.row(server.lease).state == LeaseState.WARNED
            if is_warned and lab.keepalive(server.lease, self.plan.name):
                server.touched_at = at

    def _due_at(self, at: float) -> float:
        session, wait, loan = self._session, self._wait, self._loan
        if session is None:
            return self._todo[0].at if self._todo and self._todo[0].at > at else math.inf
        if wait is None:
            ends_at = max(self._lived_to, self._ready_at) + self._left_s
        elif wait.ticket is None:
            ends_at = wait.again_at
        else:
            ends_at = wait.asked_at + session.patience_s
        loan_at = math.inf if loan is None else min(loan.ends_at, loan.lingers_to)
        return min(session.until, ends_at, loan_at)

    def _come(self, at: float) -> None:
        is_running = self.server is not None and self.server.run_left_s > 0
        if not self._todo or at < self._todo[0].at or is_running:
            return
        self._session = self._todo.popleft()
        self._done_s = 0.0
        self._phases = deque(self._session.phases)
        self._begin_phase()
        if self.server is not None:
            self.server.touch(at)
            self.tally.waits_s.append(0.0)
        elif self._borrows:  # nobody waits for a server without a slice
            self._ready_at = at + self._day.start_s
        else:
            self._wait = SliceWait(at, at)

    def _ask(self, at: float, lab: DayLab, wait: SliceWait, session: StudentSession) -> None:
        if wait.ticket is None:
            if at >= wait.again_at:
                wait.ticket, wait.asked_at = lab.ask(self.plan, wait.purpose), at
                wait.again_at = at + session.retry_s
        elif not lab.attend(wait.ticket):
            wait.ticket, wait.again_at = None, at + session.retry_s
        elif at - wait.asked_at >= session.patience_s:
            lab.cancel(wait.ticket, self.plan.name)
            wait.ticket, wait.again_at = None, at + session.retry_s

    def take_offer(self, at: float, lab: DayLab) -> None:
        """Start what the slice is for, if there is one."""
        wait, day = self._wait, self._day
        if wait is None or wait.ticket is None or (lease := lab.start(wait.ticket)) is None:
            return
        if wait.purpose is Purpose.SERVER:
            self.server = DayServer(lease.id, lease.uuids, at, last_activity_at=at, touched_at=at)
            self._ready_at = at + day.start_s
        else:
            assert lease.ends_at is not None
            self._loan = DayLoan(lease.id, at, lease.ends_at - MIDNIGHT)
            self._rebuild_first()
            self._ready_at = at + day.runner_s
        self.tally.waits_s.append(self._ready_at - wait.since)
        self._wait = None
        self._begin_phase()
        self.due_at = self._due_at(at)

    def _leave(self, at: float, lab: DayLab, session: StudentSession) -> None:
        self._give_up(at, lab)
        self._session = None
        self._phases.clear()
        server = self.server
        if server is None:
            return
        if session.run_s:
            server.run_left_s, server.is_silent = session.run_s, session.is_silent
            self._run_done_s = 0.0
        elif session.stops:
            lab.stop(server.lease, "stopped")
            self._end_server(at)
            return
        server.leave_page(at, session.open_s)

    def _give_up(self, at: float, lab: DayLab) -> None:
        """Wait no longer, and keep nothing that is borrowed."""
        self._give_back(at, lab)
        if self._wait is None:
            return
        if self._wait.ticket is not None:
            lab.cancel(self._wait.ticket, self.plan.name)
        self.tally.waits_s.append(at - self._wait.since)
        self.tally.never_served += 1
        self._wait = None

    def end_day(self, at: float, lab: DayLab) -> None:
        """Draw the line."""
        self._give_up(at, lab)
        if self.server is not None:
            self._end_server(at)
