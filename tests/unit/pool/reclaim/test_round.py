"""The reclaimer over the real pool and simulated GPUs; every clock is the test's."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pool_settings import changed
from tests.refusals import because
from tests.unit.pool.conftest import SETTINGS, Keep, World

from miglab_api.leases import (
    KernelSignal,
    LeaseState,
    LeaseView,
    LeaseWarning,
    Signals,
    WarningKind,
)
from miglab_pool.leases.views import LeaseCase
from miglab_pool.reclaim.activity import Activity, SignalBoard
from miglab_pool.reclaim.policy import Decision, Rules
from miglab_pool.reclaim.round import READING_LIVES_S, Explanation, Reclaimer
from miglab_pool.refused import Refused
from miglab_pool.schedule import parse_window
from miglab_pool.settings import Course, PoolSettings, Reclaim
from miglab_pool.usage.report import read_facts

LIMITS = Reclaim(
    idle_s=1000, idle_wanted_s=400, holding_factor=2, warning_s=120, stale_s=90, unused_s=600
)
DRY_RUN = LIMITS.model_copy(update={"dry_run": True})
DISABLED = LIMITS.model_copy(update={"enabled": False})
POOL = changed(SETTINGS, warning_s=120, still_here_s=300, keepalives=2, attend_grace_s=1e6)
STEP_S = 15.0
MAINTENANCE = (parse_window("mon-sun 14:00-14:05", "UTC"),)


class ReclaimWorld(World):
    """A lab whose reclaimer looks every 15 s, and servers that report as often unless silent.

    Whoever waits asks as often how their ticket stands, but those whose tickets are ``absent``.
    """

    def __init__(
        self,
        folder: Path,
        settings: PoolSettings = POOL,
        model: str = "A100-40GB",
        **rules: object,
    ) -> None:
        self.ticks = 100.0
        self.rules = Rules(**{"limits": LIMITS, **rules})  # type: ignore[arg-type]
        self.reclaims: list[str] = []
        self.busy: set[int] = set()
        self.silent: set[int] = set()
        self.absent: set[int] = set()
        self.worked_at: dict[int, float] = {}
        self.looked_at: dict[int, float] = {}
        self.unsaved = 0
        super().__init__(folder, settings, model=model)

    def open(self) -> None:
        super().open()
        self.board = SignalBoard(clock=lambda: self.ticks)
        self.reclaimer = Reclaimer(
            self.rules, self.board, self.reclaims.append, clock=lambda: self.ticks
        )

    def report(self, lease: int) -> None:
        started_at = self.worked_at.setdefault(lease, self.ticks)
        kernel = KernelSignal(busy=lease in self.busy, last_execution_age_s=self.ticks - started_at)
        looked_s = self.ticks - self.looked_at.get(lease, started_at)
        signals = Signals(
            kernels=(kernel,), terminals=0, browsers=1, browser_age_s=looked_s,
            unsaved=self.unsaved, cpu_s=1.0,
        )  # fmt: skip
        self.board.take(lease, signals)

    def live(self, seconds: float) -> None:
        """Let time pass, step by step: servers report, the pool reads, the reclaimer looks."""
        for _ in range(int(seconds / STEP_S)):
            self.pass_time(STEP_S)
            self.ticks += STEP_S
            for case in self.pool.leases.lease_cases():
                if case.lease.id not in self.silent:
                    self.report(case.lease.id)
            for ticket in self.ledger.state.tickets.keys() - self.absent:
                self.pool.tickets.attend(ticket)
            self.pool.sample()
            self.reclaimer.round(self.pool)
        self.check()

    def hold(self, lease: LeaseView) -> None:
        """Put a process with memory on the lease's slice."""
        self.machine.add_process(lease.uuids[0], 4242, 900)

    def state(self, lease: LeaseView) -> LeaseState:
        return self.pool.leases.find(lease.id).state

    def warning(self, lease: LeaseView) -> LeaseWarning:
        warning = self.pool.leases.find(lease.id).warning
        assert warning is not None
        return warning

    def explanation_of(self, user: str) -> Explanation:
        (explanation,) = self.reclaimer.explain(self.pool, user)
        return explanation


