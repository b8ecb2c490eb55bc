"""The lab's folder, its compose file, and what `miglab production` asks of Docker.

tests/docker asks a real one.
"""

import io
import runpy
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from miglab_hub.checkout import checkout
from miglab_hub.cli import production as room
from miglab_hub.cli.production import Production, init, production
from miglab_hub.errors import StartError

from .conftest import exit_status

FILE = checkout() / "images" / "compose.yaml"
COMPOSE: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
OLD, NEW, BROKEN = "sha256:old", "sha256:new", "sha256:broken"
IN_USE = "miglab-in-use"


class FakeCompose:
    """Docker and compose, as far as they are asked; some images start no hub."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.images = {"miglab-hub": OLD}
        self.volumes = {
            "miglab-home-ada": "miglab",
            "miglab-home-bo": "",  # made by hand, and bo's by the lab's record
            "miglab-home-old": "",
            "miglab-home-page-home-cy": "miglab-home-page",
            "not-miglab-home-cy": "not",
        }
        self.home_names = b'{"ada": "1t2026", "bo": "2t2026"}'
        self.running = ""
        self.fails: dict[str, str] = {}
        self.env: Mapping[str, str] = {}
        self.folder = Path()

    def __call__(self, arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Instead of `subprocess.run`."""
        line = " ".join(arguments)
        if line != "docker compose version":
            self.calls.append(line)
        for part, stderr in self.fails.items():
            if part in line:
                return subprocess.CompletedProcess(arguments, 2, b"", stderr.encode())
        out = self.answer(arguments, line, options).encode()
        if hasattr(options.get("stdout"), "write"):
            options["stdout"].write(out)
        is_changing = "miglab-home-ada:/home:ro" in arguments
        return subprocess.CompletedProcess(
            arguments, int(is_changing), out, b"changed as we read it"
        )

    def answer(self, arguments: list[str], line: str, options: dict[str, Any]) -> str:
        """What it prints."""
        match arguments[1]:
            case "images":
                return self.images.get(arguments[-1].removesuffix(":latest"), "")
            case "tag":
                self.images[arguments[3]] = self.images.get(arguments[2], arguments[2])
            case "rmi":
                del self.images[arguments[-1]]
            case "inspect":
                bad = self.running == BROKEN and arguments[-1] == "miglab-hub"
                return "restarting 3 starting" if bad else "running 0 healthy"
            case "volume" if arguments[2] == "ls":
                return "\n".join(f"{name} {lab}" for name, lab in self.volumes.items())
        if " up -d " in line:
            self.running, self.env = self.images[IN_USE], options["env"]
            self.folder = options["cwd"]
        if line.endswith("backup /backup/lab.tar"):
            (place,) = (w.removesuffix(":/backup") for w in arguments if w.endswith(":/backup"))
            with tarfile.open(Path(place, "lab.tar"), "w") as archive:
                names = tarfile.TarInfo("home-names.json")
                names.size = len(self.home_names)
                archive.addfile(names, io.BytesIO(self.home_names))
        return "home" if "--create" in arguments else ""

    def did(self, *steps: str) -> None:
        """Check that these happened, in this order."""
        calls = iter(self.calls)
        for step in steps:
            assert any(step in call for call in calls), (step, self.calls)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeCompose:
    compose = FakeCompose()
    monkeypatch.setattr(room.subprocess, "run", compose)
    monkeypatch.setattr(room.shutil, "which", lambda name: f"/usr/bin/{name}")
    return compose


@pytest.fixture
def lab(tmp_path: Path, engine: FakeCompose) -> Production:
    """A lab whose operator has chosen how people sign in; it has not been started."""
    init(tmp_path / "lab", simulated=True)
    file = tmp_path / "lab/lab.toml"
    file.write_text(file.read_text().replace('class = ""', 'class = "lti13"'))
    return production(tmp_path / "lab")


