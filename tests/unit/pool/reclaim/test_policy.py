"""The policy as a table of cases, and what must hold for every one."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miglab_api.leases import WarningKind
from miglab_hub.service.process import access_rules
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.reclaim.activity import (
    HOLDING_MIB,
    NEVER,
    Activity,
    Reading,
    ServerActivity,
    judge,
)
from miglab_pool.reclaim.policy import (
    Decision,
    HardEnd,
    LeaseFacts,
    LeaseVerdict,
    decide,
    hard_ends,
    maintenance_reason,
)
from miglab_pool.schedule import BadTime, parse_window
from miglab_pool.settings import Reclaim

NOW = 1_800_000_000.0
LIMITS = Reclaim(
    idle_s=7200, idle_wanted_s=900, holding_factor=2, warning_s=300, stale_s=90, unused_s=3600
)
HELD = LeaseFacts(held_since=NOW - 100_000)
WARNED = replace(HELD, warning=WarningKind.IDLE, reclaim_at=NOW - 20)
HOLDS = Reading(processes=1, memory_used_mib=900)
COMPUTES = replace(HOLDS, activity_pct=40.0, is_computing=True, computed_age_s=0.0)
RESTS = replace(HOLDS, activity_pct=0.0, computed_age_s=NEVER)
EMPTY = Reading(processes=0, memory_used_mib=3, free_for_s=0)
SIMULATED = replace(EMPTY, free_for_s=20_000, is_the_holders=False)  # says nothing of its students
RANK = {Decision.KEEP: 0, Decision.WARN: 1, Decision.RECLAIM: 2}


def idle(quiet_s: float, **fields: float | None) -> ServerActivity:
    """A server on which nothing has happened for so long, reported a moment ago."""
    values = {
        "age_s": 5.0, "busy": False, "kernels": 1, "execution_age_s": quiet_s, "terminals": 0,
        "terminal_age_s": NEVER, "browsers": 0, "browser_age_s": quiet_s, "unsaved": 0,
        "cpu_pct": 0.5, "cpu_age_s": NEVER,
    }  # fmt: skip
    return ServerActivity(**{**values, **fields})  # type: ignore[arg-type]


def warned_facts(kind: WarningKind, in_s: float) -> LeaseFacts:
    return replace(HELD, warning=kind, reclaim_at=NOW + in_s)


def closing_in(in_s: float) -> HardEnd:
    return HardEnd(NOW + in_s, WarningKind.MAINTENANCE, "It closes.")


def ending_in(in_s: float) -> HardEnd:
    return HardEnd(NOW + in_s, WarningKind.TIME, "It ends.")


def verdict(
    signals: ServerActivity | None,
    reading: Reading = HOLDS,
    lease: LeaseFacts = HELD,
    others_wait: int = 0,
    ends: tuple[HardEnd, ...] = (),
    now: float = NOW,
) -> LeaseVerdict:
    return decide(signals, reading, lease, others_wait, LIMITS, ends, now)


@pytest.mark.parametrize(
    ("signals", "reading", "activity"),
    [
        (idle(10), HOLDS, Activity.ACTIVE),
        (idle(1000), HOLDS, Activity.IDLE_HOLDING),
        (idle(1000), EMPTY, Activity.IDLE_FREE),
        (idle(1000), Reading(0, HOLDING_MIB), Activity.IDLE_HOLDING),
        (idle(1000, execution_age_s=5.0, browser_age_s=9999.0), HOLDS, Activity.ACTIVE),
        (idle(1000, terminal_age_s=5.0), HOLDS, Activity.ACTIVE),
        (idle(1000, cpu_age_s=5.0), HOLDS, Activity.ACTIVE),
        (idle(1000, browser_age_s=5.0), HOLDS, Activity.ACTIVE),
        (idle(5000, browser_age_s=5.0), HOLDS, Activity.IDLE_HOLDING),
        (idle(1000, execution_age_s=None), HOLDS, Activity.UNKNOWN),
        (idle(1000, terminal_age_s=None), HOLDS, Activity.UNKNOWN),
        (idle(1000, browser_age_s=None), HOLDS, Activity.UNKNOWN),
        (idle(10, browser_age_s=None), HOLDS, Activity.ACTIVE),
        (idle(5000, browser_age_s=None), HOLDS, Activity.IDLE_HOLDING),
        (idle(1000, cpu_age_s=None), HOLDS, Activity.UNKNOWN),
        (idle(1000, cpu_age_s=None), EMPTY, Activity.IDLE_FREE),
        (idle(10, terminal_age_s=None), HOLDS, Activity.ACTIVE),
        (idle(1000), Reading(), Activity.UNKNOWN),
        (idle(1000), Reading(processes=0), Activity.IDLE_HOLDING),
        (idle(1000), Reading(memory_used_mib=10), Activity.UNKNOWN),
        (idle(10), Reading(), Activity.ACTIVE),
        (idle(10, age_s=91.0), HOLDS, Activity.UNKNOWN),
        (None, EMPTY, Activity.UNKNOWN),
        (idle(1000), COMPUTES, Activity.ACTIVE),
        (idle(1000), replace(RESTS, computed_age_s=60.0), Activity.ACTIVE),
        (idle(1000), replace(RESTS, computed_age_s=600.0), Activity.IDLE_HOLDING),
        (None, COMPUTES, Activity.ACTIVE),
        (idle(1000), replace(COMPUTES, processes=None), Activity.ACTIVE),
    ],
)
def test_states(signals: ServerActivity | None, reading: Reading, activity: Activity) -> None:
    """Anything that works makes it active; anything missing that could work makes it unknown."""
    assert judge(signals, reading, 100_000, LIMITS).activity is activity


def test_nobody_is_idle_longer_than_the_lease() -> None:
    """An absurd age is cut at the lease's own: a new lease is never idle."""
    judged = judge(idle(1e8), HOLDS, 60, LIMITS)
    assert (judged.activity, judged.idle_s) == (Activity.ACTIVE, 60)
    assert judge(idle(1e8), HOLDS, -3600, LIMITS).idle_s == 0


