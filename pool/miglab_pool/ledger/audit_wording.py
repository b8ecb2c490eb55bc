"""Who did what, for people.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from miglab_api.staff import STAFF_ACTIONS
from miglab_api.wording import duration

OPERATOR = "the operator of this host"
NAMES = {"spawner": OPERATOR, "pool": "the pool", "reclaimer": "the reclaimer"}
DONE = {action.key: action.did for action in STAFF_ACTIONS} | {
    "reclaim": "reclaimed it",
    "extend": "gave it more time",
    "keep": "let its holder keep it",
    "next": "served it next",
    "back": "undid serving it next",
    "apply": "applied a layout to it",
    "end": "took it back",
    "message": "sent it",
    "change": "changed it",
    "pause": "paused it",
    "resume": "resumed it",
    "keepalive": "is still there",
    "look": "looked at it",
    "export": "exported it",
    "refused": "was refused a change of it",
}


@dataclass(frozen=True)
class Step:
    """The last thing that the ledger has of something."""

    at: float
    by: str
    action: str
    to_state: str
    reason: str

    @classmethod
    def of(cls, row: Mapping[str, object]) -> "Step":
        """The step that a transition tells of."""
        return cls(
            at=float(str(row["at"])),
            by=str(row["by"]),
            action=str(row["action"]),
            to_state=str(row["to_state"]),
            reason=str(row["reason"]),
        )


def is_holder(by: str, user: str, server: str) -> bool:
    """Whether the ledger names this server, or its user on a page, as the cause of something."""
    return by in (f"server:{user}/{server}", f"person:{user}")


def called(by: str) -> str:
    """How people call whom the ledger names as the cause of something."""
    kind, _, name = by.partition(":")
    if kind in ("person", "service") and name:
        return name
    if kind == "server" and name:
        return name.split("/")[0]
    return NAMES.get(by, by)


def told(step: Step | None, now: float) -> str:
    """Who did what last, as a clause; empty if nobody did anything."""
    if step is None:
        return ""
    reason = f" (“{step.reason}”)" if step.reason else ""
    return (
        f"{called(step.by)} {did(step.action, step.to_state)} {duration(now - step.at)} ago{reason}"
    )


def did(action: str, to_state: str) -> str:
    """What was done to something, as a verb with "it"."""
    return DONE.get(action) or (f"made it {to_state}" if to_state else "changed it")
