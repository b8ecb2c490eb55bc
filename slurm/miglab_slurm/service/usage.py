"""Usage by course, as Slurm's own accounts tell it, or else the stays that the lab has noted."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from miglab_slurm.commands import run
from miglab_slurm.records import Listing, Tag
from miglab_slurm.site import SlurmSite
from miglab_slurm.submissions import Submissions
from miglab_spawner.backends.base import BackendError

DAYS = 30
ACCOUNTED = ("ElapsedRaw", "User", "Comment")
SACCT = "Slurm's accounts (sacct)"
LOG = "the lab's own log, because Slurm's accounts (sacct) {}"


@dataclass(frozen=True)
class CourseUsage:
    """What a course used: servers and their hours."""

    course: str
    servers: int
    hours: float


async def usage(site: SlurmSite, submissions: Submissions) -> tuple[list[CourseUsage], str]:
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
    oldest = time.time() - DAYS * 86400
    ours = (each for each in submissions.stays() if each.gres and each.ended > oldest)
    return by_course((each.course, each.ended - each.began) for each in ours), LOG.format(why)


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
