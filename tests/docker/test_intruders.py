"""What a student with a shell tries from inside a real container of a real lab, and what comes.

One lab for the whole module: hub, proxy, pool, engine; its image asks for every GPU, as a careless
one does.  mallory tries, alice is tried on.  What the stand-in for NVIDIA's toolkit cannot show is
named in docs/explanation/security.md.
"""

import json
import re
import signal
import socket
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from docker.models.containers import Container
from tests.in_server import run_in_server
from tests.students import served, signed_in

import docker
from miglab_api.offers import BORROW
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub import egress
from miglab_hub.home_volumes import home_volume
from miglab_spawner.containers import networks

from .conftest import installed

pytestmark = [pytest.mark.docker, pytest.mark.long]

SLICE = "1g.5gb"
PIDS, MEMORY_GIB, SHM_MIB, HOME_MIB = 200, 1, 32, 128
LIMITS = f"""
[limits.default]
memory_gib = {MEMORY_GIB}
cpus = 1
pids = {PIDS}
shm_gib = {SHM_MIB / 1024}
"""
HOSTILE = """..{username}<img src=x onerror=alert(1)>"'$(id) -v"""
METADATA = f"{egress.METADATA}:80"
GREEDY = {"NVIDIA_VISIBLE_DEVICES": "all"}
REPORT = {"kernels": [], "terminals": 0, "browsers": 1}
PRIVILEGED = {"privileged": True, "binds": ["/:/host"]}

CONNECT = """
import json, socket, sys
def answers(where):
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True
print(json.dumps([answers(where) for where in sys.argv[1:]]))
"""
CALL = """
import json, os, sys, urllib.error, urllib.request
headers = {"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"],
           "Content-Type": "application/json"}
def call(method, url, body):
    data = None if body is None else json.dumps(body).encode()
    try:
        return urllib.request.urlopen(
            urllib.request.Request(url, data, headers, method=method), timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([call(*each) for each in json.loads(sys.argv[1])]))
"""
RAW = """
import errno, json, os, socket, stat
def refused(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""
print(json.dumps([refused(act) for act in (
    lambda: os.mknod("/tmp/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(195, 0)),
    lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    lambda: os.chroot("/proc/1/root"),
    lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
)]))
"""
FORKS = """
def forks():
    import os, signal
    children = []
    try:
        while len(children) < 5000:
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)
"""
SHM = """
import os
block, written = bytes(2**20), 0
try:
    with open("/dev/shm/full", "wb", buffering=0) as file:
        while written < 4096 * 2**20:
            written += file.write(block)
except OSError as error:
    print(written >> 20, error.strerror)
os.unlink("/dev/shm/full")
"""
HOARD = """
import os, sys
os.makedirs(os.path.expanduser("~/.hoard/deep"))
with open(os.path.expanduser("~/.hoard/deep/set"), "wb") as file:
    for _ in range(int(sys.argv[1])):
        file.write(os.urandom(2**20))
os.chmod(os.path.expanduser("~/.hoard"), 0)
"""
HOG = "kept = [bytearray(64 * 2**20) for _ in range(64)]"
# Within a measurement: the functions run in the runner, whatever this cell's own server may do.
IN_RUNNER = """
import json
import labkit

def looks(targets):
    import errno, os, socket
    from pathlib import Path
    def answers(where):
        host, _, port = where.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 2).close()
        except OSError:
            return False
        return True
    def writes(folder):
        try:
            Path(folder, "mine").write_text("x")
        except OSError as error:
            return errno.errorcode[error.errno]
        return ""
    environment = "".join(
        Path("/proc", one, "environ").read_text(errors="replace")
        for one in os.listdir("/proc")
        if one.isdigit() and os.access(Path("/proc", one, "environ"), os.R_OK)
    )
    return {
        "links": [name for _, name in socket.if_nameindex()],
        "reached": [where for where in targets if answers(where)],
        "told": [word for word in ("JUPYTERHUB", "TOKEN", "MIGLAB_API=") if word in environment],
        "notes": [str(path) for path in Path("/home").rglob("my-notes.txt")],
        "sockets": [path for path in ("/var/run/docker.sock", "/host") if Path(path).exists()],
        "device": [writes("/dev"), writes("/sys")],
    }

def hog():
    return len([bytearray(64 * 2**20) for _ in range(64)])

from pathlib import Path
Path.home().joinpath("my-notes.txt").write_text("private")
found = labkit.ranks(looks, n=1, targets=TARGETS).values[0]
found["forked"] = labkit.ranks(forks, n=1).values[0]
try:
    found["hogged"] = labkit.ranks(hog, n=1).values[0]
except labkit.errors.LabError as error:
    found["hogged"] = str(error)
print(json.dumps(found))
"""
FLOOD = "dd if=/dev/zero bs=64k count=640 status=none | tr '\\0' 'x' | fold -w 8000 > /proc/1/fd/1"


