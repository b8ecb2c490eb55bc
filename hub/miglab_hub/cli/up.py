"""`miglab up`: the lab in the foreground."""

from pathlib import Path
from typing import Annotated

import typer

from miglab_hub.launch.up import up as run_up
from miglab_hub.settings.lab_toml import ENV_CONFIG

app = typer.Typer()


@app.command()
def up(
    config: Annotated[Path, typer.Option(help="The settings file.", envvar=ENV_CONFIG)] = Path(
        "lab.toml"
    ),
    port: Annotated[int | None, typer.Option(help="Overrides lab.port.", min=1, max=65531)] = None,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Run a trial lab with a class of simulated students instead, in the folder "
            ".lab-demo beside the settings file.",
        ),
    ] = False,
) -> None:
    """Run the lab in the foreground until Ctrl-C."""
    raise typer.Exit(run_up(config, port, demo=demo))
