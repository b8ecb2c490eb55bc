"""Which jobs are this lab's: those that it noted before it submitted them, once."""

from dataclasses import replace
from pathlib import Path

import pytest

from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.states import NOT_SHOWN
from miglab_slurm.submissions import (
    CLOCKS_S,
    KEPT_S,
    Submissions,
    has_signed_form,
    look_alike_warning,
)

NOW = 1_795_313_000.0
TAG = Tag("miglab", "ada", "", "everyone", "1g.5gb", "t1")


@pytest.fixture
def submissions(tmp_path: Path) -> Submissions:
    """Of a lab that has submitted nothing."""
    return Submissions(tmp_path / "jobs.sqlite", "miglab")


def job(number: int, name: str, **changes: object) -> SlurmJob:
    """A job of ada's account."""
    submitted_job = SlurmJob(
        id=number, state="RUNNING", reason="", submitted_at=NOW + 1, started_at=NOW + 2,
        ends_at=None, priority=1, gres={}, account="ada", nodes="n1", partition="lab",
        cluster="faux", name=name,
    )  # fmt: skip
    return replace(submitted_job, **changes)  # type: ignore[arg-type]


def own_jobs(submissions: Submissions, *jobs: SlurmJob, at: float = NOW) -> dict[int, str]:
    """The states of the jobs that are the lab's, after a picture of these."""
    listed = {job.id: job for job in jobs}
    submissions.adopt(listed, at)
    recognised = submissions.with_tags(listed).values()
    return {job.id: job.state for job in recognised if job.tag == TAG}


def test_a_job_is_found_by_whoever_comes_after_a_hub_that_died(
    submissions: Submissions, tmp_path: Path
) -> None:
    """Between `sbatch` and its answer as well: the row with the signed name was there before."""
    name = submissions.intend(TAG, "ada", NOW).name
    again = Submissions(tmp_path / "jobs.sqlite", "miglab")
    assert own_jobs(again, job(7, name)) == {7: "RUNNING"}
    submission = again.find("t1")
    assert submission is not None and (submission.job, submission.account) == (7, "ada")
    assert (tmp_path / "jobs.sqlite").stat().st_mode & 0o777 == 0o600


def test_the_number_that_sbatch_printed_is_believed(submissions: Submissions) -> None:
    """Where a plugin of the site changes names and comments, and before Slurm lists the job."""
    submissions.intend(TAG, "ada", NOW)
    submissions.note_number("t1", 7)
    assert own_jobs(submissions) == {7: NOT_SHOWN}
    assert own_jobs(submissions, job(7, "renamed")) == {7: "RUNNING"}
    assert own_jobs(submissions, job(7, "renamed", submitted_at=NOW + 2)) == {}


def test_a_name_is_believed_once(submissions: Submissions) -> None:
    """A copy is nobody's, when the first is gone too; and is told as another of the same start."""
    name = submissions.intend(TAG, "ada", NOW).name
    first, copy = job(7, name), job(8, name)
    assert own_jobs(submissions, copy, first) == {7: "RUNNING"}
    assert own_jobs(submissions, copy) == {7: NOT_SHOWN}
    assert [(row.job, twin.id) for row, twin in submissions.duplicates({8: copy, 7: first})] == [
        (7, 8)
    ]
    assert submissions.duplicates({8: replace(copy, account="mallory"), 7: first}) == []


@pytest.mark.parametrize(
    "changes",
    [{"account": "mallory"}, {"submitted_at": NOW - CLOCKS_S - 1}, {"name": "jupyter-1g.5gb"}],
)
def test_what_is_not_adopted(submissions: Submissions, changes: dict[str, object]) -> None:
    """Another account's, one from before the intent, and one without the signature or number."""
    name = submissions.intend(TAG, "ada", NOW).name
    stranger = replace(job(7, name), **changes)  # type: ignore[arg-type]
    assert own_jobs(submissions, stranger) == {}
    submissions.note_number("t1", 8)
    assert own_jobs(submissions, stranger) == {8: NOT_SHOWN}


def test_a_signature_is_for_one_account_and_one_tag(submissions: Submissions) -> None:
    """Whoever changes a word of the comment has none; a name holds no comma of its shape."""
    submission = submissions.intend(TAG, "ada", NOW)
    comment = submissions.comment_of(submission)
    assert submissions.verified_tag(comment, "ada") == TAG
    assert submissions.verified_tag(comment, "bo") is None
    assert submissions.verified_tag(comment.replace("everyone", "vision"), "ada") is None
    odd = submissions.name_of(replace(TAG, shape="2 x,1g"), "ada")
    assert odd.startswith("jupyter-2-x-1g-")
    assert odd[-24:] != submission.name[-24:]
    assert has_signed_form(odd) and has_signed_form(submission.name)
    assert not any(map(has_signed_form, ("course", "jupyter-1g.5gb", submission.name + "-course")))


