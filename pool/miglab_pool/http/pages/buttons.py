"""The actions that a page offers a principal, with forms that say what will happen.  Pure.

A form explains its action before it is sent, and goes to the same API, with the same rights, as the
command line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from miglab_api.gpus import DRAINABLE_STATES, GpuView, SliceState, SliceView
from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_api.staff import STAFF_ACTIONS
from miglab_api.tickets import TicketState, TicketView
from miglab_api.wording import duration
from miglab_pool.http.access.principal import Principal, Right

FILES_KEPT = "Files are kept; what is only in the memory of running notebooks is lost."
RELEASED_BY_HAND = "released on the pool's page"
ENDING_OR_ENDED = frozenset({LeaseState.RELEASING, LeaseState.RELEASED, LeaseState.EXPIRED})
WARNINGS = (
    ("300", "after a warning of 5 minutes"),
    ("60", "after a warning of 1 minute"),
    ("900", "after a warning of 15 minutes"),
    ("0", "at once, without a warning"),
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an action's form.

    Attributes:
        name: the key in the API's JSON.
        kind: the kind of input.
        value: the initial value.
        times: the factor by which the API's number is larger; 0 for text.
        maximum: the largest number, or the longest text.
        is_way_on: whether it is shown only once a refusal names it as its way on.
        options: the values of a choice, with their labels.
    """

    name: str
    label: str
    kind: Literal["line", "text", "number", "choice"] = "line"
    value: str = ""
    times: int = 0
    maximum: int = 500
    is_needed: bool = True
    is_way_on: bool = False
    options: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Action:
    """One action, with its form.

    Attributes:
        key: the word for the action.
        title: its label in the list.
        explanation: what will happen, and to whom.
        confirmation: the message once it is done.
        path: the path of the API.
        constants: what is sent besides the fields.
        is_grave: whether something is lost by it.
        go: the label of the button; empty: the title.
    """

    key: str
    title: str
    explanation: str
    confirmation: str
    path: str
    method: str = "POST"
    fields: tuple[Field, ...] = ()
    constants: Mapping[str, str] = field(default_factory=dict)
    is_grave: bool = False
    go: str = ""


REASON = Field("reason", "Reason (recorded with your name; shown to the people concerned)")
MAY_REASON = Field("reason", "Reason (optional; recorded with your name)", is_needed=False)
ANYWAY = Field("anyway", "Why it is done though a reservation loses slices", is_way_on=True)


_ACTION_OF_KEY = {action.key: action for action in STAFF_ACTIONS}

# -- leases -------------------------------------------------------------------------------------


def lease_actions(lease: LeaseView, principal: Principal) -> list[Action]:
    """Return what the principal may do to a lease."""
    if lease.state in ENDING_OR_ENDED:
        return []
    if principal.is_user(lease.user):
        return [*_still_here(lease), *_extend_own(lease), _release_own(lease)]
    actions: list[Action] = []
    if principal.may(Right.MESSAGE, lease.course):
        actions.append(_message(lease.user, lease.server, to=f"{lease.user}, in JupyterLab"))
    if principal.may(Right.EXTEND, lease.course):
        actions += _extend(lease)
    if principal.may(Right.RELEASE, lease.course):
        actions.append(_reclaim(lease))
    return actions


def _still_here(lease: LeaseView) -> Iterable[Action]:
    """Yield the answer to an idle warning, for servers whose JupyterLab does not show it."""
    warning = lease.warning
    if warning is None or warning.kind is not WarningKind.IDLE or not warning.keepalives_left:
        return
    yield Action(
        "keepalive",
        "I am still here",
        f"You keep your {lease.shape} for a while. Run something on it: this works "
        f"{_times(warning.keepalives_left)} until work is seen.",
        f"You keep your {lease.shape} for now.",
        f"leases/{lease.id}/keepalive",
    )