class Intruder:
    """A program in the container of a student's own server."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.env = dict(line.split("=", 1) for line in container.attrs["Config"]["Env"])

    def python(self, code: str, *arguments: str, user: str = "") -> tuple[int, str]:
        """Exit status and output of code in the container."""
        result = self.container.exec_run(["python3", "-c", code, *arguments], user=user)
        return result.exit_code, result.output.decode()

    def says(self, code: str, *arguments: str, user: str = "") -> Any:
        """What code prints as JSON."""
        status, printed = self.python(code, *arguments, user=user)
        assert status == 0, printed
        return json.loads(printed)

    def reaches(self, *addresses: str) -> list[bool]:
        """Which addresses take a connection."""
        reachable: list[bool] = self.says(CONNECT, *addresses)
        return reachable

    def calls(self, *requests: tuple[str, str, object]) -> list[int]:
        """Status codes of requests with the server's own token."""
        statuses: list[int] = self.says(CALL, json.dumps(requests))
        return statuses

    def hub(self, *requests: tuple[str, str, object]) -> list[int]:
        """The same, of the hub's API."""
        base = self.env["JUPYTERHUB_API_URL"]
        return self.calls(*((method, base + path, body) for method, path, body in requests))

    def pool(self, *requests: tuple[str, str, object]) -> list[int]:
        """The same, of the pool's student listener."""
        base = self.env["MIGLAB_API"]
        return self.calls(
            *((method, f"{base}/api/{path}", body) for method, path, body in requests)
        )

    def address(self) -> tuple[str, str]:
        """IP address and MAC address."""
        [network] = self.container.attrs["NetworkSettings"]["Networks"].values()
        return str(network["IPAddress"]), str(network["MacAddress"])


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient, student_image: str) -> Iterator[str]:
    """The student image, made to ask for every GPU."""
    tag = f"t{uuid.uuid4().hex[:8]}"
    blank = engine.containers.create(student_image)
    blank.commit(f"miglab-test:{tag}", changes="ENV NVIDIA_VISIBLE_DEVICES=all")
    blank.remove()
    yield f"miglab-test:{tag}"
    engine.images.remove(f"miglab-test:{tag}", force=True)


@pytest.fixture(scope="module")
def lab(image: str) -> Iterator[TemporaryLab]:
    """The lab under attack."""
    shapes, home = (SLICE, "cpu"), f"home_gib = {HOME_MIB / 1024}"
    with temporary_lab(
        docker=True, shapes=shapes, lent=(SLICE,), servers=home, more=LIMITS, image=image
    ) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def servers(lab: TemporaryLab) -> Iterator[dict[str, Student]]:
    """mallory and alice with a slice each; one with a hostile name, who asks by API for more."""
    names = ("mallory", "alice", HOSTILE)
    students = {name: signed_in(lab, name) for name in names}
    for name in ("mallory", "alice"):
        students[name].ask(SLICE)
    wishes = {"environment": GREEDY, "env": GREEDY, "extra_host_config": PRIVILEGED}
    assert students[HOSTILE].ask_by_api(shape="cpu", **wishes) in (201, 202)
    for student in students.values():
        student.wait_until_ready()
    yield students
    for student in students.values():
        student.close()


@pytest.fixture(scope="module")
def mallory(engine: docker.DockerClient, lab: TemporaryLab, servers: object) -> Intruder:
    """The intruder."""
    return Intruder(engine.containers.get(f"{lab.settings.lab_id}-mallory"))


@pytest.fixture(scope="module")
def alice(engine: docker.DockerClient, lab: TemporaryLab, servers: object) -> Intruder:
    """Another student."""
    return Intruder(engine.containers.get(f"{lab.settings.lab_id}-alice"))


