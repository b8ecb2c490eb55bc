"""`miglab roster`: who is in the courses, without a restart."""

from typing import TYPE_CHECKING, Annotated

import typer

from miglab_hub.cli.root import Config
from miglab_hub.settings.lab_toml import load

if TYPE_CHECKING:
    from miglab_hub.roster_apply import GroupChange

app = typer.Typer(help="Add and remove people while the lab runs.", no_args_is_help=True)


@app.callback()
def roster() -> None:
    """Add and remove people while the lab runs."""


@app.command()
def apply(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    config: Config = None,
) -> None:
    """Bring the hub's groups in line with the rosters that lab.toml names.

    People who leave a course keep their account and files, and a server that runs.
    """
    from miglab_hub.roster_apply import HubGroups, changes

    settings = load(config)
    with HubGroups(settings) as hub:
        names = (name for name, course in settings.courses.items() if course.roster)
        found = changes(settings, hub.members(names))
        for change in found:
            if not dry_run:
                hub.apply(change)
            print(_told(change, dry_run=dry_run))
    if not found:
        print("every group is as its roster says")


def _told(change: "GroupChange", *, dry_run: bool) -> str:
    done = "would be " if dry_run else ""
    parts = [
        f"{len(people)} {done}{what}: {', '.join(people)}"
        for people, what in ((change.joins, "added"), (change.leaves, "removed"))
        if people
    ]
    return f"{change.course}: {'; '.join(parts)}"
