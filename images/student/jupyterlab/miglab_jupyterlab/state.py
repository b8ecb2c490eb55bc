"""What a server knows of its lease and its position in the queue, and what its front ends are told.

Pure: answers of the pool and a monotonic clock in, plain values out.  The pool's times are compared
with the pool's own clock alone (the ``Date`` of its answer) and go on as durations, so the clocks
of pool, container and browser need not agree.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CPU = "cpu"
BORROW = "borrow"  # no slice either: measurements borrow one
NOTHING_HELD = frozenset({CPU, BORROW})
LIVE = frozenset({"granted", "attached", "running", "warned"})
ENDING = "releasing"
TICKET_STATES = {  # others: over
    "waiting": "waiting",
    "aside": "aside",
    "offered": "offered",
    "taken": "offered",
}
MOST_DOUBLINGS = 20  # of a pause: a pool that is away for a week makes no number too large
SOON = 3  # the first in line, to whom the next slices are offered
PREPARED_S = 1.0  # between two looks while a slice is being made
FIRST_LOOKS = 12  # on Slurm, whoever tells of leases looks every few seconds: a new one comes late
NO_LEASE = "This server holds no GPU slice."

View = Mapping[str, Any]


@dataclass(frozen=True)
class KnownStatus:
    """The latest answer of the pool, and what has changed since.

    Attributes:
        shape: what the spawner said was leased; ``cpu`` for no slice.
        lease: the last ``LeaseView``; None before the first.
        server_status: the last ``ServerStatus``, and what came after it; empty before the first.
        pool_at: the pool's clock when it said so, seconds since the epoch.
        heard_at: our monotonic clock then; None before the first answer.
        status_at: our monotonic clock when the whole server status was answered, and the line with
            it; what a button does answers only a part of it.
        problem: why there is no news: ``silent``, ``refused``; empty if all is well.
        tried: how often in a row there was no news.
        unseen: how often a server that has started with a slice was told that it has none.
        is_gone: whether the pool says that there is no lease (any more).
        gone_reason: the reason that the lease carried when it went, or the pool's own.
    """

    shape: str
    lease: View | None = None
    server_status: View = field(default_factory=dict)
    pool_at: float = 0.0
    heard_at: float | None = None
    status_at: float | None = None
    problem: str = ""
    tried: int = 0
    unseen: int = 0
    is_gone: bool = False
    gone_reason: str = ""

    @property
    def ticket(self) -> View | None:
        """The last ``TicketView``; None for none."""
        return self.server_status.get("ticket")

    @property
    def sharing(self) -> Mapping[str, bool]:
        """The courses whose staff are shown progress, and whether the notice was read."""
        return self.server_status.get("sharing") or {}

    @property
    def is_warned(self) -> bool:
        """Whether the lease is about to be reclaimed."""
        return bool(self.lease and self.lease.get("warning")) and not self.is_gone

    @property
    def is_offered(self) -> bool:
        """Whether a slice is there for this server, to be restarted with."""
        return self.ticket is not None and _ticket_state(self.ticket) == "offered"

    @property
    def is_next(self) -> bool:
        """Whether an offer may come at any moment: this server is among the first in line."""
        position = (self.ticket or {}).get("position")
        return position is not None and position <= SOON and not self.problem

    @property
    def is_prepared(self) -> bool:
        """Whether a slice is granted to this server, and is being made: a matter of seconds."""
        ticket = self.ticket or {}
        is_queued = ticket.get("position") is not None or bool(ticket.get("message"))
        return ticket.get("state") == "waiting" and not is_queued

    def with_answer_at(self, pool_at: float, now: float) -> "KnownStatus":
        """Return a copy with the moment of the latest answer, by the pool's clock and by ours."""
        return replace(self, pool_at=pool_at, heard_at=now, problem="", tried=0)

    def with_status(self, status: View) -> "KnownStatus":
        """Return a copy with the ``ServerStatus`` that the pool has answered."""
        fresh = replace(self, server_status=status, status_at=self.heard_at)
        lease = status.get("lease")
        if lease is not None:
            return fresh.with_lease(lease)
        if self.shape in NOTHING_HELD:
            return fresh
        if self.lease is None and self.unseen < FIRST_LOOKS:
            return replace(fresh.with_part(ticket=None), unseen=self.unseen + 1)
        return fresh.without_lease()

    def with_part(self, **part: object) -> "KnownStatus":
        """Return a copy in which these fields of the server status are replaced."""
        return replace(self, server_status={**self.server_status, **part})

    def without_tickets(self, forgotten: Collection[int]) -> "KnownStatus":
        """Return a copy without its ticket if the student has already read how the ticket ended."""
        ticket = self.ticket
        is_old = ticket is not None and ticket["id"] in forgotten
        return self.with_part(ticket=None) if is_old else self

    def with_lease(self, lease: View) -> "KnownStatus":
        """Return a copy with the lease that the pool has answered."""
        is_gone = lease.get("state") not in LIVE | {ENDING}
        return replace(self, lease=lease, is_gone=is_gone, gone_reason=str(lease.get("reason", "")))

    def without_lease(self) -> "KnownStatus":
        """Return a copy whose lease is gone; its last view is kept for the front end."""
        reason = str((self.lease or {}).get("reason", ""))
        return replace(self, is_gone=True, gone_reason=self.gone_reason or reason or NO_LEASE)

    def with_problem(self, problem: str) -> "KnownStatus":
        """Return a copy that says why there is no news; everything else stays, and ages."""
        return replace(self, problem=problem, tried=self.tried + 1)

    def pool_now(self, now: float) -> float:
        """The pool's clock at this moment of ours; call it once the pool has answered."""
        return self.pool_at + now - (self.heard_at or 0.0)

    def until_s(self, at: float | None, now: float) -> float | None:
        """Seconds from now until a time of the pool's clock; None for no time."""
        if at is None or self.heard_at is None:
            return None
        return at - self.pool_now(now)