@pytest.fixture(scope="module")
def hostile(engine: docker.DockerClient, lab: TemporaryLab, servers: object) -> Container:
    """The container of the hostile name."""
    known_names = {f"{lab.settings.lab_id}-{name}" for name in ("mallory", "alice")}
    containers = engine.containers.list(filters={"name": f"^/{lab.settings.lab_id}-"})
    [runner] = [container for container in containers if container.name not in known_names]
    return runner


@pytest.fixture(scope="module")
def ended_token(servers: dict[str, Student], hostile: Container) -> str:
    """The token of a server that has ended."""
    token = Intruder(hostile).env["JUPYTERHUB_API_TOKEN"]
    servers[HOSTILE].leave()
    return token


@pytest.fixture
def outside(lab: TemporaryLab) -> Iterator[httpx.Client]:
    """Somebody on the internet."""
    with httpx.Client(base_url=lab.settings.public_url, trust_env=False, timeout=60) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    """The headers of a request with a stolen token."""
    return {"Authorization": f"token {token}"}


def host_of(engine: docker.DockerClient, lab: TemporaryLab) -> str:
    """The host's address, seen from the containers."""
    return networks.gateway_address(engine.api.inspect_network(lab.settings.network))


def test_other_slices(lab: TemporaryLab, mallory: Intruder, alice: Intruder):
    """The tool lists the own slice alone, though image and student asked for all."""
    mallorys_uuid, alices_uuid = lab.leases()["mallory"].uuids[0], lab.leases()["alice"].uuids[0]
    listing = mallory.container.exec_run("nvidia-smi -L").output.decode()
    assert mallorys_uuid in listing
    assert alices_uuid not in listing
    assert mallory.env["NVIDIA_VISIBLE_DEVICES"] == mallory.env["MIGLAB_SLICES"] == mallorys_uuid
    assert alice.env["NVIDIA_VISIBLE_DEVICES"] == alices_uuid


def test_no_gpu_by_image_or_user(hostile: Container):
    """Without a lease there is none, whatever the image's ENV or the request says."""
    assert Intruder(hostile).env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert hostile.exec_run("which nvidia-smi").exit_code != 0
    host = hostile.attrs["HostConfig"]
    assert not host["Privileged"]
    assert not host["DeviceRequests"]
    assert [mount["Type"] for mount in hostile.attrs["Mounts"]] == ["volume"]


def test_an_image_of_ones_own(lab: TemporaryLab):
    """Only the lab's image starts."""
    with closing(signed_in(lab, "trudy")) as trudy:
        assert trudy.ask_by_api(shape="cpu", image="miglab-base") >= 400
        assert trudy.has_no_server()


def test_devices_and_packets_as_root(mallory: Intruder):
    """Even as root in the container: no device file, no raw packet, no other root, no priority."""
    assert mallory.says(RAW, user="root") == ["EPERM"] * 3 + ["EACCES"]


def test_other_containers(mallory: Intruder, alice: Intruder):
    """Another student's server takes no connection, by either protocol; the own one does."""
    mallorys, theirs = mallory.address(), alice.address()
    assert mallory.reaches(f"{mallorys[0]}:8888", f"{theirs[0]}:8888") == [True, False]
    assert mallory.reaches(f"{link_local(theirs[1])}%eth0:8888") == [False]


def link_local(mac: str) -> str:
    """The IPv6 address that an interface gives itself."""
    octets = [int(part, 16) for part in mac.split(":")]
    octets[0] ^= 2
    address_bytes = bytes((*octets[:3], 0xFF, 0xFE, *octets[3:]))
    return "fe80::" + ":".join(address_bytes[i : i + 2].hex() for i in range(0, 8, 2))


def test_dockers_socket_and_the_labs_files(lab: TemporaryLab, mallory: Intruder):
    """Neither is there; and no engine listens on a port."""
    paths = ("/var/run/docker.sock", "/run/docker.sock", str(lab.settings.state), "/host")
    exit_codes = [mallory.container.exec_run(["test", "-e", path]).exit_code for path in paths]
    assert exit_codes == [1] * len(paths)
    assert [mount["Type"] for mount in mallory.container.attrs["Mounts"]] == ["volume"]


