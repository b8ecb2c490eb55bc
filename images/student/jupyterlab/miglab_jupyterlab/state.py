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
FIRST_LOOKS = 12  # on Slurm, whoever tells of leases looks every few seconds: a new one comes late
NO_LEASE = "This server holds no GPU slice."

View = Mapping[str, Any]


@dataclass(frozen=True)
class KnownStatus:
    """The pool's last word, and what came after it.

    Attributes:
        shape: what the spawner said was leased; ``cpu`` for no slice.
        lease: the last ``LeaseView``; None before the first.
        status: the last ``ServerStatus``, and what came after it; empty before the first.
        pool_at: the pool's clock when it said so, seconds since the epoch.
        heard_at: our monotonic clock then; None before the first answer.
        problem: why there is no news: ``silent``, ``refused``; empty if all is well.
        tried: how often in a row there was no news.
        unseen: how often a server that has started with a slice was told of none.
        gone: whether the pool says that there is no lease (any more).
        gone_reason: the reason that the lease carried when it went, or the pool's own.
    """

    shape: str
    lease: View | None = None
    status: View = field(default_factory=dict)
    pool_at: float = 0.0
    heard_at: float | None = None
    problem: str = ""
    tried: int = 0
    unseen: int = 0
    gone: bool = False
    gone_reason: str = ""

    @property
    def ticket(self) -> View | None:
        """The last ``TicketView``; None for none."""
        return self.status.get("ticket")

    @property
    def sharing(self) -> Mapping[str, bool]:
        """The courses whose staff are shown progress, and whether the notice was read."""
        return self.status.get("sharing") or {}

    @property
    def is_warned(self) -> bool:
        """Whether the lease is about to be reclaimed."""
        return bool(self.lease and self.lease.get("warning")) and not self.gone

    @property
    def is_offered(self) -> bool:
        """Whether a slice is there for this server, to be restarted with."""
        return self.ticket is not None and _ticket_state(self.ticket) == "offered"

    def answered(self, pool_at: float, now: float) -> "KnownStatus":
        """The pool answered, by its clock and by ours."""
        return replace(self, pool_at=pool_at, heard_at=now, problem="", tried=0)

    def heard(self, status: View) -> "KnownStatus":
        """Its answer tells how the server stands (``ServerStatus``)."""
        fresh = replace(self, status=status)
        lease = status.get("lease")
        if lease is not None:
            return fresh.with_lease(lease)
        if self.shape in NOTHING_HELD:
            return fresh
        if self.lease is None and self.unseen < FIRST_LOOKS:
            return replace(fresh.told(ticket=None), unseen=self.unseen + 1)
        return fresh.without_lease()

    def told(self, **part: object) -> "KnownStatus":
        """A part of how the server stands is another now."""
        return replace(self, status={**self.status, **part})

    def without_tickets(self, forgotten: Collection[int]) -> "KnownStatus":
        """Not the ticket whose end somebody has read."""
        ticket = self.ticket
        is_old = ticket is not None and ticket["id"] in forgotten
        return self.told(ticket=None) if is_old else self

    def with_lease(self, lease: View) -> "KnownStatus":
        """The pool told how the lease stands."""
        gone = lease.get("state") not in LIVE | {ENDING}
        return replace(self, lease=lease, gone=gone, gone_reason=str(lease.get("reason", "")))

    def without_lease(self) -> "KnownStatus":
        """There is none (any more); what was known of it is kept to be shown."""
        reason = str((self.lease or {}).get("reason", ""))
        return replace(self, gone=True, gone_reason=self.gone_reason or reason or NO_LEASE)

    def no_news(self, problem: str) -> "KnownStatus":
        """The pool could not be asked; what was known stays, and ages."""
        return replace(self, problem=problem, tried=self.tried + 1)

    def until_s(self, at: float | None, now: float) -> float | None:
        """Seconds from now until a time of the pool's clock; None for no time."""
        if at is None or self.heard_at is None:
            return None
        return at - self.pool_at - (now - self.heard_at)


def shown(known: KnownStatus, now: float, read: Collection[int] = ()) -> dict[str, Any]:
    """What the front end gets.

    Args:
        known: what is known.
        now: our monotonic clock.
        read: the messages that somebody has put away.

    Returns:
        ``state``: of the lease: ``none`` (no slice was asked for), ``unknown`` (nothing heard yet),
        ``held``, ``ending`` or ``gone``; ``shape``; ``problem``; ``silent_s``; ``lease``,
        ``warning`` and ``ticket``, or None; ``messages``; ``people``; ``reason`` why the lease
        went; ``borrow``: what measurements have borrowed or wait for, None on a server that holds
        its slices; ``is_given_back``: whether it was its holder who released it.
    """
    view, has_heard = known.lease, known.heard_at is not None
    return {
        "state": _state(known),
        "shape": str(view["shape"]) if view else known.shape,
        "problem": known.problem,
        "silent_s": now - (known.heard_at or 0.0) if known.problem and has_heard else None,
        "lease": _lease(known, view, now) if view else None,
        "warning": _warning(known, view, now) if view and known.is_warned else None,
        "ticket": _ticket(known, known.ticket, now) if known.ticket else None,
        "messages": _messages(known, now, read),
        "people": known.status.get("people", ""),
        "reason": known.gone_reason,
        "is_given_back": bool(view and view.get("is_given_back")),
        "borrow": _borrow(known) if known.shape == BORROW else None,
    }


