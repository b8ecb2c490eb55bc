"""`miglab prove` on simulated GPUs: what it says, what it undoes, what its file does not name."""

import json
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from docker.errors import APIError
from requests import ReadTimeout
from typer.testing import CliRunner

from miglab_hub import cli
from miglab_hub.engine_findings import CDI, examine_engine_settings
from miglab_hub.prove import containers, holders, host, session
from miglab_hub.prove.lines import LINES, CannotTry, LineAnswer, LineVerdict, Quantiles
from miglab_hub.prove.pace import Rounds
from miglab_hub.prove.reading import different_profiles
from miglab_hub.prove.report import Redaction
from miglab_hub.prove.run import check_restored
from miglab_hub.prove.servers import ProofServers, StudentContainer
from miglab_hub.prove.session import Options, prove_lab
from miglab_hub.prove.trial import ContainerSettings, Journal
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.gpu.readings import SliceReading
from miglab_pool.gpu.simulated.geometry import model_geometry
from miglab_pool.gpu.simulated.machine import Break, SimulatedMachine
from miglab_pool.state.proof_record import ProofRecord

DOCS = Path(__file__).parents[3] / "docs"
NAMES = [line.name for line in LINES]
READS = re.compile(
    r"nvml(Init|Shutdown|System|DeviceGet|GpuInstanceGet|ComputeInstanceGet|EventSet|Gpm"
    r"|DeviceRegisterEvents)"
)
"""The NVML functions that change no GPU."""
NEEDS_CUTTING = NAMES[NAMES.index("create-destroy") : NAMES.index("host-program")]
QUICK, PROGRAMS = Options(is_quick=True), Options(is_quick=True, runs_programs=True)


def answers(settings: Settings, options: Options = QUICK) -> dict[str, LineAnswer]:
    """What a run says, by line."""
    printed: list[LineAnswer] = []
    proof = prove_lab(settings, options, printed.append)
    assert [answer.line for answer in proof.report.answers] == NAMES
    assert sorted(answer.line for answer in printed) == sorted(NAMES)
    return {answer.line: answer for answer in printed}


def refused_lines(of: dict[str, LineAnswer]) -> set[str]:
    return {name for name, answer in of.items() if answer.verdict is LineVerdict.NO}


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No container is started on whatever engine this machine has."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")


@pytest.fixture
def machine(settings: Settings) -> SimulatedMachine:
    """The lab's one simulated A100."""
    assert settings.simulated_state is not None
    return SimulatedMachine(settings.simulated_state)


def slices(machine: SimulatedMachine) -> int:
    return sum(len(gpu.instances) for gpu in machine.state().gpus)


# -- a whole run ---------------------------------------------------------------------------------


