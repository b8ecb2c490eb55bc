"""Who did what, for people.  Pure."""

from miglab_api.staff import STAFF_ACTIONS, AuditEntry
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


def told(last: AuditEntry, now: float) -> str:
    """Who did what last, as a clause."""
    reason = f" (“{last.reason}”)" if last.reason else ""
    done = did(last.action, last.to_state)
    return f"{called(last.by)} {done} {duration(now - last.at)} ago{reason}"


def did(action: str, to_state: str) -> str:
    """What was done to something, as a verb with "it"."""
    return DONE.get(action) or (f"made it {to_state}" if to_state else "changed it")
