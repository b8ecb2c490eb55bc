"""Slurm's reservations, and usage by course, as its own commands tell them; read-only."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from miglab_api.slurm_site import SlurmSite
from miglab_spawner.backends.base import BackendError
from miglab_spawner.backends.slurm.commands import CommandFailed, run
from miglab_spawner.backends.slurm.records import tag_of

DAYS = 30
SACCT = "Slurm's accounts (sacct)"
LOG = "the lab's own log, because Slurm keeps no accounts of this lab's jobs"


@dataclass(frozen=True)
class SlurmReservation:
    """One reservation.

    Attributes:
        command: by which its operator would change or delete it.
    """

    name: str
    begins: str
    ends: str
    nodes: str
    whose: str
    state: str

    @property
    def command(self) -> str:
        """By which its operator would end it."""
        return f"scontrol delete reservationname={self.name}"


@dataclass(frozen=True)
class CourseUsage:
    """What a course used: servers and their hours."""

    course: str
    servers: int
    hours: float


async def reservations(site: SlurmSite, zone: ZoneInfo) -> list[SlurmReservation]:
    """All of them, their times in this zone.

    Raises:
        BackendError: Slurm does not answer.
    """
    said = await run(["scontrol", "-o", "show", "reservation"], site.command_timeout_s)
    return reservations_in(said, zone)


def reservations_in(text: str, zone: ZoneInfo) -> list[SlurmReservation]:
    """`scontrol -o show reservation`, a line each."""
    found = []
    for line in text.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        if "ReservationName" not in words:
            continue
        whose = [
            f"{key.lower()} {words[key]}"
            for key in ("Users", "Groups", "Accounts")
            if words.get(key) not in (None, "(null)")
        ]
        found.append(
            SlurmReservation(
                words["ReservationName"],
                _when(words.get("StartTime", ""), zone),
                _when(words.get("EndTime", ""), zone),
                words.get("Nodes", ""),
                ", ".join(whose),
                words.get("State", ""),
            )
        )
    return found


def _when(text: str, zone: ZoneInfo) -> str:
    """A time of Slurm, whose commands run with seconds since the epoch, for people."""
    if not text.isdecimal():
        return text
    return f"{datetime.fromtimestamp(int(text), zone):%Y-%m-%d %H:%M}"


async def usage(
    site: SlurmSite, lab: str, log: Iterable[Mapping[str, object]]
) -> tuple[list[CourseUsage], str]:
    """Usage by course of the last 30 days, and where it is from: sacct, or else our own log.

    Accounts without comments (`AccountingStoreFlags`) know no course, and count as none.
    """
    words = [
        "sacct", "-a", "-X", "-n", "-P", "-S", f"now-{DAYS}days", "-o",
        "ElapsedRaw,Comment", "-r", ",".join(site.partitions),
    ]  # fmt: skip
    try:
        said = await run(words, site.command_timeout_s)
    except (BackendError, CommandFailed):
        said = ""
    if accounted := by_course(_accounted(said, lab)):
        return accounted, SACCT
    return by_course(_logged(log)), LOG


def by_course(stays: Iterable[tuple[str, float]]) -> list[CourseUsage]:
    """Courses with seconds each, added up; the most used first."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for course, lasted_s in stays:
        seconds[course].append(lasted_s)
    rows = [CourseUsage(name, len(all_), sum(all_) / 3600) for name, all_ in seconds.items()]
    return sorted(rows, key=lambda row: -row.hours)


def _accounted(text: str, lab: str) -> Iterable[tuple[str, float]]:
    for line in text.splitlines():
        elapsed, _, comment = line.partition("|")
        tag = tag_of(comment)
        if tag is not None and tag.lab == lab and elapsed.isdecimal():
            yield tag.course, float(elapsed)


def _logged(log: Iterable[Mapping[str, object]]) -> Iterable[tuple[str, float]]:
    oldest = time.time() - DAYS * 86400
    for one in log:
        began, ended = one.get("from"), one.get("to")
        if (
            isinstance(began, int | float)
            and isinstance(ended, int | float)
            and ended > oldest
            and one.get("gres")
        ):
            yield str(one.get("course", "")), max(0.0, ended - began)
