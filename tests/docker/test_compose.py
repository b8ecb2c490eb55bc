"""The production lab: docs/howto/gpu-host.md from the empty folder on, with simulated GPUs.

Commands and lab.toml are the page's, as printed; `REPLACED` says what a test must have otherwise.
"""

import json
import re
import signal
import ssl
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from string import Template

import httpx
import pytest

import docker
from miglab_bench.harness.processes import free_ports
from miglab_bench.harness.student import Student
from miglab_hub.cli.production import production

from .conftest import STAYS

pytestmark = [pytest.mark.docker, pytest.mark.long]

REPOSITORY = Path(__file__).parents[2]
HOWTO = REPOSITORY / "docs" / "howto"
DOMAIN = "lab.test"
REPLACED = {
    "git pull": "",
    "images/build all": "docker build --quiet --tag $image - < $folder/Dockerfile",
    "./lab production init /srv/lab": "./lab production init $place --simulated",
    "certbot certonly": "true",
    "/etc/letsencrypt/live": "$folder/live",
    "cd /opt/miglab": f"cd {REPOSITORY}",
    "/srv/lab": "$place",
    '"https://lab.example.edu"': f'"https://{DOMAIN}:$port"',
    "lab.example.edu": DOMAIN,
    'simulate = []\nuuids = ["GPU-…"]': 'simulate = ["A100-40GB", "A100-40GB"]',
    '"oauthenticator.generic.GenericOAuthenticator"': '"shared-password"',
    "[authentication]": "[accept_risk]\nanyone_can_be_any_student = true\n[authentication]",
    "./notebooks/diary.ipynb": "./diary",
    "/root:/out": "$folder:/out",
    "miglab-in-use": "miglab-test-compose-in-use",
    # of .env; the project comes after the students' networks in the alphabet, as miglab_… does
    "COMPOSE_PROJECT_NAME=miglab": "COMPOSE_PROJECT_NAME=miglab-test-compose",
    "MIGLAB_IMAGE=miglab-hub": "MIGLAB_IMAGE=$image",
    "MIGLAB_LISTEN=443": "MIGLAB_LISTEN=127.0.0.1:$port",
}


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