MakeLab = Callable[..., ReclaimWorld]


@pytest.fixture
def make_lab(tmp_path: Path, keep: Keep[ReclaimWorld]) -> MakeLab:
    def make(settings: PoolSettings = POOL, **options: object) -> ReclaimWorld:
        return keep(ReclaimWorld(tmp_path, settings, **options))  # type: ignore[arg-type]

    return make


@pytest.fixture
def lab(make_lab: MakeLab) -> ReclaimWorld:
    return make_lab()


def steps(lab: ReclaimWorld, lease: LeaseView) -> list[str]:
    return [row["to_state"] for row in reversed(lab.ledger.history("lease", str(lease.id)))]


def test_unused_is_warned_then_taken_back(lab: ReclaimWorld) -> None:
    """Idle → warned → releasing, each with its reason in the ledger, and counted."""
    lease = lab.run("ada")
    lab.live(990)
    assert lab.state(lease) is LeaseState.RUNNING
    lab.live(30)
    warning = lab.warning(lease)
    assert warning.kind is WarningKind.IDLE
    assert warning.reclaim_at == pytest.approx(lab.at + 120, abs=30)
    assert "Your files are kept" in warning.reason
    lab.live(150)
    over = lab.pool.leases.find(lease.id)
    assert (over.state, over.warning) == (LeaseState.RELEASING, None)
    assert over.reason == warning.reason  # the same minutes, though some passed in between
    assert steps(lab, lease)[-3:] == ["running", "warned", "releasing"]
    assert all(row["reason"] for row in lab.ledger.history("lease", str(lease.id)))
    assert lab.reclaims == ["idle"]


@pytest.mark.parametrize(
    ("limits", "warning_s"), [(LIMITS, 750.0), (DRY_RUN, 3600.0), (DISABLED, 3600.0)]
)
def test_what_staff_reclaim_is_none_of_the_policys(
    make_lab: MakeLab, limits: Reclaim, warning_s: float
) -> None:
    """Busy or idle: a warning by staff stands, if no end comes sooner that somebody acts on."""
    limits = limits.model_copy(update={"idle_s": 400})
    lab = make_lab(limits=limits, maintenance=MAINTENANCE)
    leases = [lab.run("ada"), lab.run("bob")]
    lab.busy.add(leases[0].id)
    before = [
        lab.pool.staff.reclaim(lease.id, "Exam.", "person:ina", warning_s).warning
        for lease in leases
    ]
    lab.live(735)
    assert [lab.warning(lease) for lease in leases] == before
    assert lab.reclaims == []


def test_an_end_that_nothing_puts_off_comes_before_staffs(make_lab: MakeLab) -> None:
    """Who was given an hour by staff is told of maintenance, ten minutes away;
    it stays a warning by staff, so that its holder still cannot put it off."""
    lab = make_lab(maintenance=MAINTENANCE)
    lease = lab.run("ada")
    lab.pool.staff.reclaim(lease.id, "Exam.", "person:ina", 3600.0)
    lab.live(600)
    assert lab.warning(lease).reclaim_at == 1_003_600.0
    lab.live(90)
    near = lab.warning(lease)
    assert (near.kind, near.reclaim_at) == (WarningKind.STAFF, 1_000_800.0)
    assert (
        "Maintenance of the lab" in near.reason
        and "This slice is reclaimed by ina: “Exam.” Your files" in near.reason
    )
    notes = [row["reason"] for row in lab.ledger.history("lease", str(lease.id))]
    assert ["Maintenance of the lab" in note for note in notes].count(True) == 1
    lab.live(120)
    assert [released.id for released in lab.pool.staff.release_reclaimed()] == [lease.id]


