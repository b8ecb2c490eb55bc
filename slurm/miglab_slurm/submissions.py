"""What this lab has submitted to Slurm: its key, and a row for each job, in one SQLite file.

A row is written before `sbatch` runs, so a hub that dies at any moment finds its job by the signed
name.  A job is adopted once, by the number that `sbatch` printed or by that name; from then on its
number, cluster, submit time and account say whose it is.  A row says what is known of its job's
end, and whether the lab has given it up: what was wished outlives the hub.  Whoever lost the file
acts on no job.  The hub writes the rows, the service reads them, and notes each stay that is over;
a service that is down meanwhile misses some.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from miglab_slurm.records import SignedTag, SlurmJob, Tag, claim_of
from miglab_slurm.states import NOT_SHOWN
from miglab_spawner.backends import BackendError

CLOCKS_S = 300.0
"""So far may the clocks of hub and slurmctld be apart."""
KEPT_S = 86400.0
"""So long is a row kept at least, also when its job is over or was never submitted."""
NAME_HEX = 24
"""Digits of the signature in a job's name: 96 bits."""
_TABLES = """
CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY, lab_id TEXT, key TEXT);
CREATE TABLE IF NOT EXISTS submissions (
    ticket TEXT PRIMARY KEY, tag TEXT NOT NULL, user TEXT NOT NULL, account TEXT NOT NULL,
    name TEXT NOT NULL, intended_at REAL NOT NULL, job INTEGER, cluster TEXT, submitted_at REAL,
    given_up INTEGER NOT NULL DEFAULT 0, is_cancelled INTEGER NOT NULL DEFAULT 0,
    ended_as TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS submissions_by_job ON submissions (job);
CREATE TABLE IF NOT EXISTS stays (
    job INTEGER, user TEXT, server TEXT, course TEXT, shape TEXT, gres TEXT, began REAL, ended REAL
);
"""


_COLUMNS = (
    "tag, account, name, intended_at, job, cluster, submitted_at, given_up, is_cancelled, ended_as"
)


@dataclass(frozen=True)
class JobSubmission:
    """One submission.

    Attributes:
        name: of the job: the signed one, or what a plugin of the site made of it.
        job: its number; None until `sbatch` has printed it, or the job is seen.
        cluster: the name of its cluster; None until it is seen, as `submitted_at`.
        given_up: whether the lab wants it cancelled.
        is_cancelled: whether Slurm has taken that order.
        ended_as: the state in which it ended; empty while it may be alive.
    """

    tag: Tag
    account: str
    name: str
    intended_at: float
    job: int | None = None
    cluster: str | None = None
    submitted_at: float | None = None
    given_up: bool = False
    is_cancelled: bool = False
    ended_as: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it is known to be over."""
        return bool(self.ended_as)

    def is_of(self, job: SlurmJob) -> bool:
        """Whether a job is the adopted one; a requeue sets Slurm's submit time anew."""
        if self.submitted_at is None or (job.id, job.account) != (self.job, self.account):
            return False
        is_requeued = (
            job.restarts > 0 and job.name == self.name and job.submitted_at >= self.submitted_at
        )
        return job.cluster == self.cluster and (
            job.submitted_at == self.submitted_at or is_requeued
        )

    def may_be(self, job: SlurmJob) -> bool:
        """Whether a job that nobody has adopted is this one: by its number, or else its name."""
        is_told = self.job == job.id if self.job is not None else self.name == job.name
        is_of_that_time = job.submitted_at >= self.intended_at - CLOCKS_S
        is_open = self.submitted_at is None
        return is_open and is_told and job.account == self.account and is_of_that_time

    def unseen_job(self) -> SlurmJob:
        """The job of which Slurm shows nothing now: it counts as alive, or as what it ended as."""
        assert self.job is not None
        return SlurmJob(
            id=self.job, state=self.ended_as or NOT_SHOWN, reason="",
            submitted_at=self.submitted_at or self.intended_at, started_at=None, ends_at=None,
            priority=0, gres={}, account=self.account, nodes="", partition="", name=self.name,
            cluster=self.cluster or "", tag=self.tag,
        )  # fmt: skip


@dataclass(frozen=True)
class Stay:
    """A server that is over, as the table has it; ``gres`` is empty for one without a GPU."""

    job: int
    user: str
    server: str
    course: str
    shape: str
    gres: str
    started_at: float
    ended_at: float