def _extend_own(lease: LeaseView) -> Iterable[Action]:
    if not lease.extensions_left:
        return
    extension = duration(lease.extension_s)
    remaining = lease.extensions_left - 1
    yield Action(
        "extend",
        f"Extend by {extension}",
        f"Your {lease.shape} is guaranteed for {extension} longer. After that, you can extend it "
        + (f"{_times(remaining, 'more ')}." if remaining else "no further."),
        f"Your {lease.shape} is now guaranteed for {extension} longer.",
        f"leases/{lease.id}/extend",
        constants={"by_s": f"{lease.extension_s:g}"},
        go="Extend",
    )


def _times(count: int, kind: str = "") -> str:
    return f"{count} {kind}time{'s' if count != 1 else ''}"


def _release_own(lease: LeaseView) -> Action:
    return Action(
        "release",
        "Release",
        f"Your server stops, and your {lease.shape} is free for others. {FILES_KEPT}",
        f"Your {lease.shape} is being released.",
        f"leases/{lease.id}/release",
        constants={"reason": RELEASED_BY_HAND},
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
        fields=(
            Field("by_s", "Minutes", "number", "30", times=60, maximum=7 * 24 * 60),
            MAY_REASON,
        ),
        constants={"expected": lease.state.value},
    )


def _reclaim(lease: LeaseView) -> Action:
    waits = lease.others_wait
    gain = f" {waits} in the queue could use it." if waits else " Nobody else needs it now."
    return Action(
        "reclaim",
        "Reclaim",
        f"{lease.user} sees your reason in JupyterLab and can save, but not refuse. Then the "
        f"server stops and {lease.shape} is free. {FILES_KEPT}{gain}",
        f"{lease.shape} is being reclaimed from {lease.user}.",
        f"leases/{lease.id}/reclaim",
        fields=(Field("warning_s", "When", "choice", times=1, options=WARNINGS), REASON),
        constants={"expected": lease.state.value},
        is_grave=True,
    )


# -- tickets and the pool------------------------------------------------------------------------


def ticket_actions(ticket: TicketView, principal: Principal) -> list[Action]:
    """Return what the principal may do to a ticket."""
    is_own = principal.is_user(ticket.user)
    is_offered = ticket.state is TicketState.OFFERED
    holder = "you" if is_own else str(ticket.user)
    actions: list[Action] = []
    if principal.may(Right.NEXT, ticket.course):
        if not is_offered:
            actions += _next(ticket, holder)
        elif not is_own:
            actions += _on_offer(ticket, holder)
    if not is_own and principal.may(Right.MESSAGE, ticket.course):
        actions.append(_message(str(ticket.user), None, to=holder))
    if principal.may(Right.RELEASE, ticket.course, ticket.user):
        if not is_offered:
            actions.append(_leave_queue(ticket, holder, is_own=is_own))
        elif is_own:
            actions.append(_leave_offer(ticket))
    return actions


def _leave_queue(ticket: TicketView, holder: str, *, is_own: bool) -> Action:
    owner = "Your" if is_own else f"{holder}'s"
    return Action(
        "cancel",
        "Leave the queue" if is_own else "Remove from the queue",
        f"The position in the queue for {ticket.shape} is lost; everybody behind moves up.",
        f"{owner} ticket is cancelled.",
        f"tickets/{ticket.id}",
        "DELETE",
        is_grave=True,
        go="" if is_own else "Remove",
    )


def _leave_offer(ticket: TicketView) -> Action:
    return Action(
        "cancel",
        "Leave it to the next student",
        f"Your {ticket.shape} goes to the next in the queue, and you leave the queue.",
        "Your ticket is cancelled.",
        f"tickets/{ticket.id}",
        "DELETE",
        is_grave=True,
    )


