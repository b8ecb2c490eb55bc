"""Which jobs are this lab's: those that it noted before it submitted them, once."""

from dataclasses import replace
from pathlib import Path

import pytest

from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.submissions import KEPT_S, Submissions, told_of

NOW = 1_795_313_000.0
TAG = Tag("miglab", "ada", "", "everyone", "1g.5gb", "t1")


@pytest.fixture
def submissions(tmp_path: Path) -> Submissions:
    """Of a lab that has submitted nothing."""
    return Submissions(tmp_path / "jobs.sqlite", "miglab")


def job(number: int, comment: str, **changes: object) -> SlurmJob:
    """A job of ada's account."""
    made = SlurmJob(
        id=number, state="RUNNING", reason="", submitted_at=NOW + 1, started_at=NOW + 2,
        ends_at=None, priority=1, gres={}, account="ada", nodes="n1", partition="lab",
        comment=comment,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def own(submissions: Submissions, *jobs: SlurmJob, at: float = NOW) -> list[int]:
    """The jobs that are the lab's, after a picture of these."""
    listed = {one.id: one for one in jobs}
    submissions.adopt(listed, at)
    return [one.id for one in submissions.recognised(listed).values() if one.tag == TAG]


def test_a_job_is_found_by_whoever_comes_after_a_hub_that_died(
    submissions: Submissions, tmp_path: Path
) -> None:
    """Between `sbatch` and its answer as well: the row was there before."""
    comment = submissions.intend(TAG, "ada", NOW)
    again = Submissions(tmp_path / "jobs.sqlite", "miglab")
    assert own(again, job(7, comment)) == [7]
    assert submissions.account_of(7) == "ada"
    assert (tmp_path / "jobs.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_comment_is_believed_once_and_then_not_read(submissions: Submissions) -> None:
    """A copy is nobody's, when the first is gone too; the first stays ours without it."""
    comment = submissions.intend(TAG, "ada", NOW)
    first, copy = job(7, comment), job(8, comment)
    assert own(submissions, copy, first) == [7]
    assert own(submissions, copy) == []
    assert own(submissions, replace(first, comment="")) == [7]


@pytest.mark.parametrize(
    "changes",
    [{"account": "mallory"}, {"submitted_at": NOW - 3600}, {"comment": "x"}],
)
def test_what_is_not_adopted(submissions: Submissions, changes: dict[str, object]) -> None:
    """Another account's, one from before the intent, and one without the signature."""
    comment = submissions.intend(TAG, "ada", NOW)
    assert own(submissions, replace(job(7, comment), **changes)) == []  # type: ignore[arg-type]


def test_a_signature_is_for_one_account_and_one_tag(submissions: Submissions) -> None:
    """Whoever changes a word of the comment has none."""
    comment = submissions.intend(TAG, "ada", NOW)
    assert submissions.signed(comment, "ada") == TAG
    assert submissions.signed(comment, "bo") is None
    assert submissions.signed(comment.replace("everyone", "vision"), "ada") is None


def test_a_number_that_comes_again_is_another_job(submissions: Submissions) -> None:
    """By its submit time; a requeue sets that anew, and says so."""
    comment = submissions.intend(TAG, "ada", NOW)
    assert own(submissions, job(7, comment)) == [7]
    assert own(submissions, job(7, comment, submitted_at=NOW + 99)) == []
    assert own(submissions, job(7, comment, submitted_at=NOW + 99, restarts=1)) == [7]


def test_another_lab_of_the_name_tells_and_does_nothing(
    submissions: Submissions, tmp_path: Path
) -> None:
    """The same holds of a lab that has lost its file."""
    found = job(7, submissions.intend(TAG, "ada", NOW))
    another = Submissions(tmp_path / "another.sqlite", "miglab")
    assert own(another, found) == []
    assert another.account_of(7) == ""
    assert "7 (ada)" in told_of("miglab", [found])
    assert told_of("another", [found]) == ""


def test_what_is_over_is_not_kept(submissions: Submissions) -> None:
    """A day after the intent, and not while it runs; what Slurm refused goes at once."""
    running = job(7, submissions.intend(TAG, "ada", NOW))
    assert own(submissions, running, at=NOW + 2 * KEPT_S) == [7]
    assert own(submissions, at=NOW + 2 * KEPT_S) == []
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
