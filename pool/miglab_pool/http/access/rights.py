"""Who may do what: the one table of rights, roles and how far each reaches.  Pure.

docs/reference/roles.md is made of it, and every route names one of its rights.  It knows neither
people nor courses: `principal` does.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


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
