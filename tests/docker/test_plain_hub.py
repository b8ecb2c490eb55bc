"""A JupyterHub that is not ours: docs/howto/add-to-your-hub.md, step by step, with containers.

The commands, lab.toml and the hub's configuration are the page's, as printed; `REPLACED` says what
a test must have otherwise.
"""

import io
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from docker.models.containers import Container
from tests.added_page import PROXY, answers, as_here, printed, running
from tests.wheels import bare_environment, build_wheels, pins

import docker
from miglab_api.leases import LeaseView
from miglab_bench.harness.processes import free_ports
from miglab_bench.harness.student import STEP_S, Student, wait_for
from miglab_hub import lab_secrets
from miglab_hub.settings.lab_toml import Settings, load

from .conftest import engine_script

pytestmark = [pytest.mark.docker, pytest.mark.long]

NETWORK = "miglab-students"
PASSWORD = "a-password-for-all"
HUB = """
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{port_of_proxy}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.Spawner.http_timeout = 120
"""
"""What this hub had before."""
IMAGES = {
    "/home/jovyan": "",
    "/home/ada": "USER 0\nRUN /usr/sbin/useradd --create-home ada\nUSER ada\nENV HOME=/home/ada\n"
    "WORKDIR /home/ada",
}


@pytest.fixture(scope="module")
def hub_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a bare environment in which pip has installed what the page says."""
    folder = tmp_path_factory.mktemp("hub")
    build_wheels(folder, ["api", "spawner"])
    *_, command = printed("")
    patterns = [
        Path(argument).name for argument in command.split()[2:]
    ]  # the wheels, in ./lab dist's folder
    wheels = [str(wheel) for pattern in patterns for wheel in folder.glob(pattern)]
    assert len(wheels) == len(patterns) == 2
    return bare_environment(folder / "env", *pins(folder), *wheels)


@pytest.fixture(params=IMAGES)
def home(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def image(engine: docker.DockerClient, student_image: str, home: str) -> Iterator[str]:
    """An image whose home is there."""
    name = f"miglab-test:{uuid.uuid4().hex[:8]}"
    recipe = f"FROM {student_image}\nLABEL home={home}\n{IMAGES[home]}\n"
    engine.images.build(fileobj=io.BytesIO(recipe.encode()), tag=name, pull=False, forcerm=True)
    yield name
    engine.images.remove(name, force=True)


@pytest.fixture
def user(engine: docker.DockerClient) -> Iterator[str]:
    """A student with an empty volume, from before; nothing of theirs is left on the engine."""
    name = f"t{uuid.uuid4().hex[:8]}"
    engine.volumes.create(f"miglab-home-{name}")
    yield name
    for container in engine.containers.list(all=True, filters={"name": name}):
        container.remove(force=True, v=True)
    for volume in engine.volumes.list(filters={"name": name}):
        volume.remove(force=True)


@pytest.fixture
def network(engine: docker.DockerClient) -> Iterator[None]:
    """The page's network; removed after the student's containers."""
    for left_over in engine.networks.list(names=[NETWORK]):  # of a run that was broken off
        left_over.remove()
    command, *_ = printed("")
    subprocess.run(shlex.split(command), check=True, stdout=subprocess.DEVNULL)
    yield
    engine.networks.get(NETWORK).remove()


@pytest.fixture
def replaced(tmp_path: Path, image: str) -> dict[str, str]:
    """What a test must have otherwise than the page."""
    port = free_ports()
    return {
        "/srv/miglab": str(tmp_path),
        "port = 8000": f"port = {port}",
        "8002": str(port + 2),
        "8003": str(port + 3),
        "8004": str(port + 4),
        'uuids = ["GPU-…"]': 'simulate = ["A100-40GB", "A100-40GB"]',
        '"miglab-student"': f'"{image}"',
    }


@pytest.fixture
def settings(tmp_path: Path, replaced: dict[str, str]) -> Settings:
    """The page's lab.toml; its simulated GPUs are known to the engine."""
    [toml] = printed("toml")
    file = tmp_path / "lab.toml"
    file.write_text(as_here(toml, replaced), encoding="utf-8")
    settings = load(file, {})
    assert engine_script("simulate", str(settings.simulated_state)).returncode == 0
    return settings


@pytest.fixture
def pool(settings: Settings, replaced: dict[str, str], network: None) -> Iterator[None]:
    """The page's pool service."""
    _, commands, _ = printed("")
    *_, command = as_here(commands, replaced).splitlines()
    with running(settings.folder / "pool.log", sys.executable, *shlex.split(command)[1:]):
        wait_for(lambda: answers(f"{settings.pool_url}/api/health"), "the pool")
        yield


@pytest.fixture
def url(
    settings: Settings, replaced: dict[str, str], hub_python: Path, pool: None
) -> Iterator[str]:
    """The page's hub."""
    url = f"http://127.0.0.1:{settings.lab.port}"
    hub_config = HUB.format(
        port=settings.lab.port,
        port_of_proxy=settings.proxy_port,
        proxy=str(PROXY),
        password=PASSWORD,
    )
    [printed_config] = printed("python")
    config = settings.folder / "jupyterhub_config.py"
    config.write_text(hub_config + as_here(printed_config, replaced), encoding="utf-8")
    with running(settings.folder / "hub.log", hub_python, "-I", "-m", "jupyterhub", "-f", config):
        wait_for(lambda: answers(f"{url}/hub/health"), "the hub")
        yield url


@pytest.fixture
def student(url: str, user: str) -> Iterator[Student]:
    """The student's browser."""
    with closing(Student(url, user, PASSWORD)) as student:
        yield student


def test_a_home_outlives_the_lease(
    engine: docker.DockerClient, settings: Settings, student: Student, home: str
) -> None:
    """A student's file is there in the next server, wherever the image has its home."""
    student.sign_in()
    student.ask("1g.5gb")
    student.wait_until_ready()
    (lease,) = leases(settings)
    first = container_of(engine, lease)
    assert says(first, 'cd; pwd; echo mine > work.txt; env | grep "^MIGLAB_API="') == (
        f"{home}\nMIGLAB_API=http://172.16.77.1:{settings.student_port}\n"
    )
    ask(settings, "POST", f"leases/{lease.id}/release", reason="the lesson is over")
    wait_for(lambda: not leases(settings), "the slice to be released")
    wait_for(student.has_no_server, "the server to be gone")
    student.ask("1g.5gb")
    student.wait_until_ready()
    (lease,) = leases(settings)
    assert says(container_of(engine, lease), "cd; cat work.txt; ls -d notebooks") == (
        "mine\nnotebooks\n"
    )
    student.leave()


def container_of(engine: docker.DockerClient, lease: LeaseView) -> Container:
    return engine.containers.get((lease.holder or "").removeprefix("container:"))


def says(container: Container, command: str) -> str:
    """What a shell of the container's user prints."""
    _, printed = container.exec_run(["sh", "-c", command])
    return str(printed.decode())


def leases(settings: Settings) -> list[LeaseView]:
    return [LeaseView.model_validate(lease) for lease in ask(settings, "GET", "leases").json()]


def ask(settings: Settings, method: str, path: str, **body: object) -> httpx.Response:
    """The pool's answer to its operator."""
    headers = {"Authorization": f"Bearer {lab_secrets.read(settings.pool_secret)}"}
    url = f"{settings.pool_url}/api/{path}"
    options = {"headers": headers, "trust_env": False, "timeout": STEP_S}
    answer = httpx.request(method, url, json=body or None, **options)
    return answer.raise_for_status()
