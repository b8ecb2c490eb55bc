"""Principals, and what they may do and see: the spawner, people with roles, services.  Pure.

`TABLE` is the only table of rights, roles and how far each right reaches: docs/reference/roles.md
is generated from it, and every route names one of its rights.  It knows neither people nor courses;
`miglab_pool.course_roles` says which roles a person has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Self

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.reservations import ReservationView
from miglab_api.tickets import TicketView
from miglab_pool.http.errors import DeniedError

NOWHERE: frozenset[str] = frozenset()


class Role(StrEnum):
    """What a principal is in a course or on the site.  Everybody signed in is also a student."""

    ADMIN = "site admin"
    INSTRUCTOR = "instructor"
    ASSISTANT = "assistant"
    STUDENT = "student"


class Reach(StrEnum):
    """How far a role's right reaches."""

    SITE = "everything"
    COURSE = "own courses"
    ASSIGNED = "GPUs assigned to own courses"
    OWN = "what is their own"


class Right(StrEnum):
    """What a role may do; `RIGHT_PHRASES` has each in words."""

    SEE_POOL = "see-pool"
    SEE_NAMES = "see-names"
    EXPLAIN = "explain"
    SEE_CLASS = "see-class"
    SEE_USAGE = "see-usage"
    SEE_LAYOUTS = "see-layouts"
    HEALTH = "health"
    AUDIT = "audit"
    MESSAGE = "message"
    EXTEND = "extend"
    RELEASE = "release"
    NEXT = "next"
    RESERVE = "reserve"
    DRAIN = "drain"
    PARTITION = "partition"
    QUARANTINE = "quarantine"
    PAUSE = "pause"
    ADOPT = "adopt"
    SPAWN = "spawn"


RIGHT_PHRASES: Mapping[Right, str] = MappingProxyType(
    {
        Right.SEE_POOL: "see the pool, its offers and its reservations, without names",
        Right.SEE_NAMES: "see who holds slices and who waits",
        Right.EXPLAIN: "ask what the reclaimer thinks of a lease, and why",
        Right.SEE_CLASS: "see a class: who waits, holds a slice or idles, and what is claimed",
        Right.SEE_USAGE: "see usage figures",
        Right.SEE_LAYOUTS: "see how GPUs are to be partitioned",
        Right.HEALTH: "see the health of the GPUs and of the service",
        Right.AUDIT: "read who did what, and why",
        Right.MESSAGE: "send messages to JupyterLab",
        Right.EXTEND: "give a lease more time",
        Right.RELEASE: "reclaim a lease, or remove a ticket from the queue",
        Right.NEXT: "serve somebody next",
        Right.RESERVE: "reserve slices, or change or cancel a reservation",
        Right.DRAIN: "drain a GPU or a slice, or end a drain",
        Right.PARTITION: "decide how GPUs are partitioned",
        Right.QUARANTINE: "quarantine a slice, or clear a quarantined one",
        Right.PAUSE: "pause new leases, or resume them",
        Right.ADOPT: "destroy a slice that the lab did not create, and take its placement over",
        Right.SPAWN: "ask for slices in a student's name, and start servers with them",
    }
)
"""Each right as a phrase after "may" and "may not"."""

_STAFF = {Role.ADMIN: Reach.SITE, Role.INSTRUCTOR: Reach.COURSE, Role.ASSISTANT: Reach.COURSE}
_TEACHERS = {Role.ADMIN: Reach.SITE, Role.INSTRUCTOR: Reach.COURSE}
_LANDLORDS = {Role.ADMIN: Reach.SITE, Role.INSTRUCTOR: Reach.ASSIGNED}
_READERS = {Role.ADMIN: Reach.SITE, Role.INSTRUCTOR: Reach.SITE, Role.ASSISTANT: Reach.SITE}