class ProductionLab:
    """The lab of the pages, with a certificate authority of the test's own."""

    def __init__(self, folder: Path, image: str) -> None:
        self.folder, self.image, self.port = folder, image, free_ports(1)
        self.place = folder / "lab"
        self.recipe()
        self.renew_certificate()

    @property
    def toml(self) -> Path:
        return self.place / "lab.toml"

    def recipe(self, further_toml: str = "") -> None:
        """What the next build of the image is made from; each is another image."""
        text = f"FROM miglab-hub\nLABEL build={uuid.uuid4().hex}\n{further_toml}\n"
        (self.folder / "Dockerfile").write_text(text)

    def renew_certificate(self) -> None:
        """Put new files and links to them where certbot would."""
        live = self.folder / "live" / DOMAIN
        archive = self.folder / "archive" / uuid.uuid4().hex
        archive.mkdir(parents=True)
        live.mkdir(parents=True, exist_ok=True)
        files = ("-keyout", archive / "privkey.pem", "-out", archive / "fullchain.pem")
        request = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
        subprocess.run([*request, "-subj", "/CN=lab", *files], check=True, capture_output=True)
        for file in archive.iterdir():
            (live / file.name).unlink(missing_ok=True)
            (live / file.name).symlink_to(file)

    def replaced(self, text: str) -> str:
        """The page's text, as this test has it."""
        for old, new in REPLACED.items():
            text = text.replace(old, Template(new).substitute(vars(self)))
        return text

    def printed(self, page: str, heading: str, language: str) -> list[str]:
        """The blocks in a language below a heading of a page."""
        text = (HOWTO / f"{page}.md").read_text(encoding="utf-8")
        (section,) = re.findall(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text)
        blocks = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", section)
        return [
            self.replaced(block) for block_language, block in blocks if block_language == language
        ]

    def do(self, commands: str, status: int = 0) -> str:
        """What commands print, in the checkout."""
        process = subprocess.run(
            ["sh", "-exc", commands], cwd=REPOSITORY, capture_output=True, text=True
        )
        print(process.stdout, process.stderr)
        assert process.returncode == status, process.stdout + process.stderr
        return process.stdout if status == 0 else process.stderr

    def inside(self, *command: str) -> str:
        """What a program in the pool's container prints."""
        process = subprocess.run(
            ["docker", "exec", "miglab-pool", *command], capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        return process.stdout

    def write_settings(self, printed: str) -> None:
        """Change in lab.toml what is there, and add what is not, as the page says."""
        text = self.toml.read_text()
        for table, lines in re.findall(r"(?ms)^(\[.*?\])\n(.*?)(?=^\[|\Z)", printed):
            if table not in text:
                text += f"\n{table}\n{lines}"
                continue
            head, tail = text.split(f"{table}\n", 1)
            for line in lines.strip().splitlines():
                key = line.split(" = ")[0]
                tail, count = re.subn(rf"(?m)^{key} = .*$", line, tail, count=1)
                tail = tail if count else f"{line}\n{tail}"
            text = f"{head}{table}\n{tail}"
        self.toml.write_text(text)

    def started_at(self) -> dict[str, str]:
        """When each container was started, by its name."""
        containers = docker.from_env().containers.list(
            filters={"name": "^/miglab-(pool|hub|proxy)$"}
        )
        return {
            container.name or "": container.attrs["State"]["StartedAt"] for container in containers
        }

    def wipe(self, engine: docker.DockerClient) -> None:
        """Remove all of it from the engine, students' servers and homes too."""
        for container in engine.containers.list(all=True, filters={"name": "miglab-student-ada"}):
            container.remove(force=True)
        for network in engine.networks.list(names="miglab-student-ada"):
            for container in engine.api.inspect_network(network.id)["Containers"]:
                network.disconnect(container, force=True)
            network.remove()
        for volume in engine.volumes.list(filters={"name": "miglab-home-ada"}):
            volume.remove()
        if (self.toml.parent / ".env").exists():
            production(self.toml.parent)._compose("down", "--volumes")


@pytest.fixture
def lab(
    engine: docker.DockerClient, student_image: str, hub_image: str, tmp_path: Path
) -> Iterator[ProductionLab]:
    """A lab that is not there yet; nothing of it is left after the test."""
    production_lab = ProductionLab(tmp_path, f"miglab-hub:test-{uuid.uuid4().hex[:8]}")
    try:
        yield production_lab
    finally:
        for part in ("pool", "hub", "proxy"):
            logs = ["docker", "logs", "--tail", "60", f"miglab-{part}"]
            print(subprocess.run(logs, capture_output=True, text=True))
        production_lab.wipe(engine)
        for image in ("miglab-test-compose-in-use", production_lab.image):
            subprocess.run(["docker", "rmi", "--force", image], capture_output=True)


class RemoteStudent(Student):
    """Ada at her own computer."""

    def __init__(self, lab: ProductionLab) -> None:
        self.host = f"https://{{}}{DOMAIN}:{lab.port}"
        password = dict(line.split() for line in lab.inside("cat", "passwords").splitlines())
        super().__init__(self.host.format(""), "ada", password["student"], Here(verify=False))

    def begin(self) -> None:
        """Ask for a server with a slice, and wait as her page does: on one connection to its end.

        The new network must not move the proxy's way out, with which every open connection breaks.
        """
        self.ask("1g.5gb")
        path = "/hub/api/users/ada/server/progress"
        headers = {"X-XSRFToken": self._cookie("_xsrf", path), "Referer": self._url}
        with self._http.stream("GET", self._url + path, headers=headers) as response:
            assert any('"ready": true' in line for line in response.iter_lines())

    def reaches_server(self) -> bool:
        """Whether the proxy leads to her server, on its own host."""
        answer = self._http.get(self.host.format("ada.") + "/user/ada/api")
        return answer.json().keys() == {"version"}

    def is_up(self) -> bool:
        """Whether hub and pool answer through the proxy."""
        pool = self.host.format("pool--service.") + "/services/pool/api/health"
        pages = (f"{self._url}/hub/health", pool)
        return all(self._http.get(page).status_code == 200 for page in pages)


def test_the_page_as_printed(lab: ProductionLab, engine: docker.DockerClient) -> None:
    """From the empty folder to a student's server, and with her through upgrade and restore."""
    page = "gpu-host"
    lab.do(*lab.printed(page, "3. Images and folder", "sh"))
    env = lab.toml.with_name(".env")
    env.write_text(lab.replaced(env.read_text()))
    lab.do(*lab.printed(page, "4. Domain and certificate", "sh"))
    lab.write_settings(*lab.printed(page, "5. lab.toml", "toml"))
    (lab.toml.parent / "rosters/vision.csv").write_text("user,role\nada,\n")
    lab.do(*lab.printed(page, "6. Start", "sh"))
    student = RemoteStudent(lab)
    ada = first_server(lab, engine, student)
    backup, upgrade, back = lab.printed(page, "7. Back up, upgrade", "sh")
    upgrades(lab, engine, student, upgrade, back)
    renewal(lab, student, *lab.printed(page, "4. Domain and certificate", ""))
    changed_settings(lab, student, lab.printed(page, "6. Start", "sh")[0].splitlines()[0])
    assert student.reaches_server()
    assert engine.containers.get(ada).attrs["State"]["Running"]
    saved = backed_up(lab, engine, backup)
    lab.wipe(engine)
    lab.place = lab.place.rename(lab.folder / "moved")
    restore, unpack = lab.printed("keep-and-delete-data", "Restore", "sh")
    lab.do(of_backup(restore, saved))
    restored(lab, engine, student)
    [container] = engine.containers.list(filters={"name": "miglab-student-ada"})
    assert container.exec_run(["sh", "-c", "rm ~/diary"]).exit_code == 0
    lab.do(of_backup(unpack, saved))
    diary = container.exec_run(["sh", "-c", "echo more >> ~/diary && cat ~/diary"])
    assert diary.output == b"mine\nmore\n"
    student.leave()
    (forget,) = lab.printed(
        "keep-and-delete-data", "Show a person what is kept, and delete it", "sh"
    )
    lab.do(forget)
    assert json.loads((lab.folder / "ada.json").read_text())["user"] == "ada"
    assert not engine.volumes.list(filters={"name": "miglab-home-ada"})
    student.close()


def backed_up(lab: ProductionLab, engine: docker.DockerClient, command: str) -> str:
    """The new backup, in which is no home of another lab on the engine."""
    theirs = engine.volumes.create("miglab-home-zoe", labels={"miglab.lab": "another"})
    try:
        saved = lab.do(command).strip()
    finally:
        theirs.remove()
    assert [file.name for file in Path(saved, "homes").iterdir()] == ["miglab-home-ada.tar"]
    return saved


def of_backup(command: str, saved: str) -> str:
    """A printed command, with a backup of this test's."""
    return re.sub(r"backups/\w+", f"backups/{Path(saved).name}", command)


def first_server(lab: ProductionLab, engine: docker.DockerClient, student: RemoteStudent) -> str:
    """Ada, whom the roster puts into the course, gets a slice; her container's id."""
    assert student.is_up(), "restart returns when the lab answers"
    folder = engine.api.inspect_volume("miglab-test-compose_state")["Mountpoint"]
    lab.do(f"tests/docker/engine simulate {folder}/gpus")
    student.sign_in()
    student.begin()
    check_server(lab, engine)
    check_that_the_pool_ends_what_runs(lab, engine)
    [container] = engine.containers.list(filters={"name": "miglab-student-ada"})
    assert container.exec_run(["sh", "-c", "echo mine > ~/diary"]).exit_code == 0
    limits = {n: engine.containers.get(n).attrs["HostConfig"]["Memory"] for n in lab.started_at()}
    assert limits == {"miglab-pool": 2**30, "miglab-hub": 2**31, "miglab-proxy": 0}
    hidden = engine.containers.get("miglab-proxy").exec_run(["ls", "/etc/miglab/backups"])
    assert hidden.output == b""
    return str(container.id)


def upgrades(
    lab: ProductionLab,
    engine: docker.DockerClient,
    student: RemoteStudent,
    command: str,
    back: str,
) -> None:
    """One succeeds with her in place; one fails, and image and data of before are back.

    At last the first one is undone by hand.
    """
    before = engine.images.get("miglab-test-compose-in-use").id
    lab.recipe()
    saved = lab.do(command).strip().rpartition(" ")[2]
    after = engine.images.get("miglab-test-compose-in-use").id
    assert after == engine.images.get(lab.image).id != before
    assert engine.containers.get("miglab-hub").image.id == after
    assert student.reaches_server()
    check_server(lab, engine)
    lab.recipe("RUN rm /opt/lab/jupyterhub_config.py")
    problem = lab.do(command, status=2)
    assert "miglab-hub does not start" in problem
    assert "runs on the previous image again" in problem
    assert engine.containers.get("miglab-hub").image.id == after
    assert student.reaches_server()
    check_server(lab, engine)
    lab.do(of_backup(back, saved))
    assert engine.containers.get("miglab-hub").image.id == engine.images.get("miglab-hub").id
    assert student.reaches_server()
    check_server(lab, engine)


def renewal(lab: ProductionLab, student: RemoteStudent, hook: str) -> None:
    """The printed hook brings a new certificate to the proxy; the pool goes on undisturbed."""
    before = ssl.get_server_certificate(("127.0.0.1", lab.port))
    pool = lab.started_at()["miglab-pool"]
    lab.renew_certificate()
    lab.do(hook)
    now = ssl.get_server_certificate(("127.0.0.1", lab.port))
    assert now != before
    assert now.strip() in (lab.folder / "live" / DOMAIN / "fullchain.pem").read_text()
    assert lab.started_at()["miglab-pool"] == pool
    assert student.reaches_server()


def changed_settings(lab: ProductionLab, student: RemoteStudent, restart: str) -> None:
    """What is wrong is said before anything is restarted; what is right is taken over."""
    before, text = lab.started_at(), lab.toml.read_text()
    lab.toml.write_text(text.replace('"1g.5gb", "cpu"', '"9g.5gb", "cpu"'))
    assert "9g.5gb" in lab.do(restart, status=2)
    assert lab.started_at() == before
    lab.toml.write_text(text.replace("[lab]\n", '[lab]\ntitle = "Changed"\n'))
    lab.do(restart)
    assert "Changed" in student.page("/hub/home")
    assert not lab.started_at().items() & before.items()


def restored(lab: ProductionLab, engine: docker.DockerClient, student: RemoteStudent) -> None:
    """On empty volumes the session, the settings and the file are there; the slice is free."""
    assert student.is_up()
    leases = json.loads(lab.inside("miglab", "pool", "leases", "--json"))
    assert leases == [], "her server is gone"
    student.begin()
    [container] = engine.containers.list(filters={"name": "miglab-student-ada"})
    assert container.exec_run(["sh", "-c", "cat ~/diary"]).output == b"mine\n"
    check_server(lab, engine)


def check_server(lab: ProductionLab, engine: docker.DockerClient) -> None:
    """The slice in the container is the ledger's, and only the lab is on its network."""
    [container] = engine.containers.list(filters={"name": "miglab-student-ada"})
    snapshot = json.loads(lab.inside("miglab", "pool", "status", "--json"))
    leased = [part["uuid"] for gpu in snapshot["gpus"] for part in gpu["slices"] if part["lease"]]
    listing = container.exec_run(["nvidia-smi", "-L"]).output.decode()
    assert len(leased) == 1
    assert leased[0] in listing
    [network] = container.attrs["NetworkSettings"]["Networks"]
    containers = engine.api.inspect_network(network)["Containers"].values()
    names = {container["Name"] for container in containers}
    assert names == {container.name, "miglab-hub", "miglab-pool", "miglab-proxy"}
    for host, port, is_open in (
        ("miglab-hub", 8002, True),
        ("miglab-pool", 8004, True),
        ("miglab-pool", 8003, False),  # management
        ("10.213.0.10", 8003, False),
        ("miglab-proxy", 8001, False),  # the proxy's API
    ):
        code = f"import socket; socket.create_connection(({host!r}, {port}), 3)"
        assert (container.exec_run(["python", "-c", code]).exit_code == 0) is is_open, (host, port)


def check_that_the_pool_ends_what_runs(lab: ProductionLab, engine: docker.DockerClient) -> None:
    """Should the engine forget a container, its processes are in reach from within the pool's."""
    other = engine.containers.run("miglab-base", STAYS, detach=True)
    try:
        code = "from miglab_api.holders import kill_processes_of as kill; "
        code += f"print(kill('container:{other.id}'))"
        assert lab.inside("python", "-c", code) == "True\n"
        assert other.wait(timeout=60)["StatusCode"] == 128 + signal.SIGKILL
    finally:
        other.remove(force=True)


def test_plain_http_off_loopback_is_refused(hub_image: str, tmp_path: Path):
    """Without certificate and without leave, no part starts, and the message says what to set."""
    text = (REPOSITORY / "images" / "lab.toml").read_text()
    text = re.sub("(?m)^(tls_.*?) = .*$", r'\1 = ""', text).replace('class = ""', 'class = "pam"')
    (tmp_path / "lab.toml").write_text(text)
    command = ["docker", "run", "--rm", "-v", f"{tmp_path}:/etc/miglab:ro", hub_image, "check"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 2
    assert "plain HTTP on 0.0.0.0" in process.stderr
    assert len(process.stderr.strip().splitlines()) <= 3
