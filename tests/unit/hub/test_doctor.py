"""`miglab doctor`: what it finds, what to do about it, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import requests
from docker.errors import DockerException
from tests.unit.pool.applications.fakes import slice_view
from typer.testing import CliRunner

from miglab_api.gpus import SliceState
from miglab_api.scopes import POOL_SCOPES
from miglab_hub import cli, engine_findings
from miglab_hub import doctor as diagnosis
from miglab_hub.doctor import (
    examine_disk,
    examine_files,
    examine_gpus,
    examine_hub,
    examine_lab_toml,
)
from miglab_hub.engine_findings import examine_disk_limit, examine_docker
from miglab_hub.service import gpus
from miglab_hub.service.gpus import geometries, make_simulated
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.gpu.simulated.machine import Break, SimulatedMachine
from miglab_pool.gpu.watched import WatchedDriver, open_watched
from miglab_pool.worker.health_findings import Level

from .conftest import HEALTHY, Service, lab_with, pool_of, run


class HubOfDoctor:
    """A hub below a path of its own; answers as it is told."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "": httpx.Response(302, headers={"Location": "/jupyter/hub/"}),
            "hub/api/": {"version": "5.5.4"},
            "hub/api/user": {"kind": "service", "name": "pool", "scopes": list(POOL_SCOPES)},
            "hub/api/miglab/tokens": {"servers": 2, "lacking": []},
        }

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = self.answers[request.url.path.removeprefix("/").removeprefix("jupyter/")]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> HubOfDoctor:
    """The hub that doctor asks."""
    hub = HubOfDoctor()

    def client(token: str) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(hub))

    monkeypatch.setattr(diagnosis, "_hub_client", client)
    return hub


def findings(lab: Path, status: int) -> dict[str, Any]:
    result = CliRunner().invoke(cli.app, ["doctor", "--config", str(lab), "--json"])
    assert result.exit_code == status, result.output
    examination: dict[str, Any] = json.loads(result.stdout)
    assert all(finding["do"] for finding in examination["findings"] if finding["level"] != "ok")
    return examination


def wrong_in(examination: dict[str, Any]) -> list[dict[str, str]]:
    return [finding for finding in examination["findings"] if finding["level"] == "WRONG"]


def test_doctor_finds_nothing(service: Service, lab: Path) -> None:
    """A sound lab: status 0; and neither a command nor doctor leaves its client open."""
    examination = findings(lab, 0)
    assert examination["ok"] and {f["subject"] for f in examination["findings"]} >= {
        "pool",
        "GPU 0",
        "disk",
    }
    run(lab, "status")
    assert [client.is_closed for client in service.clients] == [True, True]


def test_doctor_finds_what_the_pool_shows(service: Service, lab: Path) -> None:
    """Contradictions, and what is set aside, foreign or silent, each with what to do: status 1."""
    service.answers["/invariants"] = ["1: slice 3 has 2 live leases"]
    service.answers["/pool"] = pool_of(
        slice_view(1, 0, state=SliceState.QUARANTINED, reason="in use"),
        slice_view(2, 1, state=SliceState.FOREIGN, reason="not ours"),
        state="unknown",
    )
    examination = findings(lab, 1)
    wrong = {finding["subject"]: finding["do"] for finding in wrong_in(examination)}
    assert wrong.keys() == {"invariant", "GPU 0", "slice 1", "slice 2"}
    assert "miglab pool clear 1" in wrong["slice 1"] and "miglab pool adopt 2" in wrong["slice 2"]


@pytest.mark.parametrize(
    ("health", "problem"),
    [
        ({"is_stuck": True}, "hangs"),
        ({"failing": ["turn"]}, "failed: turn"),
        ({"is_reconciled": False}, "not been compared yet"),
        ({"left_alone": 2}, "left alone: 2"),
        ({"is_other_engine": True}, "another Docker engine"),
        ({"silent_servers": 3}, "nobody knows what they do: 3"),
    ],
)
def test_doctor_finds_rounds_that_fail(
    service: Service, lab: Path, health: dict[str, Any], problem: str
) -> None:
    """A call that hangs, a loop that fails, or a pool that has not looked yet, is a finding."""
    service.answers["/health"] = HEALTHY | health
    assert problem in wrong_in(findings(lab, 1))[0]["found"]