@pytest.mark.parametrize(
    ("held_s", "activity"), [(1200, Activity.ACTIVE), (3600 + 1000, Activity.IDLE_FREE)]
)
def test_who_writes_and_has_run_nothing_yet_uses_the_slice(
    held_s: float, activity: Activity
) -> None:
    """No kernel was ever started: being at the page counts from the lease's begin, for its time."""
    writes = idle(NEVER, kernels=0, browsers=1, browser_age_s=2.0)
    for reading in (EMPTY, replace(EMPTY, free_for_s=held_s)):
        assert judge(writes, reading, held_s, LIMITS).activity is activity


@pytest.mark.parametrize(
    ("age_s", "others_wait", "reading", "decision"),
    [
        (899, 1, EMPTY, Decision.KEEP),
        (7199, 0, SIMULATED, Decision.KEEP),
        (7200, 0, SIMULATED, Decision.WARN),
        (900, 1, EMPTY, Decision.WARN),
        (900, 0, EMPTY, Decision.KEEP),
        (7200, 0, EMPTY, Decision.WARN),
        (1799, 1, HOLDS, Decision.KEEP),
        (1800, 1, HOLDS, Decision.WARN),
        (14400, 0, HOLDS, Decision.WARN),
    ],
)
def test_limits(age_s: float, others_wait: int, reading: Reading, decision: Decision) -> None:
    """The limit shrinks when others wait, stretches when nobody does, and spares what is held."""
    assert verdict(idle(age_s), reading, others_wait=others_wait).decision is decision


def test_the_reason_is_for_the_person() -> None:
    """It says how long, who waits, what is lost and what is kept, and carries the figures."""
    lease_verdict = verdict(idle(5000), EMPTY, others_wait=3)
    assert lease_verdict.reason == (
        "Nothing has happened on it for 1 hour 23 minutes, and 3 others are waiting for it. "
        "Your files are kept; what is in memory is lost."
    )
    assert lease_verdict.reclaim_at == NOW + 300
    figures = lease_verdict.figures()
    assert figures["idle_s"] == 5000 and figures["limit_s"] == 900
    assert "terminal_age_s" not in figures  # there is no terminal
    lease_verdict = verdict(idle(5.0, busy=True), Reading(0, 3, free_for_s=4500.0), others_wait=1)
    assert lease_verdict.reason.startswith(
        "Nothing has run on the slice itself for 1 hour 15 minutes, and"
    )


