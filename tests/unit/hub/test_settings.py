"""lab.toml: what it says, what follows from it, and what is said about a wrong one."""

import os
import re
from operator import attrgetter
from pathlib import Path
from urllib.parse import urlsplit

import pynvml
import pytest
from jupyterhub.utils import subdomain_hook_idna

from miglab_api.tickets import ATTEND_S
from miglab_bench.harness.processes import free_ports
from miglab_hub.errors import SettingsError, StartError
from miglab_hub.launch import preflight
from miglab_hub.launch.up import probes, proxy_command
from miglab_hub.service.gpus import geometries, make_simulated
from miglab_hub.settings.keys import keys, reference
from miglab_hub.settings.lab_toml import ENV_BRIDGE, ENV_CONFIG, ENV_PORT, load
from miglab_hub.settings.tables import host_of
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.settings import Pool, Reclaim
from miglab_slurm.lab import SlurmSettings

from .conftest import lab_with

ROOT = Path(__file__).parents[3]
COURSE = '[courses.everyone]\nshapes = ["1g.5gb", "cpu"]\n'
SLURM = '[accept_risk]\nstudents_can_act_as_staff = true\n[servers]\nspawner = "slurm"\n'
SITE = (
    SLURM + '[slurm]\npartition = "lab"\n[slurm.shapes."1g.5gb"]\ngres = "gpu:1g.5gb:1"\n'
    "[slurm.shapes.cpu]\n"
)
PUBLIC = (
    '[accept_risk]\nanyone_can_be_any_student = true\n[lab]\nhost = "10.0.0.1"\nplain_http = true\n'
)