def _on_offer(ticket: TicketView, student: str) -> Iterable[Action]:
    constants = {"expected": ticket.state.value}
    yield Action(
        "call",
        "Call again",
        f"{student} reads your words in JupyterLab and on this page, and {ticket.shape} is held "
        "for them for the full time again.",
        f"{student} is called again.",
        f"tickets/{ticket.id}/call",
        fields=(Field("reason", "What you tell them (recorded with your name)"),),
        constants=constants,
        go="Call",
    )
    yield Action(
        "pass",
        "Pass it to the next",
        f"{ticket.shape} goes to the next in the queue at once. {student} steps aside: they keep "
        "their position, and are offered nothing until they return to the queue.",
        f"{ticket.shape} goes to the next in the queue.",
        f"tickets/{ticket.id}/pass",
        fields=(REASON,),
        constants=constants,
        is_grave=True,
        go="Pass it on",
    )


def _next(ticket: TicketView, holder: str) -> Iterable[Action]:
    path = f"tickets/{ticket.id}/next"
    if ticket.is_next:
        explanation = (
            f"{holder} waits again at the position that course, usage and waiting time give."
        )
        confirmation = f"{holder} is back in the queue order."
        yield Action(
            "back", "Undo serving next", explanation, confirmation, path, "DELETE", go="Undo"
        )
    elif ticket.position is not None:
        yield Action(
            "next",
            "Serve next",
            f"{holder} gets the next {ticket.shape} that is free, before everybody else in the "
            "queue. No running lease is ended for it; reservations in force come first.",
            f"{holder} is next.",
            path,
            fields=(REASON,),
            constants={"expected": ticket.state.value},
        )


def pool_actions(paused: str, courses: Sequence[str], principal: Principal) -> list[Action]:
    """Return what the principal may do to the whole pool."""
    actions: list[Action] = []
    message_courses = [course for course in courses if principal.may(Right.MESSAGE, course)]
    if message_courses:
        actions.append(_message_course(message_courses))
    if principal.may(Right.MESSAGE):
        actions.append(
            _send_message(
                "message-all", "Message everybody", "Everybody who has a server", {"all": "true"}
            )
        )
    if principal.may(Right.PAUSE):
        actions.append(_resume(paused) if paused else _pause())
    return actions


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
    explanation = (
        f"The pool is paused: {paused} When you resume, leases are granted again in the order of "
        "the queue."
    )
    return Action("resume", "Resume", explanation, "Leases are granted again.", "pool/resume")


def _message(user: str, server: str | None, to: str) -> Action:
    constants = {"to_user": user} | ({} if server is None else {"to_server": server})
    return _send_message("message", "Message", to, constants)


def _message_course(courses: Sequence[str]) -> Action:
    options = tuple((name, name) for name in courses)
    choice = Field("to_course", "Course", "choice", options=options)
    audience = "Everybody in the course who has a server"
    return _send_message("message-course", "Message a course", audience, {}, (choice,))


def _send_message(
    key: str,
    title: str,
    audience: str,
    constants: Mapping[str, str],
    fields: tuple[Field, ...] = (),
) -> Action:
    return Action(
        key,
        title,
        f"{audience} will see it in JupyterLab, with your name, for as long as you choose. "
        "You can withdraw it on the Log page.",
        "The message is sent.",
        "messages",
        fields=(
            *fields,
            Field("text", "Message", "text", maximum=1000),
            Field("minutes", "Shown for (minutes)", "number", "60", times=1, maximum=7 * 24 * 60),
        ),
        constants=constants,
        go="Send",
    )


# -- GPUs and slices ------------------------------------------------------------------------------


def slice_actions(slice_: SliceView, gpu: GpuView, principal: Principal) -> list[Action]:
    """Return what the principal may do to a slice, whoever holds it."""
    actions = [*_drain_slice(slice_, gpu), *_quarantine(slice_)]
    if slice_.state is SliceState.FOREIGN:
        explanation = (
            f"{_place_name(slice_)} was not created by the lab: any program running on it is cut "
            "off. The slice is destroyed, and the pool takes its placement over."
        )
        actions.append(_room_action(slice_, "adopt", "Adopt", explanation, is_grave=True))
    return [action for action in actions if _may_act(principal, action.key, gpu)]