def test_still_here_counts_for_a_while() -> None:
    """It holds a new warning off until its time is over, and no longer."""
    stays = replace(HELD, keepalive_until=NOW + 1)
    assert verdict(idle(50_000), lease=stays, others_wait=1).decision is Decision.KEEP
    assert verdict(idle(50_000), lease=stays, others_wait=1, now=NOW + 1).decision is Decision.WARN


@pytest.mark.parametrize(
    ("signals", "others_wait", "now", "decision", "reason_part"),
    [
        (idle(50_000), 1, NOW - 21, Decision.WARN, "in less than a minute unless somebody"),
        (idle(50_000), 1, NOW, Decision.RECLAIM, "Nothing has happened"),
        (idle(50_000, age_s=21.0), 1, NOW, Decision.WARN, "final report"),
        (idle(50_000, unsaved=2), 1, NOW, Decision.WARN, "documents to be saved"),
        (idle(50_000, unsaved=2), 1, NOW + 41, Decision.RECLAIM, "Nothing has happened"),
        (idle(5.0), 1, NOW, Decision.KEEP, "in use"),
        (idle(5_000), 0, NOW, Decision.KEEP, "the limit is"),
        (None, 1, NOW, Decision.WARN, "Not counted as idle"),
        (idle(50_000, age_s=500.0), 1, NOW, Decision.WARN, "Not counted as idle"),
    ],
)
def test_the_end_of_a_warning(
    signals: ServerActivity | None,
    others_wait: int,
    now: float,
    decision: Decision,
    reason_part: str,
) -> None:
    """Taken back only when the server, heard after the end, still says that nothing happens."""
    lease_verdict = verdict(signals, HOLDS, WARNED, others_wait, now=now)
    assert lease_verdict.decision is decision
    assert reason_part in lease_verdict.reason


HEARD = replace(HELD, lab_reports=True)
SILENT = idle(5.0, busy=True, age_s=4000.0)
LONG_EMPTY = replace(EMPTY, free_for_s=3600 + 900.0)


@pytest.mark.parametrize(
    ("signals", "reading", "lease", "activity"),
    [
        (SILENT, LONG_EMPTY, HEARD, Activity.IDLE_FREE),
        (SILENT, replace(LONG_EMPTY, free_for_s=3600 + 90.0), HEARD, Activity.UNKNOWN),
        (SILENT, LONG_EMPTY, HELD, Activity.UNKNOWN),
        (None, LONG_EMPTY, HEARD, Activity.IDLE_FREE),
        (None, LONG_EMPTY, HELD, Activity.UNKNOWN),
        (None, replace(LONG_EMPTY, processes=1), HEARD, Activity.UNKNOWN),
        (SILENT, replace(LONG_EMPTY, is_the_holders=False), HEARD, Activity.UNKNOWN),
        (SILENT, replace(LONG_EMPTY, processes=1), HEARD, Activity.UNKNOWN),
        (SILENT, replace(LONG_EMPTY, processes=None), HEARD, Activity.UNKNOWN),
        (SILENT, replace(LONG_EMPTY, computed_age_s=60.0), HEARD, Activity.ACTIVE),
    ],
)
def test_silence_shields_an_empty_slice_no_longer_than_busy(
    signals: ServerActivity | None, reading: Reading, lease: LeaseFacts, activity: Activity
) -> None:
    """Where it is the server's own silence, and NVML is sure; anywhere else it is unknown."""
    lease_verdict = verdict(signals, reading, lease, others_wait=1)
    assert lease_verdict.activity is activity
    assert lease_verdict.decision is (
        Decision.WARN if activity is Activity.IDLE_FREE else Decision.KEEP
    )