def test_a_simulated_run_holds_and_names_nobody(tmp_path: Path) -> None:
    """Each line in its order, none a no; no UUID, host or path of the run in the file."""
    out = tmp_path / "proof.json"
    result = CliRunner().invoke(cli.app, ["prove", "--simulated", "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    text = out.read_text()
    report = json.loads(text)
    assert (report["format"], report["kind"]) == (1, "miglab-proof")
    assert [line["line"] for line in report["lines"]] == NAMES
    lines_held = {line["line"] for line in report["lines"] if line["verdict"] == "yes"}
    assert lines_held >= {
        *NEEDS_CUTTING,
        "gpus",
        "geometry",
        "lookup",
        "lookup-at-once",
        "as-it-was",
    }
    assert str(out) in result.output
    assert not re.search(r"GPU-[0-9a-f]{8}|MIG-[0-9a-f]{8}", text)
    assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert str(tmp_path.parent) not in text


def test_figures_are_those_of_the_calls(settings: Settings) -> None:
    """Each part of a create and a destroy has its quantiles, and no part exceeds the whole."""
    figures = answers(settings)["create-destroy"].figures
    for name in ("create_gi", "create_ci", "walk", "total"):
        quantiles = figures[f"create.{name}_ms"]
        assert quantiles.count == 20
        assert 0 <= quantiles.least <= quantiles.median <= quantiles.p90 <= quantiles.greatest
        assert quantiles.greatest <= figures["create.total_ms"].greatest
    assert {"destroy.destroy_gi_ms", "destroy.destroy_ci_ms"} <= figures.keys()


def test_without_mig_nothing_is_cut(settings: Settings, machine: SimulatedMachine) -> None:
    """The lines that need slices say why they could not be tried; no call changes anything."""
    machine.set_mig(False)
    printed: list[LineAnswer] = []
    proof = prove_lab(settings, QUICK, printed.append)
    untried = {a.line: a.result for a in printed if a.verdict is LineVerdict.UNTRIED}
    assert {name: untried[name] for name in NEEDS_CUTTING} == dict.fromkeys(
        NEEDS_CUTTING, "GPU 0: its MIG mode is off"
    )
    assert [name for name in proof.report.calls if not READS.match(name)] == []


def test_read_only_changes_nothing(settings: Settings) -> None:
    """Not a slice, though MIG is on; every NVML function that it calls is one that reads."""
    proof = prove_lab(settings, Options(is_quick=True, is_read_only=True), lambda _: None)
    assert proof.report.is_read_only and proof.report.calls
    assert [name for name in proof.report.calls if not READS.match(name)] == []
    assert not (settings.state / "prove.lock").exists()


def test_a_bare_machine_is_only_read(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lab there is no lock and no record, so nothing may be made."""
    opened = session._open_driver
    monkeypatch.setattr(session, "_open_driver", lambda *_: opened(settings.simulated_state, None))
    proof = session.prove_host(QUICK, lambda _: None)
    assert (proof.report.lab, proof.report.is_read_only) == ("none", True)
    assert [name for name in proof.report.calls if not READS.match(name)] == []


def test_no_program_runs_on_a_gpu_of_a_lab(
    settings: Settings, machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole GPU on which nothing runs may be leased all the same."""
    machine.set_mig(False)
    monkeypatch.setattr(holders, "find_spec", lambda _: True)
    with session._open_driver(settings.simulated_state, None) as driver:
        trial = session._trial(driver, {}, Journal(None, ProofRecord("")), PROGRAMS, None)
        with pytest.raises(CannotTry, match="a host without a lab"):
            next(holders.try_host_program(trial))


# -- what it notices -----------------------------------------------------------------------------


def fails(function: str, code: int, times: int = 1) -> Callable[[SimulatedMachine], None]:
    return lambda machine: machine.fail_next(function, code, times)


FAULTS: dict[str, tuple[Callable[[SimulatedMachine], None], str]] = {
    "no right to cut": (lambda machine: machine.break_gpu(Break.NO_PERMISSION), "create-destroy"),
    "a compute instance that fails": (
        fails("nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
        "create-destroy",
    ),
    "a slice in use": (
        fails("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE),
        "create-destroy",
    ),
    "a fault of the card": (lambda machine: machine.break_gpu(Break.XID, xid=95), "health"),
    "a card that needs a reset": (
        lambda machine: machine.break_gpu(Break.XID, xid=95),
        "recovery-action",
    ),
}


@pytest.mark.parametrize(("hurt", "line"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_a_no(
    settings: Settings,
    machine: SimulatedMachine,
    hurt: Callable[[SimulatedMachine], None],
    line: str,
) -> None:
    """The line that meets it says no; what was half made is undone all the same."""
    hurt(machine)
    by_line = answers(settings)
    assert line in refused_lines(by_line)
    assert by_line["as-it-was"].verdict is LineVerdict.YES
    assert slices(machine) == 0


def test_an_error_of_prove_itself_ends_one_step_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that prove gets wrong could not be tried; the lines behind it are tried."""

    def mistaken(_: str) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("miglab_hub.prove.reading.simulated_geometry", mistaken)
    answer_by_line = answers(settings)
    assert answer_by_line["geometry"].verdict is LineVerdict.UNTRIED
    assert "AttributeError" in answer_by_line["geometry"].result
    assert answer_by_line["create-destroy"].verdict is LineVerdict.YES


def test_what_cannot_be_undone_is_told_and_undone_by_the_next_run(
    settings: Settings, machine: SimulatedMachine
) -> None:
    """A slice that stays in use makes the last line a no; when it is free the next run ends it."""
    machine.fail_next("nvmlGpuInstanceDestroy", pynvml.NVML_ERROR_IN_USE, times=10_000)
    by_line = answers(settings)
    assert "as-it-was" in refused_lines(by_line)
    assert slices(machine) > 0 and (settings.state / "prove.json").exists()
    machine.break_gpu(Break.OK)
    assert refused_lines(answers(settings)) == set()
    assert slices(machine) == 0 and not (settings.state / "prove.json").exists()


def test_slices_that_the_pool_makes_meanwhile_are_no_remnants(
    settings: Settings, machine: SimulatedMachine
) -> None:
    """On a GPU that was not lent; on one that was, a slice more is a no."""
    with session._open_driver(settings.simulated_state, None) as driver:
        (gpu,) = driver.uuids
        trial = session._trial(driver, {}, Journal(None, ProofRecord("")), QUICK, None)
        profile = driver.info(gpu).geometry.by_name["1g.5gb"]
        driver.create(gpu, profile, profile.placements[0])
        barred = replace(trial, barred={gpu: "a lease holds a slice on it"})
        assert check_restored(barred, []).verdict is LineVerdict.YES
        assert check_restored(trial, []).result == "GPU 0: slices more: 1, fewer: 0"


def test_slices_of_others_are_left_alone(settings: Settings, machine: SimulatedMachine) -> None:
    """With the lab down, nobody knows whose a slice is: its GPU is not touched."""
    with session._open_driver(settings.simulated_state, None) as driver:
        (gpu,) = driver.uuids
        profile = driver.info(gpu).geometry.by_name["1g.5gb"]
        driver.create(gpu, profile, profile.placements[0])
    by_line = answers(settings)
    assert by_line["create-destroy"].verdict is LineVerdict.UNTRIED
    assert "start the lab" in by_line["create-destroy"].result
    assert slices(machine) == 1


def test_profiles_that_differ_are_named() -> None:
    """Field by field, and profiles that only one of the two has."""
    small, large = model_geometry("A100-40GB"), model_geometry("A100-80GB")
    assert different_profiles(small, small) == []
    differences = different_profiles(small, large)
    assert "1g.5gb is not simulated" in differences
    assert "1g.20gb is simulated, and the GPU lacks it" in differences
    assert any(part.startswith("1g.10gb: ") for part in differences)


@pytest.mark.parametrize(
    ("version", "folders", "verdict"),
    [
        ("29.2.0", ["/etc/cdi"], LineVerdict.NO),
        ("29.2.0", None, LineVerdict.YES),
        ("28.0.1", ["/etc/cdi"], LineVerdict.YES),
    ],
)
def test_cdi_is_judged_as_doctor_judges_it(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    folders: list[str] | None,
    verdict: LineVerdict,
) -> None:
    """An engine that answers by CDI first is a no where a specification lies."""
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    monkeypatch.setattr(host, "CDI_FOLDERS", (tmp_path,))
    engine = ({"CDISpecDirs": folders}, {"Version": version})
    monkeypatch.setattr(host, "_ask_engine", lambda _: engine)
    with session._open_driver(settings.simulated_state, None) as driver:
        trial = session._trial(driver, {}, Journal(None, ProofRecord("")), QUICK, None)
        trial.servers = ContainerSettings("", "", {})
        (answer,) = host.check_cdi(trial)
    assert answer.verdict is verdict
    is_wrong = any(
        finding.subject == CDI for finding in examine_engine_settings(version, engine[0])
    )
    assert is_wrong == (verdict is LineVerdict.NO)


class RefusingApi:
    """An engine whose start, or exec, comes to this."""

    def __init__(self, start: Exception | None, status: int | None = 0) -> None:
        self._start, self._status = start, status

    def start(self, _: str) -> None:
        if self._start is not None:
            raise self._start

    def exec_create(self, *_: object, **__: object) -> dict[str, str]:
        return {"Id": "exec"}

    def exec_start(self, *_: object) -> bytes:
        return b"No devices found"

    def exec_inspect(self, _: str) -> dict[str, int | None]:
        return {"ExitCode": self._status}

    def remove_container(self, *_: object, **__: object) -> None: ...


@pytest.mark.parametrize(
    ("api", "verdict"),
    [
        (RefusingApi(None), LineVerdict.YES),
        (RefusingApi(APIError("the hook refuses")), LineVerdict.YES),
        (RefusingApi(ReadTimeout("timed out")), LineVerdict.UNTRIED),
        (RefusingApi(None, None), LineVerdict.UNTRIED),
    ],
)
def test_an_engine_that_fails_has_refused_nobody(
    monkeypatch: pytest.MonkeyPatch, api: RefusingApi, verdict: LineVerdict
) -> None:
    """Only its own word, or a list without the slice, says that the slice is kept away."""
    servers = ProofServers.__new__(ProofServers)
    servers.api = api
    container = StudentContainer(api, "container")
    monkeypatch.setattr(servers, "container_without_lease", lambda *_, **__: container)
    profile = model_geometry("A100-40GB").by_name["1g.5gb"]
    reading = SliceReading(UUID, 7, 0, "MIG-1", profile, profile.placements[0])
    assert containers._check_foreign_slice_hidden(servers, reading).verdict is verdict


def test_a_call_may_take_longer_than_in_the_pool(settings: Settings) -> None:
    """Otherwise a slow change would end where the lab's pool goes on waiting."""
    gpus = settings.gpus.model_copy(update={"change_s": 300.0})
    assert session.call_limit_s(settings.model_copy(update={"gpus": gpus})) > 300.0


# -- small parts ---------------------------------------------------------------------------------


def test_quantiles_are_of_the_series() -> None:
    """By the nearest rank: each is a value that was measured."""
    assert Quantiles.from_values([3.0]) == Quantiles(1, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert Quantiles.from_values([float(n) for n in range(10, -1, -1)]) == Quantiles(
        11, 0, 1, 5, 9, 10
    )


def test_rounds_end_in_time() -> None:
    """One is always tried, however short the time."""
    assert list(Rounds(5, 60.0)) == [0, 1, 2, 3, 4]
    assert list(Rounds(5, -1.0)) == [0]


UUID = "GPU-5e0e2a35-1b04-5697-a261-15be7efc2218"
SECRETS = {
    f"Could not open GPU {UUID}": "Could not open GPU GPU 0",
    UUID.replace("5e0e", "0000"): "GPU-…",
    f"MIG-{UUID}/3/0: unknown device": "MIG-…: unknown device",
    f"MIG-{UUID.removeprefix('GPU-')} ": "MIG-… ",
    "container 4f5b8a1c9e21 on gpu7.cs.example.edu": "container ID on NAME",
    "ada@example.edu at 10.1.2.3:5000": "ADDRESS at ADDRESS",
    "pull https://registry.example.edu/x": "pull URL",
    "/srv/lab/state/prove.json": "PATH",
    "/dev/nvidia-caps/nvidia-cap1": "/dev/nvidia-caps/nvidia-cap1",
    "driver 580.159.04": "driver 580.159.04",
    "1g.5gb at {0}:1": "1g.5gb at {0}:1",
    "": "",
}


@pytest.mark.parametrize(("text", "redacted"), SECRETS.items())
def test_what_identifies_a_site_is_replaced(text: str, redacted: str) -> None:
    """In every text, keys included; what says something about the driver stays."""
    redaction = Redaction([UUID], ["gpu7.cs.example.edu"])
    assert redaction.redact({text: [text, 7, None]}) == {redacted: [redacted, 7, None]}


# -- docs ----------------------------------------------------------------------------------------


def section(page: str, heading: str) -> str:
    text = (DOCS / page).read_text()
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_assumption_names_the_line_that_settles_it() -> None:
    """In the page on MIG: one row each, and every line that it names exists."""
    rows = re.findall(
        r"^\| (?!assumed|-)(.+?) \| (.+?) \|$", section("explanation/mig.md", "Assumed"), re.M
    )
    assert len(rows) >= 4
    for assumption, lines in rows:
        names = re.findall(r"`([a-z-]+)`", lines)
        assert names, assumption
        assert set(names) <= set(NAMES), assumption


def test_the_guide_lists_every_line() -> None:
    """In their order, with what each tries in the code's own words."""
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+?) \|", section("howto/prove.md", "The lines"), re.M)
    assert rows == [(line.name, line.tries) for line in LINES]


def test_names_of_lines_are_unique() -> None:
    """A report of one version can be compared with one of another."""
    assert len(set(NAMES)) == len(NAMES)


def test_doctor_points_at_it(tmp_path: Path) -> None:
    """Where the GPUs are real: doctor reads, and says what tries."""
    lab = tmp_path / "lab.toml"
    lab.write_text(
        f'gpus.simulate = []\ngpus.uuids = ["{UUID}"]\ncourses.everyone.shapes = ["1g.5gb"]\n'
    )
    assert "miglab prove" in CliRunner().invoke(cli.app, ["doctor", "--config", str(lab)]).output
