"""A home volume is measured by the engine, whatever its owner does to hide what is in it."""

import uuid
from collections.abc import Iterator

import pytest

import docker
from miglab_spawner.containers import home_volume
from miglab_spawner.containers.home_volume import volume_sizes

pytestmark = [pytest.mark.docker, pytest.mark.long]

MIB = 2**20
FILL = (
    "mkdir -p /home/own/data /home/own/closed && dd if=/dev/urandom of=/home/own/data/a bs=1M "
    "count=3 status=none && dd if=/dev/urandom of=/home/own/closed/b bs=1M count=2 status=none && "
    "mkfifo /home/own/pipe && ln -s / /home/own/root && chown -R 1000 /home/own && "
    "chmod 000 /home/own/closed"
)


@pytest.fixture
def volume(engine: docker.DockerClient, base_image: str) -> Iterator[str]:
    """A volume with five megabytes, two of them behind a closed door, a pipe and a link."""
    name = f"miglab-test-{uuid.uuid4().hex[:8]}"
    engine.volumes.create(name)
    engine.containers.run(
        base_image, ["sh", "-c", FILL], volumes={name: {"bind": "/home/own"}}, remove=True
    )
    yield name
    engine.volumes.get(name).remove()


def test_what_the_owner_hides_counts(engine: docker.DockerClient, base_image: str, volume: str):
    """A closed folder counts, a link and a pipe do not, and nothing is left of the measuring."""
    sizes = volume_sizes(engine.api, base_image, volume, volume)
    assert 3 * MIB <= sizes["data"] < 4 * MIB
    assert 2 * MIB <= sizes["closed"] < 3 * MIB
    assert sizes["root"] == sizes["pipe"] == 0
    assert engine.containers.list(all=True, filters={"label": f"miglab.lab={volume}"}) == []


def test_what_a_hub_left_is_removed_by_the_next_measurement(
    engine: docker.DockerClient, base_image: str, volume: str, monkeypatch: pytest.MonkeyPatch
):
    """Of one that died meanwhile; one that may still measure stays."""
    labels = {"miglab.lab": volume, home_volume.MEASURES: volume}
    left = engine.containers.create(base_image, ["true"], labels=labels)
    home_volume.remove_left(engine.api, volume)
    left.reload()
    monkeypatch.setattr(home_volume, "LONGEST_S", -1)
    home_volume.remove_left(engine.api, volume)
    with pytest.raises(docker.errors.NotFound):
        left.reload()
