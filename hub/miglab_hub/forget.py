"""What the lab keeps of a person: telling all of it, and making it nobody's.

While pool and hub stand still, so that neither has the person in memory.  Servers of others run on.
"""

import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException, NotFound  # noqa: TID251 - it removes the home's volume
from jupyterhub import orm

import docker  # noqa: TID251
from miglab_hub.errors import StartError
from miglab_hub.home_volumes import home_volume
from miglab_hub.plugins import plugins
from miglab_hub.settings.lab_toml import Settings
from miglab_pool.ledger import people
from miglab_pool.ledger.tables import LedgerError, needs_upgrade
from miglab_spawner.containers.home_volume import labelled_lab, remove_stale_measurements
from miglab_spawner.local import folder_name
from miglab_spawner.people import HomeNames, HomeNamesDamaged, user_id_of

DOCKER_TIMEOUT_S = 30
OLD_LEDGER = "the ledger is an older miglab's: start the lab once, which upgrades it"


@dataclass(frozen=True)
class ForgetResult:
    """The result of forgetting a person.

    Attributes:
        pseudonym: what stands for the person now.
        changed: the number of rows changed, by file and table.
        home: what home was removed; empty for none.
        mentions: where the operator's own files still name the person.
    """

    pseudonym: str
    changed: dict[str, int]
    home: str
    mentions: tuple[str, ...]


def collect_records(settings: Settings, user: str) -> dict[str, Any]:
    """Return all that is kept of a person, for the person to read.

    Raises:
        StartError: the ledger cannot be read.
    """
    with _open_ledger(settings, user) as ledger, _hub_session(settings) as hub:
        account = orm.User.find(hub, user) if hub else None
        return {
            "user": user,
            "lab": settings.lab_id,
            "told_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "hub": _account_record(account) if account else None,
            **({settings.ledger.stem: people.personal_rows(ledger, user)} if ledger else {}),
            **{
                table: rows
                for plugin in plugins("forget")
                for table, rows in plugin.kept_of(settings, user).items()
            },
            "home": _home_record(settings, hub, user),
        }


def has_records(records: dict[str, Any]) -> bool:
    """Whether an account, a row, or a home kept for the person is there; a name may be misspelt."""
    identifying = {"user", "lab", "told_at", "home"}
    has_rows = any(value for name, value in records.items() if name not in identifying)
    return has_rows or bool(records["home"].get("kept_for"))


def forget(settings: Settings, user: str, *, keep_home: bool = False) -> ForgetResult:
    """Remove account and home, and put a pseudonym in the person's place everywhere else.

    Whatever it was interrupted at, calling it once more does the rest.

    Raises:
        StartError: the person still has a server or a lease, or something cannot be removed.
    """
    pseudonym = f"forgotten-{secrets.token_hex(4)}"
    changed: dict[str, int] = {}
    with _open_ledger(settings, user) as ledger, _hub_session(settings) as hub:
        _refuse_holder(ledger, hub, user)
        home = "" if keep_home else _remove_home(settings, hub, user)
        if hub and (account := orm.User.find(hub, user)):
            hub.delete(account)
            hub.commit()
            changed["hub account"] = 1
        if ledger:
            for table, count in people.forget(ledger, user, pseudonym).items():
                changed[f"{settings.ledger.stem} {table}"] = count
    for part in plugins("forget"):
        changed |= part.forget(settings, user, pseudonym)
    for file in (settings.ledger, settings.hub_database, *settings.further_databases):
        if file.exists():
            _vacuum(file)
    return ForgetResult(pseudonym, changed, home, tuple(_mentions(settings, user)))


def write_export(records: dict[str, Any], target: Path) -> None:
    """Write an export; only its owner may read it.

    Raises:
        StartError: the file exists or cannot be written.
    """
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StartError(f"{target}: {error.strerror}; name another file") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(records, stream, indent=1, ensure_ascii=False, default=str)


@contextmanager
def _open_ledger(settings: Settings, user: str) -> Iterator[sqlite3.Connection | None]:
    """Yield a connection to the ledger that knows what is the person's; None if there is none."""
    try:
        if needs_upgrade(settings.ledger):
            raise StartError(OLD_LEDGER)
    except LedgerError as error:
        raise StartError(str(error)) from error
    if not settings.ledger.exists():
        yield None
        return
    with people.open_ledger(settings.ledger) as connection:
        people.register_targets(connection, people.targets_of(connection, user))
        yield connection


@contextmanager
def _hub_session(settings: Settings) -> Iterator[Any]:
    """Yield a session with the hub's database; None if there is none."""
    if not settings.hub_database.exists():
        yield None
        return
    try:
        make = orm.new_session_factory(f"sqlite:///{settings.hub_database}")
    except orm.DatabaseSchemaMismatch as error:
        raise StartError(f"the hub's database is of another JupyterHub: {error}") from error
    with closing(make()) as session:
        yield session
        session.get_bind().dispose()


