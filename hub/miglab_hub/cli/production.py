"""`miglab production`: the lab as three containers, run from a folder of its own."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from miglab_hub import production as lab

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


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new folder, outside the checkout.")
    ],
    simulated: Annotated[
        bool, typer.Option("--simulated", help="For simulated GPUs, on a host without any.")
    ] = False,
) -> None:
    """Make the lab's folder: lab.toml, .env, rosters, tls and backups."""
    lab.init(folder, simulated=simulated)
    print(f"{folder.resolve()}: edit lab.toml, put the certificate into tls, then `restart`")


@app.command()
def restart(
    folder: Folder,
    part: Annotated[
        LabPart | None,
        typer.Option(help="Only this container, and the hub: `proxy` takes a new certificate."),
    ] = None,
) -> None:
    """Check lab.toml, then start the lab or start it anew; servers keep running."""
    parts = [name for name in lab.PARTS if part in (None, name) or name == LabPart.HUB]
    lab.production(folder).restart(parts)
    print(f"running: {', '.join(parts)}")


@app.command()
def stop(folder: Folder) -> None:
    """Stop the lab until `restart`; servers keep running, but nobody reaches them."""
    lab.production(folder).stop()
    print("stopped")


@app.command()
def upgrade(folder: Folder) -> None:
    """Take new images over after a backup; if they do not start, go back to both."""
    print(lab.production(folder).upgrade())


@app.command()
def backup(
    folder: Folder,
    homes: Annotated[bool, typer.Option(help="Whether to save the students' homes too.")] = True,
) -> None:
    """Save the lab's data, settings and homes into a new folder in DIR/backups."""
    print(lab.production(folder).backup(homes=homes))


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
    homes = lab.production(folder).restore(saved, new_host=new_host)
    print(f"restored {saved}, and {len(homes)} homes that were missing")
