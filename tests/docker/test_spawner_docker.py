# ruff: noqa: F401, F811 - fixtures are shared by import, and named again as arguments
"""Students' servers in containers: a real hub, a real pool, a real engine.

Traps of DockerSpawner each have a test here that fails without what deals with it.
"""

import asyncio
import re
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, DockerException, NotFound
from tests.hub.spawner.conftest import hub
from tests.hub.spawner.lab import URL, PoolLab
from tests.hubs import STUDENT, Hub, hub_config_for
from tests.pool_sender import over
from traitlets.config import Config

import docker
from miglab_api import holders as processes
from miglab_api.leases import LeaseState
from miglab_pool.worker.holders import HostHolders
from miglab_spawner import backends
from miglab_spawner.containers.host_config import SavedLease
from miglab_spawner.containers.server_labels import ServerLabels
from miglab_spawner.docker import MIGDockerSpawner
from miglab_spawner.refusals import SpawnException

from .conftest import SOCKET, STAYS, engine_script

pytestmark = [pytest.mark.docker, pytest.mark.long]

NOBODY = "tcp://127.0.0.1:1"  # no engine listens there
LAB = f"t{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="module", autouse=True)
def tidy(engine: docker.DockerClient) -> Iterator[None]:
    """Remove what this lab left on the engine."""
    yield
    for container in engine.containers.list(all=True, filters={"name": LAB}):
        container.remove(force=True, v=True)
    for network in engine.networks.list(names=[LAB]):
        network.remove()
    for volume in engine.volumes.list(filters={"name": LAB}):
        volume.remove(force=True)


@pytest.fixture
async def lab(
    tmp_path: Path, engine: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PoolLab]:
    """The pool over a simulated GPU whose slices the engine hands over."""
    async with PoolLab(tmp_path, HostHolders(SOCKET, LAB)) as lab:
        assert engine_script("simulate", str(tmp_path / "gpus")).returncode == 0
        monkeypatch.setattr(backends, "send_request", over(lab.http))
        monkeypatch.setattr(MIGDockerSpawner, "_client", None)
        monkeypatch.setattr(MIGDockerSpawner, "_checked_networks", set())
        yield lab
    if MIGDockerSpawner._client is not None:
        MIGDockerSpawner._client.close()


@pytest.fixture
def hub_config(lab: PoolLab, base_image: str) -> Config:
    """A hub whose students' servers are the smallest server, in the base image."""
    c = hub_config_for("mig-docker")
    c.JupyterHub.concurrent_spawn_limit = 0
    c.JupyterHub.cleanup_servers = False
    spawner = c.MIGDockerSpawner
    spawner.image = base_image
    spawner.pull_policy = "never"
    spawner.prefix = LAB
    spawner.lab_id = LAB
    spawner.network_name = f"{LAB}-students"
    spawner.client_kwargs = {"base_url": SOCKET}
    spawner.cmd = ["python3", "-S", "/student/student_server.py"]
    spawner.read_only_volumes = {str(STUDENT.parent): "/student"}
    spawner.home_volume = LAB + "-home-{username}"
    spawner.home_dir = "/home/student"  # the base image does not say where its home is
    spawner.pool_url = URL
    spawner.pool_secret_file = str(lab.secret_file)
    spawner.longest_wait_s = 60
    spawner.poll_interval = 3600
    spawner.extra_host_config = {"init": True}
    return c


@pytest.fixture
def container_of(engine: docker.DockerClient, hub: Hub) -> Any:
    """The container of a person's server."""
    return lambda name: engine.containers.get(hub.spawner(name).container_id)


def execute(container: Any, *command: str) -> tuple[int, str]:
    code, printed = container.exec_run(list(command))
    return code, printed.decode()


async def test_the_container_has_the_slices_of_the_ledger(hub, lab: PoolLab, container_of):
    """Toolkit variable, our variable and ledger name the same slices; the holder is the id."""
    environment = await hub.start("ada", shape="2x1g.5gb")
    lease = lab.held_by("ada")
    assert lease.state is LeaseState.RUNNING
    assert environment["NVIDIA_VISIBLE_DEVICES"] == environment["MIGLAB_SLICES"]
    assert environment["MIGLAB_SLICES"].split(",") == list(lease.uuids)
    assert lease.holder == f"container:{container_of('ada').id}"
    _, listing = execute(container_of("ada"), "nvidia-smi", "-L")
    assert re.findall("UUID: (MIG-.*)[)]", listing) == list(lease.uuids)


