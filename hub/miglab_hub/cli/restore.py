"""`miglab restore`: puts a backup back, while the lab stands still."""

from pathlib import Path
from typing import Annotated

import typer

from miglab_hub.cli.root import Config
from miglab_hub.settings.lab_toml import load

app = typer.Typer()


@app.command()
def restore(
    archive: Annotated[Path, typer.Argument(help="A file that `miglab backup` wrote.")],
    new_host: Annotated[
        bool,
        typer.Option(
            "--new-host",
            help="The backup's containers are gone for good, because this is another host or "
            "engine; free their slices.",
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Restore a backup; existing files are moved aside.  Refused while hub or pool run."""
    from miglab_hub.backup import restore_backup

    settings = load(config, running=False)
    done = restore_backup(settings, archive, new_host=new_host)
    print(f"restored as of {done.manifest.made_at}: {', '.join(done.manifest.files)}")
    print(f"live leases: {done.leases}; the slices of servers that have ended since will be freed")
    print(f"the previous files are in {done.aside}; delete them when all is well")
    print("servers started since are left alone: run `miglab doctor` once the lab is running")
