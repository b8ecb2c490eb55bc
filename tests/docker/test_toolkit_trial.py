"""Doctor's trial of NVIDIA's toolkit, by a real engine: what it reads on the host, and leaves."""

from pathlib import Path

import pytest
from docker.errors import APIError

import docker
from miglab_hub import engine_findings
from miglab_hub.engine_findings import HOST_PATH, Toolkit, explain_hook_refusal, run_trial

pytestmark = [pytest.mark.docker, pytest.mark.long]

HOOK = "#!/bin/sh\necho NVIDIA Container Runtime Hook version 1.17.8\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder of the engine's host with a hook and its settings."""
    hook = tmp_path / "nvidia-container-runtime-hook"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    (tmp_path / "config.toml").write_text('swarm-resource = "X"\n')
    return tmp_path


def containers(engine: docker.DockerClient) -> set[str]:
    return {container.id or "" for container in engine.containers.list(all=True)}


def trial(engine: docker.DockerClient, image: str, host: Path) -> Toolkit:
    path, file = f"{host}:{HOST_PATH}", str(host / "config.toml")
    return Toolkit.parse(run_trial(engine.api, image, path=path, settings=file))


def test_version_and_settings_are_those_of_the_host(
    engine: docker.DockerClient, base_image: str, host: Path
) -> None:
    """Not of the container in which doctor runs; without the file the toolkit's own hold."""
    assert trial(engine, base_image, host) == Toolkit((1, 17), {"swarm-resource": "X"})
    (host / "config.toml").unlink()
    assert trial(engine, base_image, host) == Toolkit((1, 17), {})


def test_an_engine_without_the_hook_says_so(
    engine: docker.DockerClient, base_image: str, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it answers to a driver that it has not is read as a toolkit that is not installed."""
    monkeypatch.setattr(engine_findings, "gpu_driver_name", lambda version: "nobody")
    before = containers(engine)
    with pytest.raises(APIError) as refusal:
        trial(engine, base_image, host)
    assert (
        "install nvidia-container-toolkit"
        in explain_hook_refusal(str(refusal.value.explanation)).remedy
    )
    assert not [new for new in containers(engine) - before if is_trial(engine, new)]


def is_trial(engine: docker.DockerClient, container: str) -> bool:
    """Whether a container is one of doctor's: others come and go meanwhile."""
    try:
        return bool(engine.api.inspect_container(container)["Path"] == "chroot")
    except docker.errors.NotFound:
        return False