async def test_a_server_without_its_slice_is_never_handed_over(
    hub, lab: PoolLab, engine: docker.DockerClient, tmp_path: Path, caplog
):
    """The driver lists no slice in the container: the start fails, and the slice is free."""
    blind = tmp_path / "nvidia-smi"
    blind.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)'\n")
    blind.chmod(0o755)
    spawner = hub.user("ada").spawner
    spawner.read_only_volumes = {**spawner.read_only_volumes, str(blind): "/usr/bin/nvidia-smi"}
    with pytest.raises(SpawnException, match="did not arrive") as refusal:
        await hub.start("ada", shape="1g.5gb")
    assert refusal.value.reason == "slice-not-there"
    assert "it has GPU-1" in caplog.text
    await lab.until(lambda: lab.lease_of("ada") is None, "the lease is given back")
    assert not engine.containers.list(all=True, filters={"name": f"{LAB}-ada"})


async def test_a_renamed_user_keeps_home_and_container(hub, lab: PoolLab, container_of):
    """Also while the server runs; a new account of the old name has its own of both."""
    note = ("sh", "-c", "echo mine > /home/student/note")
    await hub.start("ada", shape="1g.5gb")
    first = container_of("ada")
    assert execute(first, *note)[0] == 0
    await hub.rename("ada", "lovelace")
    await hub.start("ada", "lab2", shape="cpu")
    await hub.stop("ada", "lab2")
    assert container_of("lovelace").id == first.id
    await hub.stop("lovelace")
    await lab.until_empty()
    await hub.start("ada", shape="cpu")
    assert execute(container_of("ada"), "ls", "/home/student")[1] == ""
    await hub.start("lovelace", shape="cpu")
    assert execute(container_of("lovelace"), "cat", "/home/student/note")[1] == "mine\n"
    assert container_of("ada").name != container_of("lovelace").name == first.name


async def test_a_container_is_held_tight(hub, lab: PoolLab, container_of):
    """Limits by the shape, no capability, no new privilege, no restart behind our back."""
    hub.user("ada").spawner.shape_limits = {
        "1g.5gb": {"mem_gib": 0.5, "cpus": 1.5, "pids": 99, "shm_gib": 0.25}
    }
    await hub.start("ada", shape="1g.5gb")
    host = container_of("ada").attrs["HostConfig"]
    assert host["Memory"] == 2**29
    assert host["CpuQuota"] / host["CpuPeriod"] == 1.5
    assert (host["PidsLimit"], host["ShmSize"]) == (99, 2**28)
    assert host["CapDrop"] == ["ALL"]
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["RestartPolicy"]["Name"] == "no"
    assert host["AutoRemove"] is False
    _, status = execute(container_of("ada"), "grep", "CapEff", "/proc/self/status")
    assert int(status.split()[1], 16) == 0


async def test_not_hardened_it_is_dockerspawners(hub, lab: PoolLab, container_of):
    """`harden` off: no limit, no dropped capability, the engine's own log; but still no GPU."""
    hub.user("ada").spawner.harden = False
    environment = await hub.start("ada", shape="cpu")
    host = container_of("ada").attrs["HostConfig"]
    assert not any(host[key] for key in ("Memory", "CpuQuota", "PidsLimit", "Ulimits"))
    assert not any(host[key] for key in ("CapDrop", "SecurityOpt"))
    assert host["ShmSize"] == 64 * 2**20
    assert not host["LogConfig"]["Config"]
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"


async def test_without_a_lease_it_is_dockerspawner(hub, lab: PoolLab, container_of):
    """``remove`` off: the stopped container stays, and the next start is the same container."""
    await hub.start("ada", shape="cpu")
    first = container_of("ada")
    assert "miglab.lease" not in first.labels
    assert hub.spawner("ada").will_resume
    await hub.stop("ada")
    first.reload()
    assert first.status == "exited"
    await hub.start("ada", shape="cpu")
    assert container_of("ada").id == first.id
    state = hub.spawner("ada").get_state()
    assert set(state) == {"object_id", "object_name"}


async def test_trap_1_a_dead_container_is_removed_and_its_slice_freed(hub, lab, container_of):
    """The hub does not stop a dead server; its container goes all the same, then its slice."""
    await hub.start("ada", shape="7g.40gb")
    container = container_of("ada")
    container.kill()
    container.wait()
    await hub.spawner("ada").poll_and_notify()
    with pytest.raises(NotFound):
        container.reload()
    await lab.until_empty()


