"""A lab whose lab.toml says `spawner = "slurm"`, started as `./lab up` starts it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.students import asking, served

from miglab_bench.harness.student import Student, wait_for
from miglab_slurm_bench.cluster import confines_devices, missing
from miglab_slurm_bench.lab import SlurmLab, slurm_lab

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    """A lab whose operators may extend servers."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    with slurm_lab(slurm="operator = true") as lab:
        yield lab


def test_no_new_server_is_told_that_it_holds_nothing(lab: SlurmLab):
    """The reclaimer looks every few seconds, and has not seen a new job when its server asks."""
    for name in ("ada", "bo", "cy"):
        student = served(lab.lab, name, "1g.5gb")
        student.page(f"/user/{name}/lab")  # which signs in there
        while (status := student.lease())["state"] != "held":
            assert (status["state"], status["ticket"]) == ("unknown", None)
        student.leave()
        student.close()


@pytest.fixture
def staff(lab: SlurmLab) -> Iterator[Student]:
    """The instructor's browser, signed in at the service as well."""
    person = lab.lab.signed_in("instructor")
    person.page("/services/pool/")
    yield person
    person.close()


def test_the_buttons_of_the_instructors_page(lab: SlurmLab, staff: Student):
    """A server is lengthened, written to and ended; a waiting student is taken out, told why."""
    lab.cluster.command("scontrol", "update", f"nodename={lab.cluster.nodes[1]}", "state=drain",
                        "reason=test")  # fmt: skip
    ada = served(lab.lab, "ada", "3g.20gb")
    ada.page("/user/ada/lab")  # which signs in there
    (job,) = map(int, lab.cluster.command("squeue", "-h", "-o", "%i").split())
    bo = asking(lab.lab, "bo", "3g.20gb")
    wait_for(lambda: bool(bo.waiting()), "bo to wait")
    ticket = int(lab.cluster.command("squeue", "-h", "-t", "PENDING", "-o", "%i"))
    wait_for(lambda: f'"ticket-{ticket}"' in staff.page("/services/pool/"), "the page to show bo")
    assert f'"lease-{job}"' in staff.page("/services/pool/")

    before = lab.cluster.job(job)["TimeLimit"]
    assert staff.press(f"leases/{job}/extend", by_s=1800) == 200
    assert (before, lab.cluster.job(job)["TimeLimit"]) == ("02:00:00", "02:30:00")
    assert staff.press("messages", to_course="everyone", text="We end at noon.") == 200
    wait_for(lambda: "We end at noon." in str(ada.lease()["messages"]), "the message")
    assert bo.press(f"leases/{job}/release", reason="I want it") in (403, 404)

    assert staff.press(f"tickets/{ticket}/cancel", reason="Work with ada.") == 200
    wait_for(bo.has_no_server, "bo's start to end")
    failed = bo.page("/hub/spawn-pending/bo")
    assert "You were taken out of the queue: Work with ada." in failed
    assert staff.press(f"leases/{job}/release", reason="The room closes.") == 200
    wait_for(ada.has_no_server, "ada's server to stop")
    assert "The room closes." in ada.news()
    lab.cluster.command("scontrol", "update", f"nodename={lab.cluster.nodes[1]}", "state=resume")
    for student in (ada, bo):
        student.close()


