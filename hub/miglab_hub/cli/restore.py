"""`miglab restore`: puts a backup back, while the lab stands still."""

from pathlib import Path
from typing import Annotated

import typer

from miglab_hub.settings.lab_toml import ENV_CONFIG, load

app = typer.Typer()


@app.command()
def restore(
    archive: Annotated[Path, typer.Argument(help="What `miglab backup` wrote.")],
    new_host: Annotated[
        bool,
        typer.Option(
            "--new-host",
            help="The containers of the backup are gone for good: it comes to another host or "
            "engine. Their slices are freed.",
        ),
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="The lab's settings.", envvar=ENV_CONFIG)
    ] = None,
) -> None:
    """Put a backup in place; what was there is moved aside.  Refused while hub or pool run."""
    from miglab_hub.restore import restore_backup

    settings = load(config, running=False)
    done = restore_backup(settings, archive, new_host=new_host)
    print(f"restored, as of {done.manifest.made_at}: {', '.join(done.manifest.files)}")
    print(f"live leases in it: {done.leases}; a server that has ended since gives its slices back")
    print(f"what was here lies in {done.aside}; remove it when all is well")
    print("servers started since then are left alone: see `miglab doctor` once the lab runs")
