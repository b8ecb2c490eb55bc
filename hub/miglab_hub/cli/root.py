"""The root of the `miglab` command: loads the tool that was asked for, and no other.

What a checkout adds (`bench`, `check`, `test`) comes by the entry points `miglab.commands`.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from miglab_hub import __version__
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import ENV_CONFIG
from miglab_pool.gpu.errors import GpuError
from miglab_pool.state.lock import AlreadyRunning

BAD_INPUT = 2
INTERRUPTED = 130
ADDED = "miglab.commands"
COMMANDS = {
    "up": "miglab_hub.cli.lab",
    "pool": "miglab_hub.cli.pool",
    "production": "miglab_hub.cli.production",
    "sim": "miglab_hub.cli.sim",
    "doctor": "miglab_hub.cli.lab",
    "roster": "miglab_hub.cli.roster",
    "backup": "miglab_hub.cli.lab",
    "restore": "miglab_hub.cli.lab",
    "forget": "miglab_hub.cli.lab",
}
"""Each command, and the module whose ``app`` it is, or one of whose commands."""

Config = Annotated[Path | None, typer.Option(help="The settings file.", envvar=ENV_CONFIG)]


class Commands(TyperGroup):
    """The commands by name; a module is imported when its command runs or its help is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The lab's own commands, then what is added to them."""
        return [name for name, _ in _modules()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None if there is none."""
        module = dict(_modules()).get(cmd_name)
        if module is None:
            return None
        command: Any = typer.main.get_command(import_module(module).app)
        command = getattr(command, "commands", {}).get(cmd_name, command)
        command.name = cmd_name
        return command


def _modules() -> Iterator[tuple[str, str]]:
    yield from COMMANDS.items()
    yield from sorted((point.name, point.module) for point in entry_points(group=ADDED))


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def miglab(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say which miglab this is."
        ),
    ] = False,
) -> None:
    """A JupyterHub teaching lab on shared GPUs, in which each student gets a MIG slice."""


def main() -> None:
    """Run the command line; known errors are one message and an exit status (docs/reference)."""
    try:
        app()
    except (StartError, AlreadyRunning, GpuError) as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(getattr(error, "exit_status", BAD_INPUT)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
