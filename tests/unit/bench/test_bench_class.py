"""The day of a class, small: relations that hold at any size; the same seed, the same day."""

import dataclasses
import json
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from miglab_api.tickets import Purpose
from miglab_bench.class_day.plan import (
    HOUR_S,
    PRACTICAL,
    Day,
    PhaseKind,
    Plan,
    Spread,
    StudentPhase,
    StudentSession,
    Visit,
    day_with,
    plans,
    reserved,
)
from miglab_bench.class_day.run import Culler, DayCase, DayFigures, DayPolicy, quantile, run
from miglab_bench.class_day.student import DayLoan, DayServer, DayStudent
from miglab_bench.commands import app

SMALL = dataclasses.replace(Day(), begins_h=9.5, ends_h=18.0)
STUDENTS = 12
ROW = {
    "students",
    "policy",
    "useful_slice_hours",
    "reserved_kept",
    "wait_p50_s",
    "wait_p95_s",
    "unjust_reclaims",
}


@pytest.fixture(scope="module")
def day() -> dict[str, DayFigures]:
    """A lecture and an afternoon of twelve students on one GPU, under every policy."""
    return {policy: run(DayCase(SMALL, STUDENTS, policy, 3)) for policy in DayPolicy}


def _session(*phases: StudentPhase) -> StudentSession:
    return StudentSession(0, 9e9, phases, 0, False, False, 0, 600, 600)


# -- the plan -------------------------------------------------------------------------------------


def test_the_plan_follows_from_the_seed() -> None:
    """The same seed is the same day, another seed another; more students change nobody's day."""
    first = plans(SMALL, 20, 1)
    assert plans(SMALL, 20, 1) == first
    assert plans(SMALL, 40, 1)[:20] == first[:20]
    assert plans(SMALL, 20, 2) != first


def test_the_practical_has_a_slice_each() -> None:
    """Its students come on top of the others, as many as slices are reserved, at its hour."""
    practical_plans = [plan for plan in plans(Day(), 25, 1) if plan.course == PRACTICAL]
    assert len(practical_plans) == reserved(Day(), 25) == 3
    for plan in practical_plans:
        (session,) = plan.sessions
        assert 11 * HOUR_S <= session.at <= 11.1 * HOUR_S
        assert session.until == 13 * HOUR_S


def test_visits_keep_their_times() -> None:
    """Who comes comes within the visit's hours, and works no longer than it lasts."""
    visit = Visit(1.0, 9.0, 9.5, 10.0, 11.0, Spread(7200, 0.5, 60, 90_000), 0.0)
    nobody = dataclasses.replace(visit, share=0.0)
    day = dataclasses.replace(
        Day(), lecture=nobody, afternoon=visit, evening=nobody, lunch_share=0.0, reserved_share=0.0
    )
    sessions = [session for plan in plans(day, 50, 1) for session in plan.sessions]
    assert len(sessions) == 50
    for session in sessions:
        work_s = sum(phase.s for phase in session.phases)
        assert 9 * HOUR_S <= session.at <= 10 * HOUR_S
        assert session.at + work_s <= session.until == 11 * HOUR_S


def test_shares_are_met() -> None:
    """Of many students as many stop their servers, and start long runs, as was assumed."""
    sessions = [session for plan in plans(Day(), 1500, 1) for session in plan.sessions]
    evening = [session for session in sessions if session.at >= 18 * HOUR_S]
    stop = sum(session.stops for session in sessions) / len(sessions)
    assert stop == pytest.approx(0.2, abs=0.04)
    assert len(evening) / 1500 == pytest.approx(0.7, abs=0.04)
    assert sum(session.run_s > 0 for session in evening) / len(evening) == pytest.approx(
        0.2, abs=0.04
    )


# -- the day --------------------------------------------------------------------------------------


def test_the_same_day_again(day: dict[str, DayFigures]) -> None:
    """Everything follows from the seed: the queue, the cuts and every verdict too."""
    assert run(DayCase(SMALL, STUDENTS, DayPolicy.MIGLAB, 3)) == day["miglab"]


def test_ours_serves_more_than_no_reclaim(day: dict[str, DayFigures]) -> None:
    """What is taken back is used by others; waits are shorter; nobody busy is cut off.

    Without reclaim nobody's server ends but by its student, so nothing is ever run again.
    """
    miglab, no_reclaim = day["miglab"], day["none"]
    assert miglab.useful_slice_hours > no_reclaim.useful_slice_hours
    assert miglab.wait_p95_s < no_reclaim.wait_p95_s
    assert miglab.never_served < no_reclaim.never_served
    assert (miglab.ended > 0, miglab.unjust_reclaims) == (True, 0)
    assert (no_reclaim.ended, no_reclaim.interrupted, no_reclaim.redone_slice_hours) == (0, 0, 0.0)


