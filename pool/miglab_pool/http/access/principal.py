"""Who asks, and what they may do and see: the spawner, or a person with roles.  Pure.

`TABLE` is the one table of rights, roles and how far each reaches: docs/reference/roles.md is made
of it, and every route names one of its rights.  It knows neither people nor courses.  Which roles
somebody has is found in `miglab_pool.course_roles`.
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
    """What somebody is.  Whoever is signed in is also a student."""

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
    """What can be allowed; `DOES` says each in words."""

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


DOES: Mapping[Right, str] = MappingProxyType(
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
"""The words after "may" and "may not"."""

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
"""What each role may; the spawner, and the operator with its secret, may everything."""


def reach(right: Right, role: Role) -> Reach | None:
    """How far a right reaches for a role; None: not at all."""
    return TABLE[right].get(role)


def whose(right: Right) -> str:
    """Who has a right over what is not their own, in words."""
    holders = [_holder(role, far) for role, far in TABLE[right].items() if far is not Reach.OWN]
    return " and ".join(holders) or "the spawner"


def _holder(role: Role, far: Reach) -> str:
    where = {
        Reach.COURSE: " of the course",
        Reach.ASSIGNED: " of the course that the GPU is assigned to",
    }
    return f"{role.value}s{where.get(far, '')}"


class PrincipalKind(StrEnum):
    """What a principal is."""

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
        instructs: the courses it is instructor of.
        assists: the courses it is assistant of.
        xsrf: the token that a write of this browser session must carry; empty for a bearer token.
        course_names: the hub groups it is in.
        user_id: who a person is, whatever they are called; empty where the hub does not say.
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
        """The same for all browser sessions: whoever equals it may see the same."""
        return replace(self, xsrf="")

    @property
    def is_staff(self) -> bool:
        """Whether it is more than a student anywhere."""
        return self.is_spawner or self.admin or bool(self.instructs | self.assists)

    @property
    def by(self) -> str:
        """How the ledger names it as the cause of a transition."""
        return self.kind.value if self.is_spawner else f"{self.kind.value}:{self.name}"

    def is_user(self, user: str | None) -> bool:
        """Whether it is this very user: a hub service of the same name is not."""
        return self.kind is PrincipalKind.PERSON and user is not None and user == self.name

    def roles(self) -> dict[Role, frozenset[str]]:
        """Its roles, and the courses of each."""
        found = {Role.STUDENT: frozenset(self.course_names)}
        if self.assists:
            found[Role.ASSISTANT] = self.assists
        if self.instructs:
            found[Role.INSTRUCTOR] = self.instructs
        if self.admin:
            found[Role.ADMIN] = NOWHERE
        return found

    def courses(self, right: Right | str) -> frozenset[str] | None:
        """The courses over which it has a right; None: over everything, course or not.

        For `Right.DRAIN` and `Right.PARTITION` it is about what is assigned to these courses.
        What is its own does not count.
        """
        reached = NOWHERE
        for role, courses in self.roles().items():
            far = reach(Right(right), role)
            if far is Reach.SITE:
                return None
            if far in (Reach.COURSE, Reach.ASSIGNED):
                reached |= courses
        return None if self.is_spawner else reached

    def may(self, right: Right | str, course: str | None = None, user: str | None = None) -> bool:
        """Whether it has a right over one thing.

        Args:
            right: what it wants to do.
            course: the thing's course: a lease's, a ticket's, or the one that a GPU is assigned to;
                None or empty for what belongs to no course, or to the whole site.
            user: whose it is; None to leave aside whether it is the principal's own.

        Guarantees that the answer for a thing without a course is no for all but site-wide rights.
        """
        reached = self.courses(right)
        if reached is None or (course and course in reached):
            return True
        is_own = reach(Right(right), Role.STUDENT) is Reach.OWN
        return is_own and self.is_user(user)

    def has(self, right: Right | str) -> bool:
        """Whether it has a right over anything at all, be it only over what is its own."""
        is_own = reach(Right(right), Role.STUDENT) is Reach.OWN
        return is_own or self.courses(right) != NOWHERE

    def require(
        self, right: Right | str, course: str | None = None, user: str | None = None
    ) -> None:
        """Refuse unless it `may`.

        Raises:
            DeniedError: 403 ``forbidden``, saying who may.
        """
        if not self.may(right, course, user):
            raise forbidden(Right(right), course or "")

    def without_roles(self) -> Self:
        """The same principal as a student: while it is not known whether a role still holds."""
        return replace(self, admin=False, instructs=NOWHERE, assists=NOWHERE)


def forbidden(right: Right, course: str = "") -> DeniedError:
    """The refusal of a right, in words."""
    where = f" in {course}" if course else ""
    return DeniedError(
        403, "forbidden", f"You may not {DOES[right]}{where}: that is for {whose(right)}."
    )


SPAWNER = Principal(PrincipalKind.SPAWNER)


def visible_snapshot(snapshot: PoolSnapshot, principal: Principal) -> PoolSnapshot:
    """The snapshot with everything removed that names somebody whom the principal may not see.

    Everybody sees every slice's place, profile and state.  Name, server, course and UUID one sees
    of one's own, staff of their courses' students, and site admins and the spawner of all.
    """
    if principal.may(Right.SEE_NAMES):
        return snapshot
    return snapshot.model_copy(
        update={
            "gpus": tuple(visible_gpu(gpu, principal) for gpu in snapshot.gpus),
            "waiting": tuple(visible_ticket(ticket, principal) for ticket in snapshot.waiting),
        }
    )


def visible_ticket(ticket: TicketView, principal: Principal) -> TicketView:
    """The ticket; its owner and message are left out where the principal may not see them."""
    if principal.may(Right.SEE_NAMES, ticket.course, ticket.user):
        return ticket
    return ticket.model_copy(update={"user": None, "server": None, "course": "", "message": ""})


def visible_gpu(gpu: GpuView, principal: Principal) -> GpuView:
    """The GPU, with what the principal may see of each of its slices."""
    return gpu.model_copy(
        update={"slices": tuple(visible_slice(item, principal) for item in gpu.slices)}
    )


def visible_slice(item: SliceView, principal: Principal) -> SliceView:
    """The slice, without its holder if the principal may not see whom."""
    is_nobodys = item.lease is None and item.user is None
    if principal.may(Right.SEE_NAMES, item.course, item.user) or (
        is_nobodys and principal.is_staff
    ):
        return item
    return item.model_copy(
        update={"user": None, "server": None, "course": None, "uuid": None, "reason": ""}
    )


def visible_reservation(one: ReservationView, principal: Principal) -> ReservationView:
    """The reservation; who made it and what for, those alone see who could have made it."""
    if principal.may(Right.SEE_NAMES, one.course):
        return one
    return one.model_copy(update={"made_by": None, "message": ""})