def _borrow(known: KnownStatus) -> dict[str, Any]:
    """``held``, ``none`` or ``waiting`` (``ahead``, ``likely_s``, ``high_s``; None: not known)."""
    held, waits = known.status.get("borrowed"), known.status.get("borrowing")
    if waits is not None and waits["state"] == "waiting":
        position, estimate = waits.get("position"), waits.get("estimate")
        return {
            "state": "waiting",
            "shape": waits["shape"],
            "ahead": None if position is None else position - 1,
            "likely_s": estimate["likely_s"] if estimate else None,
            "high_s": estimate["high_s"] if estimate else None,
        }
    shape = held["shape"] if held is not None else ""
    return {"state": "held" if held is not None else "none", "shape": shape}


def _state(known: KnownStatus) -> str:
    if known.shape in NOTHING_HELD and known.lease is None:
        return "none"
    if known.gone:
        return "gone"
    if known.lease is None:
        return "unknown"
    return "ending" if known.lease.get("state") == ENDING else "held"


def _lease(known: KnownStatus, view: View, now: float) -> dict[str, Any]:
    """The ``LeaseView``, with durations and sums; ``total_s``: to its or its guarantee's end."""
    slices = view.get("slices") or []
    began = view.get("attached_at") or view.get("granted_at")
    ends = view.get("ends_at") or view.get("guaranteed_until")
    return {
        **view,
        "left_s": known.until_s(view.get("ends_at"), now),
        "guaranteed_s": known.until_s(view.get("guaranteed_until"), now),
        "total_s": None if began is None or ends is None else ends - began,
        "memory_mib": sum(one["memory_mib"] for one in slices) if slices else None,
        "memory_used_mib": sum_if_known(one.get("memory_used_mib") for one in slices),
    }


def _warning(known: KnownStatus, view: View, now: float) -> dict[str, Any]:
    warning = view["warning"]
    return {**warning, "left_s": known.until_s(warning["reclaim_at"], now)}


def _ticket(known: KnownStatus, view: View, now: float) -> dict[str, Any]:
    """The ``TicketView``; ``waiting``, ``aside``, ``offered`` (for ``left_s`` yet) or ``over``.

    ``asks``: the student is to say whether they still wait.
    """
    ends_at = view.get("expires_at") if view["state"] == "offered" else None
    return {
        **view,
        "state": _ticket_state(view),
        "left_s": known.until_s(ends_at, now),
        "asks": view.get("answer_by") is not None,
    }


def _ticket_state(view: View) -> str:
    return TICKET_STATES.get(str(view.get("state")), "over")


def _messages(known: KnownStatus, now: float, read: Collection[int]) -> list[dict[str, Any]]:
    """Staff's messages that are still meant and were not put away, the oldest first."""
    told = (
        {**message, "left_s": known.until_s(message["until"], now) or 0.0}
        for message in known.status.get("messages") or ()
    )
    return sorted(
        (message for message in told if message["left_s"] > 0 and message["id"] not in read),
        key=lambda message: int(message["id"]),
    )


def sum_if_known(values: Any) -> float | None:
    """The sum, or None if there is none or one of them is not known."""
    found = list(values)
    return None if not found or None in found else sum(found)


def pause_s(known: KnownStatus, usual_s: float, warned_s: float, longest_s: float) -> float:
    """How long until the pool is asked again.

    Args:
        known: what is known now.
        usual_s: the usual pause.
        warned_s: the pause while something is about to happen, whether the pool answers or not: a
            warning, by which tabs save in time, an offer that lapses, or a lease that is not seen
            yet.
        longest_s: where the doubling ends while the pool is silent; also once the lease is gone.
    """
    if known.is_warned or known.is_offered or known.status.get("borrowing"):
        return warned_s
    if known.gone:
        return longest_s
    if known.unseen and known.lease is None:
        return warned_s
    doublings = min(max(0, known.tried - 1), MOST_DOUBLINGS)
    return min(usual_s * 2.0**doublings, longest_s)


MOST = 240  # of points; beyond that every other one is left out


class History:
    """The points, oldest first: when, memory used (MiB), activity (percent), whether one ran."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float | None, float | None, bool]] = []

    def add(self, now: float, lease: Mapping[str, Any], *, runs: bool) -> None:
        """Add how the lease's slices stand, and whether a kernel runs something."""
        slices = lease.get("slices") or []
        used = sum_if_known(one.get("memory_used_mib") for one in slices)
        activity = sum_if_known(one.get("activity_pct") for one in slices)
        mean = None if activity is None else activity / len(slices)
        self._points.append((now, used, mean, runs))
        if len(self._points) > MOST:
            del self._points[1::2]

    def shown(self, now: float) -> list[list[Any]]:
        """Each point, with its age in seconds for the moment."""
        return [[round(now - at), *rest] for at, *rest in self._points]
