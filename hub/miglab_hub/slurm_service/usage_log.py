"""Every stay that is over, a line of JSON each: usage by course where no slurmdbd keeps it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from miglab_hub.slurm_service.records import JobRecord

log = logging.getLogger(__name__)


class UsageLog:
    """A file that grows by a line for each server that is over.

    A service that is down meanwhile misses those that begin and end then.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, record: JobRecord, at: float) -> None:
        """A server is over."""
        job, tag = record.job, record.job.tag
        if tag is None:
            return
        line = {
            "job": job.id, "user": tag.user, "server": tag.server, "course": tag.course,
            "shape": tag.shape, "gres": dict(job.gres), "from": job.started_at, "to": at,
            "active_s": round(record.active_s), "idle_s": round(record.idle_s),
        }  # fmt: skip
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log.error("the usage of job %d is lost: %s", job.id, error)

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