def test_what_each_lease_was_doing(lab: ReclaimWorld) -> None:
    """Told apart for the page and added up in the ledger; a lease that is over is forgotten."""
    active, idle, silent = (lab.run(name) for name in ("ada", "bob", "cy"))
    lab.busy.add(active.id)
    lab.silent.add(silent.id)
    for lease in (active, idle, silent):
        lab.hold(lease)
    lab.live(900)
    assert lab.reclaimer.activities() == {
        active.id: Activity.ACTIVE,
        idle.id: Activity.IDLE_HOLDING,
        silent.id: Activity.UNKNOWN,
    }
    with read_facts(lab.ledger.path, lab.at - 86400, lab.at + 86400, None) as facts:
        looked = {activity.lease: activity for activity in facts.observed_days}
    assert looked[active.id].active_s > 600 and looked[active.id].idle_s == 0
    assert looked[idle.id].idle_s > 600
    assert (looked[silent.id].active_s, looked[silent.id].idle_s) == (0, 0)
    lab.end(idle)
    lab.live(STEP_S)
    assert idle.id not in lab.reclaimer.activities() and len(lab.board) == 1
    assert [explanation.user for explanation in lab.reclaimer.explain(lab.pool)] == ["ada", "cy"]


def test_still_here_counts_so_often(lab: ReclaimWorld) -> None:
    """It ends the warning for a while, twice, restarts or not; then work must be seen."""
    lease = lab.run("ada")
    lab.live(1020)
    for remaining in (2, 1):
        assert lab.warning(lease).keepalives_left == remaining
        assert lab.pool.leases.keepalive(lease.id, "server:ada/").state is LeaseState.RUNNING
        lab.crash()
        lab.live(270)
        assert lab.state(lease) is LeaseState.RUNNING
        lab.live(45)
        assert lab.state(lease) is LeaseState.WARNED
    with pytest.raises(Refused, check=because("no-keepalive")):
        lab.pool.leases.keepalive(lease.id, "server:ada/")
    assert lab.ledger.history("lease", str(lease.id))[0]["reason"].startswith("still here: ")
    lab.worked_at[lease.id] = lab.ticks
    lab.hold(lease)
    lab.live(30)
    assert (lab.state(lease), lab.explanation_of("ada").keepalives) == (LeaseState.RUNNING, 0)


def test_use_of_the_slice_begins_the_bound_anew(lab: ReclaimWorld) -> None:
    """It counts from when something was last on the slice, and only while that can be read."""
    lease = lab.run("ada")
    lab.busy = {lease.id}
    lab.live(900)
    lab.hold(lease)
    lab.live(30)
    lab.machine.remove_process(4242)
    lab.live(300)
    figures = lab.explanation_of("ada").figures
    assert (figures["free_for_s"], figures["gpu_activity_pct"]) == (300, None)
    assert figures["gpu_computed_age_s"] is None  # an A100 tells neither
    lab.fail("nvmlDeviceGetComputeRunningProcesses", times=1000)
    lab.live(60)
    assert lab.explanation_of("ada").figures["free_for_s"] == 300
    assert lab.state(lease) is LeaseState.RUNNING


def test_silence_does_not_keep_an_empty_slice(lab: ReclaimWorld) -> None:
    """Where half of the lab reports, a server that was heard and fell silent loses its slice.

    While most of the lab is silent something else is wrong, and nobody is warned.
    """
    lease, other, third = lab.run("ada"), lab.run("bob"), lab.run("eve")
    lab.busy = {lease.id, other.id, third.id}
    lab.hold(third)
    lab.live(15)
    lab.silent = {lease.id, other.id}
    lab.live(3 * LIMITS.unused_s)
    assert {lab.state(silent_lease) for silent_lease in (lease, other)} == {LeaseState.RUNNING}
    assert lab.reclaimer.silent_servers == 2
    lab.silent = {lease.id}
    lab.live(15)
    assert (lab.state(lease), lab.reclaimer.silent_servers) == (LeaseState.WARNED, 1)
    lab.live(LIMITS.warning_s + 15)
    assert lab.state(lease) is LeaseState.RELEASING
    assert lab.state(third) is LeaseState.RUNNING