def test_the_end_of_a_warning_for_silence() -> None:
    """No last word is waited for; the reason says that the server is silent."""
    lease_verdict = verdict(SILENT, LONG_EMPTY, replace(WARNED, lab_reports=True), others_wait=1)
    assert lease_verdict.decision is Decision.RECLAIM
    assert lease_verdict.reason.startswith(
        "Nothing has run on the slice itself for 1 hour 15 minutes, "
        "its server last reported 4000 s ago"
    )


@pytest.mark.parametrize("signals", [idle(0.0, busy=True), None], ids=["busy", "unknown"])
@pytest.mark.parametrize(
    ("ends", "lease", "decision", "reclaim_at"),
    [
        ([closing_in(376)], HELD, Decision.KEEP, None),
        ([closing_in(375)], HELD, Decision.WARN, 375),
        ([closing_in(-50)], HELD, Decision.WARN, 300),  # a late warning is a whole one
        ([closing_in(1)], warned_facts(WarningKind.MAINTENANCE, 1), Decision.WARN, 300),
        ([closing_in(0)], warned_facts(WarningKind.MAINTENANCE, 0), Decision.RECLAIM, None),
        ([closing_in(-50)], warned_facts(WarningKind.MAINTENANCE, 1), Decision.WARN, 300),
        ([ending_in(60)], HELD, Decision.WARN, 60),  # its own end: for what is left of it
        ([ending_in(0)], warned_facts(WarningKind.TIME, 0), Decision.RECLAIM, None),
        ([closing_in(250), ending_in(100)], HELD, Decision.WARN, 100),
    ],
)
def test_hard_ends(
    signals: ServerActivity | None,
    ends: tuple[HardEnd, ...],
    lease: LeaseFacts,
    decision: Decision,
    reclaim_at: float | None,
) -> None:
    """Warned in time, whatever is known; taken back at the end, of several at the first."""
    lease_verdict = verdict(signals, lease=lease, ends=ends)
    assert lease_verdict.decision is decision
    assert lease_verdict.reclaim_at == (None if reclaim_at is None else NOW + reclaim_at)
    if decision is not Decision.KEEP:
        assert lease_verdict.kind is min(ends, key=lambda end: end.at).kind


def test_needed() -> None:
    """However busy, a whole warning, which stands while the need does; then it is taken back."""
    busy, needed = idle(0.0, busy=True), replace(HELD, needed="Somebody needs it.")
    lease_verdict = verdict(busy, lease=needed)
    assert (lease_verdict.decision, lease_verdict.kind) == (Decision.WARN, WarningKind.NEEDED)
    assert (lease_verdict.reason, lease_verdict.reclaim_at) == ("Somebody needs it.", NOW + 300)
    idle_warning_over = replace(WARNED, needed="Somebody needs it.")
    lease_verdict = verdict(busy, lease=idle_warning_over)
    assert (lease_verdict.decision, lease_verdict.reclaim_at) == (Decision.WARN, NOW + 300)
    warned_lease = replace(needed, warning=WarningKind.NEEDED, reclaim_at=NOW)
    assert verdict(busy, lease=warned_lease, now=NOW - 1).decision is Decision.WARN
    assert verdict(None, lease=warned_lease).decision is Decision.RECLAIM
    assert verdict(busy, lease=replace(warned_lease, needed="")).decision is Decision.KEEP
    assert (
        verdict(busy, lease=warned_lease, ends=(closing_in(100),)).kind is WarningKind.MAINTENANCE
    )


ages = st.one_of(st.floats(0, 200_000), st.just(NEVER))
maybe_ages = st.one_of(ages, st.none())
knowns = st.builds(
    ServerActivity,
    age_s=st.floats(0, 200),
    busy=st.sampled_from((True, False, None)),
    kernels=st.one_of(st.integers(0, 3), st.none()),
    execution_age_s=maybe_ages,
    terminals=st.integers(0, 3),
    terminal_age_s=maybe_ages,
    browsers=st.integers(0, 3),
    browser_age_s=maybe_ages,
    unsaved=st.one_of(st.integers(0, 3), st.none()),
    cpu_pct=st.floats(0, 800),
    cpu_age_s=maybe_ages,
)
readings = st.builds(
    Reading,
    processes=st.one_of(st.integers(0, 3), st.none()),
    memory_used_mib=st.one_of(st.integers(0, 5000), st.none()),
    free_for_s=st.floats(0, 200_000),
)
leases = st.builds(
    LeaseFacts,
    held_since=st.floats(NOW - 200_000, NOW + 1000),
    warning=st.sampled_from((None, WarningKind.IDLE)),
    reclaim_at=st.floats(NOW - 1000, NOW + 1000),
    keepalive_until=st.one_of(st.none(), st.floats(NOW - 1000, NOW + 1000)),
    lab_reports=st.booleans(),
)
AGES = ("execution_age_s", "terminal_age_s", "browser_age_s", "cpu_age_s")


