"""`miglab production`: the lab as three containers, run from a folder of its own.

The folder holds lab.toml, rosters, certificates and backups, the checkout's compose files, and
`.env`, which says which of those are used, and names the image.  Nothing in it says where it lies,
so it can be moved.  Compose is run there, as a plugin or as docker-compose 1.29.  The containers
run on a tag of their own (`IN_USE`), so that an image built meanwhile comes by an upgrade alone.
Students' servers are no part of this: they run on through everything but a restore's lost lease.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from miglab_api.holders import LAB_LABEL
from miglab_hub.checkout import checkout
from miglab_hub.errors import StartError
from miglab_hub.home_volumes import home_prefix, recorded_home_volumes
from miglab_hub.settings.lab_toml import Settings, load

READY_S = 180.0
POLL_S = 1.0
STATE = "{{.State.Status}} {{.RestartCount}} {{.State.Health.Status}}"
VOLUME_AND_LAB = f'{{{{.Name}}}} {{{{.Label "{LAB_LABEL}"}}}}'
UNFINISHED = ".unfinished"
CHANGED_MEANWHILE = 1  # tar's exit status for files that were written to as it read them
COMPOSE_FILES = ("compose.yaml", "compose.gpu.yaml")  # the second for real GPUs
ENV = """\
# What the lab consists of, for `miglab production` and for `docker compose` in this folder.
COMPOSE_PROJECT_NAME=miglab
COMPOSE_FILE={files}
MIGLAB_IMAGE=miglab-hub
MIGLAB_LISTEN=443
"""

app = typer.Typer(
    help="Run the lab in production, as three containers, from a folder of its own.",
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The lab's folder.")]


class LabPart(StrEnum):
    """A container of the lab; the hub, which tells the others their routes, goes with each."""

    POOL = "pool"
    PROXY = "proxy"
    HUB = "hub"


PARTS = tuple(LabPart)  # the pool makes the secrets; the hub joins all to the servers


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new folder, outside the checkout.")
    ],
    simulated: Annotated[
        bool, typer.Option("--simulated", help="For simulated GPUs, on a host without any.")
    ] = False,
) -> None:
    """Make the lab's folder: lab.toml, .env, compose files, rosters, tls and backups."""
    folder = folder.resolve()
    images = checkout().resolve() / "images"
    if folder.is_relative_to(images.parent):
        raise StartError(f"{folder} is in the checkout: name a folder outside, such as /srv/lab")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StartError(f"{folder} is not empty: nothing was changed")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # of one that was there, empty
    for name in ("rosters", "tls", "backups"):
        (folder / name).mkdir(mode=0o700)
    template = (images / "lab.toml").read_text(encoding="utf-8")
    if not simulated:
        template = template.replace('simulate = ["A100-40GB", "A100-40GB"] ', "simulate = []")
    (folder / "lab.toml").write_text(template, encoding="utf-8")
    copy_compose_files(folder)
    files = os.pathsep.join(COMPOSE_FILES[:1] if simulated else COMPOSE_FILES)
    (folder / ".env").write_text(ENV.format(files=files), encoding="utf-8")
    print(f"{folder}: edit lab.toml, put the certificate into tls, then `restart`")


@app.command()
def restart(
    folder: Folder,
    part: Annotated[
        LabPart | None,
        typer.Option(help="Only this container, and the hub: `proxy` takes a new certificate."),
    ] = None,
) -> None:
    """Check lab.toml, then start the lab or start it anew; servers keep running."""
    parts = [name for name in PARTS if part in (None, name) or name == LabPart.HUB]
    production(folder).restart(parts)
    print(f"running: {', '.join(parts)}")


@app.command()
def stop(folder: Folder) -> None:
    """Stop the lab until `restart`; servers keep running, but nobody reaches them."""
    production(folder).stop()
    print("stopped")


@app.command()
def upgrade(folder: Folder) -> None:
    """Take new images over after a backup; if they do not start, go back to both."""
    print(production(folder).upgrade())


@app.command()
def backup(
    folder: Folder,
    homes: Annotated[bool, typer.Option(help="Whether to save the students' homes too.")] = True,
) -> None:
    """Save the lab's data, settings and homes into a new folder in DIR/backups."""
    print(production(folder).backup(homes=homes))


