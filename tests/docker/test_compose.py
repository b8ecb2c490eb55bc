"""The production lab: proxy, hub and pool as containers, from the compose file, simulated GPUs."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import docker
from miglab_bench.harness.ports import free_ports

pytestmark = [pytest.mark.docker, pytest.mark.long]

REPOSITORY = Path(__file__).parents[2]
COMPOSE = REPOSITORY / "images" / "compose.yaml"
PROJECT = "miglab-compose-test"
READY_S = 180
SPAWN_S = 120


def compose_program() -> list[str]:
    """Docker's compose, as a plugin or as a program of its own."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
    if plugin.returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if "docker" in os.environ.get("LAB_REQUIRE", "").split(","):
        pytest.fail("no compose: apt-get install --no-install-recommends docker-compose")
    pytest.skip("no compose: apt-get install --no-install-recommends docker-compose")


DOMAIN = "lab.test"


class Here(httpx.HTTPTransport):
    """Finds the lab's hosts on this machine, without a name server."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Ask this machine, in the name of the host."""
        url = request.url.copy_with(host="127.0.0.1")
        extensions = {**request.extensions, "sni_hostname": request.url.host}
        return super().handle_request(
            httpx.Request(
                request.method,
                url,
                headers=request.headers,  # Host is among them
                stream=request.stream,
                extensions=extensions,
            )
        )


