"""What somebody may do to what they look at, and what will happen to whom if they do.  Pure.

Each act is asked once: its words say what will happen, and its form is sent to the same API, with
the same rights, as the command line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from miglab_api.gpus import DRAINABLE_STATES, GpuView, SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.tickets import TicketView
from miglab_api.wording import duration
from miglab_pool.http.access.principal import Principal, Right

KEPT = "Files are kept; what is only in the memory of running notebooks is lost."
BY_HAND = "released on the pool's page"
ENDING_OR_ENDED = frozenset({LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.EXPIRED})
WARNINGS = (
    ("300", "after a warning of 5 minutes"),
    ("60", "after a warning of 1 minute"),
    ("900", "after a warning of 15 minutes"),
    ("0", "at once, without a warning"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """One thing to fill in.

    Attributes:
        name: the API's key.
        kind: how it is filled in.
        value: what stands there first.
        times: what a number is multiplied by for the API; 0 for text.
        most: a number's or a text's limit.
        options: values and their words, of a choice.
    """

    name: str
    label: str
    kind: Literal["line", "text", "number", "choice"] = "line"
    value: str = ""
    times: int = 0
    most: int = 500
    is_needed: bool = True
    options: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    Attributes:
        key: which, in a word.
        title: what is read in the list.
        says: what will happen, to whom.
        done: what is told when it is done.
        path: of the API.
        fixed: what is sent beside the fields, as JSON names it.
        is_grave: whether something is lost by it.
        go: what the button says; empty: the title.
    """

    key: str
    title: str
    says: str
    done: str
    path: str
    method: str = "POST"
    fields: tuple[Field, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    is_grave: bool = False
    go: str = ""


REASON = Field("reason", "Reason (recorded with your name; shown to the people concerned)")
MAY_REASON = Field("reason", "Reason (optional; recorded with your name)", is_needed=False)
ANYWAY = Field("anyway", "Why, even if a reservation loses slices (optional)", is_needed=False)


# -- leases -------------------------------------------------------------------------------------


def on_lease(lease: LeaseView, principal: Principal) -> list[Action]:
    """What the principal may do to a lease."""
    if lease.state in ENDING_OR_ENDED:
        return []
    if principal.is_user(lease.user):
        return [*_extend_own(lease), _release_own(lease)]
    found: list[Action] = []
    if principal.may(Right.MESSAGE, lease.course):
        found.append(_message(lease.user, lease.server, to=f"{lease.user}, in JupyterLab"))
    if principal.may(Right.EXTEND, lease.course):
        found += _extend(lease)
    if principal.may(Right.RELEASE, lease.course):
        found.append(_reclaim(lease))
    return found


def _extend_own(lease: LeaseView) -> Iterable[Action]:
    if not lease.extensions_left:
        return
    more = duration(lease.extension_s)
    left = lease.extensions_left - 1
    yield Action(
        "extend",
        f"Extend by {more}",
        f"Your {lease.shape} is guaranteed for {more} longer. After that, you can extend it "
        + (f"{left} more time{'s' if left != 1 else ''}." if left else "no further."),
        f"Your {lease.shape} is now guaranteed for {more} longer.",
        f"leases/{lease.id}/extend",
        fixed={"by_s": f"{lease.extension_s:g}"},
        go="Extend",
    )


def _release_own(lease: LeaseView) -> Action:
    return Action(
        "release",
        "Release",
        f"Your server stops, and your {lease.shape} is free for others. {KEPT}",
        f"Your {lease.shape} is being released.",
        f"leases/{lease.id}/release",
        fixed={"reason": BY_HAND},
        is_grave=True,
    )


def _extend(lease: LeaseView) -> Iterable[Action]:
    if lease.warning is not None and lease.warning.kind is WarningKind.MAINTENANCE:
        return
    yield Action(
        "extend",
        "Give more time",
        f"{lease.user} keeps {lease.shape}, guaranteed for that much longer. This does not count "
        "as one of their extensions, and it ends a warning. It is refused if a reservation needs "
        "the slice.",
        f"{lease.user} has more time.",
        f"leases/{lease.id}/extend",
        fields=(Field("by_s", "Minutes", "number", "30", times=60, most=7 * 24 * 60), MAY_REASON),
        fixed={"expected": lease.state.value},
    )


def _reclaim(lease: LeaseView) -> Action:
    waits = lease.others_wait
    gain = f" {waits} in the queue could use it." if waits else " Nobody else needs it now."
    return Action(
        "reclaim",
        "Reclaim",
        f"{lease.user} sees your reason in JupyterLab and can save, but not refuse. Then the "
        f"server stops and {lease.shape} is free. {KEPT}{gain}",
        f"{lease.shape} is being reclaimed from {lease.user}.",
        f"leases/{lease.id}/reclaim",
        fields=(Field("warning_s", "When", "choice", times=1, options=WARNINGS), REASON),
        fixed={"expected": lease.state.value},
        is_grave=True,
    )


# -- the line, and all --------------------------------------------------------------------------


def on_ticket(ticket: TicketView, principal: Principal) -> list[Action]:
    """What the principal may do to a position in the queue."""
    is_own = principal.is_user(ticket.user)
    who = "you" if is_own else str(ticket.user)
    found: list[Action] = []
    if principal.may(Right.NEXT, ticket.course):
        found += _next(ticket, who)
    if not is_own and principal.may(Right.MESSAGE, ticket.course):
        found.append(_message(str(ticket.user), None, to=who))
    if principal.may(Right.RELEASE, ticket.course, ticket.user):
        whose = "your" if is_own else f"{who}'s"
        found.append(
            Action(
                "cancel",
                "Leave the queue" if is_own else "Remove from the queue",
                f"The position in the queue for {ticket.shape} is lost; everybody behind moves up.",
                f"{whose.capitalize()} ticket is cancelled.",
                f"tickets/{ticket.id}",
                "DELETE",
                is_grave=True,
                go="" if is_own else "Remove",
            )
        )
    return found


def _next(ticket: TicketView, who: str) -> Iterable[Action]:
    path = f"tickets/{ticket.id}/next"
    if ticket.is_next:
        says = f"{who} waits again at the position that course, usage and waiting time give."
        done = f"{who} is back in the queue order."
        yield Action("back", "Undo serving next", says, done, path, "DELETE", go="Undo")
    elif ticket.position is not None:
        yield Action(
            "next",
            "Serve next",
            f"{who} gets the next {ticket.shape} that is free, before everybody else in the queue. "
            "No running lease is ended for it; reservations in force come first.",
            f"{who} is next.",
            path,
            fields=(REASON,),
            fixed={"expected": ticket.state.value},
        )


def on_pool(paused: str, courses: Sequence[str], principal: Principal) -> list[Action]:
    """What the principal may do to all at once."""
    found: list[Action] = []
    mine = [course for course in courses if principal.may(Right.MESSAGE, course)]
    if mine:
        found.append(_message_course(mine))
    if principal.may(Right.MESSAGE):
        found.append(
            _send_message(
                "message-all", "Message everybody", "Everybody who has a server", {"all": "true"}
            )
        )
    if principal.may(Right.PAUSE):
        found.append(_resume(paused) if paused else _pause())
    return found


def _pause() -> Action:
    return Action(
        "pause",
        "Pause new leases",
        "Nobody gets a slice until you resume. Students in the queue keep their positions, and "
        "running leases go on.",
        "The pool is paused.",
        "pool/pause",
        fields=(Field("reason", "Reason (shown to students)"),),
        go="Pause",
    )


def _resume(paused: str) -> Action:
    says = (
        f"The pool is paused: {paused} When you resume, leases are granted again in the order of "
        "the queue."
    )
    return Action("resume", "Resume", says, "Leases are granted again.", "pool/resume")


def _message(user: str, server: str | None, to: str) -> Action:
    fixed = {"to_user": user} | ({} if server is None else {"to_server": server})
    return _send_message("message", "Message", to, fixed)


def _message_course(courses: Sequence[str]) -> Action:
    options = tuple((name, name) for name in courses)
    choice = Field("to_course", "Course", "choice", options=options)
    whom = "Everybody in the course who has a server"
    return _send_message("message-course", "Message a course", whom, {}, (choice,))


def _send_message(
    key: str, title: str, whom: str, fixed: Mapping[str, str], fields: tuple[Field, ...] = ()
) -> Action:
    return Action(
        key,
        title,
        f"{whom} will see it in JupyterLab, with your name, for as long as you choose. "
        "You can withdraw it on the Log page.",
        "The message is sent.",
        "messages",
        fields=(
            *fields,
            Field("text", "Message", "text", most=1000),
            Field("minutes", "Shown for (minutes)", "number", "60", times=1, most=7 * 24 * 60),
        ),
        fixed=fixed,
        go="Send",
    )


# -- GPUs and slices ------------------------------------------------------------------------------


def on_slice(item: SliceView, gpu: GpuView, principal: Principal) -> list[Action]:
    """What the principal may do to a slice, whoever holds it."""
    found: list[Action] = []
    if principal.may(Right.DRAIN, gpu.course) and item.profile != "full" and not gpu.draining:
        found += _drain_slice(item)
    if principal.may(Right.QUARANTINE):
        found += _quarantine(item)
    if principal.may(Right.ADOPT) and item.state is SliceState.FOREIGN:
        says = (
            f"{_named(item)} was not created by the lab: any program running on it is cut off. "
            "The slice is destroyed, and the pool takes its placement over."
        )
        found.append(_on_place(item, "adopt", "Adopt", says, is_grave=True))
    return found


def _drain_slice(item: SliceView) -> Iterable[Action]:
    if item.draining:
        says = "Its placement takes new leases again."
        yield _on_place(item, "undrain", "End draining", says, MAY_REASON)
    elif item.state in DRAINABLE_STATES:
        who = f"{item.user} keeps it; after that, n" if item.user else "N"
        says = f"{who}obody gets this placement until you end the drain."
        yield _on_place(item, "drain", "Drain", says, REASON, ANYWAY)


def _quarantine(item: SliceView) -> Iterable[Action]:
    if item.state is SliceState.FREE:
        says = "It stays as it is, and nobody gets it until somebody tries again to destroy it."
        yield _on_place(item, "quarantine", "Quarantine", says)
    if item.state is SliceState.QUARANTINED:
        says = "The driver is asked again to destroy it. Then its placement is free."
        yield _on_place(item, "clear", "Try again", says, MAY_REASON)


def on_gpu(gpu: GpuView, principal: Principal) -> list[Action]:
    """What the principal may do to a whole GPU."""
    if not principal.may(Right.DRAIN, gpu.course):
        return []
    name = _named(gpu)
    if gpu.fault:
        says = f"{name} was reset, or is known to be well: it takes new leases again in a minute."
        return [_on_place(gpu, "undrain", "Mark as repaired", says, MAY_REASON, done=says)]
    if gpu.draining:
        says = f"{name} takes new leases again."
        return [_on_place(gpu, "undrain", "End draining", says, MAY_REASON, done=says)]
    held = len({item.lease for item in gpu.slices if item.lease is not None})
    who = f"The {held} lease{'s' if held != 1 else ''} on it go on. " if held else ""
    says = f"{who}No new lease gets a slice of {name} until you end the drain."
    done = f"{name} is draining."
    return [_on_place(gpu, "drain", "Drain", says, REASON, ANYWAY, done=done)]


def _on_place(
    place: GpuView | SliceView,
    key: str,
    title: str,
    says: str,
    *fields: Field,
    done: str = "",
    is_grave: bool = False,
) -> Action:
    at = f"gpus/{place.uuid}" if isinstance(place, GpuView) else f"slices/{place.slice_id}"
    return Action(
        key,
        title,
        says,
        done or f"{_named(place)}: {title.lower()}, done.",
        f"{at}/{key}",
        fields=fields or (REASON,),
        fixed={"expected": _state(place)},
        is_grave=is_grave,
    )


def _named(place: GpuView | SliceView) -> str:
    if isinstance(place, GpuView):
        return f"GPU {place.index}"
    return f"{place.profile} on GPU {place.gpu}"


def _state(place: GpuView | SliceView) -> str:
    """What the action calls the state that was seen."""
    if place.draining and (isinstance(place, GpuView) or place.state in DRAINABLE_STATES):
        return "draining"
    return str(place.state)
