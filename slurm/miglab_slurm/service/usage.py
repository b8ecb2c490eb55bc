"""Usage by course, as Slurm's own accounts tell it, or else the lab's log.

The log has every stay that is over, a line of JSON each.
"""

import json
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from miglab_slurm.commands import run
from miglab_slurm.records import Listing, Tag
from miglab_slurm.site import SlurmSite
from miglab_slurm.submissions import Submissions
from miglab_spawner.backends.base import BackendError

DAYS = 30
ACCOUNTED = ("ElapsedRaw", "User", "Comment")
SACCT = "Slurm's accounts (sacct)"
log = logging.getLogger(__name__)
LOG = "the lab's own log, because Slurm's accounts (sacct) {}"


@dataclass(frozen=True)
class CourseUsage:
    """What a course used: servers and their hours."""

    course: str
    servers: int
    hours: float


async def usage(
    site: SlurmSite, submissions: Submissions, logged: Iterable[Mapping[str, object]]
) -> tuple[list[CourseUsage], str]:
    """Usage by course of the last 30 days, and where it is from: sacct, or else our own log.

    Accounts without comments (`AccountingStoreFlags`) know no course, and count as none.
    """
    mark = Listing(()).mark
    words = [
        "sacct", "-a", "-X", "-n", "-p", f"--delimiter={mark}", "-S", f"now-{DAYS}days", "-o",
        ",".join(ACCOUNTED), "-r", ",".join(site.partitions),
    ]  # fmt: skip
    why = "show no job of this lab"
    try:
        said = await run(words, site.command_timeout_s)
    except BackendError:
        said, why = "", "do not answer"
    if accounted := by_course(accounted_in(said, mark, submissions.signed)):
        return accounted, SACCT
    return by_course(_logged(logged)), LOG.format(why)


def by_course(stays: Iterable[tuple[str, float]]) -> list[CourseUsage]:
    """Courses with seconds each, added up; the most used first."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for course, lasted_s in stays:
        seconds[course].append(lasted_s)
    rows = [CourseUsage(name, len(all_), sum(all_) / 3600) for name, all_ in seconds.items()]
    return sorted(rows, key=lambda row: -row.hours)


def accounted_in(
    text: str, mark: str, signed: Callable[[str, str], Tag | None]
) -> Iterator[tuple[str, float]]:
    """`sacct -p`, parted by a mark: course and seconds of each job that the lab has signed."""
    tickets = set()
    for record in text.split(f"{mark}\n"):
        parts = record.split(mark)
        if len(parts) != len(ACCOUNTED):
            continue
        elapsed, account, comment = parts
        tag = signed(comment, account)
        if tag is not None and tag.ticket not in tickets and elapsed.isdecimal():
            tickets.add(tag.ticket)
            yield tag.course, float(elapsed)


def _logged(logged: Iterable[Mapping[str, object]]) -> Iterable[tuple[str, float]]:
    oldest = time.time() - DAYS * 86400
    for one in logged:
        began, ended = one.get("from"), one.get("to")
        if (
            isinstance(began, int | float)
            and isinstance(ended, int | float)
            and ended > oldest
            and one.get("gres")
        ):
            yield str(one.get("course", "")), max(0.0, ended - began)


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
