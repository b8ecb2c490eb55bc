"""Who of a course does what now, and who is told how far somebody is.  Pure.

Unknown is never absent: who has not read the notice, or whose course shares nothing, may well sit
in the room.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from miglab_api.leases import LeaseView
from miglab_api.roster import Presence, RosterRow, SharedExperiment
from miglab_api.tickets import TicketView

SILENT_S = 180.0  # a server tells how far its student is once a minute


@dataclass(frozen=True, slots=True)
class Heard:
    """A server's last report.

    Attributes:
        at: when it came.
        sign_at: when its student last did something; None if it does not tell.
    """

    at: float
    sign_at: float | None


@dataclass(frozen=True, slots=True)
class SharedProgress:
    """What is known of a course by the reports of its students' servers.

    Attributes:
        is_shared: whether the course asks for reports.
        now: when this was known, by the pool's clock.
        since: from when on somebody listened.
        told: who has read the notice.
        heard: each student's last report.
        experiments: what each has claimed or handed in, the latest first.
    """

    is_shared: bool = False
    now: float = 0.0
    since: float = 0.0
    told: frozenset[str] = frozenset()
    heard: Mapping[str, Heard] = field(default_factory=dict)
    experiments: Mapping[str, tuple[SharedExperiment, ...]] = field(default_factory=dict)


def row_of(
    user: str,
    lease: LeaseView | None,
    ticket: TicketView | None,
    idle: Collection[int],
    shared: SharedProgress,
) -> RosterRow:
    """A student's row.

    Args:
        user: who.
        lease: what they hold in the course.
        ticket: what they wait for there.
        idle: the leases that do nothing, as the reclaimer sees it.
        shared: what the course's servers have reported.
    """
    is_known = shared.is_shared and user in shared.told
    heard = shared.heard.get(user)
    row = RosterRow(
        user=user,
        presence=_without_slice(heard, shared) if is_known else Presence.UNKNOWN,
        last_sign_at=heard.sign_at if is_known and heard else None,
        experiments=shared.experiments.get(user, ()) if is_known else None,
    )
    if lease is not None:
        presence = Presence.IDLE if lease.id in idle else Presence.HOLDING
        held = {"presence": presence, "shape": lease.shape, "since": lease.granted_at}
        return row.model_copy(update=held)
    if ticket is not None:
        waits = {"shape": ticket.shape, "since": ticket.created_at, "position": ticket.position}
        return row.model_copy(update={"presence": Presence.WAITING, **waits})
    return row


def _without_slice(heard: Heard | None, shared: SharedProgress) -> Presence:
    """Of somebody who has read the notice; who began to listen just now knows of nobody."""
    if heard is not None and shared.now - heard.at <= SILENT_S:
        return Presence.CPU
    return Presence.ABSENT if shared.now - shared.since > SILENT_S else Presence.UNKNOWN
