"""Every stay that is over, a line of JSON each: usage by course where no slurmdbd keeps it."""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

log = logging.getLogger(__name__)


class UsageLog:
    """A file that grows by a line for each server that is over.

    A service that is down meanwhile misses those that begin and end then.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, stay: Mapping[str, object]) -> None:
        """A server is over."""
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(stay) + "\n")
        except OSError as error:
            log.error("the usage of job %s is lost: %s", stay["job"], error)

    def kept_of(self, user: str) -> list[dict[str, object]]:
        """Everything that is kept of a person."""
        return [stay for stay in self.stays() if stay.get("user") == user]

    def rename(self, user: str, pseudonym: str) -> int:
        """Put a pseudonym in a person's place, while no service runs; in how many lines."""
        stays, found = list(self.stays()), 0
        for stay in stays:
            if stay.get("user") == user:
                stay["user"], found = pseudonym, found + 1
        if found:
            new = self._file.with_suffix(".new")
            with new.open("w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(stay)}\n" for stay in stays)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._file)
        return found

    def stays(self) -> Iterator[dict[str, object]]:
        """All of them, the oldest first; a torn line is left out."""
        if not self._file.exists():
            return
        with self._file.open(encoding="utf-8") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    log.warning("a line of %s cannot be read", self._file)