def _account_record(user: Any) -> dict[str, Any]:
    servers, tokens = user.orm_spawners.values(), user.api_tokens
    return {
        **_columns_of(user, "name", "admin", "created", "last_activity"),
        "groups": sorted(group.name for group in user.groups),
        "roles": sorted(role.name for role in user.roles),
        "servers": [_columns_of(server, "name", "started", "last_activity") for server in servers],
        "tokens": [_columns_of(token, "note", "created", "last_activity") for token in tokens],
    }


def _columns_of(row: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _refuse_holder(ledger: sqlite3.Connection | None, hub: Any, user: str) -> None:
    holdings = people.live_leases_and_tickets(ledger, user) if ledger is not None else []
    account = orm.User.find(hub, user) if hub else None
    servers = account.orm_spawners.values() if account else ()
    holdings += [
        f"server {user}/{server.name}" for server in servers if server.server_id is not None
    ]
    if holdings:
        raise StartError(
            f"{user} still has {', '.join(holdings)}: start the lab, stop the server, wait until "
            "the lease is over, and stop the lab again. Nothing was changed."
        )


def _vacuum(file: Path) -> None:
    """Rewrite a database, so that free pages and logs keep no deleted rows."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _mentions(settings: Settings, user: str) -> Iterator[str]:
    """Yield where lab.toml and rosters still name the person."""
    people_of = {f"course {name}": course.people for name, course in settings.courses.items()}
    people_of["authentication.admins"] = settings.authentication.admins
    people_of["authentication.instructors"] = settings.authentication.instructors
    yield from (mention for mention, names in people_of.items() if user in names)


@contextmanager
def _home_names(settings: Settings) -> Iterator[HomeNames]:
    """Yield the names of homes; stop if they cannot be read."""
    try:
        yield HomeNames(settings.home_names)
    except HomeNamesDamaged as error:
        raise StartError(str(error)) from error


def _home_name(names: HomeNames, hub: Any, user: str) -> str:
    """Return the name of a person's home; empty if none is certainly theirs.

    The plain name is a home's that was begun before names were kept, or a deleted account's.  It is
    not this person's if it is kept for an account that the hub has: that one was renamed since.
    """
    account = orm.User.find(hub, user) if hub else None
    if account and (name := names.find_name(user_id_of(hub, account.id))):
        return name
    owner = names.owner(user)
    return user if owner is None or _has_no_account(hub, owner) else ""


def _has_no_account(hub: Any, user_id: str) -> bool:
    """Whether the hub has no account of this id; False if its database is missing."""
    if hub is None:
        return False
    return all(user_id_of(hub, number) != user_id for (number,) in hub.query(orm.User.id))


def _home_record(settings: Settings, hub: Any, user: str) -> dict[str, Any]:
    """Return where a person's files lie, and which user id owns the home's name."""
    if settings.servers.spawner == "slurm":
        return {"where": "on the cluster: the site's"}
    with _home_names(settings) as names:
        name = _home_name(names, hub, user)
        owner = {"kept_for": names.owner(name)}
    if not name:
        return {}
    if settings.servers.spawner == "docker":
        return {"volume": home_volume(settings, name), **owner}
    folder = settings.homes / folder_name(name)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {"folder": str(folder), "bytes": sum(path.stat().st_size for path in files), **owner}


def _remove_home(settings: Settings, hub: Any, user: str) -> str:
    """Remove the person's files and return where they were; sites on Slurm do that themselves."""
    if settings.servers.spawner == "slurm":
        return ""
    with _home_names(settings) as names:
        name = _home_name(names, hub, user)
        if not name:
            return ""
        if settings.servers.spawner == "docker":
            home = _remove_volume(settings, home_volume(settings, name))
        else:
            home = _remove_folder(settings.homes / folder_name(name))
        names.drop(name)
        return home


def _remove_folder(folder: Path) -> str:
    if not folder.exists():
        return ""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StartError(f"the home {folder} cannot be removed: {error}") from error
    return str(folder)


def _check_engine(settings: Settings, engine: str) -> None:
    """Refuse another engine than the lab's, on which a volume may be another lab's."""
    lab_engine = ""
    if settings.ledger.exists():
        with closing(sqlite3.connect(settings.ledger)) as ledger:
            lab_engine = ledger.execute("SELECT engine FROM identity").fetchone()[0]
    if lab_engine and engine != lab_engine:
        raise StartError(
            f"the Docker engine at {settings.docker_url} is not the one that has the lab's homes: "
            "set DOCKER_HOST as where the lab is started. Nothing was changed."
        )


def _remove_volume(settings: Settings, name: str) -> str:
    url = settings.docker_url
    try:
        with closing(docker.APIClient(base_url=url, timeout=DOCKER_TIMEOUT_S)) as api:
            _check_engine(settings, str(api.info().get("ID")))
            if (owner := labelled_lab(api.inspect_volume(name))) not in ("", settings.lab_id):
                raise StartError(
                    f'the volume {name} is a home of the lab "{owner}": it is left alone. Add '
                    "--keep-home to delete what this lab keeps. Nothing was changed."
                )
            remove_stale_measurements(api, settings.lab_id)
            api.remove_volume(name)
    except NotFound:
        return ""
    except (DockerException, requests.RequestException) as error:
        raise StartError(f"the volume {name} cannot be removed: {error}") from error
    return name
