"""A real Slurm of two nodes, a real JupyterHub in this process, students' servers as jobs.

A test on the cluster of another site says so: ``@pytest.mark.parametrize("site", ["power saving"],
indirect=True, scope="module")``; `people_of` has its students' accounts.
"""

import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hubs import STUDENT, Hub, hub_config_for, running_hub
from traitlets.config import Config

from miglab_slurm.hub_setup import set_up
from miglab_slurm.reader import close_readers
from miglab_slurm_bench.cluster import SlurmCluster
from miglab_slurm_bench.sites import SITES, SlurmSiteKind

SITE: dict[str, Any] = {
    "partition": "lab",
    "run_as": "",
    "python": f"{sys.executable} -S",
    "home": "/",
    "command_timeout_s": 10.0,
    "offer_s": 60.0,
    "shapes": {
        "1g.5gb": {"gres": "gpu:1g.5gb:1", "gpu_memory_gib": 4.75, "sm_count": 14},
        "2x1g.5gb": {"gres": "gpu:1g.5gb:2", "gpu_memory_gib": 4.75, "sm_count": 14},
        "3g.20gb": {
            "gres": "gpu:3g.20gb:1",
            "time_limit_min": 30,
            "gpu_memory_gib": 19.5,
            "sm_count": 42,
        },
        "7g.40gb": {"gres": "gpu:7g.40gb:1", "gpu_memory_gib": 39.5, "sm_count": 98},
        "night": {"gres": "gpu:1g.5gb:1", "partition": "night"},
        "long": {"gres": "gpu:1g.5gb:1", "time_limit_min": 600},
        "cpu": {"partition": "cpu", "time_limit_min": 30},
    },
    "courses": {
        "everyone": {
            "title": "Open lab",
            "shapes": ["1g.5gb", "2x1g.5gb", "3g.20gb", "7g.40gb", "night", "long", "cpu"],
            "default": "1g.5gb",
        }
    },
}
PYTHON = "/usr/bin/python3"


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest) -> SlurmSiteKind:
    """The plain site; a test may ask for another one by its name in `SITES`."""
    return SITES[getattr(request, "param", "plain")]


@pytest.fixture(scope="module")
def cluster(site: SlurmSiteKind) -> Iterator[SlurmCluster]:
    """The site's two nodes; plain ones have four 1g.5gb and one 3g.20gb each."""
    if absent := site.missing:
        pytest.skip(
            f"no Slurm here ({absent}): apt-get install slurmctld slurmd munge slurm-client "
            "slurmdbd mariadb-server-core"
        )
    with site.running() as cluster:
        yield cluster


def people_of(site: SlurmSiteKind, cluster: SlurmCluster) -> dict[str, Any]:
    """What [slurm] says where students' jobs are their own accounts', as at most sites."""
    return {
        **SITE,
        "python": f"{PYTHON} -S",
        "run_as": "runuser -u {username} --",
        "unix_accounts": dict(site.students),
        "least_uid": 1,
        "home": str(cluster.folder / "homes"),
        **site.slurm,
    }


def command_of(cluster: SlurmCluster) -> list[str]:
    """The smallest server, where every student can read it."""
    return [PYTHON, "-S", str(shutil.copy(STUDENT, cluster.folder))]


@pytest.fixture
def slurm(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster as the hub's own Slurm, all parts up, without a job before and after."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("MIGLAB_SLURM_PATH", str(cluster.folder / "bin"))
    yield cluster
    cluster.start()
    empty(cluster)


def empty(cluster: SlurmCluster) -> None:
    """Cancel every job, and wait until none is left."""
    for node in cluster.nodes:
        cluster.command("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def is_empty() -> bool:
        numbers = cluster.command("squeue", "-h", "-o", "%A").split()
        cluster.command("scancel", *numbers, check=False)
        return not numbers

    cluster.until(is_empty, "no job left", 60)


@pytest.fixture
def hub_config(slurm: SlurmCluster, tmp_path: Path) -> Config:
    """The hub's configuration; a test module may override it."""
    c = hub_config_for("mig-slurm", set_up)
    c.JupyterHub.hub_ip = "127.0.0.1"
    c.MIGSlurmSpawner.cmd = [sys.executable, "-S", str(STUDENT)]
    c.MIGSlurmSpawner.slurm = {**SITE, "home": str(slurm.folder)}
    c.MIGSlurmSpawner.ip = "127.0.0.1"
    c.MIGSlurmSpawner.longest_wait_s = 400
    c.MIGSlurmSpawner.create_timeout_s = 90
    c.MIGSlurmSpawner.poll_interval = 3600
    return c


@pytest.fixture
async def hub(
    hub_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Hub]:
    """A running hub."""
    monkeypatch.chdir(tmp_path)
    try:
        async with running_hub(hub_config) as hub:
            yield hub
    finally:
        await close_readers()
