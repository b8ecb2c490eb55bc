"""Who somebody is, and under which name their home and their containers go.

A name is what is shown: it can be changed, and then be somebody else's.  `user_id_of` is what a
rename keeps and nobody gets again.  `HomeNames` keeps the name that a home was begun under.
"""

import json
import os
from pathlib import Path
from threading import Lock
from typing import Any

from jupyterhub import orm
from pydantic import TypeAdapter, ValidationError

_NAMES = TypeAdapter(dict[str, str])
_CHANGING = Lock()  # of this process, which alone writes


class HomeNamesDamaged(Exception):
    """The file of homes' names cannot be read or written, so no home is known."""


def user_id_of(database: Any, number: int) -> str:
    """Return the identity of an account: its number, and when it was created.

    SQLite gives the highest number once more when its row was deleted (JupyterHub 5.5 and 6.1
    declare no AUTOINCREMENT), so the number alone can come again.  The time is read from the
    database, since one that keeps no fractions of a second rounds what memory has.

    Args:
        database: a session with the hub's.
        number: the account's ``id`` there.
    """
    created = database.query(orm.User.created).filter(orm.User.id == number).scalar()
    return f"{number}t{created:%Y%m%d%H%M%S%f}" if created else str(number)


class HomeNames:
    """The file that maps names of homes to user ids.

    The hub's process adds to it.  `drop` is for `miglab forget`, which runs only while no hub does:
    between the two processes nothing else keeps one from undoing what the other wrote.

    A write waits for the disk, so the first start of each user asks in a thread.

    The name that an account had at its first start is its home's name for good, unless it is
    another account's: that one may have been renamed, or deleted with its files left.

    Args:
        path: the JSON file; made when there is a name to keep.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def find_name(self, user_id: str) -> str | None:
        """Return the name of a user's home; None if there is none yet.

        Raises:
            HomeNamesDamaged: the file is something else.
        """
        return next((name for name, owner in self._read().items() if owner == user_id), None)

    def owner(self, name: str) -> str | None:
        """Return the user id that owns a home's name; None if nobody does.

        Raises:
            HomeNamesDamaged: the file is something else.
        """
        return self._read().get(name)

    def propose(self, user_id: str, user_name: str) -> str:
        """Return the name that a user's home has or would get; write nothing.

        Raises:
            HomeNamesDamaged: the file is something else.
        """
        return _home_name(self._read(), user_id, user_name)

    def claim(self, user_id: str, user_name: str) -> str:
        """Return the name of a user's home, and keep it for that user.

        Args:
            user_id: by `user_id_of`.
            user_name: as the account is called now.

        Raises:
            HomeNamesDamaged: the file is something else, or cannot be written.
        """
        with _CHANGING:
            names = self._read()
            name = _home_name(names, user_id, user_name)
            if name not in names:
                self._write({**names, name: user_id})
            return name

    def drop(self, name: str) -> None:
        """Free the name of a home that has been removed.

        Raises:
            HomeNamesDamaged: the file is something else, or cannot be written.
        """
        names = self._read()
        if names.pop(name, None) is not None:
            self._write(names)

    def _read(self) -> dict[str, str]:
        try:
            return _NAMES.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            message = f"{self._path} does not say whose homes are whose: put a backup in its place"
            raise HomeNamesDamaged(message) from error
        except OSError as error:
            message = (
                f"{self._path} cannot be read ({error.strerror}): give it to the user that the hub "
                "runs as"
            )
            raise HomeNamesDamaged(message) from error

    def _write(self, names: dict[str, str]) -> None:
        unfinished = self._path.with_name(f"{self._path.name}.new")
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.fchmod(descriptor, 0o600)  # one that was there keeps its own mode
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(names, stream, indent=1, ensure_ascii=False)
                stream.flush()
                os.fsync(stream.fileno())
            unfinished.replace(self._path)
        except OSError as error:
            message = (
                f"{self._path} cannot be written ({error.strerror}): let the user that the hub "
                "runs as write in its folder, and make room on its disk"
            )
            raise HomeNamesDamaged(message) from error


def _home_name(names: dict[str, str], user_id: str, user_name: str) -> str:
    kept_name = next((name for name, owner in names.items() if owner == user_id), "")
    if kept_name:
        return kept_name
    name = user_name
    while name in names:
        name = f"{name}-{user_id}"
    return name