def test_who_never_reports_keeps_an_empty_slice_no_longer_than_who_claims_to_be_busy(
    lab: ReclaimWorld,
) -> None:
    """Also alone in a course, in the midst of a guarantee; what is on a slice keeps it."""
    mallory, liar = lab.run("mallory", course="vision"), lab.run("liar")
    silent_worker, worker = lab.run("cy"), lab.run("ada")
    lab.hold(silent_worker)
    lab.busy = {liar.id, worker.id}
    lab.silent = {mallory.id, silent_worker.id}
    for name in ("bob", "eve", "dan", "flo"):
        lab.ask(name)
    lab.live(LIMITS.unused_s + LIMITS.idle_wanted_s - 60)
    assert (lab.state(mallory), lab.state(liar)) == (LeaseState.RUNNING, LeaseState.RUNNING)
    lab.live(120)
    assert (lab.state(mallory), lab.state(liar)) == (LeaseState.WARNED, LeaseState.WARNED)
    assert lab.warning(mallory).reason.startswith("Nothing has run on the slice itself for ")
    assert "its server has not reported" in lab.warning(mallory).reason
    lab.live(LIMITS.warning_s + 15)
    assert lab.state(mallory) is LeaseState.RELEASING
    assert lab.at < mallory.granted_at + POOL.pool.lease_s, "its guarantee has not ended"
    assert lab.state(silent_worker) is LeaseState.RUNNING


def test_an_extension_answers_for_a_server_that_cannot_report(lab: ReclaimWorld) -> None:
    """On the pool's page; it ends the warning and puts off the next."""
    broken = lab.run("ada", course="vision")
    worker = lab.run("bob")
    lab.hold(worker)
    lab.busy, lab.silent = {worker.id}, {broken.id}
    lab.live(LIMITS.unused_s + LIMITS.idle_s + 60)
    assert lab.state(broken) is LeaseState.WARNED
    lab.pool.leases.extend(broken.id, 60, "person:ada")
    lab.live(LIMITS.warning_s + 60)
    assert lab.state(broken) is LeaseState.RUNNING


def test_an_old_reading_is_unknown(lab: ReclaimWorld) -> None:
    """While the GPU thread hangs nothing is known of any slice, and nothing taken back."""
    lab.run("ada")
    lab.live(900)
    lab.ticks += READING_LIVES_S + 1
    lab.report(1)
    assert lab.explanation_of("ada").activity is Activity.UNKNOWN
    assert lab.explanation_of("ada").figures["processes"] is None


@pytest.mark.parametrize("jump_s", [7 * 24 * 3600.0, -3000.0])
def test_clock_jumps(lab: ReclaimWorld, jump_s: float) -> None:
    """A wall clock that jumps neither makes anybody idle nor shortens or lengthens a warning."""
    lab.busy = {1}
    lease, other = lab.run("ada"), lab.run("bob")
    lab.hold(lease)
    lab.live(1020)
    lab.pass_time(jump_s)
    lab.live(45)
    assert lab.at < lab.warning(other).reclaim_at <= lab.at + 120
    assert lab.state(lease) is LeaseState.RUNNING
    lab.live(60)
    assert lab.state(other) is LeaseState.WARNED
    if jump_s > 0:  # after a jump back nobody has held anything for long
        lab.live(30)
        assert lab.state(other) is LeaseState.RELEASING


def test_a_restart_in_mid_warning(lab: ReclaimWorld) -> None:
    """The warning outlives the pool and begins anew; nothing is taken before servers report."""
    lease = lab.run("ada")
    lab.live(1110)
    before = lab.warning(lease)
    lab.crash()
    assert lab.warning(lease) == before
    lab.silent = {lease.id}
    lab.live(300)
    assert lab.warning(lease).reclaim_at >= before.reclaim_at + 15
    assert lab.state(lease) is LeaseState.WARNED
    lab.silent = set()
    lab.live(15)
    assert lab.state(lease) is LeaseState.RELEASING


def test_maintenance(make_lab: MakeLab) -> None:
    """All are taken back when it begins; nothing is granted until it is over."""
    lab = make_lab(maintenance=MAINTENANCE)
    lease = lab.run("ada")
    lab.live(810)
    assert lab.state(lease) is LeaseState.RELEASING
    assert lab.reclaims == ["maintenance"]
    with pytest.raises(Refused, match="Maintenance of the lab from 14:00 UTC to 14:05 UTC"):
        lab.ask("bob")
    lab.live(300)
    assert lab.ask("bob").state == "waiting"


