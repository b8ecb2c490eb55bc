"""Gates: hold a Slurm command of the lab, or a server's job, at a named place for a test.

The lab finds these scripts before Slurm's own commands (`MIGLAB_SLURM_PATH`).  Each runs the real
command, and gives its output back only when it may.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from miglab_bench.harness.student import wait_for

COMMANDS = ("sbatch", "scancel", "squeue")
HUB, SERVICE = "hub", "service"
JOB_BEGINS, SERVER_BEGINS = "job-begins", "server-begins"
PAUSE_S = 0.02
_PAUSE = """#!/bin/sh
if [ -e {folder}/$1.closed ]; then
  echo $PPID > {folder}/$1.caller
  mv {folder}/$1.caller {folder}/$1.reached
  while [ -e {folder}/$1.held ]; do sleep {pause_s}; done
fi
"""
_COMMAND = """#!/bin/sh
case "$(tr '\\0' ' ' < /proc/$PPID/cmdline)" in
  *miglab_slurm.service*) caller=service ;;
  *) caller=hub ;;
esac
{folder}/pause $caller-before-{name}
output=$(/usr/bin/{name} "$@")
status=$?
{folder}/pause $caller-after-{name}
printf '%s\\n' "$output"
exit $status
"""
_SERVER = """#!/bin/sh
{folder}/pause {place}
exec "$@"
"""


def before(command: str, caller: str = HUB) -> str:
    """The place at which a command of hub or service has not reached Slurm yet."""
    return f"{caller}-before-{command}"


def after(command: str, caller: str = HUB) -> str:
    """The place at which Slurm has carried a command out, and nobody has its answer yet."""
    return f"{caller}-after-{command}"


class Gates:
    """The gates below a folder; all are open at first.

    Args:
        folder: is made; every job can read it.

    Attributes:
        prologue: holds a job at `JOB_BEGINS`, before anything of the lab runs in it.
        launch: a program that holds the server whose command follows at `SERVER_BEGINS`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.prologue = f"{folder}/pause {JOB_BEGINS}"
        self.launch = str(folder / "server")
        for name, text in self._scripts():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def close(self, place: str) -> None:
        """Hold whatever comes to this place from now on."""
        (self.folder / f"{place}.reached").unlink(missing_ok=True)
        (self.folder / f"{place}.held").touch()
        (self.folder / f"{place}.closed").touch()

    def let_others_pass(self) -> None:
        """Hold nothing that comes from now on; what is held already stays so."""
        for path in self.folder.glob("*.closed"):
            path.unlink()

    def open(self) -> None:
        """Let everything pass."""
        self.let_others_pass()
        for path in self.folder.glob("*.held"):
            path.unlink()

    def drop(self, place: str) -> None:
        """End the command that is held at a place: it never goes on."""
        os.kill(int((self.folder / f"{place}.reached").read_text()), signal.SIGKILL)

    def wait_until_reached(self, place: str) -> None:
        """Wait until something is held at a place."""
        wait_for((self.folder / f"{place}.reached").exists, f"{place} to be reached", pause_s=0.02)

    def _scripts(self) -> Iterator[tuple[str, str]]:
        yield "pause", _PAUSE.format(folder=self.folder, pause_s=PAUSE_S)
        yield "server", _SERVER.format(folder=self.folder, place=SERVER_BEGINS)
        for name in COMMANDS:
            yield name, _COMMAND.format(folder=self.folder, name=name)