WRONG = {
    "unknown table": ("gpu = 1\n" + COURSE, ["unknown key gpu", "gpus"]),
    "unknown key": ("[pool]\nqueue = 1\n" + COURSE, ["unknown key pool.queue", "queue_limit"]),
    "unknown key of a course": (COURSE + "shape = 1\n", ["courses.everyone.shape", "shapes"]),
    "testing that is no table": ("testing = 1\n" + COURSE, ["[testing] holds keys"]),
    "testing of what is no table": ("lab = 3\n" + COURSE + "[testing]\nlab.port = 1\n", ["lab: "]),
    "unknown constant": (COURSE + "[testing]\npool.attaches_s = 1\n", ["pool.attaches_s"]),
    "constant": (COURSE + "[pool]\nattach_s = 2\n", ["pool.attach_s", "leave it out (it is 180)"]),
    "constants of a lab for others": (
        PUBLIC
        + "[testing]\naccept_risk.students_can_read_secrets = true\npool.attach_s = 20\n"
        + COURSE,
        ["[testing] is for tests on this machine alone"],
    ),
    "internal key": ("file = 'x'\n" + COURSE, ["unknown key file"]),
    "no time to answer": ("[gpus]\nanswer_s = 0\n" + COURSE, ["gpus.answer_s", "greater than 0"]),
    "no time to create a slice": (
        "[gpus]\nanswer_s = 30\nchange_s = 20\n" + COURSE,
        ["change_s (20) is less than answer_s (30)", "at least as long"],
    ),
    "the pool's tuning": ("[tuning]\nprobe_s = 1\n" + COURSE, ["unknown key tuning"]),
    "text for a number": ('[lab]\nport = "8000"\n' + COURSE, ["lab.port", "integer", "'8000'"]),
    "number for a flag": ("[reclaim]\nenabled = 1\n" + COURSE, ["reclaim.enabled", "boolean"]),
    "too many GPUs": (f"gpus.simulate = {['A30'] * 257}\n" + COURSE, ["gpus.simulate", "256"]),
    "no such logo": ('[lab]\nlogo = "no.png"\n' + COURSE, ["lab.logo", "no.png"]),
    "port too high": ("[lab]\nport = 65532\n" + COURSE, ["lab.port", "65531"]),
    "negative time": ("[pool]\noffer_s = -1\n" + COURSE, ["pool.offer_s", "greater than 0"]),
    "infinite time": ("[pool]\noffer_s = inf\n" + COURSE, ["pool.offer_s"]),
    "no course": ("", ["courses", "required"]),
    "no shape": ("[courses.everyone]\nshapes = []\n", ["courses.everyone.shapes", "at least 1"]),
    "default not offered": (COURSE + 'default = "7g.40gb"\n', ["courses.everyone", "7g.40gb"]),
    "quota of no course": (
        COURSE + '[quotas.q]\ncourse = "ml"\nmemory_slices = 1\n',
        ["quotas.q.course", "everyone"],
    ),
    "quota of nothing": (COURSE + "[quotas.q]\n", ["quotas.q", "limits nothing"]),
    "shared by one": (
        COURSE + '[quotas.q]\nuser = "ada"\nshared = true\nmemory_slices = 1\n',
        ["quotas.q", "no single user"],
    ),
    "default course missing": ('[courses.ml]\nshapes = ["cpu"]\n', ["default_course", "ml"]),
    "course without a name": ('[courses." "]\nshapes = ["cpu"]\n' + COURSE, ["courses"]),
    "course of another's staff": (
        COURSE + '[courses.everyone-assistants]\nshapes = ["cpu"]\n',
        ["everyone-assistants", 'assistants of "everyone"', "another name"],
    ),
    "GPU of two courses": (
        COURSE + 'gpus = [1]\n[courses.ml]\nshapes = ["cpu"]\ngpus = [0, 1]\n',
        ["courses.ml.gpus", "GPU 1", '"everyone"'],
    ),
    "GPU of one course twice": (COURSE + "gpus = [1, 1]\n", ["courses.everyone.gpus", "same"]),
    "no such GPU": (COURSE + "gpus = [2]\n", ["courses.everyone.gpus", "2", "0 to 1"]),
    "simulated GPU by UUID": (COURSE + 'gpus = ["GPU-1"]\n', ["GPU-1", "index"]),
    "real GPU not listed": (
        '[gpus]\nuuids = ["GPU-1"]\n' + COURSE + 'gpus = ["GPU-2"]\n',
        ["GPU-2", "not among gpus.uuids"],
    ),
    "real GPU by index": (
        '[gpus]\nuuids = ["GPU-1"]\n' + COURSE + "gpus = [0]\n",
        ["courses.everyone.gpus", "UUID"],
    ),
    "no such whole GPU": ("[gpus]\nwhole = [2]\n" + COURSE, ["gpus.whole", "2", "0 to 1"]),
    "real whole GPU not listed": (
        '[gpus]\nuuids = ["GPU-1"]\nwhole = ["GPU-2"]\n' + COURSE,
        ["gpus.whole", "GPU-2", "not among gpus.uuids"],
    ),
    "open HTTP": ('[lab]\nhost = "0.0.0.0"\n' + COURSE, ["plain HTTP on 0.0.0.0", "tls_key"]),
    "half of TLS": ('[lab]\ntls_key = "k.pem"\n' + COURSE, ["tls_certificate and tls_key"]),
    "no GPU": ("[gpus]\nsimulate = []\n" + COURSE, ["there is no GPU", "uuids"]),
    "real and simulated": (
        '[gpus]\nuuids = ["GPU-1"]\nsimulate = ["A30"]\n' + COURSE,
        ["choose one"],
    ),
    "same GPU twice": (
        '[gpus]\nuuids = ["GPU-1", "GPU-1"]\n' + COURSE,
        ["twice"],
    ),
    "unknown spawner": ('[servers]\nspawner = "k8s"\n' + COURSE, ["servers.spawner", "docker"]),
    "Slurm without a shape": (SLURM + COURSE, ["describes no shape", "[slurm.shapes.cpu]"]),
    "unknown key of [slurm]": (
        SLURM + "[slurm]\nqos = 1\n" + COURSE,
        ["unknown key slurm.qos", "partition"],
    ),
    "Slurm shape without gres": (
        SLURM + '[slurm]\npartition = "lab"\n[slurm.shapes."1g.5gb"]\n' + COURSE,
        ['slurm: shape "1g.5gb" names no gres', "gpu:TYPE:COUNT"],
    ),
    "gres without a count": (
        SLURM + '[slurm.shapes."1g.5gb"]\ngres = "gpu:1g.5gb"\n' + COURSE,
        ["slurm.shapes.1g.5gb.gres", "'gpu:1g.5gb'"],
    ),
    "course of a shape that Slurm is not told": (
        SLURM + '[slurm]\npartition = "lab"\n[slurm.shapes.cpu]\n' + COURSE,
        ["courses.everyone.shapes", "1g.5gb", "it has cpu"],
    ),
    "Slurm without a partition": (
        SLURM + "[slurm.shapes.cpu]\n" + COURSE.replace('"1g.5gb", ', ""),
        ["slurm", "partition"],
    ),
    "Slurm partition of two words": (
        SITE.replace('"lab"', '"a b"') + COURSE,
        ["slurm.partition", "'a b'"],
    ),
    "Slurm without cpu": (SITE.replace("[slurm.shapes.cpu]\n", "") + COURSE, ['the shape "cpu"']),
    "quotas on Slurm": (
        SITE + COURSE + "[quotas.q]\nmemory_slices = 1\n[limits.cpu]\ncpus = 1\n",
        ["[quotas] has no effect", "sacctmgr", "[limits] has no effect"],
    ),
    "maintenance on Slurm": (
        SITE + COURSE + '[lab]\nmaintenance = ["tue 06:00-08:00"]\n',
        ["lab.maintenance", "scontrol create reservation"],
    ),
    "Slurm jobs of one account for others": (
        SITE.replace("[slurm]\n", '[slurm]\nrun_as = ""\n')
        + '[lab]\nhost = "10.0.0.1"\nplain_http = true\n[authentication]\nclass = "pam"\n'
        + COURSE,
        ["slurm.run_as", "sudo -u {username}"],
    ),
    "Slurm on one origin": (
        SITE.replace("students_can_act_as_staff = true", "") + COURSE,
        ['servers.spawner = "slurm" needs lab.subdomain_host'],
    ),
    "two faults": ("[lab]\nport = 0\nhots = 1\n" + COURSE, ["key lab.hots", "\n", "lab.port: "]),
    "domain without its scheme": ('lab.subdomain_host = "lab.test"\n' + COURSE, ["subdomain_host"]),
    "domain with a path": (
        'lab.subdomain_host = "https://lab.test/"\n' + COURSE,
        ["subdomain_host"],
    ),
    "domain with a person": (
        'lab.subdomain_host = "https://u:p@lab.edu"\n' + COURSE,
        ["subdomain_host"],
    ),
    "domain of no web page": (
        'lab.subdomain_host = "ftp://lab"\n' + COURSE,
        ["subdomain_host"],
    ),
    "domain off loopback without TLS": (
        '[lab]\nhost = "0.0.0.0"\nplain_http = true\nsubdomain_host = "http://lab.test"\n' + COURSE,
        ["must be https"],
    ),
    "not TOML": ("lab = [", ["not TOML"]),
    "key twice": (COURSE + COURSE, ["not TOML"]),
}


