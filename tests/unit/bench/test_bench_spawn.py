"""`lab bench spawn`: what is printed, where it cannot run, and that both containers are alike."""

import contextlib
import json
from dataclasses import asdict, astuple, replace

import pytest
from traitlets.config import Config
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.harness.processes import free_ports
from miglab_bench.measures import both_spawners, spawn
from miglab_bench.measures.spawn import Round
from miglab_hub import lab_secrets
from miglab_hub.cli import main
from miglab_hub.configure import configure
from miglab_hub.launch import preflight
from miglab_hub.settings.lab_toml import load

EVERYONE = '[courses.everyone]\nshapes = ["1g.5gb"]\n'
DOCKER = 'lab.subdomain_host = "https://lab.test"\nservers.spawner = "docker"\n'
ROUNDS = [Round(1.02, 1.0, 0.5, 1.0), Round(2.06, 2.0, 0.4, 1.0), Round(1.03, 1.0, 0.6, 1.0)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[Round]:
    """A machine that has been measured already."""
    file = tmp_path / "lab.toml"
    file.write_text(EVERYONE)
    rounds = list(ROUNDS)

    async def samples(settings, count: int, *names: list[str]) -> list[tuple[float, ...]]:
        return [astuple(round_) for round_ in rounds]

    monkeypatch.setattr(spawn, "prepared_lab", lambda **_: contextlib.nullcontext(load(file, {})))
    monkeypatch.setattr(spawn, "running_pool", lambda settings: contextlib.nullcontext())
    monkeypatch.setattr(both_spawners, "measure", samples)
    return rounds


def test_json_holds_ratio_interval_and_samples(measured):
    """One object: the median of the rounds' ratios, its interval, and every round."""
    report = json.loads(CliRunner().invoke(app, ["spawn", "--json"]).output)
    assert report["ratio"]["median"] == pytest.approx(1.03)
    assert report["ratio"]["low"] <= 1.03 <= report["ratio"]["high"]
    assert report["bound"] == 1.05
    assert report["stop_ratio"]["median"] == pytest.approx(0.5)
    assert report["at_once"] == 1
    assert report["rounds"] == [asdict(round_) for round_ in ROUNDS]
    assert "3 rounds" in report["how"]
    single_round = CliRunner().invoke(app, ["spawn", "--rounds", "1"])
    assert single_round.exit_code == 2, "there is no interval from one"


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "1.05 holds"), (1.1, "DOES NOT HOLD")])
def test_people_read_whether_the_bound_holds(measured, slower: float, verdict: str):
    """A sentence with the ratio and the verdict."""
    measured[:] = [replace(round_, ours_s=slower * round_.ours_s) for round_ in measured]
    output = " ".join(CliRunner().invoke(app, ["spawn"]).output.split())
    assert f"{slower * 1.03:.3f}" in output
    assert verdict in output


def test_without_an_engine_it_says_so(monkeypatch, tmp_path, capsys):
    """Exit status 2 and one message that names the engine and what to look at; nothing is left."""
    free_ports()  # the file in which ports are reserved is one for all processes, and stays
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["miglab", "bench", "spawn"])
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    def nobody(**_: object) -> None:
        raise preflight.DockerException("connection refused")

    monkeypatch.setattr(preflight.docker, "APIClient", nobody)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "no Docker engine answers" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_both_containers_are_alike(tmp_path):
    """Plain DockerSpawner gets our image, network and volume, is removed, and asks the same way."""
    file = tmp_path / "lab.toml"
    file.write_text(DOCKER + EVERYONE)
    settings = load(file, {})
    lab_secrets.make_all(settings)
    config = Config()
    configure(config, settings)
    traits = both_spawners.plain_traits(config, ("MIG-1",))
    docker_config = config.MIGDockerSpawner
    for name in both_spawners.SAME:
        assert traits[name] == docker_config[name]
    assert traits["remove"] is True
    assert traits["volumes"] == {docker_config.home_volume: both_spawners.HOME}
    (request,) = traits["extra_host_config"]["device_requests"]
    assert request["device_ids"] == ["MIG-1"]
