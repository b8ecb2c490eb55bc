"""`miglab roster`: brings the hub's groups in line with the rosters of lab.toml, without a restart.

Only courses with a roster are touched: the groups of the others belong to the authenticator, or to
whoever fills them by hand.  Whoever leaves a course keeps account and files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

import typer

from miglab_hub import lab_secrets
from miglab_hub.cli import Config
from miglab_hub.errors import RefusedError, StartError
from miglab_hub.pool_api import PoolApi
from miglab_hub.settings.lab_toml import Settings, load
from miglab_hub.settings.rosters import read_roster

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
    settings = load(config)
    with HubGroups(settings) as hub:
        names = (name for name, course in settings.courses.items() if course.roster)
        changes = group_changes(settings, hub.members(names))
        for change in changes:
            if not dry_run:
                hub.apply(change)
            print(_describe_change(change, dry_run=dry_run))
    if not changes:
        print("every group is as its roster says")
    for line in unread_columns(settings):
        print(line)


def _describe_change(change: "GroupChange", *, dry_run: bool) -> str:
    auxiliary = "would be " if dry_run else ""
    parts = [
        f"{len(people)} {auxiliary}{verb}: {', '.join(people)}"
        for people, verb in ((change.joins, "added"), (change.leaves, "removed"))
        if people
    ]
    return f"{change.course}: {'; '.join(parts)}"


@dataclass(frozen=True)
class GroupChange:
    """The changes to one course's group.

    Attributes:
        course: its name, and the group's.
        joins: who is in the roster and not in the group.
        leaves: who is in the group and not in the roster.
    """

    course: str
    joins: tuple[str, ...]
    leaves: tuple[str, ...]


def group_changes(settings: Settings, members: Mapping[str, tuple[str, ...]]) -> list[GroupChange]:
    """Return the changes that the rosters require, by course.  Pure.

    Args:
        settings: lab.toml with its rosters.
        members: who is in each of the hub's groups now.

    Raises:
        StartError: the authenticator fills the groups; a roster may then name the staff alone.
    """
    if settings.authentication.manages_groups:
        raise StartError(
            "the authenticator says who is in a course (manage_groups in lab.toml): add and remove "
            "people where it has them from; nothing was changed"
        )
    return [
        GroupChange(
            name,
            tuple(sorted(roster_names - group_names)),
            tuple(sorted(group_names - roster_names)),
        )
        for name, course in settings.courses.items()
        if course.roster
        for roster_names in (
            {person.lower() for person in course.people},
        )  # as the hub writes them
        for group_names in (set(members.get(name, ())),)
        if roster_names != group_names
    ]


def unread_columns(settings: Settings) -> Iterator[str]:
    """Yield a sentence on unread columns of each roster; one may be a misspelt `role`.

    Raises:
        RosterError: a roster cannot be read any more.
    """
    for name, course in settings.courses.items():
        columns = (
            read_roster(settings.folder / course.roster).unread_columns if course.roster else ()
        )
        if columns:
            listed = ", ".join(columns)
            yield f"{name}: columns not read: {listed:.200} (only `user` and `role` are)"


class HubGroups(PoolApi):
    """The hub's groups, over its API; a context manager that closes its connections."""

    called, refused = "the hub", "the hub refused: "

    def __init__(self, settings: Settings) -> None:
        token = lab_secrets.read(settings.roster_token)
        super().__init__(settings.hub_api_url.removesuffix("/api"), token)

    def members(self, courses: Iterator[str]) -> dict[str, tuple[str, ...]]:
        """Return the members of each group; none for a group that does not exist."""
        groups = {name: self._call_unless(404, "GET", _path(name)) for name in courses}
        return {name: tuple(group["users"]) if group else () for name, group in groups.items()}

    def apply(self, change: GroupChange) -> None:
        """Make one change, and accounts that are missing.  Idempotent."""
        if change.joins:
            self._call_unless(409, "POST", "/users", {"usernames": list(change.joins)})
            self.call("POST", f"{_path(change.course)}/users", {"users": list(change.joins)})
        if change.leaves:
            self.call("DELETE", f"{_path(change.course)}/users", {"users": list(change.leaves)})

    def _call_unless(self, status: int, *request: Any) -> Any:
        """Return the answer of a call; None if it is refused with this status."""
        try:
            return self.call(*request)
        except RefusedError as refused:
            if refused.status != status:
                raise
            return None


def _path(course: str) -> str:
    return f"/groups/{quote(course, safe='')}"
