"""Staff actions on the pool (drain, reclaim, pause, adopt), messages, and the audit."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from miglab_api.base import REASON_MAX, Course, ExpectedState, ReasonText, Server, User, WireModel

TEXT_MAX = 1000
WARNING_MAX_S = 3600.0
MINUTES_MAX = 7 * 24 * 60.0
RequiredReason = Annotated[str, Field(min_length=1, max_length=REASON_MAX, pattern=r"\S")]


class StaffMessage(WireModel):
    """A message from staff, as a server shows it.

    Attributes:
        by: who says so, by name.
        until: it is shown no longer from then on.
    """

    id: int
    at: float
    by: str
    text: str
    until: float


class ActionRequest(WireModel):
    """A staff action's reason, which the audit records and the people concerned can read.

    Attributes:
        expected: the state that the person saw, as in the view (``draining`` for what is drained),
            or a slice's or lease's generation.
    """

    reason: RequiredReason
    expected: ExpectedState | None = None


class RoomRequest(ActionRequest):
    """A staff action that takes slices from new leases.

    Attributes:
        anyway: why, though it takes slices from a reservation; empty: then it is refused.
    """

    anyway: ReasonText = ""


class OptionalReasonRequest(WireModel):
    """A staff action that may be done without a reason: `undrain`, `clear` or `adopt`."""

    reason: ReasonText = ""
    expected: ExpectedState | None = None


class StaffAction(NamedTuple):
    """A staff action on a GPU or slice: its routes, command, right and phrase in the log.

    Attributes:
        key: the word for it in addresses, commands and the audit.
        kinds: of what it is done to; of two, the right is asked of the GPU's course.
        right: what its doer needs, as roles.md calls it.
        needs_no_reason: whether it may be done without a reason.
        summary: what it does, in a sentence.
        confirmation: the message once it is done, with ``{kind}``, ``{which}`` and ``{reason}``.
        log_phrase: the log's words for it, to follow the name of whoever did it.
    """

    key: str
    kinds: tuple[Literal["gpu", "slice"], ...]
    right: str
    needs_no_reason: bool
    summary: str
    confirmation: str
    log_phrase: str

    @property
    def request_model(self) -> type[RoomRequest | OptionalReasonRequest]:
        """The model of its request."""
        return OptionalReasonRequest if self.needs_no_reason else RoomRequest

    def route_name(self, kind: str) -> str:
        """The name of its route."""
        return self.key if len(self.kinds) == 1 else f"{self.key}_{kind}"


STAFF_ACTIONS = (
    StaffAction("drain", ("gpu", "slice"), "drain", False,
        "Give no new leases on a GPU or slice; running leases go on.",
        "{kind} {which} is draining: {reason}", "drained it"),
    StaffAction("undrain", ("gpu", "slice"), "drain", True,
        "End a drain: give leases on a GPU or slice again.",
        "{kind} {which} is not draining any more", "ended its draining"),
    StaffAction("quarantine", ("slice",), "quarantine", False,
        "Take a slice that nobody holds out of service; it stays as it is until `clear`.",
        "slice {which} is quarantined: {reason}", "took it out of service"),
    StaffAction("clear", ("slice",), "quarantine", True,
        "Try again to destroy a quarantined slice.",
        "the pool tries again to destroy slice {which}", "let the pool try again to destroy it"),
    StaffAction("adopt", ("slice",), "adopt", True,
        "Take over the placement of a foreign slice, which is DESTROYED.",
        "slice {which} is being destroyed", "took it over"),
)  # fmt: skip
"""The actions that need only a target and a reason.

Each has a route, a form on the pool's page and a command; all three take from this table.
"""


class ReclaimRequest(ActionRequest):
    """Reclaim a lease.

    Attributes:
        warning_s: how long its holder is warned first; 0 takes it back at once.
    """

    warning_s: Annotated[float, Field(ge=0, le=WARNING_MAX_S)] = 300.0


class MessageRequest(WireModel):
    """A message to one user, one server, a course, or all; exactly one of these.

    Attributes:
        to_user: a user: all their servers, or with ``to_server`` that one.
        to_server: a server's name; empty for the default one.
        to_course: all who are in this course.
        all: everybody.
        minutes: how long it is shown.
    """

    to_user: User | None = None
    to_server: Server | None = None
    to_course: Course | None = None
    all: bool = False
    text: Annotated[str, Field(min_length=1, max_length=TEXT_MAX, pattern=r"\S")]
    minutes: Annotated[float, Field(gt=0, le=MINUTES_MAX)] = 60.0

    @model_validator(mode="after")
    def _has_one_addressee(self) -> Self:
        addressees = (self.to_user is not None, self.to_course is not None, self.all)
        if sum(addressees) != 1:
            raise ValueError("say to whom: one of to_user, to_course and all")
        if self.to_server is not None and self.to_user is None:
            raise ValueError("to_server needs to_user: whose server it is")
        return self


class SentMessage(WireModel):
    """A message as staff see it.

    Attributes:
        by: who sent it.
        to_user: as in the request; without any addressee it is for all.
        until: it is shown no longer from then on.
    """

    id: int
    at: float
    by: str
    to_user: str | None = None
    to_server: str | None = None
    to_course: str | None = None
    text: str
    until: float


class AuditEntry(WireModel):
    """One entry of the audit.

    Attributes:
        id: the later, the higher.
        by: who did it: ``person:NAME``, ``service:NAME``, ``spawner`` (also the host's operator).
        action: what a person did, in a word; empty for what the pool did by itself.
        kind: ``gpu``, ``slice``, ``ticket``, ``lease``, ``reservation``, ``message``, ``pool`` …
        target: which one.
        from_state: its state before.
        to_state: its state after; the same for what changes no state.
        reason: why, in the person's words.
        course: whose it was; empty for none.
        user: whose lease or ticket it was; empty for what is nobody's, and once that is forgotten.
    """

    id: int
    at: float
    by: str
    action: str
    kind: str
    target: str
    from_state: str
    to_state: str
    reason: str
    course: str
    user: str = ""


CAUSES = {
    "spawner": "the operator of this host",
    "pool": "the pool",
    "driver": "the GPU's driver",
    "reclaimer": "the reclaimer",
}
"""The display names of causes that are single words."""


def display_name(cause: str) -> str:
    """Return the display name of an entry's cause, such as ``person:ada`` or ``reclaimer``."""
    kind, _, name = cause.partition(":")
    if kind in ("person", "service") and name:
        return name
    if kind == "server" and name:
        return name.split("/")[0]
    return CAUSES.get(cause, cause)


def is_holder(cause: str, user: str, server: str) -> bool:
    """Whether a cause is this server, or its user on a page."""
    return cause in (f"server:{user}/{server}", f"person:{user}")
