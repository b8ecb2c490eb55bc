"""What this lab has submitted to Slurm: its key, and a row for each job, in one SQLite file.

A row is written before `sbatch` runs, so a hub that dies at any moment finds its job by the signed
comment.  A job is adopted once; from then on its id, submit time and account say whose it is, and
the comment is not read.  Whoever lost the file acts on no job.  The hub writes them, the service
reads, and notes each stay that is over; a service that is down meanwhile misses some.
"""

import hashlib
import hmac
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from miglab_slurm.records import SignedTag, SlurmJob, Tag, claim_of
from miglab_spawner.backends import BackendError

CLOCKS_S = 300.0
"""So far may the clocks of hub and slurmctld be apart."""
KEPT_S = 86400.0
"""So long is a row kept at least, also when its job is over or was never submitted."""
_TABLES = """
CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY, lab_id TEXT, key TEXT);
CREATE TABLE IF NOT EXISTS submissions (
    ticket TEXT PRIMARY KEY, tag TEXT NOT NULL, user TEXT NOT NULL, account TEXT NOT NULL,
    intended_at REAL NOT NULL, job INTEGER UNIQUE, submitted_at REAL
);
CREATE TABLE IF NOT EXISTS stays (
    job INTEGER, user TEXT, server TEXT, course TEXT, shape TEXT, gres TEXT, began REAL, ended REAL
);
"""


@dataclass(frozen=True)
class JobSubmission:
    """One submission; ``job`` is None until it is adopted."""

    tag: Tag
    account: str
    intended_at: float
    job: int | None = None
    submitted_at: float | None = None

    def is_of(self, job: SlurmJob) -> bool:
        """Whether a job is the adopted one; a requeue sets Slurm's submit time anew."""
        is_requeued = job.restarts > 0 and job.submitted_at >= (self.submitted_at or 0.0)
        return job.account == self.account and (
            job.submitted_at == self.submitted_at or is_requeued
        )


@dataclass(frozen=True)
class Stay:
    """A server that is over, as the table has it; ``gres`` is empty for one without a GPU."""

    job: int
    user: str
    server: str
    course: str
    shape: str
    gres: str
    began: float
    ended: float


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

    def intend(self, tag: Tag, account: str, now: float) -> str:
        """Note that a job is about to be submitted; returns its comment."""
        with self._transaction() as rows:
            values = (tag.ticket, json.dumps(tag.__dict__), tag.user, account, now)
            rows.execute("INSERT INTO submissions VALUES (?, ?, ?, ?, ?, NULL, NULL)", values)
        return SignedTag(tag, self.lab_id, self._signature(tag, account)).as_comment()

    def withdraw(self, ticket: str) -> None:
        """Slurm refused the job: there is none."""
        with self._transaction() as rows:
            rows.execute("DELETE FROM submissions WHERE ticket = ? AND job IS NULL", (ticket,))

    def note(self, stay: Stay) -> None:
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
        return [each.__dict__ | {"tag": each.tag.__dict__} for each in self._all()
                if each.tag.user == user]  # fmt: skip

    def adopt(self, jobs: Mapping[int, SlurmJob], now: float) -> None:
        """Adopt the jobs whose submission has none yet, and drop the rows of those long over."""
        known = self._all()
        waiting = {each.tag.ticket: each for each in known if each.job is None}
        taken = {each.job for each in known}
        found = []
        for job in sorted(jobs.values(), key=lambda job: job.id) if waiting else ():
            tag = self.signed(job.comment, job.account)
            each = waiting.get(tag.ticket) if tag and job.id not in taken else None
            if each is not None and job.submitted_at >= each.intended_at - CLOCKS_S:
                del waiting[each.tag.ticket]
                found.append((job.id, job.submitted_at, each.tag.ticket))
        unused = [each for each in known if each.tag.ticket in waiting or each.job is not None]
        over = [(each.tag.ticket,) for each in unused if _is_over(each, jobs, now)]
        if found or over:
            with self._transaction() as rows:
                rows.executemany(
                    "UPDATE submissions SET job = ?, submitted_at = ? WHERE ticket = ?", found
                )
                rows.executemany("DELETE FROM submissions WHERE ticket = ?", over)

    def recognised(self, jobs: Mapping[int, SlurmJob]) -> dict[int, SlurmJob]:
        """All jobs, with a tag on those that this lab has adopted."""
        own = {each.job: each for each in self._all() if each.job is not None}
        return {
            job.id: replace(job, tag=own[job.id].tag)
            if job.id in own and own[job.id].is_of(job)
            else job
            for job in jobs.values()
        }

    def account_of(self, job: int) -> str:
        """As whom an adopted job was submitted; empty for a job that this lab does not know."""
        return next((each.account for each in self._all() if each.job == job), "")

    def signed(self, comment: str, account: str) -> Tag | None:
        """The tag that this lab has signed for a job of this account; None if it did not."""
        claim = claim_of(comment)
        if claim is None or claim.lab_id != self.lab_id:
            return None
        wanted = self._signature(claim.tag, account)
        return claim.tag if hmac.compare_digest(wanted, claim.signature) else None

    def _signature(self, tag: Tag, account: str) -> str:
        said = json.dumps([self.lab_id, tag.__dict__, account], sort_keys=True)
        return hmac.new(self._key, said.encode(), hashlib.sha256).hexdigest()

    def _all(self) -> list[JobSubmission]:
        query = "SELECT tag, account, intended_at, job, submitted_at FROM submissions"
        with self._transaction() as rows:
            return [
                JobSubmission(Tag(**json.loads(tag)), *rest) for tag, *rest in rows.execute(query)
            ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._file)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise BackendError(f"{self._file} cannot be used: {error}") from error


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


def told_of(lab: str, jobs: Iterable[SlurmJob]) -> str:
    """The same in words, for the log, the start and doctor; empty where there is none."""
    found = look_alikes(lab, jobs)
    listed = ", ".join(f"{job.id} ({job.account})" for job in found[:20])
    return listed and (
        f'{len(found)} jobs bear the name "{lab}", and this lab did not submit them: {listed}. '
        "Another lab has this name, or this one has lost its slurm-jobs.sqlite. They are left alone"
    )


def _is_over(each: JobSubmission, jobs: Mapping[int, SlurmJob], now: float) -> bool:
    if now - each.intended_at < KEPT_S:
        return False
    return each.job is None or each.job not in jobs or jobs[each.job].has_ended