def test_a_number_that_comes_again_is_another_job(submissions: Submissions) -> None:
    """By its submit time and cluster; a requeue sets the time anew, and says so under the name."""
    name = submissions.intend(TAG, "ada", NOW).name
    assert own_jobs(submissions, job(7, name)) == {7: "RUNNING"}
    later = NOW + 99
    assert own_jobs(submissions, job(7, "other", submitted_at=later, restarts=1)) == {}
    assert own_jobs(submissions, job(7, name, cluster="another")) == {}
    assert own_jobs(submissions, job(7, name, submitted_at=later, restarts=1)) == {7: "RUNNING"}


def test_a_number_is_the_latest_jobs(submissions: Submissions) -> None:
    """A slurmctld that has lost its state gives it to another job of the lab."""
    submissions.intend(TAG, "ada", NOW)
    submissions.note_number("t1", 7)
    other = submissions.intend(replace(TAG, user="bo", ticket="t2"), "bo", NOW + 5)
    given_again = job(7, other.name, account="bo", submitted_at=NOW + 6)
    assert own_jobs(submissions, given_again) == {}
    tag = submissions.with_tags({7: given_again})[7].tag
    assert tag is not None and tag.user == "bo"


def test_a_second_try_of_one_start_is_the_same_row(submissions: Submissions) -> None:
    """Its name is the same, so of two jobs that came of it one is found to be too many."""
    names = {submissions.intend(TAG, "ada", NOW + number).name for number in range(3)}
    (row,) = submissions.open_for_server("ada", "")
    assert {row.name} == names
    assert row.intended_at == NOW


def test_what_was_wished_and_what_is_known_outlive_the_hub(
    submissions: Submissions, tmp_path: Path
) -> None:
    """That a job was given up, that Slurm has taken the order, and how it ended."""
    name = submissions.intend(TAG, "ada", NOW).name
    own_jobs(submissions, job(7, name))
    submissions.give_up("t1")
    submissions.note_cancelled("t1")
    (row,) = Submissions(tmp_path / "jobs.sqlite", "miglab").unsettled()
    assert row.given_up
    assert row.is_cancelled
    assert submissions.open_for_server("ada", "") == []
    submissions.note_end("t1", "TIMEOUT")
    assert own_jobs(submissions) == {7: "TIMEOUT"}
    assert submissions.unsettled() == []


def test_another_lab_of_the_name_tells_and_does_nothing(
    submissions: Submissions, tmp_path: Path
) -> None:
    """The same holds of a lab that has lost its file."""
    submission = submissions.intend(TAG, "ada", NOW)
    claimed = job(7, submission.name, comment=submissions.comment_of(submission))
    other_lab = Submissions(tmp_path / "another.sqlite", "miglab")
    assert own_jobs(other_lab, claimed) == {}
    assert other_lab.rows() == []
    assert "7 (ada)" in look_alike_warning("miglab", [claimed])
    assert look_alike_warning("another", [claimed]) == ""


def test_what_is_over_is_not_kept(submissions: Submissions) -> None:
    """A day after the intent, and not while it may be alive; what Slurm refused goes at once."""
    running = job(7, submissions.intend(TAG, "ada", NOW).name)
    assert own_jobs(submissions, running, at=NOW + 2 * KEPT_S) == {7: "RUNNING"}
    assert own_jobs(submissions, at=NOW + 2 * KEPT_S) == {7: NOT_SHOWN}
    submissions.note_end("t1", "COMPLETED")
    own_jobs(submissions, at=NOW + 2 * KEPT_S)
    assert submissions.of_user("ada") == []
    submissions.intend(TAG, "ada", NOW)
    submissions.withdraw("t1")
    assert submissions.of_user("ada") == []


def test_a_person_is_forgotten(submissions: Submissions) -> None:
    """Whatever is kept of them goes."""
    submissions.intend(TAG, "ada", NOW)
    assert [row["account"] for row in submissions.of_user("ada")] == ["ada"]
    assert submissions.forget("ada", "forgotten-1")["slurm jobs"] == 1
    assert submissions.of_user("ada") == []