def test_host_services_and_the_pools_management(engine, lab: TemporaryLab, mallory: Intruder):
    """Of this machine only the hub's API and the student listener take connections."""
    host, of = host_of(engine, lab), lab.settings
    closed = (of.lab.port, of.proxy_port, of.pool_port, 2375, 2376)
    open_sign_in_notice = (of.hub_port, of.student_port)
    addresses = [f"{host}:{port}" for port in (*open_sign_in_notice, *closed)]
    assert mallory.reaches(*addresses) == [True] * len(open_sign_in_notice) + [False] * len(closed)


def test_metadata_and_the_network_behind(engine, lab: TemporaryLab, mallory: Intruder):
    """With the rules that doctor prints only the lab is reached, and the lab works on."""
    host, of = host_of(engine, lab), lab.settings
    network = engine.api.inspect_network(of.network)
    subnets = [str(config["Subnet"]) for config in network["IPAM"]["Config"]]
    rules = egress.firewall_rules(subnets, (of.hub_port, of.student_port))
    with socket.create_server((host, 0)) as listener, installed(rules):
        listens = f"{host}:{listener.getsockname()[1]}"
        assert mallory.reaches(listens, METADATA) == [False, False]
        assert mallory.pool(("GET", "server", None)) == [200]
        assert mallory.hub(("GET", "/user", None)) == [200]


def test_the_hubs_api_beyond_own_scopes(mallory: Intruder):
    """A server's token reads itself and its user's name, and does nothing else."""
    requests = (
        ("GET", "/users", None),
        ("GET", "/users/alice", None),
        ("POST", "/users/alice/server", {"shape": "cpu"}),
        ("DELETE", "/users/alice/server", None),
        ("POST", "/users/alice/tokens", {}),
        ("POST", "/users/mallory/tokens", {}),
        ("POST", "/users/admin/tokens", {}),
        ("PATCH", "/users/mallory", {"admin": True}),
        ("POST", "/groups/everyone/users", {"users": ["mallory"]}),
        ("GET", "/services", None),
        ("GET", "/proxy", None),
        ("POST", "/shutdown", {}),
        ("POST", "/miglab/waiting/alice/", {"shape": ""}),
        ("POST", "/miglab/move/alice/", {}),
        ("POST", "/users/alice/activity", {"last_activity": "2026-01-01T00:00:00Z"}),
    )
    statuses = mallory.hub(*requests)
    assert {
        "/".join(ask[:2]): status
        for ask, status in zip(requests, statuses, strict=True)
        if status not in (403, 404)
    } == {}


def test_another_students_server_and_the_pools_pages(outside: httpx.Client, mallory: Intruder):
    """The token of mallory's server, used from anywhere, opens neither."""
    stolen = bearer(mallory.env["JUPYTERHUB_API_TOKEN"])
    assert outside.get("user/mallory/api/status", headers=stolen).status_code == 200
    for method, path in (
        ("GET", "user/alice/api/contents"),
        ("POST", "user/alice/api/kernels"),
        ("GET", "services/pool/api/leases"),
        ("POST", "services/pool/api/leases/1/release"),
        ("POST", "services/pool/api/pool/pause"),
    ):
        assert outside.request(method, path, headers=stolen).status_code in (401, 403), path


def test_forged_reports(lab: TemporaryLab, mallory: Intruder):
    """A report is about the sender's own lease: it names none, and no time that is to come."""
    other = lab.leases()["alice"].id
    assert mallory.pool(
        ("POST", "lease/signals", {"lease": other, "user": "alice"}),
        ("POST", f"leases/{other}/release", {"reason": "mine"}),
        ("POST", f"lease/{other}/release", {"reason": "mine"}),
        ("GET", "server?user=alice", None),
    ) == [422, 404, 404, 200]
    future = {"last_activity": "2099-01-01T00:00:00Z"}
    assert mallory.hub(("POST", "/users/mallory/activity", future)) == [400]
    assert lab.leases()["alice"].state == "running"


def test_replayed_reports(mallory: Intruder, alice: Intruder):
    """One report, sent again and again, is soon not taken; another server's is."""
    replayed = mallory.pool(*[("POST", "lease/signals", REPORT)] * 30)
    assert replayed[0] == 200
    assert replayed[-1] == 429
    assert alice.pool(("POST", "lease/signals", REPORT)) == [200]


def test_expired_tokens(engine, outside: httpx.Client, lab: TemporaryLab, ended_token: str):
    """What a server could do ends with it, at the hub at once."""
    stolen = bearer(ended_token)
    assert outside.get("hub/api/user", headers=stolen).status_code == 403
    url = f"http://{host_of(engine, lab)}:{lab.settings.student_port}/api/server"
    wait_for(lambda: httpx.get(url, headers=stolen).status_code == 401, "401")