def test_borrowing_serves_more(day: dict[str, DayFigures]) -> None:
    """Slices are held for less, do more, and nobody's cell waits long; what it costs is counted.

    Every student of the practical has a slice within two minutes, borrowed or leased.
    """
    leasing, borrowing = day["miglab"], day["borrow"]
    assert (leasing.reserved_kept, borrowing.reserved_kept) == (1, 1)
    assert borrowing.useful_slice_hours > leasing.useful_slice_hours
    assert borrowing.held_slice_hours < leasing.held_slice_hours
    assert borrowing.wait_p95_s < leasing.wait_p95_s
    assert borrowing.needs > leasing.needs
    assert borrowing.redone_slice_hours > 0


@pytest.mark.parametrize("policy", DayPolicy)
def test_the_books_balance(day: dict[str, DayFigures], policy: str) -> None:
    """Useful is what was wanted at most, ran on slices that were held, which there were."""
    its = day[policy]
    assert 0 < its.useful_slice_hours <= its.wanted_slice_hours
    assert its.useful_slice_hours + its.redone_slice_hours <= its.held_slice_hours
    assert its.held_slice_hours <= 8 * (SMALL.ends_h - SMALL.begins_h)
    assert its.wanted_slice_hours == day["none"].wanted_slice_hours
    assert its.never_served <= its.needs


def test_enough_gpus_make_all_equal() -> None:
    """Where nobody waits, no policy serves more than another could."""
    rich = dataclasses.replace(SMALL, students_per_gpu=1.0, ends_h=12.5, lunch_share=0.0)
    miglab, no_reclaim = (
        run(DayCase(rich, 3, policy, 1)) for policy in (DayPolicy.MIGLAB, DayPolicy.NONE)
    )
    assert miglab.wait_p95_s == no_reclaim.wait_p95_s < 10  # a start
    assert miglab.useful_slice_hours == no_reclaim.useful_slice_hours


# -- a student whose server is taken --------------------------------------------------------------


def _at_work(*phases: StudentPhase) -> DayStudent:
    student = DayStudent(Plan("ann", "1g.5gb", (_session(*phases),)), Day())
    student.server = DayServer(1, ("MIG-1",), 0, last_activity_at=0, touched_at=0)
    student._come(0)
    return student


def test_a_cell_that_was_cut_off_counts_for_nothing() -> None:
    """Its time is not useful, the reclaim is unjust, and what it needs runs again first."""
    student = _at_work(StudentPhase(PhaseKind.BUSY, 100), StudentPhase(PhaseKind.BUSY, 60))
    student.live_to(130)
    assert student.tally.useful_s == 130
    student.cut_off(130)
    assert student.tally.useful_s == 100
    assert (student.tally.unjust, student.tally.interrupted) == (1, 1)
    assert [(phase.s, phase.is_again) for phase in student._phases] == [(20, True), (60, False)]


def test_between_cells_a_reclaim_is_not_unjust_but_costs() -> None:
    """The student goes on reading, notices at the next cell, and has to wait."""
    student = _at_work(
        StudentPhase(PhaseKind.BUSY, 100),
        StudentPhase(PhaseKind.PAUSE, 50),
        StudentPhase(PhaseKind.BUSY, 60),
    )
    student.live_to(120)
    student.cut_off(120)
    student.live_to(200)
    assert (student.tally.unjust, student.tally.interrupted) == (0, 1)
    assert student._wait is not None
    assert student._wait.since == 150


def test_a_run_that_was_cut_off_counts_for_nothing() -> None:
    """All of it is lost."""
    student = _at_work()
    assert student.server is not None
    student.server.run_left_s = 1000
    student.live_to(600)
    assert student.tally.useful_s == 600
    student.cut_off(600)
    assert (student.tally.useful_s, student.tally.unjust) == (0, 1)


# -- a student who borrows ------------------------------------------------------------------------


def _borrows(*phases: StudentPhase) -> DayStudent:
    day = dataclasses.replace(Day(), borrow_s=300, rebuild_s=5, again_s=1, linger_s=30)
    student = DayStudent(Plan("ann", "1g.5gb", (_session(*phases),)), day, borrows=True)
    student._come(0)
    student.live_to(10)
    student._loan, student._wait = DayLoan(1, 10, 310), None
    return student


def test_cells_borrow_and_leave_the_slice_to_the_next_one() -> None:
    """The time to build anew is no use; within the linger the next cell starts at once."""
    cells = (StudentPhase(PhaseKind.BUSY, 60), StudentPhase(PhaseKind.THINK, 20))
    student = _borrows(*cells, StudentPhase(PhaseKind.BUSY, 40))
    student.live_to(200)
    assert (student.tally.useful_s, student.tally.redone_s) == (100, 5)
    assert student.tally.waits_s == [1]
    assert student._wait is None