@pytest.mark.usefixtures("open_umask")
def test_an_empty_folder_that_was_there_becomes_the_owners(tmp_path: Path) -> None:
    """As a data centre's tools make it: everybody may read it."""
    (tmp_path / "lab").mkdir(mode=0o755)
    init(tmp_path / "lab", simulated=True)
    assert (tmp_path / "lab").stat().st_mode & 0o777 == 0o700


def test_init_makes_a_folder_that_only_its_owner_reads(tmp_path: Path) -> None:
    """With real GPUs the pool gets them, and lab.toml asks which."""
    init(tmp_path / "srv/lab", simulated=False)
    lab = production(tmp_path / "srv/lab")
    assert lab.folder.stat().st_mode & 0o777 == 0o700
    assert {file.name for file in lab.folder.iterdir()} == {
        "lab.toml", ".env", "compose.yaml", "compose.gpu.yaml", "rosters", "tls", "backups",
    }  # fmt: skip
    assert "\nsimulate = [] " in (lab.folder / "lab.toml").read_text()
    assert lab.env["COMPOSE_FILE"] == "compose.yaml:compose.gpu.yaml"
    init(tmp_path / "trial", simulated=True)
    assert production(tmp_path / "trial").env["COMPOSE_FILE"] == "compose.yaml"


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    """Neither a folder with something in it, nor a part of the checkout, becomes a lab."""
    (tmp_path / "mine").touch()
    with pytest.raises(StartError, match="is not empty"):
        init(tmp_path, simulated=True)
    with pytest.raises(StartError, match="outside"):
        init(Path(__file__).parent / "lab", simulated=True)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("command", ["restart", "stop", "upgrade", "backup", "restore"])