def _drain_slice(slice_: SliceView, gpu: GpuView) -> Iterable[Action]:
    if slice_.profile == "full" or gpu.draining:
        return
    if slice_.draining:
        explanation = "Its placement takes new leases again."
        yield _room_action(slice_, "undrain", "End draining", explanation)
    elif slice_.state in DRAINABLE_STATES:
        subject = f"{slice_.user} keeps it; after that, n" if slice_.user else "N"
        explanation = f"{subject}obody gets this placement until you end the drain."
        yield _room_action(slice_, "drain", "Drain", explanation)


def _quarantine(slice_: SliceView) -> Iterable[Action]:
    if slice_.state is SliceState.FREE:
        explanation = (
            "It stays as it is, and nobody gets it until somebody tries again to destroy it."
        )
        yield _room_action(slice_, "quarantine", "Quarantine", explanation)
    if slice_.state is SliceState.QUARANTINED:
        explanation = "The driver is asked again to destroy it. Then its placement is free."
        yield _room_action(slice_, "clear", "Try again", explanation)


def gpu_actions(gpu: GpuView, principal: Principal) -> list[Action]:
    """Return what the principal may do to a whole GPU."""
    action = _drain_gpu(gpu)
    return [action] if _may_act(principal, action.key, gpu) else []


def _drain_gpu(gpu: GpuView) -> Action:
    """Return the form that drains a GPU, ends its drain or marks it as repaired."""
    name = _place_name(gpu)
    if gpu.fault:
        explanation = (
            f"{name} was reset, or is known to be well: it takes new leases again in a minute."
        )
        return _room_action(
            gpu, "undrain", "Mark as repaired", explanation, confirmation=explanation
        )
    if gpu.draining:
        explanation = f"{name} takes new leases again."
        return _room_action(gpu, "undrain", "End draining", explanation, confirmation=explanation)
    lease_count = len({slice_.lease for slice_ in gpu.slices if slice_.lease is not None})
    sentence = (
        f"The {lease_count} lease{'s' if lease_count != 1 else ''} on it go on. "
        if lease_count
        else ""
    )
    explanation = f"{sentence}No new lease gets a slice of {name} until you end the drain."
    confirmation = f"{name} is draining."
    return _room_action(gpu, "drain", "Drain", explanation, confirmation=confirmation)


def _may_act(principal: Principal, key: str, gpu: GpuView) -> bool:
    """Whether the principal has the right of one of `STAFF_ACTIONS` over a GPU or its slices."""
    action = _ACTION_OF_KEY[key]
    return principal.may(action.right, gpu.course if "gpu" in action.kinds else None)


def _room_action(
    place: GpuView | SliceView,
    key: str,
    title: str,
    explanation: str,
    *,
    confirmation: str = "",
    is_grave: bool = False,
) -> Action:
    """Return the form of one of `STAFF_ACTIONS`, with the fields that its request has."""
    at = f"gpus/{place.uuid}" if isinstance(place, GpuView) else f"slices/{place.slice_id}"
    return Action(
        key,
        title,
        explanation,
        confirmation or f"{_place_name(place)}: {title.lower()}, done.",
        f"{at}/{key}",
        fields=(MAY_REASON,) if _ACTION_OF_KEY[key].needs_no_reason else (REASON, ANYWAY),
        constants={"expected": _state(place)},
        is_grave=is_grave,
    )


def _place_name(place: GpuView | SliceView) -> str:
    if isinstance(place, GpuView):
        return f"GPU {place.index}"
    return f"{place.profile} on GPU {place.gpu}"


def _state(place: GpuView | SliceView) -> str:
    """Return the state that the principal sees, as the API expects it."""
    if place.draining and (isinstance(place, GpuView) or place.state in DRAINABLE_STATES):
        return "draining"
    return str(place.state)