def front_end_status(status: KnownStatus, now: float, read: Collection[int] = ()) -> dict[str, Any]:
    """Return the status of lease, ticket and messages as the front end gets it.

    Args:
        status: what the server knows.
        now: our monotonic clock.
        read: the messages that somebody has put away.

    Returns:
        ``state``: of the lease: ``none`` (no slice was asked for), ``unknown`` (nothing heard yet),
        ``held``, ``ending`` or ``gone``; ``shape``; ``problem``; ``silent_s``; ``lease``,
        ``warning`` and ``ticket``, or None; ``messages``; ``people``; ``reason`` why the lease
        went; ``borrow``: what measurements have borrowed or wait for, None on a server that holds
        its slices; ``is_given_back``: whether it was its holder who released it; ``line``: as the
        pool has answered it (`miglab_api.line.Line`), ``line_age_s`` ago.
    """
    view, has_heard = status.lease, status.heard_at is not None
    return {
        "state": _state(status),
        "shape": str(view["shape"]) if view else status.shape,
        "problem": status.problem,
        "silent_s": now - (status.heard_at or 0.0) if status.problem and has_heard else None,
        "lease": _lease(status, view, now) if view else None,
        "warning": _warning(status, view, now) if view and status.is_warned else None,
        "ticket": _ticket(status, status.ticket, now) if status.ticket else None,
        "messages": _messages(status, now, read),
        "people": status.server_status.get("people", ""),
        "reason": status.gone_reason,
        "is_given_back": bool(view and view.get("is_given_back")),
        "borrow": _borrow(status) if status.shape == BORROW else None,
        "line": status.server_status.get("line"),
        "line_age_s": 0.0 if status.status_at is None else now - status.status_at,
    }


def _borrow(status: KnownStatus) -> dict[str, Any]:
    """``held``, ``none`` or ``waiting`` (``ahead``, ``likely_s``, ``high_s``; None: not known)."""
    borrowed, waits = status.server_status.get("borrowed"), status.server_status.get("borrowing")
    if waits is not None and waits["state"] == "waiting":
        position, estimate = waits.get("position"), waits.get("estimate")
        return {
            "state": "waiting",
            "shape": waits["shape"],
            "ahead": None if position is None else position - 1,
            "likely_s": estimate["likely_s"] if estimate else None,
            "high_s": estimate["high_s"] if estimate else None,
        }
    shape = borrowed["shape"] if borrowed is not None else ""
    return {"state": "held" if borrowed is not None else "none", "shape": shape}