def test_a_name_is_not_a_path_or_a_page(lab, hostile: Container, servers, outside):
    """Container and volume are named by letters and digits; pages show the name as text."""
    assert re.fullmatch(r"[a-z0-9-]+", hostile.name)
    [home] = hostile.attrs["Mounts"]
    assert home["Name"] == home_volume(lab.settings, HOSTILE)
    assert re.fullmatch(r"[a-z0-9._-]+", home["Name"])
    assert Path(home["Source"]).parts[-2:] == (home["Name"], "_data")
    assert Intruder(hostile).env["JUPYTERHUB_USER"] == HOSTILE
    page = servers[HOSTILE].page("/hub/spawn")
    assert "&lt;img src=x" in page
    assert "<img src=x" not in re.sub(r"(?s)<script.*?</script>", "", page)  # there it is JSON
    assert "</script" not in HOSTILE  # the hub takes no name with a slash


def test_a_log_flood(mallory: Intruder):
    """Forty megabytes to the server's own output leave three files of ten on the host."""
    assert mallory.container.exec_run(["sh", "-c", FLOOD]).exit_code == 0
    folder = Path(mallory.container.attrs["LogPath"]).parent
    size = sum(file.stat().st_size for file in folder.iterdir() if ".log" in file.name)
    assert 10_000_000 < size < 31_000_000


def test_shared_memory(mallory: Intruder):
    """As much as the shape has."""
    _, printed = mallory.python(SHM)
    assert printed == f"{SHM_MIB} No space left on device\n"


def test_a_fork_bomb(mallory: Intruder, alice: Intruder):
    """It stops at the shape's processes, and the neighbour starts as many as before."""
    status, printed = mallory.python(f"{FORKS}\nprint(forks())")
    assert status == 0
    assert 0 < int(printed) < PIDS
    assert alice.python("print(1)") == (0, "1\n")


def test_memory(mallory: Intruder, alice: Intruder, servers: dict[str, Student]):
    """What takes more than the shape's is ended, alone; the neighbour's server answers."""
    status, _ = mallory.python(HOG)
    assert status == 128 + signal.SIGKILL
    assert alice.pool(("GET", "server", None)) == [200]


def test_a_full_home(lab: TemporaryLab, mallory: Intruder, servers: dict[str, Student]):
    """It gets no slice, its owner reads what to delete, and can: a server without one starts."""
    assert mallory.python(HOARD, str(HOME_MIB)) == (0, "")
    student = servers["mallory"]
    student.leave()
    student.ask_by_api(shape=SLICE)
    sentence = "The largest: .hoard (0.1 GiB)"
    wait_for(lambda: sentence in student.page("/hub/spawn-pending/mallory"), "the refusal")
    assert "mallory" not in lab.leases()
    assert student.ask_by_api(shape="cpu") in (201, 202)
    student.wait_until_ready()


def test_from_within_a_runner(engine, lab: TemporaryLab, alice: Intruder):
    """What measures on a borrowed slice reaches less than its student's server: nothing at all.

    It has no network, no home, no token of the server's, and a server's limits; the neighbour's
    server answers, and the slice goes back.
    """
    host, of = host_of(engine, lab), lab.settings
    targets = [f"{host}:{port}" for port in (of.hub_port, of.student_port, of.lab.port)]
    targets += [METADATA, f"{alice.address()[0]}:8888"]
    with closing(served(lab, "rita", BORROW)) as rita:
        results = run_in_server(lab, "rita", f"TARGETS = {targets}\n{FORKS}\n{IN_RUNNER}")
        assert 0 < results.pop("forked") < PIDS
        assert isinstance(results.pop("hogged"), str)  # refused in a sentence
        assert results == {
            "links": ["lo"],
            "reached": [],
            "told": [],
            "notes": [],
            "sockets": [],
            "device": ["EACCES", results["device"][1]],
        }
        assert results["device"][1] in ("EACCES", "EROFS")
        assert alice.pool(("GET", "server", None)) == [200]
        rita.leave()
    wait_for(lambda: "rita" not in lab.leases(), "the slice of rita to go back")
    remaining = engine.containers.list(all=True, filters={"name": f"^/{of.lab_id}-rita"})
    assert remaining == []
