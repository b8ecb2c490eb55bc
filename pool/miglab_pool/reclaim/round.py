"""One look at every lease in use: hear, read, decide, act, and say why.

Whoever keeps the leases is a `LeaseKeeper`: the lab's own pool, or jobs of Slurm.

Runs inside the pool's own thread, so that nothing changes between looking and acting.  What is
here is memory only: after a restart nothing is known of any server, so nothing is reclaimed
before it has reported again, and every warning that nobody could answer begins anew.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from miglab_api.base import WireModel
from miglab_api.leases import LeaseState, LeaseView, LeaseWarning, WarningKind
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
    closed_now,
    decide,
    ends_of,
)
from miglab_pool.refused import Refused

log = logging.getLogger(__name__)
BY = "reclaimer"
READING_LIVES_S = 60.0  # a reading that was not renewed for so long is not known any more
LOOK_MAX_S = 60.0  # no more is counted as "known to be empty" between two looks
JUMP_S = 5.0  # a warning's end that moves by more, by the wall clock, was moved by a jump
LOG_AGAIN_S = 900.0
WITHDRAWN = frozenset({WarningKind.IDLE, WarningKind.NEEDED})
"""Warnings whose ground may go; they last in full for whoever can answer them."""


class KeptLeases(Protocol):
    """What the reclaimer needs of leases, as `Leases` has them."""

    @property
    def now(self) -> float:
        """Seconds since the epoch."""

    @property
    def samples(self) -> int:
        """How often the slices were read."""

    def needed(self, idle_s: Mapping[int, float]) -> Mapping[int, str]:
        """The leases that end because somebody needs them, and why; by how long each is idle."""

    def close_for_maintenance(self, reason: str, by: str) -> None:
        """Grant nothing for this reason; empty: grant again, unless a person has paused."""

    def cases(self) -> Sequence[LeaseCase]:
        """The leases in use."""

    def warn(self, number: int, kind: WarningKind, reason: str, reclaim_at: float) -> LeaseView:
        """Warn the holder."""

    def end_warning(self, number: int, by: str, reason: str) -> LeaseView:
        """The holder keeps the lease."""

    def move_end(self, number: int, reclaim_at: float, reason: str, told: str = "") -> LeaseView:
        """Give a warned holder longer, or less."""

    def worked(self, number: int) -> None:
        """Work was seen."""

    def release(self, number: int, by: str, reason: str) -> LeaseView:
        """Ask for a lease back."""

    def note_activity(self, spent: Iterable[ActivitySpan]) -> None:
        """Keep what was seen of leases."""


class LeaseKeeper(Protocol):
    """Whoever keeps them."""

    @property
    def leases(self) -> KeptLeases:
        """The leases."""


class Explanation(WireModel):
    """What the policy thinks of one lease, and why.

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
    """What this process remembers of a lease; every time is by the clock that never jumps."""

    looked_at: float
    free_for_s: float = 0.0
    computed_at: float = float("-inf")
    activity: Activity = Activity.UNKNOWN
    idle_s: float = 0.0
    warned_for: float | None = None
    said: tuple[str, ...] = ()
    said_at: float = float("-inf")


