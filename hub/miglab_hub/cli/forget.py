"""`miglab forget`: what the lab keeps of a person, and an end to it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from miglab_hub.settings.lab_toml import ENV_CONFIG, load

if TYPE_CHECKING:
    from miglab_hub.forget import Forgotten

app = typer.Typer()


@app.command()
def forget(
    user: Annotated[str, typer.Argument(help="The person, by the name at the hub.")],
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
        bool, typer.Option("--keep-home", help="Leave the person's files as they are.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="The settings file.", envvar=ENV_CONFIG)
    ] = None,
) -> None:
    """Export what is kept of a person; with --erase, remove account and home and use a pseudonym.

    Refused while hub or pool run, and while the person holds a server, a lease or a ticket.
    """
    from miglab_hub import forget as room
    from miglab_hub.restore import standing_still

    settings = load(config, running=False)
    with standing_still(settings):
        room.write_told(room.tell(settings, user), export)
        print(f"all that is kept of {user}: {export}")
        if not erase:
            print("nothing was changed; --erase removes it")
            return
        done = room.forget(settings, user, keep_home=keep_home)
    _print(user, done)


def _print(user: str, done: "Forgotten") -> None:
    changed = ", ".join(f"{what}: {count}" for what, count in done.changed.items())
    print(f"{user} is {done.pseudonym} now; rows changed: {changed or 'none'}")
    print(f"home removed: {done.home}" if done.home else "no home was removed")
    for where in done.named:
        print(f"still named in {where}: take the name out of lab.toml or the roster")
    print("backups and old logs still have the name: remove those that you do not need")