def test_doctor_says_what_to_do_about_a_lost_gpu(
    service: Service, lab: Path, settings: Settings
) -> None:
    """Not that lab.toml is wrong: the driver's log, and a reset; so too where the pool says it."""
    service.answers["/pool"] = pool_of(state="lost")
    machine = SimulatedMachine(settings.simulated_state or lab)
    machine.break_gpu(Break.LOST, machine.state().gpus[0].uuid)
    wrong = wrong_in(findings(lab, 1))
    assert len(wrong) == 2
    assert all("Xid" in finding["do"] and "reset" in finding["do"] for finding in wrong)


def test_a_changed_lab_toml_is_noticed(lab: Path) -> None:
    """The Health page says that the lab does not run by it yet; back as it was, all is well."""
    at_start = lab.read_bytes()
    lab.write_bytes(at_start + b"# more")
    changed = examine_lab_toml(lab, at_start)
    assert changed.is_wrong and "has changed since" in changed.observation
    lab.write_bytes(at_start)
    assert not examine_lab_toml(lab, at_start).is_wrong
    lab.unlink()
    assert examine_lab_toml(lab, at_start).is_wrong


def test_doctor_without_a_running_pool(lab: Path) -> None:
    """A pool that does not answer is a finding, not a crash."""
    assert [finding["subject"] for finding in wrong_in(findings(lab, 1))] == ["pool"]


def test_a_hub_below_a_path_of_its_own(settings: Settings, hub: HubOfDoctor) -> None:
    """Its path is its own word, whatever lab.toml says; it has nothing to be mended."""
    hub_findings = list(examine_hub(settings))
    assert not [finding for finding in hub_findings if finding.is_wrong]
    assert hub_findings[0].observation == f"JupyterHub 5.5.4 at {settings.hub_url}/jupyter/"


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("", httpx.Response(200, text="<h1>nginx</h1>"), "was answered with HTTP 200, '<h1>nginx"),
        ("", httpx.ConnectError("refused"), "does not answer: refused"),
        ("hub/api/user", httpx.Response(403, json={"status": 403, "message": "No"}), "token: No"),
        ("hub/api/user", {"scopes": list(POOL_SCOPES[1:])}, "lacks read:servers"),
        (
            "hub/api/miglab/tokens",
            {"servers": 3, "lacking": ["ada/", "bo/gpu"]},
            "2 of 3 servers lack the scope custom:miglab:lease!server, so the pool refuses their "
            "reports: ada/, bo/gpu",
        ),
        (
            "hub/api/miglab/tokens",
            httpx.Response(404, json={"status": 404, "message": "Not Found"}),
            "unknown: Not Found",
        ),
    ],
)
def test_what_is_wrong_with_the_hub(
    settings: Settings, hub: HubOfDoctor, path: str, answer: Any, problem: str
) -> None:
    """What was asked and what came, or the scope that is missing; and what to do."""
    hub.answers[path] = answer
    (finding,) = [finding for finding in examine_hub(settings) if finding.is_wrong]
    assert problem in finding.observation and finding.remedy


def test_an_open_secret_is_found(settings: Settings) -> None:
    """Others can read a secret: a finding."""
    settings.pool_secret.chmod(0o644)
    (wrong,) = [finding for finding in examine_files(settings) if finding.is_wrong]
    assert "mode 644" in wrong.observation


def test_a_full_disk_is_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room is a finding."""
    monkeypatch.setattr(diagnosis, "LEAST_FREE_GIB", 1e9)
    (finding,) = examine_disk(settings)
    assert finding.level is Level.WRONG


def test_missing_gpus_are_found(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that lab.toml lists and the driver does not have is a finding."""
    monkeypatch.setattr(Settings, "simulated_state", settings.simulated_state)
    gpus = settings.gpus.model_copy(update={"uuids": ("GPU-not-there",)})
    (finding, *_) = examine_gpus(settings.model_copy(update={"gpus": gpus}))
    assert (
        finding.is_wrong
        and "GPU-not-there" in finding.observation
        and "gpus.uuids" in finding.remedy
    )


