"""`miglab backup`: ledger, hub database and secrets in one file, as of one moment."""

from pathlib import Path
from typing import Annotated

import typer

from miglab_hub.cli.root import Config
from miglab_hub.settings.lab_toml import load

app = typer.Typer()


@app.command()
def backup(
    target: Annotated[
        Path | None,
        typer.Argument(help="The file to write; by default LAB-TIME.tar in this folder."),
    ] = None,
    config: Config = None,
) -> None:
    """Copy the ledger, the hub's database and the secrets into one file; the lab may keep running.

    Homes and lab.toml are not part of it.  Keep the file as secret as the state folder.
    """
    from miglab_hub.backup import make_backup, name_of_backup

    settings = load(config)
    file = (target or Path(name_of_backup(settings))).absolute()
    manifest = make_backup(settings, file)
    print(f"{file}: {', '.join(manifest.files)}, as of {manifest.made_at}")