class ComposeLab:
    """The lab of the compose file, with a certificate of the test's own."""

    def __init__(self, folder: Path, program: list[str], **settings: str) -> None:
        self.folder = folder
        self.port = free_ports(1)
        self._program = program
        self._environment = {
            **os.environ,
            "MIGLAB_TOML": str(folder / "lab.toml"),
            "MIGLAB_TLS": str(folder / "tls"),
            "MIGLAB_LISTEN": f"127.0.0.1:{self.port}",
        }
        text = (REPOSITORY / "images" / "lab.toml").read_text()
        own = {
            "subdomain_host": f'"https://{DOMAIN}:{self.port}"',
            "class": '"shared-password"\nanyone_can_be_any_student = true',
        }
        for key, value in (own | settings).items():
            text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        (folder / "lab.toml").write_text(text)
        make_certificate(folder / "tls")

    def do(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run compose on the lab."""
        command = [*self._program, "-p", PROJECT, "-f", str(COMPOSE), *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True)

    def inside(self, *command: str) -> str:
        """What a program in the pool's container prints."""
        done = subprocess.run(
            ["docker", "exec", "miglab-pool", *command], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def make_certificate(folder: Path) -> None:
    """A self-signed certificate for localhost."""
    folder.mkdir()
    key, certificate = folder / "privkey.pem", folder / "fullchain.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def lab(
    engine: docker.DockerClient, student_image: str, hub_image: str, tmp_path: Path
) -> Iterator[ComposeLab]:
    """The lab, up; nothing of it is left after the test."""
    made = ComposeLab(tmp_path, compose_program())
    try:
        up = made.do("up", "-d")
        assert up.returncode == 0, up.stdout + up.stderr
        yield made
    finally:
        print(made.do("logs", "--tail", "60").stdout)
        remove_servers(engine)
        made.do("down", "-v")


def remove_servers(engine: docker.DockerClient) -> None:
    """Remove students' servers, their networks and their homes."""
    for container in engine.containers.list(all=True, filters={"name": "miglab-student-ada"}):
        container.remove(force=True)
    for network in engine.networks.list(names="miglab-student-ada"):
        for container in engine.api.inspect_network(network.id)["Containers"]:
            network.disconnect(container, force=True)
        network.remove()
    for volume in engine.volumes.list(filters={"name": "miglab-home-ada"}):
        volume.remove()


class HeadlessStudent:
    """A browser without a screen."""

    def __init__(self, port: int) -> None:
        self.http = httpx.Client(
            base_url=f"https://{DOMAIN}:{port}",
            transport=Here(verify=False),
            follow_redirects=True,
            timeout=60,
        )
        self.pool = f"https://pool--service.{DOMAIN}:{port}/services/pool"

    def log_in(self, name: str, password: str) -> None:
        """Through the login form."""
        page = self.http.get("/hub/login")
        data = {"username": name, "password": password, "_xsrf": self.http.cookies["_xsrf"]}
        page = self.http.post("/hub/login", params={"next": "/hub/home"}, data=data)
        assert page.status_code == 200, page.text

    def call(self, method: str, path: str, **options: object) -> httpx.Response:
        """Call the hub's API with the cookie of the login."""
        xsrf = next(
            c.value for c in self.http.cookies.jar if c.name == "_xsrf" and c.path == "/hub/"
        )
        headers = {"X-XSRFToken": str(xsrf), "Referer": str(self.http.base_url) + "/hub/home"}
        return self.http.request(method, f"/hub/api{path}", headers=headers, **options)  # type: ignore[arg-type]


def wait_until(said: str, answers, limit_s: float) -> None:
    """Ask until it says so."""
    end = time.monotonic() + limit_s
    while not answers():
        assert time.monotonic() < end, f"not {said} within {limit_s:g} s"
        time.sleep(0.5)


def is_up(student: HeadlessStudent) -> bool:
    """Whether hub and pool answer through the proxy."""
    try:
        pages = ("/hub/health", f"{student.pool}/api/health")
        return all(student.http.get(page).status_code == 200 for page in pages)
    except httpx.TransportError:
        return False


def test_a_student_gets_a_slice_over_https(lab: ComposeLab, engine: docker.DockerClient):
    """Log in, ask for 1g.5gb, get a server with one slice, on a network of its own."""
    password = dict(line.split() for line in lab.inside("cat", "passwords").splitlines())["student"]
    folder = engine.api.inspect_volume(f"{PROJECT}_state")["Mountpoint"]
    subprocess.run(
        [str(REPOSITORY / "tests/docker/engine"), "simulate", f"{folder}/gpus"], check=True
    )
    student = HeadlessStudent(lab.port)
    try:
        wait_until("up", lambda: is_up(student), READY_S)
        student.log_in("ada", password)
        asked = student.call("POST", "/users/ada/server", json={"shape": "1g.5gb"})
        assert asked.status_code in (201, 202), asked.text
        wait_until("spawned", lambda: has_server(student), SPAWN_S)
    finally:
        student.http.close()
    check_server(lab, engine)
    check_that_the_pool_ends_what_runs(lab, engine)


def has_server(student: HeadlessStudent) -> bool:
    """Whether the hub calls the server ready."""
    servers = student.call("GET", "/users/ada").json()["servers"]
    return any(server["ready"] for server in servers.values())


def check_server(lab: ComposeLab, engine: docker.DockerClient) -> None:
    """The slice in the container is the ledger's, and only the lab is on its network."""
    [container] = engine.containers.list(filters={"name": "miglab-student-ada"})
    snapshot = json.loads(lab.inside("miglab", "pool", "status", "--json"))
    leased = [part["uuid"] for gpu in snapshot["gpus"] for part in gpu["slices"] if part["lease"]]
    shown = container.exec_run(["nvidia-smi", "-L"]).output.decode()
    assert len(leased) == 1
    assert leased[0] in shown
    [network] = container.attrs["NetworkSettings"]["Networks"]
    there = engine.api.inspect_network(network)["Containers"].values()
    names = {one["Name"] for one in there}
    assert names == {container.name, "miglab-hub", "miglab-pool", "miglab-proxy"}
    for host, port, is_open in (
        ("miglab-hub", 8002, True),
        ("miglab-pool", 8004, True),
        ("miglab-pool", 8003, False),  # management
        ("10.213.0.10", 8003, False),
        ("miglab-proxy", 8001, False),  # the proxy's API
    ):
        words = f"import socket; socket.create_connection(({host!r}, {port}), 3)"
        assert (container.exec_run(["python", "-c", words]).exit_code == 0) is is_open, (host, port)


def check_that_the_pool_ends_what_runs(lab: ComposeLab, engine: docker.DockerClient) -> None:
    """Should the engine forget a container, its processes are in reach from within the pool's."""
    other = engine.containers.run("miglab-base", ["sleep", "infinity"], detach=True)
    try:
        words = "from miglab_api.container_processes import kill_processes_of as kill; "
        words += f"print(kill('container:{other.id}'))"
        assert lab.inside("python", "-c", words) == "True\n"
        assert other.wait(timeout=60)["StatusCode"] == 128 + signal.SIGKILL
    finally:
        other.remove(force=True)


def test_plain_http_off_loopback_is_refused(hub_image: str, tmp_path: Path):
    """Without certificate and without leave, no part starts, and the message says what to set."""
    lab = ComposeLab(tmp_path, [], tls_certificate='""', tls_key='""')
    mount = f"{lab.folder / 'lab.toml'}:/etc/miglab/lab.toml:ro"
    command = ["docker", "run", "--rm", "-v", mount, hub_image, "proxy"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "plain HTTP on 0.0.0.0" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3
