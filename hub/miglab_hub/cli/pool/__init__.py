"""`miglab pool`: see who holds what and who waits, and steer it; a room per kind of command."""

from pathlib import Path
from typing import Annotated

import typer

from miglab_hub.cli.pool import layout, reserve, show, staff
from miglab_hub.settings.lab_toml import ENV_CONFIG

app = typer.Typer(help="See and steer the pool.", no_args_is_help=True)
for room in (show, staff, reserve):
    app.add_typer(room.app)
app.add_typer(layout.app, name="layout")


@app.callback()
def pool(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="The settings file.", envvar=ENV_CONFIG)
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="The pool's address; by default lab.toml's.", envvar="MIGLAB_POOL_URL"),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with a hub API token; without one, you act as the operator."),
    ] = None,
) -> None:
    """See who holds which slices and who waits, and steer the pool."""
    context.obj = (config, url, token_file)
