"""What the service remembers of each server's job beside what Slurm says; memory only.

A service that is started anew knows of no warning: each begins anew, and nothing is reclaimed
before its server has reported again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from miglab_api.leases import LeaseState, LeaseView, LeaseWarning
from miglab_slurm.records import SlurmJob
from miglab_slurm.views import lease_of
from miglab_slurm.words import AT_LIMIT, SOONER

MOVED_S = 30.0
"""Slurm itself corrects an end by a few seconds."""


@dataclass(frozen=True)
class JobRecord:
    """What is remembered of one server's job.

    Attributes:
        job: as Slurm said last.
        seen_at: since when it is known to be this server's, by the service's clock.
        end_reason: why it ends when it does.
        warning: what its student is warned of; None for nothing.
        keepalives: how often "I am still here" was said since work was last seen.
        stay_until: until when the last one counts.
        release_at: when somebody asked for it back; None if nobody did.
        reason: why, in words for its student.
        is_given_back: whether it was the student who asked.
        active_s: how long it was seen at work.
        idle_s: how long it was seen doing nothing.
    """

    job: SlurmJob
    seen_at: float
    end_reason: str = AT_LIMIT
    warning: LeaseWarning | None = None
    keepalives: int = 0
    stay_until: float | None = None
    release_at: float | None = None
    reason: str = ""
    is_given_back: bool = False
    active_s: float = 0.0
    idle_s: float = 0.0

    @property
    def state(self) -> LeaseState:
        """As leases have it."""
        if self.release_at is not None:
            return LeaseState.RELEASING
        return LeaseState.RUNNING if self.warning is None else LeaseState.WARNED

    def stay(self, until: float) -> dict[str, object]:
        """What is kept of it when its server is over; nothing of a job that is nobody's."""
        job, tag = self.job, self.job.tag
        if tag is None:
            return {}
        return {
            "job": job.id, "user": tag.user, "server": tag.server, "course": tag.course,
            "shape": tag.shape, "gres": dict(job.gres), "from": job.started_at, "to": until,
            "active_s": round(self.active_s), "idle_s": round(self.idle_s),
        }  # fmt: skip

    def seen(self, job: SlurmJob) -> "JobRecord":
        """The same with Slurm's latest word; an end that came nearer has another reason."""
        before, now = self.job.ends_at, job.ends_at
        reason = self.end_reason
        if before is not None and now is not None and abs(now - before) > MOVED_S:
            reason = SOONER if now < before else AT_LIMIT
        return replace(self, job=job, end_reason=reason)

    def view(self, others_wait: int, extensions_left: int, extension_s: float) -> LeaseView:
        """As a lease."""
        return lease_of(self.job).model_copy(
            update={
                "state": self.state,
                "holder": f"slurm:{self.job.id}",
                "attached_at": self.seen_at,
                "release_requested_at": self.release_at,
                "reason": self.reason,
                "is_given_back": self.is_given_back,
                "warning": self.warning,
                "others_wait": others_wait,
                "extensions_left": extensions_left,
                "extension_s": extension_s if extensions_left else 0,
            }
        )


def extensions_used(record: JobRecord, limit_s: float, extension_s: float) -> int:
    """How often a job was lengthened, by its limit: the service need not remember it."""
    if record.job.ends_at is None or record.job.started_at is None:
        return 0
    more_s = record.job.ends_at - record.job.started_at - limit_s
    return max(0, round(more_s / extension_s))


Records = Mapping[int, JobRecord]