def is_unknown(lease_verdict: LeaseVerdict) -> bool:
    return lease_verdict.activity is Activity.UNKNOWN


@settings(derandomize=True)
@given(st.none() | knowns, readings, leases, st.integers(0, 5), st.integers(0, 5))
def test_whatever_a_server_says_or_leaves_out(
    signals: ServerActivity | None,
    reading: Reading,
    lease: LeaseFacts,
    waiting: int,
    more_waiting: int,
) -> None:
    """Unknown neither takes back nor warns, who computes is kept, a GPU at rest makes nobody idle,
    and the more wait the sooner."""
    before = verdict(signals, reading, lease, waiting)
    if is_unknown(before):
        assert before.decision is (Decision.KEEP if lease.warning is None else Decision.WARN)
        assert before.reclaim_at is None
    assert (
        RANK[verdict(signals, reading, lease, waiting + more_waiting).decision]
        >= RANK[before.decision]
    )
    rests = replace(reading, activity_pct=0.0, computed_age_s=NEVER)
    at_rest = verdict(signals, rests, lease, waiting)
    assert replace(at_rest, figures=dict) == replace(before, figures=dict)
    computes = replace(reading, activity_pct=40.0, is_computing=True, computed_age_s=0.0)
    assert verdict(signals, computes, lease, waiting).decision is Decision.KEEP
    if signals is not None:
        busy = replace(signals, age_s=10.0, busy=True, execution_age_s=10.0)
        assert verdict(busy, HOLDS, lease, waiting).decision is Decision.KEEP


@settings(derandomize=True)
@given(knowns, readings, leases, st.integers(0, 5), st.floats(0, 100_000), st.sampled_from(AGES))
def test_more_idle_is_never_less_and_knowing_less_never_more_reclaim(
    signals: ServerActivity,
    reading: Reading,
    lease: LeaseFacts,
    waiting: int,
    longer_s: float,
    age_name: str,
) -> None:
    """With an age longer the verdict is as severe or severer; to forget one warns nobody anew."""
    before = verdict(signals, reading, lease, waiting)
    age_s = getattr(signals, age_name)
    if age_s is not None:
        after = verdict(replace(signals, **{age_name: age_s + longer_s}), reading, lease, waiting)
        assert is_unknown(after) or RANK[after.decision] >= RANK[before.decision]
    for after in (
        verdict(replace(signals, **{age_name: None}), reading, lease, waiting),
        verdict(signals, replace(reading, processes=None), lease, waiting),
    ):
        if lease.warning is None or after.decision is Decision.RECLAIM:
            assert RANK[after.decision] <= RANK[before.decision]


@settings(derandomize=True)
@given(knowns, st.integers(0, 5))
def test_what_is_sent_shields_an_empty_slice_for_a_bounded_time(
    signals: ServerActivity, waiting: int
) -> None:
    """Whatever a server reports: with nothing on the slice it is warned in the end."""
    limit_s = LIMITS.idle_wanted_s if waiting else LIMITS.idle_s
    empty = Reading(0, 3, free_for_s=LIMITS.unused_s + limit_s)
    fresh = replace(signals, age_s=min(signals.age_s, LIMITS.stale_s))
    in_the_end = verdict(fresh, empty, others_wait=waiting)
    assert in_the_end.decision is Decision.WARN
    assert in_the_end.reason.startswith("Nothing has ")
    assert (
        verdict(replace(fresh, age_s=1.0, unsaved=0), empty, WARNED, waiting).decision
        is Decision.RECLAIM
    )


TUESDAY = datetime(2026, 11, 24, tzinfo=UTC)