@pytest.mark.parametrize("text, message_parts", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_explained(tmp_path: Path, text: str, message_parts: list[str]) -> None:
    """The message names the file, the key, what is wrong and what is allowed."""
    with pytest.raises(SettingsError) as error:
        lab_with(tmp_path, text)
    for part in (str(tmp_path / "lab.toml"), *message_parts):
        assert part in str(error.value)


def test_the_constants_agree() -> None:
    """A report or a question that is lost makes nobody unknown, and costs no position."""
    report_s = Reclaim().report_s
    assert Pool().attend_grace_s > 2 * max(report_s, ATTEND_S) and Reclaim().stale_s > 2 * report_s


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """One that is not there, and one of other bytes, are one message and no traceback."""
    file = tmp_path / "lab.toml"
    with pytest.raises(SettingsError, match=r"lab\.toml: cannot be read: No such file"):
        load(file, {})
    file.write_bytes("[courses.everyone]\ntitle = 'Übung'".encode("latin-1"))
    with pytest.raises(SettingsError, match="not TOML"):
        load(file, {})


def test_the_embedded_default_is_valid_and_complete() -> None:
    """lab.toml shows every key of its tables, and the value that is taken where it is left out."""
    text = (ROOT / "lab.toml").read_text(encoding="utf-8")
    settings = load(ROOT / "lab.toml", {})
    assert settings.gpus.simulated and settings.servers.spawner == "local"
    slurm_keys = [key for key in keys(SlurmSettings) if not key.startswith("addresses.")]
    assert [key for key in slurm_keys if key.rsplit(".", 1)[1] not in text] == []
    for name in ("lab", "gpus", "servers", "pool", "reclaim", "addresses", "accept_risk"):
        table = getattr(settings, name)
        assert table == type(table)(), name


def test_the_part_on_slurm_can_be_taken_as_it_is_shown(tmp_path: Path) -> None:
    """No key of it is shown twice, which TOML refuses, and each is one that a lab takes."""
    text = (ROOT / "lab.toml").read_text(encoding="utf-8")
    slurm_part = re.sub(r"(?m)^# (?=[\w.\[])", "", text[text.index("# [slurm]") :])
    settings = lab_with(tmp_path, COURSE + slurm_part)
    assert isinstance(settings, SlurmSettings)
    assert settings.slurm.unix_group == "students"


IPV6 = '[lab]\nbase_url = "/ml/"\nhost = "::1"\ntls_key = "k"\ntls_certificate = "c"\n'
FOLLOWS: dict[str, tuple[str, dict[str, str], dict[str, object]]] = {
    "paths start at the file, wherever the command was given": (
        COURSE, {},
        {"ledger": "HERE/.lab/ledger.sqlite", "simulated_state": "HERE/.lab/gpus"},
    ),
    "base URL, TLS and IPv6 are in every address": (
        IPV6 + COURSE, {},
        {"public_url": "https://[::1]:8000/ml/", "service_prefix": "/ml/services/pool"},
    ),
    "what `./lab up` tells hub and pool through the environment takes over": (
        COURSE, {ENV_PORT: "18000", ENV_BRIDGE: "172.18.0.1"},
        {
            "public_url": "http://127.0.0.1:18000/",
            "pool_url": "http://127.0.0.1:18003/services/pool",
            "student_api_url": "http://172.18.0.1:18004",
            "hub_api_url": "http://172.18.0.1:18002/hub/api",
        },
    ),
    "on Slurm no GPU is simulated, and no page says so": (
        SITE + COURSE, {},
        {"slurm_site.partitions": ("lab",), "simulated_state": None, "notices": ()},
    ),
    "the pool reads its tables themselves": (
        "[pool]\nqueue_limit = 3\nlease_s = 0\n" + COURSE, {},
        {"pool.queue_limit": 3, "pool.lease_s": 0.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "environ", "values"), FOLLOWS.values(), ids=FOLLOWS)
def test_what_follows(
    tmp_path: Path, text: str, environ: dict[str, str], values: dict[str, object]
) -> None:
    """Of the file that the environment names, and of what else that says."""
    settings = load(None, {ENV_CONFIG: str(lab_with(tmp_path, text).file), **environ})
    for name, value in values.items():
        assert str(attrgetter(name)(settings)) == str(value).replace("HERE", str(tmp_path))


@pytest.mark.parametrize("text", [SITE + COURSE, SLURM + COURSE])
def test_a_lab_on_slurm_needs_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Where it is not installed, the message says how to install it, and no key is unknown."""
    monkeypatch.setattr("miglab_hub.settings.lab_toml.plugin", lambda *_names: None)
    with pytest.raises(SettingsError, match="pip install miglab-slurm"):
        lab_with(tmp_path, text)


def test_a_running_lab_says_its_port(tmp_path: Path) -> None:
    """After `./lab up --port` the other commands find the lab; a start is not led astray by it."""
    settings = lab_with(tmp_path, COURSE)
    settings.state.mkdir()
    settings.port_file.write_text("18000\n")
    assert load(settings.file, {}).lab.port == 18000
    assert load(settings.file, {ENV_PORT: "19000"}).lab.port == 19000
    assert load(settings.file, {}, running=False).lab.port == 8000
    settings.port_file.write_text("18000 172.18.0.1\n")
    assert load(settings.file, {}).hub_api_url == "http://172.18.0.1:18002/hub/api"
    with pytest.raises(SettingsError, match=r"lab\.port"):
        load(settings.file, {ENV_PORT: "http"})


def test_two_labs_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one lab is told, port and network, is not the next one's: nothing is left behind."""
    monkeypatch.setattr(preflight, "students_bridge", lambda _settings: "127.0.0.2")
    one_origin = "accept_risk.students_can_act_as_staff = true\n"
    file = lab_with(tmp_path, f'{one_origin}servers.spawner = "docker"\n{COURSE}').file
    before, port = dict(os.environ), free_ports()
    settings = preflight.prepare(file, port)
    assert (settings.lab.port, settings.bridge) == (port, "127.0.0.2")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetHandleByPciBusId",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetGpuInstanceProfileInfo",
        "nvmlDeviceGetGpuInstancePossiblePlacements",
        "nvmlDeviceGetNumGpuCores",
    ],
)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST, 4711])
def test_one_gpu_that_refuses_a_call_keeps_no_lab_from_starting(
    tmp_path: Path, function: str, code: int
) -> None:
    """Whatever it refuses, and however: the shapes are not known to be wrong, and it starts."""
    settings = lab_with(tmp_path, COURSE)
    make_simulated(settings)
    machine = SimulatedMachine(settings.simulated_state)
    uuid = machine.state().gpus[0].uuid
    names_no_gpu = function == "nvmlDeviceGetHandleByPciBusId"  # then both GPUs refuse it
    machine.fail_next(function, code, 10**6, None if names_no_gpu else uuid)
    tables = geometries(settings)
    assert tables is None or code == pynvml.NVML_ERROR_GPU_IS_LOST  # its table was read before that
    preflight.check_shapes(settings, tables)
    machine.break_gpu("ok")
    machine.break_gpu("missing", uuid)
    assert geometries(settings) is None
    machine.break_gpu("no-driver")
    with pytest.raises(StartError, match="driver"):
        geometries(settings)