def test_an_end_by_slurm_is_no_reclaim(lab: SlurmLab):
    """A limit that an operator brings forward: the lab stops the server in time, and says why."""
    ada = served(lab.lab, "ada", "1g.5gb")
    (job,) = lab.cluster.command("squeue", "-h", "-o", "%i").split()
    wait_for(lambda: reclaimer_knows(lab, job), "the reclaimer to see it")
    lab.cluster.command("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    wait_for(ada.has_no_server, "the server to end")
    assert ada.news().startswith("Slurm ends this server sooner than planned")
    ada.close()


def reclaimer_knows(lab: SlurmLab, job: str) -> bool:
    """Whether its log tells of this job."""
    return f'"lease": {job},' in (lab.lab.settings.state / "logs" / "reclaimer.log").read_text()


@pytest.mark.parametrize(
    ("before", "wrong", "message"),
    [
        ('"labcpu"', '"nowhere"', "Slurm has no partition nowhere; it has lab, labcpu"),
        ('run_as = ""', 'run_as = "nosudo -u {username}"', "this machine has no nosudo"),
    ],
)
def test_a_site_that_is_not_there_is_named(
    lab: SlurmLab, tmp_path: Path, before: str, wrong: str, message: str
):
    """An unknown partition, a missing command: the lab does not start, and says what to do."""
    text = lab.lab.settings.file.read_text().replace(before, wrong)
    text = text.replace(f"port = {lab.lab.settings.lab.port}", "port = 19500")
    (tmp_path / "lab.toml").write_text(text)
    command = [sys.executable, "-m", "miglab_hub.cli", "up", "--config", str(tmp_path / "lab.toml")]
    ended = subprocess.run(
        command, env=lab.cluster.environment, capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 2
    assert message in ended.stderr


def doctor(lab: SlurmLab, *changes: tuple[str, str], option: str = "--json") -> dict[str, str]:
    """What `miglab doctor` finds wrong, with a changed lab.toml; finding to what is to be done."""
    text = lab.lab.settings.file.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    file = lab.lab.settings.folder / "doctor.toml"
    file.write_text(text)
    command = [sys.executable, "-m", "miglab_hub.cli", "doctor", "--config", str(file)]
    command += ["--json", option]
    completed = subprocess.run(
        command, env=lab.cluster.environment, capture_output=True, text=True, timeout=120
    )
    assert completed.returncode in (0, 1), completed.stderr
    findings = json.loads(completed.stdout)["findings"]
    return {
        f"{finding['subject']}: {finding['found']}": finding["do"]
        for finding in findings
        if finding["do"]
    }


def test_doctor_reads_the_real_daemons(lab: SlurmLab):
    """What this cluster lacks, and what lab.toml asks that it cannot give."""
    lacks = {"EnforcePartLimits: NO"} | (set() if confines_devices() else {"process tracking"})
    assert {finding for finding in doctor(lab) if "isolation" not in finding} == lacks
    wrong = doctor(
        lab,
        ('gres = "gpu:3g.20gb:1"', 'gres = "gpu:7g.40gb:1"'),
        ('partition = "labcpu"\ntime_limit_min = 30', 'partition = "labcpu"\ntime_limit_min = 600'),
        ('[slurm.shapes."1g.5gb"]', '[slurm.shapes."1g.5gb"]\noptions.reservation = "exam"'),
    )
    assert "shape 3g.20gb: No node of this site has such a slice." in wrong
    assert "shape cpu: shares nodes with slices, 600 minutes" in wrong
    assert "limits in labcpu: MaxTime is 240 minutes, time_limit_min 600" in wrong
    assert "Requested node configuration" in next(key for key in wrong if "sbatch for 3g" in key)
    assert any("sbatch for 1g.5gb: refused" in key for key in wrong)


def test_doctor_names_each_node_that_takes_no_jobs(lab: SlurmLab):
    """With its state, and what its operator wrote."""
    node = lab.cluster.nodes[1]
    lab.cluster.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=fan")
    try:
        findings = {
            finding: remedy for finding, remedy in doctor(lab).items() if finding.startswith("node")
        }
    finally:
        lab.cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
    ((finding, remedy),) = findings.items()
    assert finding == f"node {node}: drain, idle: fan"
    assert f"nodename={node} state=resume" in remedy


def test_doctor_asks_the_nodes_what_they_lack(lab: SlurmLab):
    """By a job of a minute in each partition: nothing, a bare Python, and none."""
    assert not [lacking for lacking in doctor(lab, option="--slurm") if lacking.startswith("nodes")]
    python = f'python = "{sys.executable}"'
    findings = doctor(lab, (python, 'python = "/usr/bin/python3 -S"'), option="--slurm")
    for partition in ("lab", "labcpu"):
        (lacking,) = (
            finding for finding in findings if finding.startswith(f"nodes of {partition}: lack")
        )
        assert all(
            component in lacking for component in ("JupyterHub", "JupyterLab", "miglab-jupyterlab")
        )
        assert "a way to" not in lacking and "“Nodes”" in findings[lacking]
    findings = doctor(lab, (python, 'python = "/nowhere/python3"'), option="--slurm")
    assert "nodes of lab: cannot run /nowhere/python3" in findings
    lab.cluster.until(lambda: not lab.cluster.command("squeue", "-h"), "no job is left", 60)


def test_doctor_says_that_slurm_is_silent(lab: SlurmLab):
    """Nothing is reported as fine that could not be looked at."""
    lab.cluster.kill("munged")
    try:
        (finding,) = (finding for finding in doctor(lab) if finding.startswith("Slurm"))
        assert "unknown" in finding
    finally:
        lab.cluster.start()
