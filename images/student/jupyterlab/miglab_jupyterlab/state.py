"""What a server knows about its lease, and what its front ends are told.

Pure: answers of the pool and a monotonic clock in, plain values out.  The pool's times are compared
with the pool's own clock alone (the ``Date`` of its answer) and go on as durations, so the clocks
of pool, container and browser need not agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

LIVE = frozenset({"granted", "attached", "running", "warned"})
ENDING = "releasing"
MOST_DOUBLINGS = 20  # of a pause: a pool that is away for a week makes no number too large


@dataclass(frozen=True)
class Known:
    """The pool's last word, and what came after it.

    Attributes:
        shape: what the spawner said was leased; ``cpu`` for no slice.
        lease: the last ``LeaseView``; None before the first.
        pool_at: the pool's clock when it said so, seconds since the epoch.
        heard_at: our monotonic clock then.
        problem: why there is no news: ``silent``, ``refused``; empty if all is well.
        tried: how often in a row there was no news.
        gone: whether the pool says that there is no lease (any more).
        gone_why: the reason that the lease carried when it went, or the pool's own.
    """

    shape: str
    lease: Mapping[str, Any] | None = None
    pool_at: float = 0.0
    heard_at: float = 0.0
    problem: str = ""
    tried: int = 0
    gone: bool = False
    gone_why: str = ""

    @property
    def is_warned(self) -> bool:
        """Whether the lease is about to be taken back."""
        return bool(self.lease and self.lease.get("warning")) and not self.gone

    def heard(self, lease: Mapping[str, Any], pool_at: float, now: float) -> "Known":
        """The pool told how the lease stands."""
        gone = lease.get("state") not in LIVE | {ENDING}
        return Known(
            shape=self.shape,
            lease=lease,
            pool_at=pool_at,
            heard_at=now,
            gone=gone,
            gone_why=str(lease.get("reason", "")),
        )

    def has_none(self, why: str) -> "Known":
        """The pool knows of no lease of this server; what was known of it is kept to be shown."""
        reason = str((self.lease or {}).get("reason", "")) or why
        return replace(self, problem="", tried=0, gone=True, gone_why=self.gone_why or reason)

    def no_news(self, problem: str) -> "Known":
        """The pool could not be asked; what was known stays, and ages."""
        return replace(self, problem=problem, tried=self.tried + 1)

    def until_s(self, at: float | None, now: float) -> float | None:
        """Seconds from now until a time of the pool's clock; None for no time."""
        return None if at is None else at - self.pool_at - (now - self.heard_at)


def shown(known: Known, now: float) -> dict[str, Any]:
    """What the front end gets.

    Returns:
        ``state``: ``none`` (no slice was asked for), ``unknown`` (nothing heard yet), ``held``,
        ``ending`` or ``gone``; ``shape``; ``problem``; ``silent_s``; ``lease`` and ``warning``, or
        None; ``why`` it went.
    """
    view = known.lease
    return {
        "state": _state(known),
        "shape": str(view["shape"]) if view else known.shape,
        "problem": known.problem,
        "silent_s": now - known.heard_at if known.problem and view else None,
        "lease": _lease(known, view, now) if view else None,
        "warning": _warning(known, now) if known.is_warned else None,
        "why": known.gone_why,
    }


def _state(known: Known) -> str:
    if known.shape == "cpu" and known.lease is None:
        return "none"
    if known.gone:
        return "gone"
    if known.lease is None:
        return "unknown"
    return "ending" if known.lease.get("state") == ENDING else "held"


def _lease(known: Known, view: Mapping[str, Any], now: float) -> dict[str, Any]:
    slices = view.get("slices") or []
    return {
        "id": view["id"],
        "course": view.get("course", ""),
        "left_s": known.until_s(view.get("ends_at"), now),
        "others_wait": view.get("others_wait"),
        "extensions_left": view.get("extensions_left", 0),
        "extension_s": view.get("extension_s", 0),
        "memory_mib": sum(one["memory_mib"] for one in slices) if slices else None,
        "memory_used_mib": _sum_if_known(one.get("memory_used_mib") for one in slices),
        "slices": [
            {name: one.get(name) for name in ("uuid", "profile", "memory_mib", "memory_used_mib")}
            for one in slices
        ],
    }


def _warning(known: Known, now: float) -> dict[str, Any]:
    assert known.lease is not None
    warning = known.lease["warning"]
    return {
        "kind": warning["kind"],
        "reason": warning["reason"],
        "left_s": known.until_s(warning["reclaim_at"], now),
        "stays_left": warning.get("stays_left", 0),
    }


def _sum_if_known(values: Any) -> float | None:
    """The sum, or None if there is none or one of them is not known."""
    found = list(values)
    return None if not found or None in found else sum(found)


def pause_s(known: Known, interval_s: float, warned_s: float, longest_s: float) -> float:
    """How long until the pool is asked again.

    Args:
        known: what is known now.
        interval_s: the usual pause.
        warned_s: the pause while warned, whether the pool answers or not: tabs save in time by it.
        longest_s: where the doubling ends while the pool is silent; also once the lease is gone.
    """
    if known.is_warned:
        return warned_s
    if known.gone:
        return longest_s
    doublings = min(max(0, known.tried - 1), MOST_DOUBLINGS)
    return min(interval_s * 2.0**doublings, longest_s)