def test_maintenance_ends_with_the_reclaimer_that_began_it(make_lab: MakeLab) -> None:
    """One that only reports takes over: what it does not act on is not left closed."""
    lab = make_lab(maintenance=MAINTENANCE)
    lab.live(810)
    assert lab.pool.view.paused
    lab.rules = replace(lab.rules, limits=DRY_RUN)
    lab.crash()
    lab.live(15)
    assert not lab.pool.view.paused


def test_what_a_person_paused_stays_paused(make_lab: MakeLab) -> None:
    """The end of maintenance resumes only what maintenance paused."""
    lab = make_lab(maintenance=MAINTENANCE)
    pause_reason = (
        "Maintenance of the lab from 14:00 UTC to 14:05 UTC."  # as the reclaimer would say it
    )
    lab.pool.staff.pause(pause_reason, "root")
    lab.live(1200)
    assert lab.pool.view.paused == pause_reason


def test_a_dry_run_only_reports(make_lab: MakeLab, caplog: pytest.LogCaptureFixture) -> None:
    """It decides and logs, and neither warns nor takes anything back."""
    lab = make_lab(limits=DRY_RUN)
    lease = lab.run("ada")
    caplog.clear()  # of what other loggers said, whose levels are not ours
    with caplog.at_level(logging.INFO, "miglab_pool.reclaim.round"):
        lab.live(2000)
    assert steps(lab, lease) == ["granted", "attached", "running"]
    assert (
        lab.explanation_of("ada").decision is Decision.WARN
        and not lab.explanation_of("ada").is_acted_on
    )
    logged = [json.loads(record.getMessage().removeprefix("verdict ")) for record in caplog.records]
    assert [(verdict["decision"], verdict["activity"]) for verdict in logged] == [
        ("keep", "active"), ("keep", "idle-free"), ("warn", "idle-free"), ("warn", "idle-free"),
    ]  # fmt: skip


def test_switched_off_ends_warnings(lab: ReclaimWorld) -> None:
    """Who was warned before it was switched off is told that it is over."""
    lease = lab.run("ada")
    lab.live(1020)
    lab.rules = replace(lab.rules, limits=DISABLED)
    lab.crash()
    lab.live(15)
    assert lab.state(lease) is LeaseState.RUNNING


HOPPER = changed(POOL, courses={"everyone": Course(title="Everyone", shapes=("1g.18gb",))})


def test_idle_counts_from_when_it_last_computed(make_lab: MakeLab) -> None:
    """Where the GPU tells its activity, work is seen though the server says nothing of it."""
    lab = make_lab(HOPPER, model="H200")
    lease = lab.run("ada", "1g.18gb")
    lab.machine.add_process(lease.uuids[0], 4242, 900, activity_pct=40)
    lab.live(3000)
    explanation = lab.explanation_of("ada")
    assert (explanation.activity, explanation.figures["gpu_activity_pct"]) == (Activity.ACTIVE, 40)
    lab.machine.add_process(lease.uuids[0], 4242, 900, activity_pct=0)
    lab.live(1950)
    assert lab.state(lease) is LeaseState.RUNNING
    lab.live(120)
    assert lab.state(lease) is LeaseState.WARNED
    assert 1950 < float(lab.explanation_of("ada").figures["gpu_computed_age_s"] or 0) < 2150


def test_of_two_windows_the_later_goes_on(make_lab: MakeLab) -> None:
    """When the first of two that overlap is over nothing is granted in between."""
    times = ("mon-sun 14:00-14:05", "mon-sun 14:03-14:30")
    lab = make_lab(maintenance=tuple(parse_window(window_text, "UTC") for window_text in times))
    lab.live(840)
    for _ in range(60):
        lab.live(STEP_S)
        assert lab.pool.view.paused


def test_one_that_changed_does_not_hold_up_the_others(
    lab: ReclaimWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that refuses is left as it is; the next is looked at in the same round."""
    first, other = lab.run("ada"), lab.run("bob")
    lease_ids: list[int] = []

    def looked(_pool: object, case: LeaseCase, _needed: str) -> None:
        lease_ids.append(case.lease.id)
        raise Refused("stale-lease", "It changed.")

    monkeypatch.setattr(lab.reclaimer, "_review", looked)
    lab.reclaimer.round(lab.pool)
    assert lease_ids == [first.id, other.id]
