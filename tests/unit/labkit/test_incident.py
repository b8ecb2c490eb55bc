"""An incident's hour: what costs minutes, who may accuse, and that it goes on in a new kernel."""

from collections import Counter

import pytest

from labkit.errors import NotMeasured, WrongArgument
from labkit.exercises import FAULTS, Incident
from labkit.exercises.incident import BUDGET_MIN, PRICES_MIN, SWAP_MIN, WRONG_MIN

ANOTHER = "another dropout seed"


@pytest.fixture
def student(monkeypatch):
    """A student by name, at a server of the lab, with a person at it."""
    for name in ("LAB_HEADLESS", "LAB_QUICK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    return monkeypatch


def culprit_of(student, incident):
    """The answer, as a run without a person gets it."""
    with student.context() as headless:
        headless.setenv("LAB_HEADLESS", "1")
        return incident.culprit()


def accuse_wrongly(student, incident, worker):
    fault, _ = culprit_of(student, incident)
    return incident.accuse(worker, "slow link" if fault != "slow link" else ANOTHER)


def test_worker_and_fault_are_drawn_from_who_the_student_is(student, tmp_path):
    """The same for one student every time; over a class, all 64 come up, about as often."""
    drawn = Counter()
    for number in range(2000):
        student.setenv("JUPYTERHUB_USER", f"student{number}")
        incident = Incident(folder=tmp_path)
        assert culprit_of(student, incident) == culprit_of(student, Incident(folder=tmp_path))
        drawn[culprit_of(student, incident)] += 1
    assert drawn.keys() == {(fault, worker) for fault in FAULTS for worker in range(8)}
    assert max(drawn.values()) < 3 * min(drawn.values())


def test_the_answer_is_kept_from_a_person_until_it_was_named(student, tmp_path):
    """And naming it costs nothing."""
    incident = Incident(folder=tmp_path)
    with pytest.raises(NotMeasured, match="Name the worker"):
        incident.culprit()
    fault, at = culprit_of(student, incident)
    assert "Found" in str(incident.accuse(at, fault))
    assert incident.culprit() == (fault, at)
    assert incident.minutes_left == BUDGET_MIN
    with pytest.raises(NotMeasured, match="Found"):
        incident.swap(0, 1)


def test_guessing_loses(student, tmp_path):
    """The second wrong accusation loses the hour, as does the first where 30 minutes are left."""
    incident = Incident(folder=tmp_path)
    assert "Wrong" in str(accuse_wrongly(student, incident, 0))
    assert incident.minutes_left == BUDGET_MIN - WRONG_MIN
    assert "Lost" in str(accuse_wrongly(student, incident, 2))
    with pytest.raises(NotMeasured, match="Lost"):
        incident.accuse(3, "slow link")
    with pytest.raises(NotMeasured, match=r"cluster = .*Incident\(2\)"):
        incident.culprit()


def test_two_kernels_share_one_hour(student, tmp_path):
    """A second object has no hour of its own, and does not undo what the first one has done."""
    incident, of_another_kernel = Incident(folder=tmp_path), Incident(folder=tmp_path)
    assert "Wrong" in str(accuse_wrongly(student, incident, 0))
    assert of_another_kernel.minutes_left == BUDGET_MIN - WRONG_MIN
    of_another_kernel.swap(0, 1)
    assert incident.accusations == 1
    assert incident.minutes_left == BUDGET_MIN - WRONG_MIN - SWAP_MIN


def test_whoever_measured_to_the_end_may_still_accuse(student, tmp_path):
    """Once, with one accusation behind them; nothing is lost before."""
    incident = Incident(folder=tmp_path)
    accuse_wrongly(student, incident, 0)
    incident.swap(0, 1)
    incident.swap(0, 1)
    assert (incident.minutes_left, incident.is_over) == (0, False)
    fault, at = culprit_of(student, incident)
    assert "one wrong accusation" in str(incident.accuse(at, fault))


def test_another_incident_begins_only_when_one_is_lost(student, tmp_path):
    """Nobody chooses the easiest of several; the next one has an hour of its own."""
    with pytest.raises(WrongArgument, match="lost"):
        Incident(2, tmp_path)
    incident = Incident(folder=tmp_path)
    for worker in range(2):
        accuse_wrongly(student, incident, worker)
    assert incident.is_lost
    assert Incident(2, tmp_path).minutes_left == BUDGET_MIN


def test_no_more_is_measured_than_the_hour_holds(student, tmp_path):
    """Swaps are paid each time, and what is refused costs nothing."""
    incident = Incident(folder=tmp_path)
    for _ in range(BUDGET_MIN // SWAP_MIN):
        incident.swap(2, 5)
    with pytest.raises(NotMeasured, match="0 are left"):
        incident.measure("times")
    assert incident.minutes_left == 0
    assert sum(PRICES_MIN.values()) > BUDGET_MIN  # nobody measures everything


def test_a_new_kernel_goes_on_with_the_same_hour(student, tmp_path):
    """Minutes, seats and accusations; a damaged file begins anew instead of failing."""
    incident = Incident(folder=tmp_path)
    incident.swap(2, 5)
    accuse_wrongly(student, incident, 1)
    again = Incident(folder=tmp_path)
    assert again.summary == incident.summary
    assert (again.minutes_left, again.accusations) == (BUDGET_MIN - SWAP_MIN - WRONG_MIN, 1)
    (tmp_path / "incident-1.json").write_text("{")
    assert Incident(folder=tmp_path).minutes_left == BUDGET_MIN


@pytest.mark.parametrize(
    ("act", "values"),
    [
        ("measure", ("everything",)),
        ("ping", (3, 3)),
        ("ping", (3, 8)),
        ("swap", (-1, 3)),
        ("accuse", (8, "slow link")),
        ("accuse", (3, "cosmic rays")),
        ("accuse", (True, "slow link")),
    ],
)
def test_what_cannot_be_measured_is_refused_for_nothing(act, values, student, tmp_path):
    """In a sentence that says what is taken."""
    incident = Incident(folder=tmp_path)
    with pytest.raises(WrongArgument, match=r"takes|whole number"):
        getattr(incident, act)(*values)
    assert incident.minutes_left == BUDGET_MIN
