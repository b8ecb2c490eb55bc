"""Decides whether a lease is kept, warned or reclaimed, and why.  Pure.

A lease is reclaimed for one of three reasons.  *Unused*: it is idle for longer than the limit,
which is shorter while others wait for its slices; it is warned first, and reclaimed only if its
server still reports no activity after the warning's end.  *Needed*: it is open, and somebody needs
its slices (queue/needs.py).  *Time*: maintenance, or an end that was set; these come in any case.
Maintenance windows (``tue 06:00-08:00``, ``2026-11-24 06:00-08:00``) are local wall-clock times.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from miglab_api.leases import WarningKind
from miglab_api.wording import clock_time, duration
from miglab_pool.reclaim.activity import Activity, ActivityJudgement, Reading, ServerActivity, judge
from miglab_pool.schedule import Occurrence, Schedule, next_occurrence
from miglab_pool.settings import Reclaim

FILES_ARE_KEPT = "Your files are kept; what is in memory is lost."
TIME_IS_UP = "The lease's time is up. Your files are kept; start again for a new lease."
LEAD = 1.25  # of a warning's length: a look that comes late must not put the end itself off
SAVING_S = 60.0  # how long unsaved documents hold up the end of a warning
Figure = float | int | str | None
SERVER_FIGURES = (
    "kernels", "busy", "execution_age_s", "terminals", "terminal_age_s", "browsers",
    "browser_age_s", "unsaved", "cpu_pct", "cpu_age_s",
)  # fmt: skip
"""The fields of `ServerActivity` among a verdict's figures."""


@dataclass(frozen=True)
class Rules:
    """The reclaimer's rules.

    Attributes:
        limits: [reclaim] as lab.toml has it.
        shows_holders: whether the GPUs show what the holders run; simulated ones do not.
        reads_slices: whether anybody reads what is on the slices; on a cluster's nodes nobody does,
            and the servers' own reports decide.
        ends_come_anyway: whether somebody else ends leases at their `ends_at`, so that their
            holders are warned even where nothing is reclaimed.
        maintenance: windows in which no server holds a slice.
    """

    limits: Reclaim = field(default_factory=Reclaim)
    shows_holders: bool = True
    reads_slices: bool = True
    ends_come_anyway: bool = False
    maintenance: Sequence[Schedule] = ()


@dataclass(frozen=True, slots=True)
class HardEnd:
    """An end that no activity puts off."""

    at: float
    kind: WarningKind
    reason: str


def hard_ends(
    held_since: float,
    ends_at: float | None,
    maintenance: Sequence[Schedule],
    time_is_up: str = TIME_IS_UP,
) -> list[HardEnd]:
    """Return the hard ends of a lease: the first of each kind since it is held.

    Args:
        held_since: since when its server is attached.
        ends_at: its own end.
        maintenance: when the lab is closed.
        time_is_up: why it ends at its own end.
    """
    ends = []
    if ends_at is not None:
        ends.append(HardEnd(ends_at, WarningKind.TIME, time_is_up))
    for rule in maintenance:
        if (window := next_occurrence(rule, held_since)) is not None:
            ends.append(
                HardEnd(
                    window.starts_at,
                    WarningKind.MAINTENANCE,
                    f"{_maintenance_message(window, rule)} {FILES_ARE_KEPT}",
                )
            )
    return ends


def maintenance_reason(maintenance: Sequence[Schedule], now: float) -> str:
    """Return why nothing is granted now; empty outside of every maintenance window."""
    for rule in maintenance:
        window = next_occurrence(rule, now)
        if window is not None and window.starts_at <= now:
            return _maintenance_message(window, rule)
    return ""


def _maintenance_message(window: Occurrence, rule: Schedule) -> str:
    begins, ends = clock_time(window.starts_at, rule.tz), clock_time(window.ends_at, rule.tz)
    return f"Maintenance of the lab from {begins} to {ends}."


class Decision(StrEnum):
    """What is to be done with a lease, the mildest first."""

    KEEP = "keep"
    WARN = "warn"
    RECLAIM = "reclaim"


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """What the policy needs of a lease; times are seconds since the epoch.

    Attributes:
        held_since: when its server was attached.
        warning: what it is warned about; None if it is not.
        reclaim_at: when that warning ends.
        keepalive_until: until when "I am still here" counts.
        needed: why it ends for somebody who needs its slices; empty: nobody does, or it is
            guaranteed.
        is_borrow: whether measurements borrowed it: it ends with them, and nobody is warned.
        lab_reports: whether at least half of the lab's servers report.
    """

    held_since: float
    warning: WarningKind | None = None
    reclaim_at: float | None = None
    keepalive_until: float | None = None
    needed: str = ""
    is_borrow: bool = False
    lab_reports: bool = False


