"""How a job that Slurm does not show comes to be over; scripts stand for Slurm's commands."""

from dataclasses import replace
from pathlib import Path

import pytest

from miglab_slurm.lab import SlurmSite
from miglab_slurm.records import SlurmJob, Tag
from miglab_slurm.submissions import JobSubmission, Submissions
from miglab_slurm.unshown import UNKNOWN_S, UnshownJobs

NOW = 1_795_313_000.0
TAG = Tag("miglab", "ada", "", "everyone", "cpu", "t1")
SITE = SlurmSite.model_validate({"partition": "lab", "run_as": "", "shapes": {"cpu": {}}})
SHOWS_NOTHING = "#!/bin/sh\n"
FAILS = "#!/bin/sh\necho 'Access/permission denied' >&2\nexit 1\n"
KEEPS_NO_ACCOUNTS = "#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n"
COUNTS_ITS_CALLS = '#!/bin/sh\necho >>"$0.calls"\n'


class LabWithAJob:
    """A lab whose one job ran when Slurm last showed it, and what its node says now."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_node_silent = folder, True
        self.submissions = Submissions(folder / "jobs.sqlite", "miglab")
        self.unshown = UnshownJobs(SITE, self.submissions)
        name = self.submissions.intend(TAG, "ada", NOW).name
        self.job = SlurmJob(
            id=7, state="RUNNING", reason="", submitted_at=NOW + 1, started_at=NOW + 2,
            ends_at=None, priority=1, gres={}, account="ada", nodes="n1", partition="lab",
            cluster="faux", name=name,
        )  # fmt: skip
        self.submissions.adopt({7: self.job}, NOW)
        self.put("squeue", SHOWS_NOTHING)
        self.put("sacct", KEEPS_NO_ACCOUNTS)

    def put(self, command: str, script: str) -> None:
        """What a command does from now on."""
        (self.folder / command).write_text(script)
        (self.folder / command).chmod(0o755)

    async def ends_as(self, *listed: SlurmJob, after_s: float = 0.0) -> str:
        """What is known of the job's end, after a listing of these so much later."""
        await self.unshown.look_for({job.id: job for job in listed})
        denied_at = min(self.unshown._denied_since.values(), default=0.0)
        await self.unshown.settle(denied_at + after_s, self._is_silent)
        submission = self.submissions.find("t1")
        assert submission is not None
        return submission.ended_as

    async def _is_silent(self, row: JobSubmission) -> bool:
        assert row.job == 7
        return self.is_node_silent


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LabWithAJob:
    """See the class."""
    monkeypatch.setenv("MIGLAB_SLURM_PATH", str(tmp_path))
    return LabWithAJob(tmp_path)


async def test_it_is_unknown_for_a_stated_time_and_then_lost(lab: LabWithAJob) -> None:
    """And not even then while something answers at its server's port."""
    assert await lab.ends_as() == ""
    assert await lab.ends_as(after_s=UNKNOWN_S) == ""
    lab.is_node_silent = False
    assert await lab.ends_as(after_s=2 * UNKNOWN_S) == ""
    lab.is_node_silent = True
    assert await lab.ends_as(after_s=2 * UNKNOWN_S) == "LOST"


async def test_what_the_accounts_know_is_believed_at_once(lab: LabWithAJob) -> None:
    """Of this very job: neither one of its number from before, nor one that still runs there."""
    of_the_job = f"7|{lab.job.name}|ada|faux"
    for line in (f"{of_the_job}|1795000000|FAILED", f"{of_the_job}|1795313001|RUNNING"):
        lab.put("sacct", f"#!/bin/sh\necho '{line}'\n")
        assert await lab.ends_as() == ""
    lab.put("sacct", f"#!/bin/sh\necho '{of_the_job}|1795313001|CANCELLED by 1000'\n")
    assert await lab.ends_as() == "CANCELLED"


async def test_a_refusal_to_tell_is_no_denial(lab: LabWithAJob) -> None:
    """Where the lab may not ask as the job's account, nothing is known, however long."""
    lab.put("squeue", FAILS)
    assert await lab.ends_as(after_s=1e9) == ""


async def test_what_slurm_cancelled_for_the_lab_is_over_when_it_is_gone(lab: LabWithAJob) -> None:
    """Whether the node answers or not."""
    lab.is_node_silent = False
    lab.submissions.cancelled("t1")
    assert await lab.ends_as(lab.job) == ""
    assert await lab.ends_as() == "CANCELLED"


async def test_a_denial_begins_anew_when_the_job_is_shown_again(lab: LabWithAJob) -> None:
    """A listing that was cut off once ends nothing later."""
    assert await lab.ends_as() == ""
    assert await lab.ends_as(lab.job, after_s=1e9) == ""
    assert lab.unshown._denied_since == {}


async def test_another_job_of_its_number_is_not_it(lab: LabWithAJob) -> None:
    """Not one of the same account either."""
    other_job = replace(lab.job, submitted_at=NOW + 50, name="bash")
    assert await lab.ends_as(other_job, after_s=2 * UNKNOWN_S) == "LOST"


async def test_nobody_is_asked_as_while_all_is_shown(lab: LabWithAJob) -> None:
    """What is shown costs no further command."""
    lab.put("squeue", COUNTS_ITS_CALLS)
    await lab.ends_as(lab.job)
    assert not (lab.folder / "squeue.calls").exists()
    await lab.ends_as()
    assert (lab.folder / "squeue.calls").exists()


def test_what_was_last_seen_is_kept_but_for_the_state(lab: LabWithAJob) -> None:
    """So a server keeps its slice on the pages while Slurm does not show it."""
    jobs = lab.unshown.remembered(lab.submissions.recognised({7: lab.job}))
    assert jobs[7].nodes == "n1"
    unseen = lab.unshown.remembered(lab.submissions.recognised({}))[7]
    assert (unseen.state, unseen.nodes, unseen.has_ended) == ("NOT_SHOWN", "n1", False)