@app.command()
def restore(
    folder: Folder,
    saved: Annotated[Path, typer.Argument(metavar="BACKUP", help="A folder that `backup` made.")],
    new_host: Annotated[
        bool,
        typer.Option(
            "--new-host", help="This is another host or engine than the backup's; free its slices."
        ),
    ] = False,
) -> None:
    """Stop the lab, put a backup in place, and start it; homes that exist are left as they are."""
    homes = production(folder).restore(saved, new_host=new_host)
    print(f"restored {saved}, and {len(homes)} homes that were missing")


class LedgerAct(StrEnum):
    """What can be said of the ledger where a start has refused it."""

    BEGIN = "begin"
    ACCEPT = "accept"


@app.command()
def ledger(
    folder: Folder,
    act: Annotated[
        LedgerAct, typer.Argument(help="Begin with a new one, or accept the one that is there.")
    ],
) -> None:
    """Stop the lab, begin with a new ledger or accept the one that is there, and start it."""
    print(production(folder).settle_ledger(act))


@dataclass(frozen=True)
class Production:
    """A lab that runs from a folder.

    Attributes:
        folder: the folder, absolute.
        env: what its `.env` says.
    """

    folder: Path
    env: dict[str, str]

    @property
    def project(self) -> str:
        """Return compose's project name, which prefixes volumes and networks."""
        return self.env["COMPOSE_PROJECT_NAME"]

    @property
    def new_image(self) -> str:
        """Return the image that an upgrade switches to."""
        return self.env["MIGLAB_IMAGE"]

    @property
    def image_in_use(self) -> str:
        """Return the image that the containers run on."""
        return f"{self.project}-in-use"

    @property
    def settings(self) -> Settings:
        """Return what lab.toml says."""
        return load(self.folder / "lab.toml", running=False)

    def restart(self, parts: Iterable[str] = PARTS) -> None:
        """Check lab.toml, then start the containers, or start them anew.

        Raises:
            StartError: lab.toml is wrong, and nothing was restarted; or a container does not start.
        """
        is_first = self._prepare_image()
        try:
            self._start(parts)
        except StartError:
            if is_first:  # the next try takes what MIGLAB_IMAGE names then
                _docker("rmi", "--force", self.image_in_use)
            raise

    def stop(self) -> None:
        """Stop the containers until the next restart, also over a reboot."""
        self._compose("stop")

    def upgrade(self) -> str:
        """Take the new image over, on a backup; and go back to the old one if it does not start.

        Returns:
            What was done.

        Raises:
            StartError: the lab runs as before.
        """
        old = self._require_image()
        if _image_id(self.new_image) == old:
            return f"{self.new_image} is in use already; `restart` takes a changed lab.toml over"
        self._check_settings(self.new_image)
        saved = self.backup(homes=False)
        _docker("tag", self.new_image, self.image_in_use)
        try:
            self._start()
        except StartError as error:
            _docker("tag", old, self.image_in_use)
            self.stop()
            self._restore_data(saved)
            self._start()
            raise StartError(
                f"{error}\nThe lab runs on the previous image again, with the data of {saved}"
            ) from error
        return f"the lab runs on {self.new_image}; the data of before are in {saved}"

    def backup(self, *, homes: bool = True) -> Path:
        """Save the lab's data, its settings and, unless told otherwise, the students' homes.

        A volume that is only named like a home is left out, and said on stderr.

        Returns:
            A new folder below `backups`; it appears whole or not at all.

        Raises:
            StartError: there is nothing to save, or it could not be saved.
        """
        self._require_image()
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        target = self.folder / "backups" / moment
        unfinished = target.with_suffix(UNFINISHED)
        try:
            unfinished.mkdir(mode=0o700, parents=True)
            self._run_on_data(unfinished, "backup", "/backup/lab.tar")
            for name in ("lab.toml", ".env"):
                shutil.copy(self.folder / name, unfinished)
            shutil.copytree(self.folder / "rosters", unfinished / "rosters")
            for volume in self._lab_homes(unfinished / "lab.tar") if homes else ():
                self._save_home(volume, unfinished / "homes" / f"{volume}.tar")
            unfinished.replace(target)
        except OSError as error:
            raise StartError(f"no backup was made: {error}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return target

    def restore(self, saved: Path, *, new_host: bool = False) -> list[str]:
        """Put a backup in place, and start the lab; homes that are there stay as they are.

        Returns:
            The volumes of the homes that came back.

        Raises:
            StartError: it is no backup, or cannot be put in place.
        """
        saved = saved.resolve()
        if not (saved / "lab.tar").is_file():
            raise StartError(f"{saved} has no lab.tar: name a folder that `backup` has made")
        self._prepare_image()
        self.stop()
        try:
            self._restore_data(saved, *(["--new-host"] if new_host else []))
            missing = self._missing_homes(saved)
            for file in missing:
                self._restore_home(file)
        finally:
            self._start()
        return sorted(file.stem for file in missing)

    def settle_ledger(self, act: LedgerAct) -> str:
        """Run `miglab ledger` while the lab stands still, and start it; returns what was done.

        Raises:
            StartError: it could not be done, and the lab is stopped; or the lab does not start.
        """
        self._prepare_image()
        self.stop()
        report = self._run_on_data(self.folder, "ledger", act.value)
        self._start()
        return report

    # Steps of these.

    def _prepare_image(self) -> bool:
        """Check lab.toml with the image in use; return whether this call has tagged it."""
        is_first = not _image_id(self.image_in_use)
        self._check_settings(self.new_image if is_first else self.image_in_use)
        if is_first:
            _docker("tag", self.new_image, self.image_in_use)
        return is_first

    def _start(self, parts: Iterable[str] = PARTS) -> None:
        copy_compose_files(self.folder)
        for part in parts:  # one by one: compose 1.29 waits for ever for one that does not start
            self._compose("up", "-d", "--no-deps", "--force-recreate", part)
            _wait_until_healthy(f"miglab-{part}")

    def _check_settings(self, image: str) -> None:
        if not _image_id(image):
            raise StartError(f"there is no image {image}: build it with `images/build all`")
        isolated = ("--network", "none", "--cap-drop", "ALL")
        _docker("run", "--rm", *isolated, *self._settings_mount, image, "check")

    def _restore_data(self, saved: Path, *options: str) -> None:
        self._run_on_data(saved, "restore", "/backup/lab.tar", *options)

    def _run_on_data(self, place: Path, *arguments: str) -> str:
        """Run `miglab` on the lab's volumes, which compose makes if they are not there."""
        self._compose("up", "--no-start", "--no-recreate")
        mounts = {f"{self.project}_state": "", f"{self.project}_proxy": "/proxy"}
        volumes = [w for name, at in mounts.items() for w in ("-v", f"{name}:/srv/miglab{at}")]
        mounted = (*volumes, *self._settings_mount, "-v", f"{place}:/backup")
        return _docker(*_run_options("miglab"), *mounted, self.image_in_use, *arguments)

    @property
    def _settings_mount(self) -> tuple[str, str]:
        return "-v", f"{self.folder}:/etc/miglab:ro"

    def _lab_homes(self, archive: Path) -> list[str]:
        """Return the volumes that are this lab's homes: by label, or without one by its record."""
        settings = self.settings
        recorded = recorded_home_volumes(settings, archive)
        homes = []
        for volume, lab in self._lab_of_volumes().items():
            if lab == settings.lab_id or (not lab and volume in recorded):
                homes.append(volume)
            else:
                owner = f'of the lab "{lab}"' if lab else "without a label, and nobody's home"
                print(f"{volume} is {owner}: it is not in the backup", file=sys.stderr)
        return homes

    def _missing_homes(self, saved: Path) -> list[Path]:
        """Return the saved homes that have no volume; another lab's volume is said on stderr."""
        labs, own = self._lab_of_volumes(), self.settings.lab_id
        files = sorted(saved.glob("homes/*.tar"))
        for file in files:
            if (lab := labs.get(file.stem, "")) not in ("", own):
                owner = f'{file.stem} is of the lab "{lab}"'
                print(f"{owner}: it is left alone, and {file} is not unpacked", file=sys.stderr)
        return [file for file in files if file.stem not in labs]

    def _lab_of_volumes(self) -> dict[str, str]:
        """Return the lab on the label of each volume named like a home; empty without a label."""
        prefix = home_prefix(self.settings)
        listing = _docker("volume", "ls", "--filter", f"name={prefix}", "--format", VOLUME_AND_LAB)
        lines = [line.partition(" ") for line in listing.splitlines()]
        return {volume: lab.strip() for volume, _, lab in lines if volume.startswith(prefix)}

    def _save_home(self, volume: str, file: Path) -> None:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        options = ("--create", "--sparse", "--numeric-owner", "--warning=no-file-changed", ".")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            self._tar(f"{volume}:/home:ro", options, also=CHANGED_MEANWHILE, stdout=out)

    def _restore_home(self, file: Path) -> None:
        _docker("volume", "create", "--label", f"{LAB_LABEL}={self.settings.lab_id}", file.stem)
        try:
            with file.open("rb") as packed:
                self._tar(f"{file.stem}:/home", ("--extract", "--numeric-owner"), stdin=packed)
        except StartError:
            _docker("volume", "rm", file.stem)
            raise

    def _tar(self, mount: str, options: Sequence[str], also: int = 0, **streams: IO[bytes]) -> None:
        command = (
            *_run_options("tar"),
            "--interactive",
            "-v",
            mount,
            self.image_in_use,
            "-C",
            "/home",
        )
        _docker(*command, *options, also=also, **streams)

    def _require_image(self) -> str:
        if image_id := _image_id(self.image_in_use):
            return image_id
        raise StartError(f"no lab has been started from {self.folder}: `restart` starts it")

    def _compose(self, *arguments: str) -> None:
        environ = {**os.environ, **self.env}  # a variable of the shell's would win over the file
        _run(*_compose_program(), *arguments, cwd=self.folder, env=environ)


def production(folder: Path) -> Production:
    """Return the lab of a folder.

    Raises:
        StartError: it is none that `init` made.
    """
    folder = folder.resolve()
    file = folder / ".env"
    if not file.is_file() or not (folder / "lab.toml").is_file():
        advice = f"`miglab production init {folder}` makes one"
        raise StartError(
            f"{folder} is no lab's folder, because .env or lab.toml is missing: {advice}"
        )
    lines = file.read_text(encoding="utf-8").splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    for line in ENV.splitlines()[1:]:
        if not env.get(key := line.split("=")[0]):
            raise StartError(f"{file} does not say {key}")
    return Production(folder, env)


def copy_compose_files(folder: Path) -> None:
    """Copy the checkout's compose files into a lab's folder, where their relative paths lead."""
    for name in COMPOSE_FILES:
        shutil.copyfile(checkout() / "images" / name, folder / name)


def _compose_program() -> tuple[str, ...]:
    if not shutil.which("docker"):
        raise StartError("there is no `docker` here: install Docker Engine and its compose plugin")
    if not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    raise StartError("there is no compose here: install docker-compose-plugin, or docker-compose")


def _wait_until_healthy(container: str) -> None:
    """Wait until a container is healthy.

    Raises:
        StartError: it ends, or does not become healthy; the message has the end of its log.
    """
    end = time.monotonic() + READY_S
    while True:
        status, restarts, health = _docker("inspect", "--format", STATE, container).split()
        if (status, restarts, health) == ("running", "0", "healthy"):
            return
        if restarts != "0" or status in ("exited", "dead") or time.monotonic() > end:
            break
        time.sleep(POLL_S)
    log = subprocess.run(
        ["docker", "logs", "--tail", "8", container],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    raise StartError(f"{container} does not start ({status}, {health}):\n{log.stdout.strip()}")


def _run_options(name: str) -> tuple[str, ...]:
    return ("run", "--rm", "--network", "none", "--entrypoint", name)


def _image_id(name: str) -> str:
    """Return the id of an image; empty if there is none."""
    exact = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    return _docker("images", "--quiet", "--no-trunc", exact).strip()


def _docker(*arguments: str, also: int = 0, **options: Any) -> str:
    return _run("docker", *arguments, also=also, **options)


def _run(*command: str, also: int = 0, **options: Any) -> str:
    """Return what a program prints; ``also`` is an exit status accepted beside 0.

    Raises:
        StartError: it is not installed, or fails; with what it said.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, **options}
    try:
        process = subprocess.run(command, stderr=subprocess.PIPE, check=False, **pipes)
    except OSError as error:
        raise StartError(f"{command[0]} cannot be run: {error}") from error
    if process.returncode not in (0, also):
        problem = process.stderr.decode(errors="replace").strip()
        raise StartError(
            problem or f"`{' '.join(command)}` failed with status {process.returncode}"
        )
    return (process.stdout or b"").decode(errors="replace")
