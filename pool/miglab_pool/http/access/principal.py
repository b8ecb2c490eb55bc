"""Who asks, and what they may do and see: the spawner, or a person with roles.  Pure.

The table is in `rights`; which roles somebody has is found in `miglab_pool.course_roles`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from miglab_api.gpus import GpuView, PoolSnapshot, SliceView
from miglab_api.reservations import ReservationView
from miglab_api.tickets import TicketView
from miglab_pool.http.access.rights import DOES, Reach, Right, Role, reach, whose
from miglab_pool.http.errors import DeniedError

NOWHERE: frozenset[str] = frozenset()


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
    """

    kind: PrincipalKind
    name: str = ""
    admin: bool = False
    instructs: frozenset[str] = NOWHERE
    assists: frozenset[str] = NOWHERE
    xsrf: str = ""
    course_names: tuple[str, ...] = ()

    @property
    def is_spawner(self) -> bool:
        """Whether it is the spawner, or the operator with the spawner's secret."""
        return self.kind is PrincipalKind.SPAWNER

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