def test_without_its_folder_a_command_says_so(
    command: str, tmp_path: Path, engine: FakeCompose, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, what is missing and what makes it; Docker is asked nothing."""
    arguments = [str(tmp_path), *([str(tmp_path)] if command == "restore" else [])]
    assert exit_status("production", command, *arguments) == 2
    stderr = capsys.readouterr().err
    assert ".env or lab.toml is missing" in stderr
    assert f"miglab production init {tmp_path}" in stderr
    assert engine.calls == []


def test_a_folder_that_was_moved_runs_from_its_new_place(
    lab: Production, engine: FakeCompose, tmp_path: Path
) -> None:
    """Neither `.env` nor what compose reads says where the folder, or the checkout, lies."""
    lab.restart()
    moved = lab.folder.rename(tmp_path / "moved")
    engine.calls.clear()
    production(moved).restart()
    assert engine.folder == moved
    engine.did(f"-v {moved}:/etc/miglab:ro", "--force-recreate pool")
    texts = [(moved / name).read_text() for name in (".env", *room.COMPOSE_FILES)]
    assert not [text for text in texts if str(tmp_path) in text or str(checkout()) in text]
    own = {
        mount for service in SERVICES.values() for mount in service["volumes"] if "/etc/" in mount
    }
    assert own == {".:/etc/miglab:ro"}


def test_a_restart_takes_the_checkouts_compose_files(lab: Production, engine: FakeCompose) -> None:
    """After a `git pull`, or in a folder that came from another host without them."""
    (lab.folder / "compose.yaml").write_text("services: {}\n")
    lab.restart()
    assert (lab.folder / "compose.yaml").read_bytes() == FILE.read_bytes()


def test_restart_checks_before_it_touches(lab: Production, engine: FakeCompose) -> None:
    """A lab.toml that is wrong leaves every container as it is."""
    engine.fails["miglab-hub check"] = "lab.toml: no such key"
    with pytest.raises(StartError, match="no such key"):
        lab.restart()
    assert not [call for call in engine.calls if "compose" in call or "tag" in call]
    engine.fails.clear()
    lab.restart()
    engine.did(" check", *(f"--force-recreate {part}" for part in room.PARTS))


def test_restart_takes_no_new_image(lab: Production, engine: FakeCompose) -> None:
    """What was built meanwhile comes by an upgrade; after a first start that failed, at once."""
    engine.images["miglab-hub"] = BROKEN
    with pytest.raises(StartError, match="miglab-hub does not start"):
        lab.restart()
    engine.images["miglab-hub"] = OLD
    lab.restart()
    engine.images["miglab-hub"] = NEW
    lab.restart(["proxy", "hub"])
    assert engine.running == OLD
    lab.upgrade()
    assert engine.running == NEW


def test_compose_is_a_plugin_or_a_program(
    lab: Production, engine: FakeCompose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the folder's .env, whatever the shell had exported; without both it says so."""
    monkeypatch.setenv("COMPOSE_FILE", "/another")
    for program in ("docker compose", "docker-compose"):
        lab.restart()
        assert f"{program} up -d --no-deps --force-recreate pool" in engine.calls
        engine.fails["docker compose version"] = "unknown command"
    assert engine.env["COMPOSE_FILE"] == lab.env["COMPOSE_FILE"]
    monkeypatch.setattr(room.shutil, "which", {"docker": "/usr/bin/docker"}.get)
    with pytest.raises(StartError, match="docker-compose-plugin"):
        lab.stop()


def test_an_upgrade_that_fails_goes_back(lab: Production, engine: FakeCompose) -> None:
    """To the image of before, on the data of before; the message says both."""
    lab.restart()
    assert "in use already" in lab.upgrade()
    engine.images["miglab-hub"] = BROKEN
    engine.calls.clear()
    with pytest.raises(StartError, match=r"(?s)hub does not start.*previous image again.*backups/"):
        lab.upgrade()
    assert (engine.running, engine.images[IN_USE]) == (OLD, OLD)
    up = "--force-recreate hub"
    engine.did("miglab-hub check", "backup /", up, f"tag {OLD}", " stop", "restore /", up)


def test_an_upgrade_without_a_backup_is_none(lab: Production, engine: FakeCompose) -> None:
    """What cannot be saved is left as it is."""
    lab.restart()
    engine.images["miglab-hub"] = NEW
    engine.fails["backup /backup"] = "no space left"
    with pytest.raises(StartError, match="no space left"):
        lab.upgrade()
    assert engine.images[IN_USE] == OLD
    assert list((lab.folder / "backups").iterdir()) == []


def test_a_backup_has_data_settings_and_homes(lab: Production, engine: FakeCompose) -> None:
    """And a home that was written to meanwhile; one that cannot be read makes it none."""
    with pytest.raises(StartError, match="no lab has been started"):
        lab.backup()
    lab.restart()
    (lab.folder / "rosters/vision.csv").write_text("user\nada\n")
    saved = lab.backup()
    files = {str(file.relative_to(saved)) for file in saved.rglob("*") if file.is_file()}
    homes = {"homes/miglab-home-ada.tar", "homes/miglab-home-bo.tar"}
    assert files == {"lab.tar", "lab.toml", ".env", "rosters/vision.csv", *homes}
    assert {file for file in files if (saved / file).read_bytes() == b"home"} == homes
    assert {(saved / home).stat().st_mode & 0o777 for home in homes} == {0o600}
    engine.fails["miglab-home-bo:/home"] = "I/O error"
    with pytest.raises(StartError, match="I/O error"):
        lab.backup()
    assert list((lab.folder / "backups").iterdir()) == [saved]


def test_a_restore_leaves_homes_that_are_there(lab: Production, engine: FakeCompose) -> None:
    """Bo's came after the backup, or was worked in since; the lab runs whatever happens."""
    lab.restart()
    saved = lab.backup()
    del engine.volumes["miglab-home-ada"]
    engine.calls.clear()
    assert lab.restore(saved) == ["miglab-home-ada"]
    up = "--force-recreate hub"
    created = "volume create --label miglab.lab=miglab miglab-home-ada"
    engine.did(" stop", "restore /backup/lab.tar", created, "--extract", up)
    assert not [call for call in engine.calls if "home-bo" in call]
    engine.fails["restore /"] = "is damaged"
    engine.calls.clear()
    with pytest.raises(StartError, match="is damaged"):
        lab.restore(saved)
    engine.did(" stop", "restore /backup/lab.tar", up)
    with pytest.raises(StartError, match=r"no lab\.tar"):
        lab.restore(lab.folder)


def test_a_backup_has_no_other_labs_homes(
    lab: Production, engine: FakeCompose, capsys: pytest.CaptureFixture[str]
) -> None:
    """A volume is a lab's by its label, or without one by the lab's record; others are named."""
    engine.volumes["miglab-home-bo"] = "another"
    lab.restart()
    saved = lab.backup()
    assert [file.stem for file in saved.glob("homes/*")] == ["miglab-home-ada"]
    assert capsys.readouterr().err.splitlines() == [
        'miglab-home-bo is of the lab "another": it is not in the backup',
        "miglab-home-old is without a label, and nobody's home: it is not in the backup",
        'miglab-home-page-home-cy is of the lab "miglab-home-page": it is not in the backup',
    ]


def test_a_restore_leaves_another_labs_home(
    lab: Production, engine: FakeCompose, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the new host its name is taken: nothing is unpacked into it, and that is said."""
    lab.restart()
    saved = lab.backup()
    del engine.volumes["miglab-home-bo"]
    engine.volumes["miglab-home-ada"] = "another"
    engine.calls.clear()
    capsys.readouterr()
    assert lab.restore(saved) == ["miglab-home-bo"]
    assert not [call for call in engine.calls if "home-ada" in call]
    assert 'miglab-home-ada is of the lab "another": it is left alone' in capsys.readouterr().err


def test_a_backup_whose_record_of_homes_is_damaged_is_none(
    lab: Production, engine: FakeCompose
) -> None:
    """Whose the homes without a label are is unknown then."""
    lab.restart()
    engine.home_names = b"{"
    with pytest.raises(StartError, match="does not say whose homes are whose"):
        lab.backup()
    assert list((lab.folder / "backups").iterdir()) == []


def test_the_containers_program_finds_what_it_calls() -> None:
    """It lies outside the packages, where no type checker follows a function's new name."""
    program = runpy.run_path(str(FILE.parent / "hub" / "run.py"), run_name="imported")
    assert program["PREPARE"].keys() == {"pool", "hub", "proxy", "check"}


def test_the_proxy_is_given_its_own_secret_alone() -> None:
    """It faces the internet: no state, no socket, nothing to write to, and no capability."""
    mounts = [mount.rsplit(":", 2) for mount in SERVICES["proxy"]["volumes"]]
    assert {mode for *_, mode in mounts} == {"ro"}
    assert {place for _, place, _ in mounts} == {"/srv/miglab/proxy", "/etc/miglab"}
    assert SERVICES["proxy"]["tmpfs"] == ["/etc/miglab/backups"], "which have all secrets in them"
    assert SERVICES["proxy"]["cap_drop"] == ["ALL"]
    assert SERVICES["proxy"]["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_containers_log_is_bounded(name: str) -> None:
    """Four files of 10 MB each; and none is privileged."""
    logging = SERVICES[name]["logging"]
    assert logging == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "4"}}
    assert "privileged" not in SERVICES[name]


def test_hub_and_pool_do_not_take_the_hosts_memory() -> None:
    """Whoever makes one of them grow ends that one, and no student's server."""
    limits = {name: SERVICES[name].get("mem_limit") for name in ("hub", "pool")}
    assert limits == {"hub": "2g", "pool": "1g"}


@pytest.mark.parametrize("project", ["miglab", "zoo"])
def test_the_labs_own_network_comes_first(project: str) -> None:
    """Docker takes the first in the alphabet for ports and names, whoever is joined to what.

    A student's network before it cut all connections, and no hub found the proxy's API any more.
    """
    name = COMPOSE["networks"]["inside"]["name"].replace("${COMPOSE_PROJECT_NAME}", project)
    assert name < "a-student-ada-net"
