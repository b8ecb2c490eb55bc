"""The reclaimer's round: reads, judges and, if needed, warns or reclaims every lease in use.

The leases are those of a `LeaseKeeper`: the lab's own pool, or jobs of Slurm.

It runs on the thread of the pool's decisions; what another thread changed between reading and
acting is found by the act itself.  Its state is memory only: after a restart nothing is known of
any server, so no report of before counts, silence begins anew, and so does every warning that
nobody could answer.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from miglab_api.base import WireModel
from miglab_api.leases import (
    WITHDRAWABLE,
    LeaseState,
    LeaseView,
    LeaseWarning,
    WarningKind,
)
from miglab_api.tickets import Purpose
from miglab_pool.leases.views import ActivitySpan, LeaseCase
from miglab_pool.reclaim.activity import NEVER, Activity, ActivityTotals, Reading, SignalBoard
from miglab_pool.reclaim.policy import (
    TIME_IS_UP,
    Decision,
    Figure,
    LeaseFacts,
    LeaseVerdict,
    Rules,
    decide,
    hard_ends,
    maintenance_reason,
)
from miglab_pool.refused import Refused

log = logging.getLogger(__name__)
CAUSE = "reclaimer"
READING_LIVES_S = 60.0  # a reading that was not renewed for so long is not known any more
LOOK_MAX_S = 60.0  # no more is counted as "known to be empty" between two looks
JUMP_S = 5.0  # a warning's end that moves by more, by the wall clock, was moved by a jump
LOG_AGAIN_S = 900.0


class ReclaimableLeases(Protocol):
    """The leases that the reclaimer may warn and release; `Leases` is one implementation."""

    @property
    def now(self) -> float:
        """Seconds since the epoch."""

    @property
    def samples(self) -> int:
        """How often the slices were read."""

    def needed_leases(self, idle_s: Mapping[int, float]) -> Mapping[int, str]:
        """The leases that end because somebody needs them, with the reason.

        Args:
            idle_s: for how long each lease has been idle, seconds.
        """

    def close_for_maintenance(self, reason: str, cause: str, /) -> None:
        """Grant nothing for this reason; empty: grant again, unless a person has paused."""

    def lease_cases(self) -> Sequence[LeaseCase]:
        """The leases in use."""

    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder."""

    def end_warning(self, number: int, cause: str, reason: str, /) -> LeaseView:
        """The holder keeps the lease."""

    def move_end(
        self, number: int, reclaim_at: float, reason: str, message: str = "", /
    ) -> LeaseView:
        """Give a warned holder longer, or less."""

    def note_work(self, number: int) -> None:
        """Note that a lease has worked."""

    def release(self, number: int, cause: str, reason: str, /) -> LeaseView:
        """Ask for a lease back."""

    def note_activity(self, spent: Iterable[ActivitySpan]) -> None:
        """Record the leases' activity."""


class LeaseKeeper(Protocol):
    """An owner of leases: the pool, or a Slurm service."""

    @property
    def leases(self) -> ReclaimableLeases:
        """The leases."""


class Explanation(WireModel):
    """The policy's verdict on one lease, with its figures.

    Attributes:
        decision: what it would do: ``keep``, ``warn`` (one that is warned: the warning stands) or
            ``reclaim``.
        is_acted_on: False in a dry run, and when the reclaimer is switched off.
        activity: ``active``, ``idle-holding``, ``idle-free`` or ``unknown``.
        kind: what a warning or reclaim is about.
        figures: what it was decided by; None is unknown, what is left out is not there.
        keepalives: how often "I am still here" was said since work was last seen.
    """

    lease: int
    user: str
    server: str
    course: str
    shape: str
    state: LeaseState
    decision: Decision
    is_acted_on: bool
    activity: Activity
    kind: WarningKind | None
    reason: str
    figures: dict[str, Figure]
    keepalives: int
    warning: LeaseWarning | None