def test_whole_gpus_are_simulated_with_mig_off(tmp_path: Path) -> None:
    """What lab.toml wants, the simulated machine is made with."""
    settings = lab_with(tmp_path, "[gpus]\nwhole = [1]\n" + COURSE)
    make_simulated(settings)
    machine = SimulatedMachine(settings.simulated_state)
    assert [gpu.mig for gpu in machine.state().gpus] == [True, False]


def test_another_accounts_state_folder_is_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instructor's command on the host goes by lab.toml: the folder lets nobody else in."""
    file = lab_with(tmp_path, COURSE).file

    def closed(path: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", closed)
    assert load(file, {}).lab.port == 8000


def test_every_setting_is_in_the_reference() -> None:
    """Each key has its place on the page, and there are no more than a person can read."""
    page = reference(SlurmSettings)
    assert len([key for key in keys(SlurmSettings) if not key.startswith("slurm.")]) <= 85
    assert all(f"\n({key})=\n" in page for key in keys(SlurmSettings))


@pytest.mark.parametrize("origin", ["https://lab.test", "https://lab.test:8443"])
def test_with_domains_everything_has_its_origin(tmp_path: Path, origin: str) -> None:
    """People open the domain, the pool is where JupyterHub puts it, the proxy listens as ever."""
    lab = lab_with(tmp_path, f'[lab]\nsubdomain_host = "{origin}"\n' + COURSE)
    host = urlsplit(origin).hostname or ""
    assert lab.public_url == f"{origin}/" and lab.bind_url == "http://127.0.0.1:8000/"
    pool = urlsplit(lab.service_origin)
    assert pool.hostname == subdomain_hook_idna("pool", host, kind="service")
    assert pool.port == urlsplit(origin).port
    hosts = [ask.headers["Host"] for ask in probes(lab).values()]
    assert hosts == [host_of(origin), host_of(lab.service_origin)]
    assert "--host-routing" in proxy_command(lab)


ANYONE, SECRETS = "anyone_can_be_any_student", "students_can_read_secrets"
RISKS = [
    ('servers.spawner = "docker"\n', "students_can_act_as_staff"),
    ('authentication.class = "pam"\n', "students_can_act_as_staff"),
    *(
        (f"{outside}accept_risk.{accepted} = true\n", risk)
        for outside in (
            'lab = {host = "0.0.0.0", plain_http = true}\n',
            'lab.subdomain_host = "https://lab.example.edu"\n',
        )
        for accepted, risk in ((SECRETS, ANYONE), (ANYONE, SECRETS))
    ),
]


@pytest.mark.parametrize(("text", "risk"), RISKS)
def test_a_risk_is_accepted_by_its_name_alone(tmp_path: Path, text: str, risk: str) -> None:
    """Real students on one origin; one password, and local processes, where others reach them."""
    with pytest.raises(SettingsError, match=f"{risk} = true"):
        lab_with(tmp_path, text + COURSE)
    lab_with(tmp_path, f"accept_risk.{risk} = true\n{text}{COURSE}")


def test_the_production_template_is_unsafe_in_nothing(tmp_path: Path) -> None:
    """As it stands it does not load, and says that a sign-in must be chosen; then it is safe."""
    text = (ROOT / "images" / "lab.toml").read_text(encoding="utf-8")
    with pytest.raises(SettingsError, match="choose how people sign in"):
        lab_with(tmp_path, text)
    lab = lab_with(tmp_path, text.replace('class = ""', 'class = "pam"'))
    assert lab.servers.spawner == "docker" and lab.lab.subdomain_host
    assert not any(lab.accept_risk.model_dump().values())