@dataclass(frozen=True, slots=True)
class LeaseVerdict:
    """The decision.

    Attributes:
        decision: what is to be done; ``warn`` for one that is warned means: the warning stands.
        reason: why, in words; for the holder where something is done.
        kind: what the warning or reclaim is about; None to keep.
        reclaim_at: when a new warning ends.
        activity: what the lease is doing.
        has_worked: whether work was seen that is more than being looked at.
        idle_s: for how long it has been idle; 0 where that is not known.
        figures: what it was decided by, drawn up when somebody asks.
    """

    decision: Decision
    reason: str
    activity: Activity
    kind: WarningKind | None = None
    reclaim_at: float | None = None
    has_worked: bool = False
    idle_s: float = 0.0
    figures: Callable[[], dict[str, Figure]] = dict


def decide(
    server: ServerActivity | None,
    reading: Reading,
    lease: LeaseFacts,
    others_wait: int,
    limits: Reclaim,
    ends: Sequence[HardEnd],
    now: float,
) -> LeaseVerdict:
    """Decide about one lease.

    Args:
        server: what its server said; None if nothing.
        reading: what NVML says of its slices.
        lease: the lease.
        others_wait: how many wait for what it would free.
        limits: [reclaim].
        ends: the hard ends that are set for it.
        now: seconds since the epoch.
    """
    judgement = judge(
        server, reading, now - lease.held_since, limits, lab_reports=lease.lab_reports
    )
    limit_s = idle_limit_s(judgement.activity, others_wait, limits)
    figures = partial(_figures, server, reading, judgement, others_wait, limit_s)
    outcome = (
        _decide_borrow(ends, now) if lease.is_borrow else _decide_by_end(lease, ends, limits, now)
    )
    if outcome is None:
        outcome = _decide_by_need(lease, limits, now)
    if outcome is None:
        outcome = _decide_by_use(server, judgement, lease, others_wait, limit_s, limits, now)
    decision, reason, kind, reclaim_at = outcome
    work_s = judgement.work_age_s
    has_worked = (
        judgement.activity is Activity.ACTIVE and work_s is not None and work_s <= limits.stale_s
    )
    idle_s = judgement.idle_s or 0.0
    return LeaseVerdict(
        decision, reason, judgement.activity, kind, reclaim_at, has_worked, idle_s, figures
    )


def idle_limit_s(activity: Activity, others_wait: int, limits: Reclaim) -> float:
    """Return for how long a lease may be idle before its holder is warned, seconds."""
    limit_s = limits.idle_wanted_s if others_wait else limits.idle_s
    return limit_s * limits.holding_factor if activity is Activity.IDLE_HOLDING else limit_s


Outcome = tuple[Decision, str, WarningKind | None, float | None]
"""The decision, its reason, what a warning or reclaim is about, and when a new warning ends."""


def _decide_by_end(
    lease: LeaseFacts, ends: Sequence[HardEnd], limits: Reclaim, now: float
) -> Outcome | None:
    """Decide by the next hard end; None while it is far."""
    end = min(ends, key=lambda end: end.at, default=None)
    if end is None or now < end.at - LEAD * limits.warning_s:
        return None
    is_warned = lease.warning is end.kind and lease.reclaim_at is not None
    if is_warned and lease.reclaim_at is not None and now >= max(end.at, lease.reclaim_at):
        return Decision.RECLAIM, end.reason, end.kind, None
    earliest = now if end.kind is WarningKind.TIME else now + limits.warning_s
    return Decision.WARN, end.reason, end.kind, max(end.at, earliest)


def _decide_by_need(lease: LeaseFacts, limits: Reclaim, now: float) -> Outcome | None:
    """Decide by somebody's need; None without one.  The warning lasts in full."""
    if not lease.needed:
        return None
    if lease.warning is not WarningKind.NEEDED or lease.reclaim_at is None:
        return Decision.WARN, lease.needed, WarningKind.NEEDED, now + limits.warning_s
    is_over = now >= lease.reclaim_at
    return Decision.RECLAIM if is_over else Decision.WARN, lease.needed, WarningKind.NEEDED, None