async def test_trap_2_a_server_with_a_slice_is_always_removed(hub, lab, container_of):
    """``remove`` is off and stays off for others, but a container with a slice goes at stop."""
    await hub.start("ada", shape="1g.5gb")
    container = container_of("ada")
    assert not hub.spawner("ada").will_resume
    await hub.stop("ada")
    with pytest.raises(NotFound):
        container.reload()
    await lab.until_empty()
    assert hub.user("ada").spawner.remove is False


async def test_trap_2_a_running_leftover_gives_way(hub, lab, container_of, engine):
    """A running container with an old slice under the server's name is ended, not joined."""
    await hub.start("ada", shape="1g.5gb")
    old = container_of("ada")
    user = hub.user("ada")
    user.spawners.pop("")  # a hub that lost its memory
    fresh = user._new_spawner("")
    fresh.load_state({})
    user.spawners[""] = fresh
    fresh.server = None
    environment = await hub.start("ada", shape="1g.5gb")
    lease = lab.held_by("ada")
    with pytest.raises(NotFound):
        old.reload()
    assert environment["MIGLAB_SLICES"] == lease.uuids[0]
    assert lease.holder != f"container:{old.id}"


async def test_trap_2_a_leftover_with_a_slice_is_not_started_for_cpu(hub, lab, engine, base_image):
    """A stopped container of ours with an old slice is no server without a GPU."""
    had = SavedLease(7, 1, "ada", "", ("MIG-1",))
    labels = ServerLabels(LAB, "ada", "", had).as_labels()
    old = engine.containers.create(base_image, ["true"], name=f"{LAB}-ada", labels=labels)
    environment = await hub.start("ada", shape="cpu")
    with pytest.raises(NotFound):
        old.reload()
    assert "MIGLAB_SLICES" not in environment


@pytest.mark.parametrize("before", ["1g.5gb", "cpu"])
@pytest.mark.parametrize("since", ["1g.5gb", "cpu"])
async def test_a_server_started_since_a_backup_is_left_alone(
    hub, lab: PoolLab, container_of, before: str, since: str
):
    """The hub that comes back remembers an older one of the same name, and ends only that."""
    hub.app.config.MIGDockerSpawner.update(remove=True, network_per_server=True)
    await hub.start("ada", shape=before)
    saved = hub.spawner("ada").get_state()
    await hub.stop("ada")
    await lab.until_empty()
    await hub.start("ada", shape=since)
    running = container_of("ada")

    hub.spawner("ada").orm_spawner.state = saved  # in the hub's database, as it comes back
    restored = hub.user("ada")._new_spawner("")
    assert (restored.object_id, restored.grant is None) == (saved["object_id"], before == "cpu")
    for _ in range(2):  # the hub looks when it starts, and once more before it stops a server
        assert await restored.poll() == 0
    await restored.stop()
    await restored.end_holder(f"container:{saved['object_id']}")
    running.reload()
    assert running.status == "running"
    assert list(running.attrs["NetworkSettings"]["Networks"]) == [f"{LAB}-ada-net"]


@pytest.mark.parametrize("shape", ["1g.5gb", "cpu"])
@pytest.mark.parametrize("labels", [{}, ServerLabels("another-lab", "kim", "").as_labels()])
async def test_what_only_has_the_name_of_a_server_is_left_alone(
    hub, lab: PoolLab, engine, base_image, start, shape: str, labels: dict[str, str]
):
    """A container made by hand, or by another lab, is neither started, stopped nor removed."""
    theirs = start(base_image, STAYS, name=f"{LAB}-kim", labels=labels, init=True)
    refused = await hub.refused("kim", shape=shape)
    assert refused.reason == "name-taken"
    await hub.user("kim").spawner.stop()
    theirs.reload()
    assert theirs.status == "running"
    await lab.until_empty()


async def test_a_network_that_only_has_the_name_of_a_servers_is_left_alone(hub, lab, engine):
    """No server is put on it, and it is not removed."""
    theirs = engine.networks.create(f"{LAB}-ada-net", labels={"miglab.lab": "another-lab"})
    hub.user("ada").spawner.network_per_server = True
    try:
        assert (await hub.refused("ada", shape="1g.5gb")).reason == "name-taken"
        theirs.reload()
    finally:
        theirs.remove()
    await lab.until_empty()


