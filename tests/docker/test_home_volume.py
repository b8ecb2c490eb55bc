"""A home volume is measured by the engine, whatever its owner does to hide what is in it."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from requests import ReadTimeout

import docker
from miglab_spawner.containers import home_volume
from miglab_spawner.containers.home_volume import measure_volume
from miglab_spawner.home_size import HomeUse, max_files

pytestmark = [pytest.mark.docker, pytest.mark.long]

MIB = 2**20
LIMIT_GIB = 4 / 1024
FILL = (
    "mkdir -p /home/own/data /home/own/closed && dd if=/dev/urandom of=/home/own/data/a bs=1M "
    "count=3 status=none && dd if=/dev/urandom of=/home/own/closed/b bs=1M count=2 status=none && "
    "mkfifo /home/own/pipe && ln -s / /home/own/root && chown -R 1000 /home/own && "
    "chmod 000 /home/own/closed"
)
NAMES = "import os; [os.mknod(f'/home/own/{n:07}' + 'x' * 240) for n in range(20_000)]"
FORGED = (
    "import os; os.makedirs('/home/own/0 0\\n9\\t./a'); os.mknod('/home/own/\\n9 9\\n'); "
    "open('/home/own/0 0\\n9\\t./a/b', 'wb').write(os.urandom(2**20))"
)


@pytest.fixture
def volume(engine: docker.DockerClient) -> Iterator[str]:
    """An empty volume."""
    name = f"miglab-test-{uuid.uuid4().hex[:8]}"
    engine.volumes.create(name)
    yield name
    engine.volumes.get(name).remove()


def fill(engine: docker.DockerClient, image: str, volume: str, *command: str) -> None:
    binds = {volume: {"bind": "/home/own"}}
    engine.containers.run(image, list(command), volumes=binds, remove=True)


def test_what_the_owner_hides_counts(engine: docker.DockerClient, base_image: str, volume: str):
    """A closed folder counts, a link and a pipe do not, and nothing is left of the measuring."""
    fill(engine, base_image, volume, "sh", "-c", FILL)
    use = measure_volume(engine.api, base_image, volume, volume, LIMIT_GIB)
    assert use is not None
    assert 5 * MIB <= use.size < 6 * MIB
    assert use.files == 6
    (data, in_data), (closed, in_closed) = use.largest
    assert (data, closed) == ("data", "closed")
    assert 3 * MIB <= in_data < 4 * MIB and 2 * MIB <= in_closed < 3 * MIB
    assert engine.containers.list(all=True, filters={"label": f"miglab.lab={volume}"}) == []


def test_names_do_not_forge_figures(engine: docker.DockerClient, base_image: str, volume: str):
    """Names with ends of lines in them are names."""
    fill(engine, base_image, volume, "sh", "-c", FILL)
    fill(engine, base_image, volume, "python3", "-c", FORGED)
    use = measure_volume(engine.api, base_image, volume, volume, LIMIT_GIB)
    assert use is not None
    assert use.files == 10
    assert use.size > 6 * MIB
    assert [name for name, _ in use.largest] == ["data", "closed", "0 0?9\t."]


def test_a_home_of_many_names(
    engine: docker.DockerClient,
    base_image: str,
    volume: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """Neither the log nor the hub holds them; counting ends at the first that is too many."""
    fill(engine, base_image, volume, "python3", "-c", NAMES)
    logged, read = [], []
    logs, remove = engine.api.logs, engine.api.remove_container

    def read_logs(*args: Any, **options: Any) -> bytes:
        read.append(logs(*args, **options))
        return read[-1]

    def remove_logged(container: Any, **options: Any) -> None:
        logged.append(Path(engine.api.inspect_container(container)["LogPath"]).stat().st_size)
        remove(container, **options)

    monkeypatch.setattr(engine.api, "logs", read_logs)
    monkeypatch.setattr(engine.api, "remove_container", remove_logged)
    few = measure_volume(engine.api, base_image, volume, volume, LIMIT_GIB)
    many = measure_volume(engine.api, base_image, volume, volume, 1)
    assert few == HomeUse(files=max_files(LIMIT_GIB) + 1)
    assert many is not None
    assert many.files == 20_000
    assert len(logged) == len(read) == 2
    assert max(logged) < 1000
    assert max(map(len, read)) < 1000


def test_a_container_that_measures_is_small(
    engine: docker.DockerClient, base_image: str, volume: str, monkeypatch: pytest.MonkeyPatch
):
    """It has limits of memory, log and processes; what takes too long says nothing of the home."""
    containers: list[Any] = []

    def never(container: Any, timeout: float) -> None:
        containers.append(engine.api.inspect_container(container)["HostConfig"])
        raise ReadTimeout(f"{timeout} s")

    monkeypatch.setattr(engine.api, "wait", never)
    assert measure_volume(engine.api, base_image, volume, volume, 1) is None
    (host,) = containers
    assert 0 < host["Memory"] == host["MemorySwap"] < 2**30
    assert host["LogConfig"]["Config"] == {"max-size": "64k", "max-file": "1"}
    assert host["PidsLimit"] == 16
    assert host["ReadonlyRootfs"]
    assert engine.containers.list(all=True, filters={"label": f"miglab.lab={volume}"}) == []


def test_what_a_hub_left_is_removed_by_the_next_measurement(
    engine: docker.DockerClient, base_image: str, volume: str, monkeypatch: pytest.MonkeyPatch
):
    """Of one that died meanwhile; one that may still measure stays."""
    labels = {"miglab.lab": volume, home_volume.MEASURES_LABEL: volume}
    stale = engine.containers.create(base_image, ["true"], labels=labels)
    home_volume.remove_stale_measurements(engine.api, volume)
    stale.reload()
    monkeypatch.setattr(home_volume, "MEASURE_TIMEOUT_S", -1)
    home_volume.remove_stale_measurements(engine.api, volume)
    with pytest.raises(docker.errors.NotFound):
        stale.reload()
