"""deploy/slurm is a configuration that a real slurmctld and slurmd load."""

from pathlib import Path

import pytest

from miglab_slurm_bench.cluster import SlurmCluster, confines_devices, missing

pytestmark = pytest.mark.long
DEPLOY = Path(__file__).parents[2] / "deploy" / "slurm"
OURS = ("ClusterName", "SlurmctldHost", "StateSaveLocation", "SlurmdSpoolDir")
"""Names and paths, which are the test's own."""


def read(name: str) -> tuple[dict[str, str], list[str]]:
    """The settings of a file, and its lines about nodes and partitions."""
    lines = [line for line in (DEPLOY / name).read_text().splitlines() if line.strip()]
    config_lines = [line for line in lines if not line.startswith("#")]
    tables = [line for line in config_lines if line.startswith(("NodeName", "PartitionName"))]
    settings = dict(line.split("=", 1) for line in config_lines if line not in tables)
    return {key: value for key, value in settings.items() if key not in OURS}, tables


def test_a_cluster_starts_with_it():
    """Every setting of slurm.conf is taken, and a job gets a slice."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    settings, _ = read("slurm.conf")
    if not confines_devices():
        settings |= {"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none"}
    with SlurmCluster(settings=settings) as cluster:
        config = cluster.command("scontrol", "show", "config")
        for key in ("KillWait", "MinJobAge", "EnforcePartLimits", "ProctrackType"):
            assert (
                settings[key].lower() in config[config.index(f"\n{key} ") :].splitlines()[1].lower()
            )
        job = cluster.submit("sleep 60", "--gres=gpu:1g.5gb:1")
        cluster.until(lambda: cluster.job(job)["JobState"] == "RUNNING", "a job runs")


def test_gres_and_slurm_conf_agree():
    """gres.conf lists as many slices of each type as slurm.conf says each node has."""
    _, nodes = read("slurm.conf")
    slices = (DEPLOY / "gres.conf").read_text().splitlines()
    listed = [line.split("Type=")[1].split()[0] for line in slices if line.startswith("NodeName")]
    gres = next(line for line in nodes if "Gres=" in line).split("Gres=")[1].split()[0]
    for part in gres.split(","):
        _, type_, count = part.split(":")
        assert listed.count(type_) == int(count)


@pytest.mark.skipif(not confines_devices(), reason="no cgroup v1 here that can be written")
def test_the_slice_of_another_cannot_be_opened():
    """A job opens its own fake device (no driver answers), and no other (not permitted)."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    with SlurmCluster(nodes=1) as cluster:
        out = cluster.folder / "out"
        files = " ".join(str(file) for file in cluster.devices())
        script = f"for f in {files}; do head -c1 $f 2>&1; done > {out}.new; mv {out}.new {out}"
        cluster.submit(script, "--gres=gpu:1g.5gb:1")
        cluster.until(out.exists, "the job has tried")
        errors = out.read_text().splitlines()
    assert len([line for line in errors if "No such device or address" in line]) == 1
    assert len([line for line in errors if "Operation not permitted" in line]) == len(errors) - 1