def at(hour: int, minute: int = 0, day: int = 24) -> float:
    return TUESDAY.replace(hour=hour, minute=minute, day=day).timestamp()


@pytest.mark.parametrize(
    ("text", "zone", "held_since", "ends_at"),
    [
        ("tue 11:00-12:00", "UTC", at(10), at(11)),
        ("tue 11:00-13:00", "UTC", at(12), at(11)),  # it slipped in
        ("tue 11:00-12:00", "UTC", at(12), at(11) + 7 * 86400),
        ("Mon-Fri 18:00-19:00", "UTC", at(10), at(18)),
        ("sat-mon 18:00-19:00", "UTC", at(10), at(18, day=28)),
        ("2026-11-25 09:30-10:00", "UTC", at(10), at(9, 30, day=25)),
        ("tue 12:00-13:00", "Europe/Berlin", at(9), at(11)),
    ],
)
def test_maintenance(text: str, zone: str, held_since: float, ends_at: float) -> None:
    """The first window since the lease is held ends it, by the clock on the lab's wall."""
    (end,) = hard_ends(held_since, None, (parse_window(text, zone),))
    assert (end.at, end.kind) == (ends_at, WarningKind.MAINTENANCE)
    assert text.split()[1][:5] in end.reason


def test_closed_now() -> None:
    """From the window's start until its end, and it says so."""
    windows = (parse_window("tue 06:00-08:00", "UTC"),)
    assert maintenance_reason(windows, at(5, 59)) == maintenance_reason(windows, at(8)) == ""
    assert (
        maintenance_reason(windows, at(6)) == "Maintenance of the lab from 06:00 UTC to 08:00 UTC."
    )


def test_the_leases_own_end() -> None:
    """What is borrowed, and a job of Slurm, has that end too."""
    (end,) = hard_ends(at(5), at(9), ())
    assert (end.at, end.kind) == (at(9), WarningKind.TIME)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tue",
        "tue 06:00",
        "tue 8:00-9:00",
        "tues 12:00-13:00",
        "2026-13-01 12:00-13:00",
        "tue 08:00-06:00",
        "tue 08:00-08:00",
        "tue 23:00-24:00",
    ],
)
def test_a_wrong_window_is_explained(text: str) -> None:
    """A window has a start before its end, on one day."""
    with pytest.raises(BadTime, match="write"):
        parse_window(text, "UTC")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"lab": {"maintenance": ["now"]}}, "no window"),
        ({"lab": {"timezone": "Mars/Olympus"}}, "not known"),
        ({"reclaim": {"idle_wanted_s": 9000}}, "longer than idle_s"),
    ],
)
def test_settings_are_checked(table: dict[str, object], problem: str) -> None:
    """lab.toml with a time that cannot be read does not start."""
    tables = {"courses": {"everyone": {"shapes": ["cpu"]}}, **table}
    with pytest.raises(ValueError, match=problem):
        Settings.model_validate(tables)


def test_settings_become_rules() -> None:
    """What lab.toml says reaches the policy, in its own words."""
    table = {"dry_run": True, "idle_s": 50, "idle_wanted_s": 20, "unused_s": 70, "stale_s": 30}
    lab = {"timezone": "Europe/Berlin", "maintenance": ["tue 06:00-08:00"]}
    courses = {"everyone": {"shapes": ["cpu"]}}
    rules = access_rules(
        Settings.model_validate({"reclaim": table, "lab": lab, "courses": courses})
    )
    assert rules.limits == Reclaim(**table)
    assert maintenance_reason(rules.maintenance, at(5)) and not maintenance_reason(
        rules.maintenance, at(7)
    )


@pytest.mark.parametrize(("gpus", "shows"), [({}, False), ({"uuids": ["GPU-1"]}, True)])
def test_only_real_gpus_are_believed_to_show_who_computes(
    gpus: dict[str, object], shows: bool
) -> None:
    """The rules of a lab know which GPUs it has."""
    tables = {"gpus": gpus, "courses": {"everyone": {"shapes": ["cpu"]}}}
    assert access_rules(Settings.model_validate(tables)).shows_holders is shows