TABLE: Mapping[Right, Mapping[Role, Reach]] = MappingProxyType(
    {
        Right.SEE_POOL: _READERS | {Role.STUDENT: Reach.SITE},
        Right.SEE_NAMES: _STAFF | {Role.STUDENT: Reach.OWN},
        Right.EXPLAIN: _STAFF,
        Right.SEE_CLASS: _STAFF | {Role.STUDENT: Reach.OWN},
        Right.SEE_USAGE: _STAFF,
        Right.SEE_LAYOUTS: _READERS,
        Right.HEALTH: {Role.ADMIN: Reach.SITE, Role.INSTRUCTOR: Reach.SITE},
        Right.AUDIT: _STAFF,
        Right.MESSAGE: _STAFF,
        Right.EXTEND: _STAFF | {Role.STUDENT: Reach.OWN},
        Right.RELEASE: _TEACHERS | {Role.STUDENT: Reach.OWN},
        Right.NEXT: _TEACHERS,
        Right.RESERVE: _TEACHERS,
        Right.DRAIN: _LANDLORDS,
        Right.PARTITION: _LANDLORDS,
        Right.QUARANTINE: {Role.ADMIN: Reach.SITE},
        Right.PAUSE: {Role.ADMIN: Reach.SITE},
        Right.ADOPT: {Role.ADMIN: Reach.SITE},
        Right.SPAWN: {},
    }
)
"""The reach of each role's rights; the spawner, and the operator with its secret, has all."""


def reach(right: Right, role: Role) -> Reach | None:
    """Return how far a role's right reaches; None if the role does not have it."""
    return TABLE[right].get(role)


def holders_of(right: Right) -> str:
    """Return in words who has a right over what is not their own."""
    holders = [
        _holder(role, reach_) for role, reach_ in TABLE[right].items() if reach_ is not Reach.OWN
    ]
    return " and ".join(holders) or "the spawner"


def _holder(role: Role, reach_: Reach) -> str:
    suffix = {
        Reach.COURSE: " of the course",
        Reach.ASSIGNED: " of the course that the GPU is assigned to",
    }
    return f"{role.value}s{suffix.get(reach_, '')}"


class PrincipalKind(StrEnum):
    """The kind of a principal."""

    SPAWNER = "spawner"
    PERSON = "person"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Principal:
    """One authenticated principal.

    Attributes:
        kind: the spawner (by the pool's own secret), a person, or another hub service.
        name: the hub's name for it; empty for the spawner.
        admin: whether it is a site admin.
        instructs: the courses of which it is an instructor.
        assists: the courses of which it is an assistant.
        xsrf: the token that a write of this browser session must carry; empty for a bearer token.
        course_names: the hub groups it is in.
        user_id: the hub's id of a person, which outlasts renames; empty if the hub gives none.
    """

    kind: PrincipalKind
    name: str = ""
    admin: bool = False
    instructs: frozenset[str] = NOWHERE
    assists: frozenset[str] = NOWHERE
    xsrf: str = ""
    course_names: tuple[str, ...] = ()
    user_id: str = ""

    @property
    def is_spawner(self) -> bool:
        """Whether it is the spawner, or the operator with the spawner's secret."""
        return self.kind is PrincipalKind.SPAWNER

    @property
    def viewer(self) -> Self:
        """The principal without its session, as equal ones may see the same."""
        return replace(self, xsrf="")

    @property
    def is_staff(self) -> bool:
        """Whether it has more than a student's role anywhere."""
        return self.is_spawner or self.admin or bool(self.instructs | self.assists)

    @property
    def actor(self) -> str:
        """How the ledger names it as the cause of a transition."""
        return self.kind.value if self.is_spawner else f"{self.kind.value}:{self.name}"

    def is_user(self, user: str | None) -> bool:
        """Whether it is this very user: a hub service of the same name is not."""
        return self.kind is PrincipalKind.PERSON and user is not None and user == self.name

    def roles(self) -> dict[Role, frozenset[str]]:
        """Return its roles, with the courses of each."""
        courses_by_role = {Role.STUDENT: frozenset(self.course_names)}
        if self.assists:
            courses_by_role[Role.ASSISTANT] = self.assists
        if self.instructs:
            courses_by_role[Role.INSTRUCTOR] = self.instructs
        if self.admin:
            courses_by_role[Role.ADMIN] = NOWHERE
        return courses_by_role

    def courses(self, right: Right | str) -> frozenset[str] | None:
        """Return the courses over which it has a right; None for everything, course or not.

        `Right.DRAIN` and `Right.PARTITION` cover the GPUs assigned to these courses.  Rights over
        what is the principal's own do not count.
        """
        reached = NOWHERE
        for role, courses in self.roles().items():
            reach_ = reach(Right(right), role)
            if reach_ is Reach.SITE:
                return None
            if reach_ in (Reach.COURSE, Reach.ASSIGNED):
                reached |= courses
        return None if self.is_spawner else reached

    def may(self, right: Right | str, course: str | None = None, user: str | None = None) -> bool:
        """Whether it has a right over one resource.

        Args:
            right: the right.
            course: the course of a lease or a ticket, or to which a GPU is assigned; None or empty
                for what belongs to no course, or to the whole site.
            user: the user whose it is; None not to count it as the principal's own.

        Only site-wide rights cover a resource without a course.
        """
        reached = self.courses(right)
        if reached is None or (course and course in reached):
            return True
        is_own = reach(Right(right), Role.STUDENT) is Reach.OWN
        return is_own and self.is_user(user)

    def has(self, right: Right | str) -> bool:
        """Whether it has a right over anything at all, even if only over what is its own."""
        is_own = reach(Right(right), Role.STUDENT) is Reach.OWN
        return is_own or self.courses(right) != NOWHERE

    def require(
        self, right: Right | str, course: str | None = None, user: str | None = None
    ) -> None:
        """Refuse unless it `may`.

        Raises:
            DeniedError: 403 ``forbidden``, saying who has the right.
        """
        if not self.may(right, course, user):
            raise forbidden(Right(right), course or "")

    def without_roles(self) -> Self:
        """Return the principal without roles, while it is not known whether they still hold."""
        return replace(self, admin=False, instructs=NOWHERE, assists=NOWHERE)