def _state(status: KnownStatus) -> str:
    if status.shape in NOTHING_HELD and status.lease is None:
        return "none"
    if status.is_gone:
        return "gone"
    if status.lease is None:
        return "unknown"
    return "ending" if status.lease.get("state") == ENDING else "held"


def _lease(status: KnownStatus, view: View, now: float) -> dict[str, Any]:
    """The ``LeaseView``, with durations and sums; ``total_s``: to its or its guarantee's end."""
    slices = view.get("slices") or []
    started_at = view.get("attached_at") or view.get("granted_at")
    ends = view.get("ends_at") or view.get("guaranteed_until")
    return {
        **view,
        "left_s": status.until_s(view.get("ends_at"), now),
        "guaranteed_s": status.until_s(view.get("guaranteed_until"), now),
        "total_s": None if started_at is None or ends is None else ends - started_at,
        "memory_mib": sum(s["memory_mib"] for s in slices) if slices else None,
        "memory_used_mib": sum_if_known(s.get("memory_used_mib") for s in slices),
    }


def _warning(status: KnownStatus, view: View, now: float) -> dict[str, Any]:
    warning = view["warning"]
    return {**warning, "left_s": status.until_s(warning["reclaim_at"], now)}


def _ticket(status: KnownStatus, view: View, now: float) -> dict[str, Any]:
    """The ``TicketView``; ``waiting``, ``aside``, ``offered`` (for ``left_s`` yet) or ``over``.

    ``asks``: the student is to say whether they still wait.
    """
    ends_at = view.get("expires_at") if view["state"] == "offered" else None
    return {
        **view,
        "state": _ticket_state(view),
        "left_s": status.until_s(ends_at, now),
        "asks": view.get("answer_by") is not None,
    }


def _ticket_state(view: View) -> str:
    return TICKET_STATES.get(str(view.get("state")), "over")


def _messages(status: KnownStatus, now: float, read: Collection[int]) -> list[dict[str, Any]]:
    """Return the messages that have neither expired nor been read, the oldest first."""
    messages = (
        {**message, "left_s": status.until_s(message["until"], now) or 0.0}
        for message in status.server_status.get("messages") or ()
    )
    return sorted(
        (message for message in messages if message["left_s"] > 0 and message["id"] not in read),
        key=lambda message: int(message["id"]),
    )


def sum_if_known(values: Any) -> float | None:
    """The sum, or None if there is none or one of them is not known."""
    numbers = list(values)
    return None if not numbers or None in numbers else sum(numbers)


def pause_s(status: KnownStatus, usual_s: float, warned_s: float, longest_s: float) -> float:
    """Return how many seconds to wait until the pool is asked again.

    Args:
        status: what the server knows now.
        usual_s: the usual pause.
        warned_s: the pause while something is about to happen, whether the pool answers or not: a
            warning, by which tabs save in time, an offer that lapses, or a lease that is not seen
            yet; also while the pool answers, and an offer may come at any moment.
        longest_s: where the doubling ends while the pool is silent; also once the lease is gone.
    """
    if status.is_prepared:
        return min(PREPARED_S, usual_s)
    is_urgent = status.is_warned or status.is_offered or status.is_next
    if is_urgent or status.server_status.get("borrowing"):
        return warned_s
    if status.is_gone:
        return longest_s
    if status.unseen and status.lease is None:
        return warned_s
    doublings = min(max(0, status.tried - 1), MOST_DOUBLINGS)
    return min(usual_s * 2.0**doublings, longest_s)


MOST = 240  # of points; beyond that every other one is left out


class History:
    """How the slice was used: time, memory (MiB), activity (percent), whether a kernel ran."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float | None, float | None, bool]] = []

    def add(self, now: float, lease: Mapping[str, Any], *, runs: bool) -> None:
        """Add a point: the readings of the lease's slices, and whether a kernel runs something."""
        slices = lease.get("slices") or []
        used = sum_if_known(s.get("memory_used_mib") for s in slices)
        activity = sum_if_known(s.get("activity_pct") for s in slices)
        mean = None if activity is None else activity / len(slices)
        self._points.append((now, used, mean, runs))
        if len(self._points) > MOST:
            del self._points[1::2]

    def points(self, now: float) -> list[list[Any]]:
        """Return the points, oldest first, with their age in seconds in place of the time."""
        return [[round(now - at), *reading] for at, *reading in self._points]