@pytest.fixture
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A process that the kernel counts as a container's, whatever its engine says."""
    proc = tmp_path / "proc"
    proc.mkdir()
    monkeypatch.setattr(processes, "PROC", proc)
    started: list[subprocess.Popen[bytes]] = []

    def one_of(container: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(STAYS)
        started.append(process)
        (proc / str(process.pid)).mkdir()
        (proc / str(process.pid) / "cgroup").write_text(f"0::/docker/{container}")
        (proc / str(process.pid) / "stat").symlink_to(f"/proc/{process.pid}/stat")
        return process

    yield one_of
    for process in started:
        process.kill()
        process.wait()


async def test_a_leftover_that_never_ran_gives_way(hub, lab, engine, base_image, forget):
    """Its engine may have ended while it started it: what runs of it ends as well."""
    labels = ServerLabels(LAB, "eve", "").as_labels()
    old = engine.containers.create(base_image, ["true"], name=f"{LAB}-eve", labels=labels)
    forgotten = forget(old.id)
    await hub.start("eve", shape="cpu")
    assert forgotten.wait(60) < 0
    with pytest.raises(NotFound):
        old.reload()


async def test_what_runs_of_a_removed_server_without_a_lease_is_ended(
    hub, lab, container_of, forget
):
    """With a lease it is the pool that looks."""
    hub.user("eve").spawner.remove = True
    await hub.start("eve", shape="cpu")
    forgotten = forget(container_of("eve").id)
    await hub.stop("eve")
    assert forgotten.wait(60) < 0


async def test_trap_3_labels_bring_a_forgotten_lease_back(hub, lab, container_of):
    """A hub that saved no state finds lease, generation and slices on the container."""
    user = hub.user("ada")
    await hub.start("ada", shape="1g.5gb")
    before = hub.spawner("ada")
    after = user._new_spawner("")
    after.load_state({})
    assert await after.poll() is None
    assert after.grant == before.grant
    assert container_of("ada").labels["miglab.user"] == "ada"
    assert after.will_resume is False


async def test_trap_6_an_engine_that_errs_is_not_the_end(hub, lab, container_of, monkeypatch):
    """HTTP 500 for a server with a slice: it counts as alive, and its id is not forgotten."""
    await hub.start("ada", shape="1g.5gb")
    spawner = hub.spawner("ada")
    container_id = spawner.object_id

    def errs(*_: Any, **__: Any) -> Any:
        response = type("Response", (), {"status_code": 500, "reason": "no", "url": "inspect"})()
        raise APIError("no", response=response)

    with monkeypatch.context() as broken:
        broken.setattr(spawner.client, "inspect_container", errs)
        assert await spawner.poll() is None
        assert spawner.object_id == container_id
    assert await spawner.poll() is None


async def test_trap_6_an_engine_that_is_away_when_the_hub_comes_back_is_not_the_end(
    hub, lab, monkeypatch
):
    """The hub's first word to it fails in another way than every later one."""
    user = hub.user("ada")
    await hub.start("ada", shape="1g.5gb")
    after = user._new_spawner("")
    after.load_state(hub.spawner("ada").get_state())
    with monkeypatch.context() as away:
        away.setattr(MIGDockerSpawner, "_client", None)
        away.setattr(after, "client_kwargs", {"base_url": NOBODY})
        assert await after.poll() is None
    assert after.grant == hub.spawner("ada").grant
    assert await after.poll() is None


async def test_what_an_engine_that_is_away_says_reaches_the_student(hub, lab):
    """In words, whichever call it was that failed."""
    spawner = hub.user("ada").spawner
    spawner.client_kwargs = {"base_url": NOBODY}
    await hub.begin("ada", shape="1g.5gb")
    with pytest.raises(DockerException) as refused:
        await hub.settled("ada")
    assert "Docker could not start your server" in refused.value.jupyterhub_message


async def test_trap_9_out_of_memory_is_said(hub, lab, container_of):
    """The engine's mark is read before the container goes, and the student reads it."""
    hub.user("ada").spawner.shape_limits = {"1g.5gb": {"mem_gib": 0.0625}}
    hub.user("ada").spawner.cmd = ["python3", "-S", "/student/student_server.py", "hungry"]
    await hub.start("ada", shape="1g.5gb")
    container = container_of("ada")
    with pytest.raises(Exception):  # noqa: B017 - however a dying server answers
        await hub.http.get(hub.spawner("ada").server.url + "eat")
    await asyncio.to_thread(container.wait)
    await hub.spawner("ada").poll_and_notify()
    await lab.until_empty()
    page = await hub.user("ada").spawner.get_options_form()
    assert "needed more than its 0.0625 GiB of memory" in page


async def test_a_slice_that_is_gone_starts_nothing(hub, lab, engine):
    """The toolkit refuses the slice: the student is told, the container goes, the lease too."""
    spawner = hub.user("ada").spawner
    attach = spawner.attach

    async def behind_its_back(holder: str) -> None:
        await attach(holder)
        gpu = lab.driver.gpus()[0].uuid
        for reading in lab.driver.slices(gpu):
            lab.driver.destroy(gpu, reading.gi_id)

    spawner.attach = behind_its_back
    await hub.begin("ada", shape="1g.5gb")
    with pytest.raises(APIError) as refused:
        await hub.settled("ada")
    assert "Docker could not start your server" in refused.value.jupyterhub_message
    with pytest.raises(NotFound):
        engine.containers.get(f"{LAB}-ada")
    await lab.until_empty()


async def test_a_lease_refused_at_the_fence_never_starts(hub, lab, engine):
    """The pool refuses the attach: the container is removed without having run."""
    spawner = hub.user("ada").spawner
    attach = spawner.attach

    async def too_late(holder: str) -> None:
        lab.pool.leases.release(spawner.grant.lease, "an instructor", "the lesson is over")
        await attach(holder)

    spawner.attach = too_late
    assert (await hub.refused("ada", shape="1g.5gb")).reason == "stale-lease"
    with pytest.raises(NotFound):
        engine.containers.get(f"{LAB}-ada")


async def test_one_network_for_each_server(hub, lab, engine):
    """With the hub in a container: a network per server, the hub joined, gone at stop."""
    joined = engine.containers.run(
        "miglab-base", STAYS, name=f"{LAB}-the-hub", detach=True, init=True
    )
    spawner = hub.user("ada").spawner
    spawner.network_per_server = True
    spawner.joined_containers = [joined.name]
    await hub.start("ada", shape="1g.5gb")
    network = engine.networks.get(f"{LAB}-ada-net")
    network.reload()
    names = {container["Name"] for container in network.attrs["Containers"].values()}
    assert names == {f"{LAB}-ada", joined.name}
    await hub.stop("ada")
    with pytest.raises(NotFound):
        network.reload()
    joined.remove(force=True)


async def test_without_a_home_no_server_starts(hub, lab: PoolLab, engine):
    """An image that does not say where its home is: nothing starts, and the slice goes back."""
    hub.user("ada").spawner.home_dir = ""
    refused = await hub.refused("ada", shape="1g.5gb")
    assert refused.reason == "no-home"
    assert "must set c.MIGDockerSpawner.home_dir" in refused.jupyterhub_message
    with pytest.raises(NotFound):
        engine.containers.get(f"{LAB}-ada")
    await lab.until_empty()


async def test_files_outlive_the_container(hub, lab, container_of):
    """What lies in the home is there again in the next container, with or without a slice."""
    await hub.start("ada", shape="1g.5gb")
    execute(container_of("ada"), "sh", "-c", "echo mine > /home/student/work.txt")
    first = container_of("ada").id
    await hub.stop("ada")
    await hub.start("ada", shape="cpu")
    assert container_of("ada").id != first
    assert execute(container_of("ada"), "cat", "/home/student/work.txt") == (0, "mine\n")


@pytest.mark.parametrize("home_gib", [0, 1])
async def test_a_home_has_the_labs_label(hub, lab: PoolLab, engine, home_gib: int):
    """Whether or not it is measured first; a backup takes it by this label."""
    hub.user("kit").spawner.home_gib = home_gib
    await hub.start("kit", shape="1g.5gb")
    volume = engine.volumes.get(f"{LAB}-home-kit")
    assert volume.attrs["Labels"] == {"miglab.lab": LAB, "miglab.home": "kit"}
    await hub.stop("kit")
    volume.remove()


@pytest.mark.parametrize(("shape", "home_gib"), [("1g.5gb", 0), ("1g.5gb", 1), ("cpu", 0)])
async def test_another_labs_home_is_mounted_nowhere(
    hub, lab: PoolLab, engine, shape: str, home_gib: int
):
    """The name there may be somebody else's: the start is refused, and the volume stays."""
    labels = {"miglab.lab": "another-lab"}
    theirs = engine.volumes.create(f"{LAB}-home-lou", labels=labels)
    hub.user("lou").spawner.home_gib = home_gib
    try:
        assert (await hub.refused("lou", shape=shape)).reason == "name-taken"
        assert engine.volumes.get(theirs.name).attrs["Labels"] == labels
        assert not engine.containers.list(all=True, filters={"name": f"{LAB}-lou"})
    finally:
        theirs.remove()
    await lab.until_empty()