def forbidden(right: Right, course: str = "") -> DeniedError:
    """Return the refusal of a right, which says who has it."""
    place = f" in {course}" if course else ""
    return DeniedError(
        403,
        "forbidden",
        f"You may not {RIGHT_PHRASES[right]}{place}: that is for {holders_of(right)}.",
    )


SPAWNER = Principal(PrincipalKind.SPAWNER)


def visible_snapshot(snapshot: PoolSnapshot, principal: Principal) -> PoolSnapshot:
    """Return the snapshot without what names users whom the principal may not see.

    Everybody sees the placement, profile and state of every slice.  A user sees name, server,
    course and UUID of their own slices, staff those of their courses, site admins and the spawner
    all.
    """
    if principal.may(Right.SEE_NAMES):
        return snapshot
    return snapshot.model_copy(
        update={
            "gpus": tuple(visible_gpu(gpu, principal) for gpu in snapshot.gpus),
            "waiting": tuple(visible_ticket(ticket, principal) for ticket in snapshot.waiting),
            "offered": tuple(visible_ticket(ticket, principal) for ticket in snapshot.offered),
        }
    )


def visible_ticket(ticket: TicketView, principal: Principal) -> TicketView:
    """Return the ticket, without its user and message if the principal may not see them."""
    if principal.may(Right.SEE_NAMES, ticket.course, ticket.user):
        return ticket
    return ticket.model_copy(update={"user": None, "server": None, "course": "", "message": ""})


def visible_gpu(gpu: GpuView, principal: Principal) -> GpuView:
    """Return the GPU, with what the principal may see of each of its slices."""
    return gpu.model_copy(
        update={"slices": tuple(visible_slice(slice_, principal) for slice_ in gpu.slices)}
    )


def visible_slice(slice_view: SliceView, principal: Principal) -> SliceView:
    """Return the slice, without its holder if the principal may not see them."""
    is_unused = slice_view.lease is None and slice_view.user is None
    if principal.may(Right.SEE_NAMES, slice_view.course, slice_view.user) or (
        is_unused and principal.is_staff
    ):
        return slice_view
    return slice_view.model_copy(
        update={"user": None, "server": None, "course": None, "uuid": None, "reason": ""}
    )


def visible_reservation(reservation: ReservationView, principal: Principal) -> ReservationView:
    """Return the reservation, without its author and message if the principal may not see them."""
    if principal.may(Right.SEE_NAMES, reservation.course):
        return reservation
    return reservation.model_copy(update={"made_by": None, "message": ""})
