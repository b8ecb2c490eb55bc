"""A student whose cells borrow a slice: for their seconds, and a while for the next one.

Whatever takes longer than a borrow may is run on a leased slice, as under miglab: a long cell, and
the run that is left alone in the end.
"""

import math
from dataclasses import dataclass

from miglab_api.leases import LeaseView
from miglab_api.tickets import Purpose
from miglab_bench.class_day.assumptions import Day
from miglab_bench.class_day.lab import DayLab
from miglab_bench.class_day.plan import PhaseKind, Plan, StudentPhase, StudentSession
from miglab_bench.class_day.student import DayStudent, SliceWait


@dataclass(slots=True)
class DayLoan:
    """A borrowed slice, and the runner on it; times are seconds since midnight.

    Attributes:
        began_at: when it was granted.
        ends_at: when the pool ends it.
        lingers_to: until when it waits for the next cell; infinite while one runs.
    """

    lease: int
    began_at: float
    ends_at: float
    lingers_to: float = math.inf

    @property
    def lingers(self) -> bool:
        """Whether nothing runs on it."""
        return self.lingers_to < math.inf

    def takes_another(self, at: float) -> bool:
        """Whether it may be given another cell, as `miglab_spawner.runs.borrower` decides."""
        half_s = (self.ends_at - self.began_at) / 2
        return self.lingers and at < self.lingers_to and self.ends_at - at >= half_s


class BorrowingStudent(DayStudent):
    """See the module."""

    def __init__(self, plan: Plan, day: Day) -> None:
        super().__init__(plan, day)
        self._loan: DayLoan | None = None

    # -- time passes --------------------------------------------------------------------------

    def _go_on(self, at: float, until: float) -> float:
        phase, loan = self._phases[0], self._loan
        if phase.kind is not PhaseKind.BUSY or self.server is not None:
            return super()._go_on(at, until)
        if loan is not None and loan.takes_another(at):
            return self._measure_again(loan, at, until)
        if loan is not None and not loan.lingers:
            return self._measure(loan, phase, at, until)
        self._wait = SliceWait(at, at, self._purpose(phase))
        return at

    def _purpose(self, phase: StudentPhase) -> Purpose:
        day = self._day
        fits = phase.s + day.runner_s + day.rebuild_s <= day.borrow_s
        return Purpose.BORROW if fits else Purpose.SERVER

    def _measure_again(self, loan: DayLoan, at: float, until: float) -> float:
        """The next cell is here while the runner lingers."""
        loan.lingers_to = math.inf
        self._ready_at = at + self._day.again_s
        self.tally.waits_s.append(self._day.again_s)
        self._rebuild_first()
        return min(self._ready_at, until)

    def _measure(self, loan: DayLoan, phase: StudentPhase, at: float, until: float) -> float:
        seconds = max(0.0, min(self._left_s, until - at, loan.ends_at - at))
        self._left_s -= seconds
        self._count(phase, seconds)
        if self._left_s <= 0:
            self._end_phase(phase, at + seconds)
            return at + seconds
        return until

    def _end_phase(self, phase: StudentPhase, at: float) -> None:
        if self._loan is not None and phase.kind is PhaseKind.BUSY and not phase.is_again:
            self._loan.lingers_to = at + self._day.linger_s
        super()._end_phase(phase, at)

    def _rebuild_first(self) -> None:
        if self._day.rebuild_s:
            again = StudentPhase(PhaseKind.BUSY, self._day.rebuild_s, is_again=True)
            self._phases.appendleft(again)
        self._begin_phase()

    # -- what the student does ----------------------------------------------------------------

    def is_due(self, at: float, lab: DayLab) -> bool:
        """Also while it lingers and somebody waits."""
        lingers = self._loan is not None and self._loan.lingers
        return super().is_due(at, lab) or (lingers and bool(lab.asked))

    def _due_at(self, at: float) -> float:
        due_at, loan = super()._due_at(at), self._loan
        return due_at if loan is None else min(due_at, loan.ends_at, loan.lingers_to)

    def _act(self, at: float, lab: DayLab) -> None:
        self._give_back_in_time(at, lab)
        self._ask_for_run(at)
        super()._act(at, lab)

    def _give_back_in_time(self, at: float, lab: DayLab) -> None:
        loan = self._loan
        if loan is None:
            return
        if loan.lingers:
            is_over = at >= min(loan.lingers_to, loan.ends_at) or self._wait is not None
            if is_over or lab.is_wanted(loan.lease):
                self._give_back(at, lab)
        elif at >= loan.ends_at:
            self._cut_short(at, lab)

    def _cut_short(self, at: float, lab: DayLab) -> None:
        """The longest borrow is over, and the cell is not: what it did is lost."""
        self._give_back(at, lab)
        self.tally.ended += 1
        self.tally.unjust += 1
        while self._phases[0].is_again:
            self._phases.popleft()
            self._left_s = self._phases[0].s
        self.tally.useful_s -= self._phases[0].s - self._left_s
        self._begin_phase()
        self._wait = SliceWait(at, at, self._purpose(self._phases[0]))

    def _give_back(self, at: float, lab: DayLab) -> None:
        if self._loan is not None:
            self.tally.held_s += at - self._loan.began_at
            lab.stop(self._loan.lease, "hub", "measured")
            self._loan = None

    def _start_anew(self, at: float) -> None:
        """A server without a slice: nobody waits for it."""
        self._ready_at = at + self._day.start_s

    def _ask_for_run(self, at: float) -> None:
        """Everything is done but the long run, which needs a server with a slice."""
        session = self._session
        is_done = session is not None and not self._phases and self._wait is None
        if session is not None and is_done and session.run_s and self.server is None:
            self._wait = SliceWait(at, at)

    def _start(self, at: float, lease: LeaseView, lab: DayLab, purpose: Purpose) -> float:
        """Start the runner, or the server; returns how many seconds that takes."""
        if purpose is Purpose.SERVER:
            return super()._start(at, lease, lab, purpose)
        assert lease.ends_at is not None
        self._loan = DayLoan(lease.id, at, lab.clock_of(lease.ends_at))
        self._rebuild_first()
        return self._day.runner_s

    def _leave(self, at: float, lab: DayLab, session: StudentSession) -> None:
        self._give_back(at, lab)
        super()._leave(at, lab, session)

    def end_day(self, at: float, lab: DayLab) -> None:
        """Draw the line."""
        self._give_back(at, lab)
        super().end_day(at, lab)
