"""`miglab forget`: what the lab keeps of a person, and an end to it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from miglab_hub.cli.root import Config
from miglab_hub.settings.lab_toml import load

if TYPE_CHECKING:
    from miglab_hub.forget import Forgotten

app = typer.Typer()


@app.command()
def forget(
    user: Annotated[str, typer.Argument(help="The person's user name at the hub.")],
    export: Annotated[
        Path, typer.Option(help="The file to write with everything that is kept (JSON).")
    ],
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="Delete it afterwards; without this, only the export is made."
        ),
    ] = False,
    keep_home: Annotated[
        bool, typer.Option("--keep-home", help="Keep the person's files.")
    ] = False,
    config: Config = None,
) -> None:
    """Export what is kept of a person; with --erase, delete account and home, use a pseudonym.

    Refused while hub or pool run, and while the person holds a server, a lease or a ticket.
    """
    from miglab_hub import forget as room
    from miglab_hub.backup import standing_still

    settings = load(config, running=False)
    with standing_still(settings):
        told = room.tell(settings, user)
        room.write_told(told, export)
        print(f"everything that is kept of {user} has been written to {export}")
        if not room.is_known(told):
            print(
                f"the lab has no account, lease or ticket of {user}: is that the name at the hub?"
            )
        if not erase:
            print("nothing was changed; use --erase to delete it")
            return
        done = room.forget(settings, user, keep_home=keep_home)
    _print(user, done)


def _print(user: str, done: "Forgotten") -> None:
    changed = ", ".join(f"{what}: {count}" for what, count in done.changed.items())
    print(f"{user} is now called {done.pseudonym}; rows changed: {changed or 'none'}")
    print(f"home deleted: {done.home}" if done.home else "no home was deleted")
    for where in done.named:
        print(f"{where} still has the name: remove it there")
    print(
        "backups, what a restore moved aside, and old logs still have the name: delete those that "
        "you do not need"
    )