class Reclaimer:
    """See the module.

    Args:
        rules: what is decided by.
        board: what servers said.
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
        self._heard: frozenset[str] = frozenset()
        self.silent_servers = 0  # at the last round
        self._tally = ActivityTotals(clock)
        self._samples = -1
        self._sampled_at = float("-inf")

    @property
    def is_acting(self) -> bool:
        """Whether verdicts are acted on."""
        return self.rules.limits.enabled and not self.rules.limits.dry_run

    def round(self, pool: LeaseKeeper) -> None:
        """Look at every lease in use once."""
        leases = pool.leases
        cases = {case.lease.id: case for case in leases.cases()}
        self._board.keep(cases)
        for gone in self._watches.keys() - cases.keys():
            del self._watches[gone]
        self._see_samples(leases)
        self._listen(cases.values(), leases.now)
        closed = closed_now(self.rules.maintenance, leases.now) if self.is_acting else ""
        leases.close_for_maintenance(closed, BY)  # also ends what an acting one began
        needed = self._needed(leases)
        for case in cases.values():
            try:
                self._look(leases, case, needed.get(case.lease.id, ""))
            except Refused as refused:  # it changed meanwhile, and the others are still looked at
                log.info("lease %s was left as it is: %s", case.lease.id, refused)
        if spent := self._tally.due():
            leases.note_activity(spent)

    def explain(self, pool: LeaseKeeper, user: str | None = None) -> list[Explanation]:
        """What the policy thinks now, of one user's leases or of all; changes nothing."""
        leases = pool.leases
        self._see_samples(leases)
        cases = [case for case in leases.cases() if user in (None, case.lease.user)]
        needed = self._needed(leases)
        return [
            self._explained(case, self._verdict(leases, case, needed.get(case.lease.id, "")))
            for case in cases
        ]

    def activities(self) -> dict[int, Activity]:
        """What each lease in use was doing at the last look."""
        watches = self._watches.items()
        return {lease: watch.activity for lease, watch in watches}

    # -- looking ------------------------------------------------------------------------------

    def _listen(self, cases: Iterable[LeaseCase], now: float) -> None:
        """Note how many servers are silent, and of which courses at least half report."""
        servers, silent, silent_for_long = Counter[str](), Counter[str](), 0
        for case in cases:
            if case.lease.purpose is Purpose.BORROW:
                continue  # it goes back when its measurements are over
            stale_s = self.rules.limits.stale_s
            is_silent = self._board.is_silent(case.lease.id, stale_s)
            servers[case.lease.course] += 1
            silent[case.lease.course] += is_silent
            silent_for_long += is_silent and now - case.held_since > stale_s
        self.silent_servers = silent_for_long
        self._heard = frozenset(one for one in servers if 2 * silent[one] <= servers[one])

    def _needed(self, leases: KeptLeases) -> Mapping[int, str]:
        return leases.needed({one: watch.idle_s for one, watch in self._watches.items()})

    def _see_samples(self, leases: KeptLeases) -> None:
        if leases.samples != self._samples:
            self._samples, self._sampled_at = leases.samples, self._clock()

    def _look(self, leases: KeptLeases, case: LeaseCase, needed: str) -> None:
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
            case = self._keep_time(leases, case, watch)
        verdict = self._verdict(leases, case, needed)
        self._tally.add(case.lease.id, verdict.activity, since_s)
        watch.activity, watch.idle_s = verdict.activity, verdict.idle_s
        self._say(case, watch, verdict)
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

    def _verdict(self, leases: KeptLeases, case: LeaseCase, needed: str) -> LeaseVerdict:
        lease, warning, rules = case.lease, case.lease.warning, self.rules
        facts = LeaseFacts(
            held_since=case.held_since,
            warning=warning.kind if warning else None,
            reclaim_at=warning.reclaim_at if warning else None,
            keepalive_until=case.keepalive_until,
            needed=needed,
            is_borrow=lease.purpose is Purpose.BORROW,
            others_report=lease.course in self._heard,
        )
        why = case.end_reason or TIME_IS_UP
        ends = ends_of(case.held_since, lease.ends_at, rules.maintenance, why)
        return decide(
            self._board.known(lease.id),
            self._reading(case),
            facts,
            lease.others_wait,
            rules.limits,
            ends,
            leases.now,
        )

    # -- acting -------------------------------------------------------------------------------

    def _keep_time(self, leases: KeptLeases, case: LeaseCase, watch: _Watch) -> LeaseCase:
        """Hold the end of a warning that may be withdrawn against the clock that never jumps.

        A warning that this process did not give could not be answered while nobody listened: it
        begins anew.  Is the wall clock set, the end is set with it, and the time left stays.
        """
        warning, now = case.lease.warning, leases.now
        if warning is None or warning.kind not in WITHDRAWN:
            watch.warned_for = None
            return case
        if watch.warned_for is None:
            left_s = max(warning.reclaim_at - now, self.rules.limits.warning_s)
            watch.warned_for = self._clock() + left_s
            reason = "the pool was restarted: the warning begins anew"
        else:
            left_s = watch.warned_for - self._clock()
            reason = "the clock was set: the time left stays the same"
        if abs(warning.reclaim_at - (now + left_s)) <= JUMP_S:
            return case
        return replace(case, lease=leases.move_end(case.lease.id, now + left_s, reason))

    def _act(
        self, leases: KeptLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        lease = case.lease
        if lease.warning is not None and lease.warning.kind is WarningKind.STAFF:
            self._hasten(leases, lease.id, lease.warning, verdict)
            return  # a person's: the desk takes it back, whatever the policy thinks of its use
        if not self.is_acting:
            self._only_tell(leases, case, watch, verdict)
            return
        if verdict.has_worked and case.keepalives:
            leases.worked(lease.id)
        if verdict.decision is Decision.RECLAIM and verdict.kind is not None:
            is_told = lease.warning is not None and lease.warning.kind is verdict.kind
            said = lease.warning.reason if is_told and lease.warning else verdict.reason
            leases.release(lease.id, BY, said)
            self._count(verdict.kind.value)
        elif lease.warning is not None and verdict.kind is not lease.warning.kind:
            self._change(leases, case, watch, verdict)
        elif lease.warning is None and verdict.decision is Decision.WARN:
            self._warn(leases, case, watch, verdict)

    def _only_tell(
        self, leases: KeptLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        """Take nothing back; but an end that comes without us is told before it comes."""
        warning = case.lease.warning
        is_coming = verdict.kind is WarningKind.TIME and self.rules.ends_come_anyway
        if warning is not None and not is_coming:
            leases.end_warning(case.lease.id, BY, "the reclaimer does not act any more")
        elif warning is None and is_coming and verdict.decision is Decision.WARN:
            self._warn(leases, case, watch, verdict)

    def _hasten(
        self, leases: KeptLeases, lease: int, warning: LeaseWarning, verdict: LeaseVerdict
    ) -> None:
        """A person's warning ends no later than what nobody puts off: the lease's or lab's end.

        It stays a warning by staff: only they may let the holder keep the lease.
        """
        is_end = verdict.decision is Decision.WARN and verdict.kind not in WITHDRAWN
        at = verdict.reclaim_at
        if self.is_acting and is_end and at is not None and at < warning.reclaim_at:
            told = f"Sooner than said before: {verdict.reason} {warning.reason}"
            leases.move_end(lease, max(at, leases.now), f"ends sooner: {verdict.reason}", told)

    def _change(
        self, leases: KeptLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        """The warning there is has no ground any more; perhaps another has."""
        warning = case.lease.warning
        is_idle = warning is not None and warning.kind is WarningKind.IDLE
        if verdict.decision is Decision.KEEP or not is_idle:
            leases.end_warning(case.lease.id, BY, verdict.reason)
        if verdict.decision is Decision.WARN:
            self._warn(leases, case, watch, verdict)

    def _warn(
        self, leases: KeptLeases, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict
    ) -> None:
        if verdict.kind is None or verdict.reclaim_at is None:
            return
        leases.warn(case.lease.id, verdict.kind, verdict.reason, verdict.reclaim_at)
        if verdict.kind in WITHDRAWN:
            watch.warned_for = self._clock() + self.rules.limits.warning_s

    # -- saying -------------------------------------------------------------------------------

    def _say(self, case: LeaseCase, watch: _Watch, verdict: LeaseVerdict) -> None:
        """Log a verdict when it changes, and every quarter of an hour while it does not."""
        said = (verdict.decision.value, verdict.activity.value, verdict.kind or "")
        now = self._clock()
        if said == watch.said and now - watch.said_at < LOG_AGAIN_S:
            return
        watch.said, watch.said_at = said, now
        log.info("verdict %s", json.dumps(self._explained(case, verdict).model_dump(mode="json")))

    def _explained(self, case: LeaseCase, verdict: LeaseVerdict) -> Explanation:
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