def _decide_borrow(ends: Sequence[HardEnd], now: float) -> Outcome:
    """Decide about a borrowed lease, which its runner or its end ends; it gets no warning."""
    past_ends = [end for end in ends if now >= end.at]
    if not past_ends:
        return _keep("It is borrowed: it goes back when the measurements are over.")
    end = min(past_ends, key=lambda end: end.at)
    return Decision.RECLAIM, end.reason, end.kind, None


def _decide_by_use(
    server: ServerActivity | None,
    judgement: ActivityJudgement,
    lease: LeaseFacts,
    others_wait: int,
    limit_s: float,
    limits: Reclaim,
    now: float,
) -> Outcome:
    """Decide by the lease's use."""
    is_warned = lease.warning is WarningKind.IDLE
    if judgement.idle_s is None:
        reason = f"Not counted as idle, because this is unknown: {judgement.unknown}."
        return (Decision.WARN, reason, WarningKind.IDLE, None) if is_warned else _keep(reason)
    if judgement.activity is Activity.ACTIVE:
        return _keep("It is in use.")
    idle_message = f"Nothing has happened on it for {duration(judgement.idle_s)}"
    if judgement.empty_s is not None:
        idle_message = f"Nothing has run on the slice itself for {duration(judgement.empty_s)}"
    if judgement.unknown:
        idle_message = f"{idle_message}, {judgement.unknown}"
    if lease.keepalive_until is not None and now < lease.keepalive_until and not is_warned:
        return _keep(f"{idle_message}, but somebody said to be still there.")
    if judgement.idle_s < limit_s:
        return _keep(f"{idle_message}; the limit is {duration(limit_s)}.")
    reason = f"{idle_message}, and {_describe_waiting(others_wait)}. {FILES_ARE_KEPT}"
    if not is_warned:
        return Decision.WARN, reason, WarningKind.IDLE, now + limits.warning_s
    postponement = _postponement(server, judgement, lease, now)
    decision = Decision.WARN if postponement else Decision.RECLAIM
    return decision, postponement or reason, WarningKind.IDLE, None


def _postponement(
    server: ServerActivity | None, judgement: ActivityJudgement, lease: LeaseFacts, now: float
) -> str:
    """Return why a warning that stands does not end in a reclaim now; empty if it does."""
    over_s = now - (lease.reclaim_at if lease.reclaim_at is not None else now)
    if over_s < 0 or lease.reclaim_at is None:
        return f"Warned; will be reclaimed in {duration(-over_s)} unless somebody is there."
    if judgement.unknown:
        return ""  # it says nothing, and its slice is empty
    if server is None or server.age_s > over_s:
        return "The warning is over; waiting for the server's final report."
    if server.unsaved and over_s < SAVING_S:
        return "The warning is over; waiting for documents to be saved."
    return ""


def _keep(reason: str) -> Outcome:
    return Decision.KEEP, reason, None, None


def _describe_waiting(others_wait: int) -> str:
    if not others_wait:
        return "unused slices go back after a while"
    return f"{others_wait} {'others are' if others_wait > 1 else 'other is'} waiting for it"


def _figures(
    server: ServerActivity | None,
    reading: Reading,
    judgement: ActivityJudgement,
    others_wait: int,
    limit_s: float,
) -> dict[str, Figure]:
    """The figures of a decision; one that does not apply is left out, an unknown one is None."""
    figures: dict[str, Figure] = {
        "idle_s": judgement.idle_s,
        "limit_s": limit_s,
        "others_wait": others_wait,
        "processes": reading.processes,
        "memory_used_mib": reading.memory_used_mib,
        "free_for_s": reading.free_for_s,
        "gpu_activity_pct": reading.activity_pct,
        "gpu_computed_age_s": reading.computed_age_s,
        "report_age_s": server.age_s if server else None,
        **{name: getattr(server, name, None) for name in SERVER_FIGURES},
        "busy": None if server is None or server.busy is None else int(server.busy),
    }
    return {
        name: round(value, 1) if isinstance(value, float) else value
        for name, value in figures.items()
        if not (isinstance(value, float) and math.isinf(value))
    }