@pytest.mark.parametrize(("seconds", "purpose"), [(280, Purpose.BORROW), (300, Purpose.SERVER)])
def test_a_long_cell_leases(seconds: float, purpose: Purpose) -> None:
    """What does not fit into a borrow, its start included, is run on a lease."""
    student = _borrows(StudentPhase(PhaseKind.BUSY, seconds))
    student._loan = None
    student.live_to(20)
    assert student._wait is not None
    assert student._wait.purpose is purpose


def test_a_cell_past_the_longest_borrow_is_lost() -> None:
    """It counts for nothing, as an unjust end, and waits for a slice once more."""

    class Stops:
        open_tickets = frozenset[int]()

        def ask(self, *_: object) -> None:
            """No place is left in the queue."""

        def stop(self, lease: int, reason: str) -> None:
            self.lease = lease

    student, lab = _borrows(StudentPhase(PhaseKind.BUSY, 280)), Stops()
    student._loan = DayLoan(1, 10, 110)
    student.live_to(110)
    assert student.tally.useful_s == 100
    student.act(110, lab)  # type: ignore[arg-type]
    assert (student.tally.useful_s, student.tally.unjust, lab.lease) == (0, 1, 1)
    assert student._wait is not None


# -- the culler -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server_state", "is_culled"),
    [
        ({}, True),
        ({"is_open": True}, False),
        ({"run_left_s": 9e9}, False),
        ({"run_left_s": 9e9, "is_silent": True}, True),
        ({"is_open": True, "closes_at": 1000.0}, True),
        ({"is_open": True, "closes_at": 2000.0}, False),
    ],
)
def test_the_culler_goes_by_last_activity(server_state: dict[str, object], is_culled: bool) -> None:
    """A page or a message keeps a server for an hour; a run that prints nothing does not."""
    server = DayServer(1, ("MIG-1",), 0, last_activity_at=0, touched_at=0, is_open=False)
    for name, value in server_state.items():
        setattr(server, name, value)
    student = DayStudent(Plan("ann", "1g.5gb", ()), Day())
    student.server = server
    for at in range(0, 5400, 60):
        student.live_to(at + 60)
    assert (Culler(Day()).servers_to_end(5400, cast(Any, None), [server]) == [server]) is is_culled


def test_the_culler_looks_every_half_hour() -> None:
    """Between two looks nothing ends."""
    server = DayServer(1, ("MIG-1",), 0, last_activity_at=0, touched_at=0, is_open=False)
    culler, lab = Culler(Day()), cast(Any, None)
    was_culled = [
        bool(culler.servers_to_end(at, lab, [server])) for at in (1800, 3570, 3600, 3700, 5400)
    ]
    assert was_culled == [False, False, True, False, True]


# -- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "share", "is_"), [([], 0.5, 0), ([7], 0.95, 7), (list(range(100)), 0.95, 95)]
)
def test_quantile(values: list[float], share: float, is_: float) -> None:
    """One of the values, never one between."""
    assert quantile(values, share) == is_


# -- assumptions and command ----------------------------------------------------------------------


def test_assumptions_can_be_changed() -> None:
    """One by one, also within a table; a list as a whole."""
    tables = "stop_share=0.5\nlecture={share=1, work={median_s=60}}"
    day = day_with(f"{tables}\nevening.share=0\nmix=[1,0,0,0,0,0]")
    assert (day.stop_share, day.lecture.share, day.lecture.work.median_s) == (0.5, 1.0, 60.0)
    assert (day.lecture.until_h, day.evening.share, day.mix[0]) == (12.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("option", "text", "wrong_part"),
    [
        ("--policy", "lend", "lend"),
        ("--set", "stop_shar=1", "stop_shar"),
        ("--set", "lecture.shar=1", "lecture.shar"),
        ("--set", 'stop_share="much"', "stop_share"),
        ("--set", "stop_share=-1", "stop_share"),
        ("--set", "mix=[1]", "mix"),
        ("--set", "report_age_s=60", "report_age_s"),
        ("--set", "step_s=61", "step_s"),
        ("--set", "stop_share", "name=value"),
        ("--set", 'model="A1"', "model"),
        ("--set", 'profiles=["1g.6gb","1g.5gb","1g.5gb","1g.5gb","1g.5gb","1g.5gb"]', "1g.6gb"),
    ],
)
def test_a_wrong_policy_or_assumption_is_named(option: str, text: str, wrong_part: str) -> None:
    """The command says which, and exits 2."""
    result = CliRunner().invoke(app, ["class", option, text])
    assert result.exit_code == 2
    assert wrong_part in result.output


def test_json_rows() -> None:
    """Rows have the promised names; costs and assumptions come beside them."""
    short = [f"--set={text}" for text in ("begins_h=9.5", "ends_h=10.5", "step_s=30")]
    result = CliRunner().invoke(app, ["class", "--json", "--students", "2", *short])
    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    assert [row["policy"] for row in output["rows"]] == list(DayPolicy)
    assert all(row.keys() == ROW for row in output["rows"])
    assert output["assumptions"]["step_s"] == 30
    assert len(output["costs"]) == 4