@dataclass(slots=True)
class _Watch:
    """What this process remembers of a lease; its times are by the steady clock.

    Attributes:
        looked_at: at the last round.
        free_for_s: for how long its slices were seen to be empty, seconds.
        computed_at: when they last computed.
        idle_s: for how long it has been idle, seconds.
        warning_ends_at: when a warning that may be withdrawn ends; None without one.
        logged: the verdict that was logged last.
    """

    looked_at: float
    free_for_s: float = 0.0
    computed_at: float = float("-inf")
    activity: Activity = Activity.UNKNOWN
    idle_s: float = 0.0
    warning_ends_at: float | None = None
    logged: tuple[str, ...] = ()
    logged_at: float = float("-inf")


class Reclaimer:
    """Runs the rounds.

    Args:
        rules: the policy's rules.
        board: the servers' reports.
        count: called with the kind of every reclaim, for the metrics.
        clock: seconds that never jump.
    """

    def __init__(
        self,
        rules: Rules,
        board: SignalBoard,
        count: Callable[[str], None] = lambda kind: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rules = rules
        self._board = board
        self._count = count
        self._clock = clock
        self._watches: dict[int, _Watch] = {}
        self._lab_reports = False
        self.silent_servers = 0  # at the last round
        self._tally = ActivityTotals(clock)
        self._samples = -1
        self._sampled_at = float("-inf")

    @property
    def is_acting(self) -> bool:
        """Whether verdicts are acted on."""
        return self.rules.limits.enabled and not self.rules.limits.dry_run

    def round(self, pool: LeaseKeeper) -> None:
        """Review every lease in use once."""
        leases = pool.leases
        cases = {case.lease.id: case for case in leases.lease_cases()}
        self._board.keep(cases)
        for lease in self._watches.keys() - cases.keys():
            del self._watches[lease]
        self._note_samples(leases)
        self._note_silent_servers(cases.values(), leases.now)
        maintenance = self.rules.maintenance if self.is_acting else ()
        leases.close_for_maintenance(maintenance_reason(maintenance, leases.now), CAUSE)
        needed = self._needed_leases(leases)
        for case in cases.values():
            try:
                self._review(leases, case, needed.get(case.lease.id, ""))
            except Refused as refused:  # it changed meanwhile, and the others are still looked at
                log.info("lease %s was left as it is: %s", case.lease.id, refused)
        if spent := self._tally.take_due():
            leases.note_activity(spent)

    def explain(self, pool: LeaseKeeper, user: str | None = None) -> list[Explanation]:
        """Return the present verdicts on one user's leases or on all; changes nothing."""
        leases = pool.leases
        self._note_samples(leases)
        cases = [case for case in leases.lease_cases() if user in (None, case.lease.user)]
        needed = self._needed_leases(leases)
        return [
            self._explanation(case, self._verdict(leases, case, needed.get(case.lease.id, "")))
            for case in cases
        ]

    def activities(self) -> dict[int, Activity]:
        """The activity of each lease in use at the last round."""
        watches = self._watches.items()
        return {lease: watch.activity for lease, watch in watches}

    # -- reading and judging ------------------------------------------------------------------

    def _note_silent_servers(self, cases: Iterable[LeaseCase], now: float) -> None:
        """Note how many servers are silent, and whether at least half of all report.

        If fewer do, the fault may be the lab's, and nothing follows from the silence of one.  The
        whole lab counts: a course may have one student.
        """
        servers = silent = silent_for_long = 0
        for case in cases:
            if case.lease.purpose is Purpose.BORROW:
                continue  # it goes back when its measurements are over
            stale_s = self.rules.limits.stale_s
            is_silent = self._board.is_silent(case.lease.id, stale_s)
            servers += 1
            silent += is_silent
            silent_for_long += is_silent and now - case.held_since > stale_s
        self.silent_servers = silent_for_long
        self._lab_reports = 2 * silent <= servers

    def _needed_leases(self, leases: ReclaimableLeases) -> Mapping[int, str]:
        return leases.needed_leases({lease: watch.idle_s for lease, watch in self._watches.items()})

    def _note_samples(self, leases: ReclaimableLeases) -> None:
        if leases.samples != self._samples:
            self._samples, self._sampled_at = leases.samples, self._clock()

    def _review(self, leases: ReclaimableLeases, case: LeaseCase, needed: str) -> None:
        now = self._clock()
        watch = self._watches.setdefault(case.lease.id, _Watch(now))
        reading = self._reading(case)
        if reading.is_computing:
            watch.computed_at = now
        if reading.is_free:
            watch.free_for_s += min(LOOK_MAX_S, now - watch.looked_at)
        elif reading.processes is not None:
            watch.free_for_s = 0.0
        since_s, watch.looked_at = min(LOOK_MAX_S, now - watch.looked_at), now
        if self.is_acting:
            case = self._follow_clock(leases, case, watch)
        verdict = self._verdict(leases, case, needed)
        self._tally.add(case.lease.id, verdict.activity, since_s)
        watch.activity, watch.idle_s = verdict.activity, verdict.idle_s
        self._log_verdict(case, watch, verdict)
        self._act(leases, case, watch, verdict)

    def _reading(self, case: LeaseCase) -> Reading:
        watch = self._watches.get(case.lease.id)
        if self._clock() - self._sampled_at > READING_LIVES_S or watch is None:
            return Reading(
                is_the_holders=self.rules.shows_holders, is_readable=self.rules.reads_slices
            )
        share = case.activity_pct
        is_computing = share is not None and share > self.rules.limits.gpu_busy_pct
        computed_age_s = 0.0 if is_computing else self._clock() - watch.computed_at
        is_told = share is not None or computed_age_s < NEVER
        return Reading(
            case.processes,
            case.memory_used_mib,
            watch.free_for_s,
            share,
            is_computing,
            computed_age_s if is_told else None,
            self.rules.shows_holders,
            self.rules.reads_slices,
        )

    def _verdict(self, leases: ReclaimableLeases, case: LeaseCase, needed: str) -> LeaseVerdict:
        lease, warning, rules = case.lease, case.lease.warning, self.rules
        facts = LeaseFacts(
            held_since=case.held_since,
            warning=warning.kind if warning else None,
            reclaim_at=warning.reclaim_at if warning else None,
            keepalive_until=case.keepalive_until,
            needed=needed,
            is_borrow=lease.purpose is Purpose.BORROW,
            lab_reports=self._lab_reports,
        )
        end_reason = case.end_reason or TIME_IS_UP
        ends = hard_ends(case.held_since, lease.ends_at, rules.maintenance, end_reason)
        return decide(
            self._board.activity_of(lease.id),
            self._reading(case),
            facts,
            lease.others_wait,
            rules.limits,
            ends,
            leases.now,
        )

    # -- acting -------------------------------------------------------------------------------

    def _follow_clock(self, leases: ReclaimableLeases, case: LeaseCase, watch: _Watch) -> LeaseCase:
        """Keep the time that is left of a warning, by the steady clock, if it may be withdrawn.

        A warning that this process did not give could not be answered while the pool was down, so
        it begins anew.  If the wall clock is set, the end moves with it, and the time left stays.
        """
        warning, now = case.lease.warning, leases.now
        if warning is None or warning.kind not in WITHDRAWABLE:
            watch.warning_ends_at = None
            return case
        if watch.warning_ends_at is None:
            left_s = max(warning.reclaim_at - now, self.rules.limits.warning_s)
            watch.warning_ends_at = self._clock() + left_s
            reason = "the pool was restarted: the warning begins anew"
        else:
            left_s = watch.warning_ends_at - self._clock()
            reason = "the clock was set: the time left stays the same"
        if abs(warning.reclaim_at - (now + left_s)) <= JUMP_S:
            return case
        return replace(case, lease=leases.move_end(case.lease.id, now + left_s, reason))

    def _act(
        self, leases: ReclaimableLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        lease = case.lease
        if lease.warning is not None and lease.warning.kind is WarningKind.STAFF:
            self._bring_end_forward(leases, lease.id, lease.warning, verdict)
            return  # staff reclaim it at the warning's end, whatever the policy says of its use
        if not self.is_acting:
            self._warn_of_end(leases, case, watch, verdict)
            return
        if verdict.has_worked and case.keepalives:
            leases.note_work(lease.id)
        if verdict.decision is Decision.RECLAIM and verdict.kind is not None:
            has_warned = lease.warning is not None and lease.warning.kind is verdict.kind
            reason = lease.warning.reason if has_warned and lease.warning else verdict.reason
            leases.release(lease.id, CAUSE, reason)
            self._count(verdict.kind.value)
        elif lease.warning is not None and verdict.kind is not lease.warning.kind:
            self._replace_warning(leases, case, watch, verdict)
        elif lease.warning is None and verdict.decision is Decision.WARN:
            self._warn(leases, case, watch, verdict)

    def _warn_of_end(
        self, leases: ReclaimableLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        """While the reclaimer does not act, warn only of ends that come without it."""
        warning = case.lease.warning
        is_coming = verdict.kind is WarningKind.TIME and self.rules.ends_come_anyway
        if warning is not None and not is_coming:
            leases.end_warning(case.lease.id, CAUSE, "the reclaimer does not act any more")
        elif warning is None and is_coming and verdict.decision is Decision.WARN:
            self._warn(leases, case, watch, verdict)

    def _bring_end_forward(
        self, leases: ReclaimableLeases, lease: int, warning: LeaseWarning, verdict: LeaseVerdict
    ) -> None:
        """Bring the end of a warning by staff forward to the lease's or the lab's own end.

        It stays a warning by staff: only they may let the holder keep the lease.
        """
        is_end = verdict.decision is Decision.WARN and verdict.kind not in WITHDRAWABLE
        at = verdict.reclaim_at
        if self.is_acting and is_end and at is not None and at < warning.reclaim_at:
            message = f"Sooner than said before: {verdict.reason} {warning.reason}"
            leases.move_end(lease, max(at, leases.now), f"ends sooner: {verdict.reason}", message)

    def _replace_warning(
        self, leases: ReclaimableLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        """End a warning whose reason no longer holds; warn for another reason if there is one."""
        warning = case.lease.warning
        is_idle = warning is not None and warning.kind is WarningKind.IDLE
        if verdict.decision is Decision.KEEP or not is_idle:
            leases.end_warning(case.lease.id, CAUSE, verdict.reason)
        if verdict.decision is Decision.WARN:
            self._warn(leases, case, watch, verdict)

    def _warn(
        self, leases: ReclaimableLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        if verdict.kind is None or verdict.reclaim_at is None:
            return
        leases.warn(case.lease.id, verdict.kind, verdict.reason, verdict.reclaim_at)
        if verdict.kind in WITHDRAWABLE:
            watch.warning_ends_at = self._clock() + self.rules.limits.warning_s

    # -- explaining ---------------------------------------------------------------------------

    def _log_verdict(self, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict) -> None:
        """Log a verdict when it changes, and every quarter of an hour while it does not."""
        verdict_key = (verdict.decision.value, verdict.activity.value, verdict.kind or "")
        now = self._clock()
        if verdict_key == watch.logged and now - watch.logged_at < LOG_AGAIN_S:
            return
        watch.logged, watch.logged_at = verdict_key, now
        log.info("verdict %s", json.dumps(self._explanation(case, verdict).model_dump(mode="json")))

    def _explanation(self, case: LeaseCase, verdict: LeaseVerdict) -> Explanation:
        lease = case.lease
        return Explanation.of(
            lease,
            lease=lease.id,
            decision=verdict.decision,
            is_acted_on=self.is_acting,
            activity=verdict.activity,
            kind=verdict.kind,
            reason=verdict.reason,
            figures=verdict.figures(),
            keepalives=case.keepalives,
        )
