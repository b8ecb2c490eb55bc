"""What counts as free is what a real slurmctld starts, however it counts cores and memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from miglab_slurm.lab import SlurmShape, SlurmSite
from miglab_slurm.reader import read
from miglab_slurm_bench.cluster import HARDWARE, SlurmCluster, missing

from .test_slurm_spawner import jobs

pytestmark = pytest.mark.long
THREADS = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2 CPUs=8 RealMemory=8000"
SOCKETS = "Sockets=2 CoresPerSocket=2 ThreadsPerCore=2 CPUs=8 RealMemory=8000"
SLICES = 6


@dataclass(frozen=True)
class CountingSite:
    """A cluster of one node, a shape, and how many jobs of the shape it holds.

    Attributes:
        partition: what slurm.conf says of the partition besides.
    """

    holds: int
    cpus: int = 1
    memory_mib: int = 0
    hardware: str = THREADS
    partition: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


PER_CPU = {"DefMemPerCPU": "500"}
NO_DEFAULT = {"DefMemPerCPU": ""}
SITES = {
    "as many as slices": CountingSite(SLICES, hardware=HARDWARE),
    "whole cores": CountingSite(4, settings=PER_CPU),
    "three CPUs take two cores": CountingSite(2, cpus=3, settings=PER_CPU),
    "whole cores with CR_CPU": CountingSite(
        2, cpus=3, settings={**PER_CPU, "SelectTypeParameters": "CR_CPU_Memory"}
    ),
    "threads that are no CPUs": CountingSite(
        4, hardware=THREADS.replace("CPUs=8", "CPUs=4"), settings=PER_CPU
    ),
    "whole sockets": CountingSite(
        2, hardware=SOCKETS, settings={**PER_CPU, "SelectTypeParameters": "CR_Socket_Memory"}
    ),
    "whole sockets in a partition": CountingSite(
        2, hardware=SOCKETS, partition="SelectTypeParameters=CR_Socket_Memory", settings=PER_CPU
    ),
    "whole nodes": CountingSite(1, partition="OverSubscribe=EXCLUSIVE", settings=PER_CPU),
    "select/linear": CountingSite(
        1, settings={"SelectType": "select/linear", "SelectTypeParameters": "CR_Memory"}
    ),
    "memory of each CPU taken": CountingSite(2, settings={"DefMemPerCPU": "1500"}),
    "memory of each CPU asked for": CountingSite(
        4, settings={"DefMemPerCPU": "1500", "SelectTypeParameters": "CR_CPU_Memory"}
    ),
    "memory by the node": CountingSite(2, settings={**NO_DEFAULT, "DefMemPerNode": "3000"}),
    "memory by the partition's node": CountingSite(
        2, partition="DefMemPerNode=4000", settings=PER_CPU
    ),
    "memory by the partition's CPU": CountingSite(
        2, partition="DefMemPerCPU=1500", settings=PER_CPU
    ),
    "no default: the node's whole memory": CountingSite(1, settings=NO_DEFAULT),
    "memory of the shape": CountingSite(2, memory_mib=3000, settings=PER_CPU),
    "memory that is not counted": CountingSite(
        4, memory_mib=3000, settings={**NO_DEFAULT, "SelectTypeParameters": "CR_Core"}
    ),
    "cores and memory of the system": CountingSite(
        2, hardware=f"{THREADS} CoreSpecCount=1 MemSpecLimit=2000", memory_mib=3000,
        settings=PER_CPU,
    ),
}  # fmt: skip


@pytest.fixture
def counting_site(request: pytest.FixtureRequest) -> CountingSite:
    """The site of the test."""
    return SITES[request.param]


@pytest.fixture
def one_node(
    counting_site: CountingSite, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """Its cluster, as this process's own Slurm."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    partition = (
        f"PartitionName=lab Nodes={{nodes}} Default=YES MaxTime=240 {counting_site.partition}"
    )
    with SlurmCluster(
        nodes=1,
        gres={"1g.5gb": SLICES},
        partitions=(partition,),
        settings=counting_site.settings,
        hardware=counting_site.hardware,
    ) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        monkeypatch.delenv("MIGLAB_SLURM_PATH", raising=False)
        yield cluster


@pytest.mark.parametrize("counting_site", SITES, indirect=True)
async def test_what_is_free_starts_and_no_more(counting_site: CountingSite, one_node: SlurmCluster):
    """So many jobs as are free run at once, the next one waits, and then nothing is free."""
    shape = SlurmShape(
        gres="gpu:1g.5gb:1", cpus=counting_site.cpus, memory_mib=counting_site.memory_mib
    )
    site = SlurmSite(partition="lab", shapes={"1g.5gb": shape})
    picture = await read(site)
    counts = picture.total(shape), picture.free(shape)
    assert counts == (counting_site.holds, counting_site.holds)
    memory = [f"--mem={shape.memory_mib}M"] if shape.memory_mib else []
    options = [*site.options_of(shape, ""), *memory, f"--cpus-per-task={shape.cpus}"]
    numbers = [one_node.submit("sleep 600", *options) for _ in range(counting_site.holds + 1)]
    one_node.until(lambda: waits_for_room(one_node, numbers[-1]), "the last one waits", 30)
    assert set(jobs(one_node, "RUNNING")) == set(numbers[:-1])
    picture = await read(site)
    assert picture.free(shape) == 0
    assert picture.total(shape) == counting_site.holds


def waits_for_room(cluster: SlurmCluster, job: int) -> bool:
    """Whether slurmctld has tried to start a job, and found no room."""
    return cluster.job(job).get("Reason") == "Resources"
