"""The root of the `miglab` command: mounts the tools, and turns known errors into one message."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from miglab_hub import bench
from miglab_hub.check import run_check
from miglab_hub.cli import doctor, pool, sim
from miglab_hub.errors import StartError
from miglab_hub.launch import up as run_up
from miglab_hub.run_tests import run_tests
from miglab_hub.settings import ENV_CONFIG, SettingsError
from miglab_spawner.gpu.errors import GpuError

BAD_INPUT = 2
INTERRUPTED = 130

app = typer.Typer(
    help="A JupyterHub teaching lab on shared GPUs: each student a MIG slice of their own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(pool.app, name="pool")
app.add_typer(sim.app, name="sim")
app.add_typer(bench.app, name="bench")
app.add_typer(doctor.app, name="doctor")


@app.command()
def up(
    config: Annotated[Path, typer.Option(help="The lab's settings.", envvar=ENV_CONFIG)] = Path(
        "lab.toml"
    ),
    port: Annotated[
        int | None, typer.Option(help="Takes over from lab.port.", min=1, max=65531)
    ] = None,
) -> None:
    """Start the lab in the foreground; Ctrl-C ends it."""
    raise typer.Exit(run_up(config, port))


@app.command()
def check(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    docker: Annotated[bool, typer.Option("--docker", help="Students in containers.")] = False,
) -> None:
    """Try a temporary lab with nine students on one simulated GPU; status 0 only if all held."""
    raise typer.Exit(run_check(as_json=as_json, docker=docker))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    options_metavar="[--all]",
)
def test(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="The long ones too.")] = False,
) -> None:
    """Run the tests; what follows goes to pytest."""
    raise typer.Exit(run_tests(context.args, everything=everything))


def main() -> None:
    """Run the command line; known errors are one message and an exit status (docs/reference)."""
    try:
        app()
    except (StartError, SettingsError, GpuError) as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(getattr(error, "exit_status", BAD_INPUT)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