class Submissions:
    """See the module.

    Args:
        file: made, with a new identity, if it is not there.
        lab: the lab's name, which another lab may bear as well.

    Raises:
        BackendError: from every method: the file cannot be read or written.
    """

    def __init__(self, file: Path, lab: str) -> None:
        self._file = file
        self.lab = lab
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        with self._transaction() as rows:
            rows.executescript(_TABLES)
            new = (secrets.token_hex(8), secrets.token_hex(32))
            rows.execute("INSERT OR IGNORE INTO identity VALUES (1, ?, ?)", new)
            self.lab_id, key = rows.execute("SELECT lab_id, key FROM identity").fetchone()
        self._key = bytes.fromhex(key)

    def intend(self, tag: Tag, account: str, now: float) -> JobSubmission:
        """Note that a job is about to be submitted; a second try of one start is the same row."""
        submission = JobSubmission(tag, account, self.name_of(tag, account), now)
        with self._transaction() as rows:
            rows.execute(
                "INSERT OR IGNORE INTO submissions (ticket, tag, user, account, name, intended_at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (tag.ticket, json.dumps(tag.__dict__), tag.user, account, submission.name, now),
            )
        return submission

    def note_number(self, ticket: str, job: int) -> None:
        """`sbatch` has printed a number."""
        with self._transaction() as rows:
            rows.execute(
                "UPDATE submissions SET job = ? WHERE ticket = ? AND job IS NULL", (job, ticket)
            )

    def withdraw(self, ticket: str) -> None:
        """Slurm refused the job: there is none."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM submissions WHERE ticket = ? AND job IS NULL", (ticket,))

    def give_up(self, ticket: str) -> None:
        """The lab wants this job cancelled, whatever happens to the hub meanwhile."""
        self._set(ticket, "given_up = 1")

    def note_cancelled(self, ticket: str) -> None:
        """Slurm has taken the order to cancel a job."""
        self._set(ticket, "is_cancelled = 1")

    def note_end(self, ticket: str, state: str) -> None:
        """A job is known to be over, or, with an empty state, to be alive after all."""
        self._set(ticket, "ended_as = ?", state)

    def note_stay(self, stay: Stay) -> None:
        """A server is over."""
        with self._transaction() as rows:
            rows.execute("INSERT INTO stays VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(stay))

    def stays(self) -> list[Stay]:
        """All that are over, the oldest first."""
        with self._transaction() as rows:
            return [Stay(*row) for row in rows.execute("SELECT * FROM stays ORDER BY rowid")]

    def forget(self, user: str, pseudonym: str) -> dict[str, int]:
        """Delete the jobs of a person, whose servers are over, and rename the stays; how many."""
        with self._transaction() as rows:
            jobs = rows.execute("DELETE FROM submissions WHERE user = ?", (user,))
            stays = rows.execute("UPDATE stays SET user = ? WHERE user = ?", (pseudonym, user))
            return {"slurm jobs": jobs.rowcount, "slurm usage": stays.rowcount}

    def of_user(self, user: str) -> list[dict[str, object]]:
        """What is kept of a person."""
        return [row.__dict__ | {"tag": row.tag.__dict__} for row in self._rows("user = ?", user)]

    def adopt(self, jobs: Mapping[int, SlurmJob], now: float) -> None:
        """Adopt the jobs whose submission has none yet, and drop the rows of those long over."""
        submissions = self._rows()
        listed = sorted(jobs.values(), key=lambda job: job.id)
        unclaimed = [job for job in listed if not any(row.is_of(job) for row in submissions)]
        adopted = []
        for row in submissions:
            if job := next(filter(row.may_be, unclaimed), None):
                unclaimed.remove(job)
                adopted.append((job.id, job.cluster, job.submitted_at, job.name, row.tag.ticket))
        old = [
            (row.tag.ticket,)
            for row in submissions
            if now - row.intended_at > KEPT_S and row.is_over
        ]
        if adopted or old:
            with self._transaction() as rows:
                rows.executemany("DELETE FROM submissions WHERE ticket = ?", old)
                rows.executemany(
                    "UPDATE submissions SET job = ?, cluster = ?, submitted_at = ?, name = ?, "
                    "ended_as = '' WHERE ticket = ?",
                    adopted,
                )

    def with_tags(self, jobs: Mapping[int, SlurmJob]) -> dict[int, SlurmJob]:
        """All jobs, with a tag on those that this lab has adopted.

        Those of its own that are not among them are added as `JobSubmission.unseen_job` has them,
        unless its number is another job's by now.
        """
        recognised = dict(jobs)
        for row in self._rows():
            if row.job is None:
                continue
            job = jobs.get(row.job)
            if job is None:
                recognised[row.job] = row.unseen_job()
            elif row.is_of(job):
                recognised[row.job] = replace(job, tag=row.tag)
        return recognised

    def duplicates(self, jobs: Mapping[int, SlurmJob]) -> list[tuple[JobSubmission, SlurmJob]]:
        """Jobs of a second `sbatch` for one start, the answer to the first one having been lost.

        They bear the name that is signed for that start alone, and another job is adopted for it.
        """
        adopted = {
            (row.name, row.account): row
            for row in self._rows("submitted_at IS NOT NULL")
            if row.name == self.name_of(row.tag, row.account)
        }
        pairs = ((adopted.get((job.name, job.account)), job) for job in jobs.values())
        return [
            (row, job)
            for row, job in pairs
            if row is not None and job.id != row.job and not job.has_left
        ]

    def find(self, ticket: str) -> JobSubmission | None:
        """One submission; None for one that this lab does not know."""
        return next(iter(self._rows("ticket = ?", ticket)), None)

    def unsettled(self) -> list[JobSubmission]:
        """Those whose end is not known, the oldest first."""
        return self._rows("ended_as = ''")

    def open_for_server(self, user: str, server: str) -> list[JobSubmission]:
        """Those of one server whose end is not known, and that the lab has not given up."""
        rows = self._rows("user = ? AND ended_as = '' AND given_up = 0", user)
        return [row for row in rows if row.tag.server == server]

    def comment_of(self, submission: JobSubmission) -> str:
        """The comment of its job: for people, and for accounts by course."""
        tag, account = submission.tag, submission.account
        return SignedTag(tag, self.lab_id, self._signature(tag, account)).as_comment()

    def name_of(self, tag: Tag, account: str) -> str:
        """The job's name: nobody but this lab can write it beforehand."""
        shape = re.sub(r"[^\w.-]", "-", tag.shape)
        return f"jupyter-{shape}-{self._signature(tag, account)[:NAME_HEX]}"

    def verified_tag(self, comment: str, account: str) -> Tag | None:
        """The tag that this lab has signed for a job of this account; None if it did not."""
        claim = claim_of(comment)
        if claim is None or claim.lab_id != self.lab_id:
            return None
        expected = self._signature(claim.tag, account)
        return claim.tag if hmac.compare_digest(expected, claim.signature) else None

    def _signature(self, tag: Tag, account: str) -> str:
        message = json.dumps([self.lab_id, tag.__dict__, account], sort_keys=True)
        return hmac.new(self._key, message.encode(), hashlib.sha256).hexdigest()

    def rows(self) -> list[JobSubmission]:
        """All, the oldest first."""
        return self._rows()

    def _rows(self, condition: str = "TRUE", *values: object) -> list[JobSubmission]:
        query = f"SELECT {_COLUMNS} FROM submissions WHERE {condition} ORDER BY intended_at"  # noqa: S608
        with self._transaction() as rows:
            return [
                JobSubmission(Tag(**json.loads(tag)), *fields)
                for tag, *fields in rows.execute(query, values)
            ]

    def _set(self, ticket: str, change: str, *values: object) -> None:
        with self._transaction() as rows:
            rows.execute(
                f"UPDATE submissions SET {change} WHERE ticket = ?",  # noqa: S608
                (*values, ticket),
            )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._file)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise BackendError(f"{self._file} cannot be used: {error}") from error


def has_signed_form(name: str) -> bool:
    """Whether a name looks like those of `Submissions.name_of`: no plugin has changed it."""
    return re.fullmatch(rf"jupyter-[\w.-]+-[0-9a-f]{{{NAME_HEX}}}", name) is not None


def look_alikes(lab: str, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Jobs that claim this lab's name and are none that it submitted: it does nothing to them."""
    return [
        job
        for job in jobs
        if job.tag is None
        and not job.has_ended
        and (claim := claim_of(job.comment)) is not None
        and claim.tag.lab == lab
    ]


def look_alike_warning(lab: str, jobs: Iterable[SlurmJob]) -> str:
    """The same in words, for the log, the start and doctor; empty where there is none."""
    look_alike_jobs = look_alikes(lab, jobs)
    listed = ", ".join(f"{job.id} ({job.account})" for job in look_alike_jobs[:20])
    return listed and (
        f'{len(look_alike_jobs)} jobs bear the name "{lab}", and this lab did not submit them: '
        f"{listed}. "
        "Another lab has this name, or this one has lost its slurm-jobs.sqlite. They are left alone"
    )
