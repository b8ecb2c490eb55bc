"""Who asks: the spawner, or a person with or without a staff role.  Pure."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an asker is."""

    SPAWNER = "spawner"
    PERSON = "person"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class Asker:
    """One authenticated asker.

    Attributes:
        kind: the spawner (by the pool's own secret), a person, or another hub service.
        name: the hub's name for it; empty for the spawner.
        staff: whether it may see names and steer what belongs to others.
        admin: whether it is a hub admin, and may destroy what is not the lab's.
        xsrf: the token that a write of this browser session must carry; empty for a bearer token.
        course_names: the hub groups it is in.
    """

    kind: Kind
    name: str = ""
    staff: bool = False
    admin: bool = False
    xsrf: str = ""
    course_names: tuple[str, ...] = ()

    @property
    def is_spawner(self) -> bool:
        """Whether it is the spawner, or the operator with the spawner's secret."""
        return self.kind is Kind.SPAWNER

    @property
    def sees_names(self) -> bool:
        """Whether names of other people are shown to it."""
        return self.staff or self.is_spawner

    @property
    def may_adopt(self) -> bool:
        """Whether it may take over what the lab did not make."""
        return self.admin or self.is_spawner

    @property
    def by(self) -> str:
        """How the ledger names it as the cause of a transition."""
        return self.kind.value if self.is_spawner else f"{self.kind.value}:{self.name}"

    def is_user(self, user: str | None) -> bool:
        """Whether it is this very user: a hub service of the same name is not."""
        return self.kind is Kind.PERSON and user is not None and user == self.name

    def may_steer(self, user: str | None) -> bool:
        """Whether it may release or cancel what ``user`` holds or waits for."""
        return self.sees_names or self.is_user(user)


SPAWNER = Asker(Kind.SPAWNER)