@pytest.mark.parametrize("look", [lambda s: list(examine_gpus(s)), geometries])
def test_a_gpu_has_as_long_to_answer_as_in_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[Settings], object]
) -> None:
    """What the pool takes for slow, neither doctor nor the launcher takes for silent."""
    text = 'gpus.answer_s = 17\n[courses.everyone]\nshapes = ["1g.5gb"]\n'
    settings = lab_with(tmp_path, text)
    make_simulated(settings)
    limits: list[float] = []

    def noted(*, limit_s: float, **options: Any) -> WatchedDriver:
        limits.append(limit_s)
        return open_watched(limit_s=limit_s, **options)

    for module in (diagnosis, gpus):
        monkeypatch.setattr(module, "open_watched", noted)
    look(settings)
    assert limits == [17.0]


def test_a_bad_gpu_hides_no_other(tmp_path: Path) -> None:
    """Each is looked at: one that the driver lists no longer, and one with the wrong MIG mode."""
    settings = lab_with(tmp_path, '[courses.everyone]\nshapes = ["1g.5gb"]\n')
    make_simulated(settings)
    machine = SimulatedMachine(settings.simulated_state)
    first, second = machine.state().gpus
    machine.break_gpu(Break.MISSING, first.uuid)
    machine.set_mig(False, second.uuid)
    missing, mode = (finding for finding in examine_gpus(settings) if finding.is_wrong)
    assert first.uuid in missing.observation and "lspci" in missing.remedy
    assert "MIG is off" in mode.observation and f"nvidia-smi -i {second.uuid} -mig 1" in mode.remedy


class FakeEngine:
    """An engine that fails so, when it is called or when it is asked for its version."""

    def __init__(self, container: str = "", silent: Exception | None = None) -> None:
        self.running, self.silent = [{"Id": container}] if container else [], silent

    def version(self) -> dict[str, str]:
        if self.silent:
            raise self.silent
        return {"Version": "28.0.1"}

    def inspect_image(self, image: str) -> None: ...

    def containers(self, filters: dict[str, str], limit: int) -> list[dict[str, str]]:
        assert filters == {"status": "running"}
        return self.running

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("engine", "wrong"),
    [
        (DockerException("connection refused"), {"Docker": "does not answer"}),
        (FakeEngine(silent=requests.ReadTimeout("timed out")), {"Docker": "timed out"}),
        (FakeEngine("ab" * 32), {"processes": "cannot be seen"}),
        (FakeEngine(), {}),
    ],
)
def test_what_is_wrong_with_the_engine_is_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, engine: Any, wrong: dict[str, str]
) -> None:
    """It does not answer, or not in time, or hides what its containers run, as far as one runs."""
    client_class = Mock(side_effect=engine) if isinstance(engine, Exception) else lambda **_: engine
    monkeypatch.setattr(engine_findings.docker, "APIClient", client_class)
    students = settings.servers.model_copy(update={"spawner": "docker"})
    docker_findings = examine_docker(settings.model_copy(update={"servers": students}))
    problems = {
        finding.subject: finding.observation for finding in docker_findings if finding.is_wrong
    }
    assert problems.keys() == wrong.keys()
    assert all(problem in problems[subject] for subject, problem in wrong.items())
    (unused,) = examine_docker(settings)
    assert not unused.is_wrong


@pytest.mark.parametrize(
    ("driver", "backing", "can"),
    [
        ("overlay2", "xfs", True),
        ("zfs", "", True),
        ("overlay2", "extfs", False),
        ("btrfs", "", False),
        ("vfs", "", False),
    ],
)
def test_doctor_says_whether_the_disk_can_be_limited(driver: str, backing: str, can: bool) -> None:
    """By driver and file system, before every start fails."""
    status = [["Backing Filesystem", backing]] if backing else None
    assert examine_disk_limit({"Driver": driver, "DriverStatus": status}).is_wrong is not can
