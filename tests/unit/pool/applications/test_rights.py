"""The table of rights, that every route names its right, and what each may see."""

from collections.abc import Iterator
from itertools import chain

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from tests.unit.pool.conftest import World

from miglab_api.gpus import PoolSnapshot, SliceState, SliceView
from miglab_api.scopes import ADMIN_SCOPE, STAFF_SCOPE
from miglab_pool.course_roles import CourseStaff, RoleBook
from miglab_pool.http.access.auth import principal_from
from miglab_pool.http.access.dependencies import Needs, Open
from miglab_pool.http.access.principal import (
    RIGHT_PHRASES,
    SPAWNER,
    TABLE,
    Principal,
    PrincipalKind,
    Right,
    visible_reservation,
    visible_snapshot,
)
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pages.frame import DrawnPage

from .conftest import as_
from .fakes import (
    ALICE,
    BOOK,
    ILSE,
    ROOT,
    TIMO,
    gpu_view,
    person,
    reservation_view,
    slice_view,
    snapshot,
    ticket_view,
)

ASKERS = {
    "spawner": SPAWNER,
    "admin": ROOT,
    "instructor": ILSE,
    "assistant": TIMO,
    "student": ALICE,
}
# A thing: its course, whose it is.
OWN_COURSE, OTHER, NO_COURSE, OWN = ("ml", "bob"), ("vision", "bob"), ("", None), ("vision", "self")
THINGS = (OWN_COURSE, OTHER, NO_COURSE, OWN)
#                    over a thing of: ml, vision, no course, their own (in vision)
ALL, NONE, COURSE, MINE, BOTH = "yyyy", "nnnn", "ynnn", "nnny", "ynny"
MAY = {  #           spawner admin instructor assistant student
    "see-pool": (ALL, ALL, ALL, ALL, ALL),
    "see-names": (ALL, ALL, BOTH, BOTH, MINE),
    "explain": (ALL, ALL, COURSE, COURSE, NONE),
    "see-class": (ALL, ALL, BOTH, BOTH, MINE),
    "see-usage": (ALL, ALL, COURSE, COURSE, NONE),
    "see-layouts": (ALL, ALL, ALL, ALL, NONE),
    "health": (ALL, ALL, ALL, NONE, NONE),
    "audit": (ALL, ALL, COURSE, COURSE, NONE),
    "message": (ALL, ALL, COURSE, COURSE, NONE),
    "extend": (ALL, ALL, BOTH, BOTH, MINE),
    "release": (ALL, ALL, BOTH, MINE, MINE),
    "next": (ALL, ALL, COURSE, NONE, NONE),
    "reserve": (ALL, ALL, COURSE, NONE, NONE),
    "drain": (ALL, ALL, COURSE, NONE, NONE),
    "partition": (ALL, ALL, COURSE, NONE, NONE),
    "quarantine": (ALL, ALL, NONE, NONE, NONE),
    "pause": (ALL, ALL, NONE, NONE, NONE),
    "adopt": (ALL, ALL, NONE, NONE, NONE),
    "spawn": (ALL, NONE, NONE, NONE, NONE),
}


@pytest.mark.parametrize(("right", "answers"), MAY.items())
def test_what_each_role_may(right: str, answers: tuple[str, ...]) -> None:
    """Over what is of the own course, of another, of none, and over what is one's own."""
    results = []
    for principal in ASKERS.values():
        objects = [(course, principal.name if user == "self" else user) for course, user in THINGS]
        results.append("".join("ny"[principal.may(right, *subject)] for subject in objects))
    assert tuple(results) == answers


def test_every_right_is_in_every_table() -> None:
    """None is without words, without a row, or untested; a template that misspells one says so."""
    assert set(MAY) == set(Right) == set(RIGHT_PHRASES) == set(TABLE)
    with pytest.raises(ValueError, match="relase"):
        SPAWNER.may("relase")


def test_a_refusal_says_who_may() -> None:
    """In words the person can act on: whom to ask."""
    with pytest.raises(DeniedError, match="may not quarantine a slice"):
        ASKERS["instructor"].require(Right.QUARANTINE)
    with pytest.raises(DeniedError, match="in vision: that is for site admins and instructors of"):
        ASKERS["instructor"].require(Right.RESERVE, "vision")
    with pytest.raises(DeniedError, match="that is for the spawner"):
        ASKERS["admin"].require(Right.SPAWN)


def test_courses_of_a_right() -> None:
    """None is everything; for a right without courses there is none, own things do not count."""
    instructor = ASKERS["instructor"]
    assert ASKERS["admin"].courses(Right.AUDIT) is None
    assert instructor.courses(Right.AUDIT) == {"ml"}
    assert instructor.courses(Right.HEALTH) is None
    assert instructor.courses(Right.PAUSE) == frozenset()
    assert ASKERS["student"].courses(Right.RELEASE) == frozenset()


def test_a_role_in_each_course() -> None:
    """Instructor of one, assistant of another, student of a third: each reaches its own."""
    principal = Principal(
        PrincipalKind.PERSON, "ilse", instructs=frozenset({"ml"}), assists=frozenset({"vision"}),
        course_names=("text",),
    )  # fmt: skip
    may = [principal.may(Right.RELEASE, course, "bob") for course in ("ml", "vision", "text")]
    assert may == [True, False, False]
    may = [principal.may(Right.EXTEND, course, "bob") for course in ("ml", "vision", "text")]
    assert may == [True, True, False]
    assert not principal.without_roles().may(Right.EXTEND, "ml", "bob")
    assert principal.without_roles().may(Right.EXTEND, "ml", "ilse")


# -- where roles come from -----------------------------------------------------------------------

ALL_COURSES = frozenset(BOOK.courses)
NOBODY: frozenset[str] = frozenset()
MODELS = {
    "a student": (person("ada", groups=["ml"]), (False, NOBODY, NOBODY)),
    "a hub admin": (person("x", admin=True), (True, NOBODY, NOBODY)),
    "a site admin by scope": (person("x", ADMIN_SCOPE), (True, NOBODY, NOBODY)),
    "an instructor of all": (person("x", STAFF_SCOPE), (False, ALL_COURSES, NOBODY)),
    "named in lab.toml": (person("ilse"), (False, {"ml"}, NOBODY)),
    "assistant by name": (person("timo"), (False, NOBODY, {"ml"})),
    "by group": (person("x", groups=["vision-instructors"]), (False, {"vision"}, NOBODY)),
    "assistant by group": (person("x", groups=["ml-assistants"]), (False, NOBODY, {"ml"})),
    "by name and group": (
        person("ilse", groups=["vision-instructors", "everyone-assistants", "text"]),
        (False, {"ml", "vision"}, {"everyone"}),
    ),
    "of a group that is no course": (
        person("x", groups=["chess-instructors", "-instructors", "instructors"]),
        (False, NOBODY, NOBODY),
    ),
    "a service of an instructor's name": (
        {"kind": "service", "name": "ilse", "scopes": []},
        (False, NOBODY, NOBODY),
    ),
    "a service with the scope": (
        {"kind": "service", "name": "grader", "scopes": [STAFF_SCOPE]},
        (False, ALL_COURSES, NOBODY),
    ),
}


@pytest.mark.parametrize(("model", "roles"), MODELS.values(), ids=MODELS)
def test_where_a_role_comes_from(model: dict[str, object], roles: tuple[object, ...]) -> None:
    """Scopes, names in lab.toml, groups of the hub; nothing else gives one."""
    principal = principal_from(model, BOOK)
    assert (principal.admin, principal.instructs, principal.assists) == roles


def test_lab_toml_names_staff_on_any_hub() -> None:
    """Whom it names as admin or as instructor of every course needs no scope; services do."""
    book = RoleBook(
        {"ml": CourseStaff()}, instructors=frozenset({"ina"}), admins=frozenset({"sam"})
    )
    assert principal_from(person("ina"), book).instructs == {"ml"}
    assert principal_from(person("sam"), book).admin
    service = {**person("sam"), "kind": "service"}
    assert not principal_from(service, book).admin
    other = principal_from(person("x"), book)
    assert not other.admin and not other.instructs


def test_a_scope_of_all_courses_reaches_none_that_is_not_there() -> None:
    """An instructor of every course has no right over what belongs to no course."""
    principal = principal_from(person("x", STAFF_SCOPE), RoleBook({"ml": CourseStaff()}))
    assert principal.may(Right.RELEASE, "ml") and not principal.may(Right.RELEASE, "gone")
    assert not principal.may(Right.DRAIN, "") and not principal.may(Right.RELEASE)


# -- routes --------------------------------------------------------------------------------------


def rights_of(route: APIRoute) -> list[Needs | DrawnPage | Open]:
    """What a route says of the right it needs."""
    calls = [route.endpoint, *(dependant.call for dependant in _all(route.dependant))]
    return [call for call in calls if isinstance(call, Needs | DrawnPage | Open)]


def _all(dependant: Dependant) -> list[Dependant]:
    below = chain.from_iterable(_all(dependency) for dependency in dependant.dependencies)
    return [*dependant.dependencies, *below]


def routes(client: httpx.AsyncClient) -> list[APIRoute]:
    app: FastAPI = client._transport.app  # type: ignore[attr-defined]
    return list(_below(app.router))


def _below(router: APIRouter) -> Iterator[APIRoute]:
    """The routes of a router and of all that it includes."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from _below(route.original_router)


def test_every_route_names_its_right(client: httpx.AsyncClient) -> None:
    """Exactly one, or that it is open to all; whoever adds a route decides.

    Without signing in there is health, what Prometheus reads, and the way back from the hub.
    The application describes itself, refusals included.
    """
    rights_by_route = {(*route.methods, route.path): rights_of(route) for route in routes(client)}
    assert len(rights_by_route) > 20
    assert {route: rights for route, rights in rights_by_route.items() if len(rights) != 1} == {}
    is_open = {path for (*_, path), (right,) in rights_by_route.items() if isinstance(right, Open)}
    assert is_open == {"/api/health", "/metrics", "/oauth_callback", "/static/steps.css"}
    paths = client._transport.app.openapi()["paths"]  # type: ignore[attr-defined]
    assert "409" in paths["/services/pool/api/tickets"]["post"]["responses"]
    assert all(route.get("description") for path in paths.values() for route in path.values())


SECRETS = ("victor", "vision", "MIG-2", "a word to victor", "victors-lab")
OF_VICTOR = {"course": "vision", "server": "victors-lab"}
BROKEN = {"state": SliceState.QUARANTINED, "reason": "destroy failed 8 times"}
# Alice of ml, victor of vision; one slice set aside, one free; one of each waits.
WHOLE = snapshot(
    gpu_view(
        slice_view(1, 0, "alice"),
        slice_view(2, 1, "victor", reason="a word to victor", **OF_VICTOR),
        slice_view(3, 2, **BROKEN),
        slice_view(4, 3),
    ),
    waiting=(
        ticket_view(1, "alice", server="alices-lab"),
        ticket_view(2, "victor", message="a word to victor", **OF_VICTOR),
    ),
)


def snapshot_for(principal: Principal) -> PoolSnapshot:
    return visible_snapshot(WHOLE, principal)


def slices(of: PoolSnapshot) -> tuple[SliceView, ...]:
    return of.gpus[0].slices


@pytest.mark.parametrize("principal", [ILSE, TIMO, ALICE])
def test_what_is_seen_of_ones_own_and_of_others(principal: Principal) -> None:
    """Names, servers and UUIDs of what is of the own course, or one's own; of all else profile,
    place, state and how long yet, and a place in line, with nothing that names anybody.
    """
    snapshot = snapshot_for(principal)
    assert (slices(snapshot)[0], snapshot.waiting[0]) == (slices(WHOLE)[0], WHOLE.waiting[0])
    other, waiting = slices(snapshot)[1], snapshot.waiting[1]
    assert (other.profile, other.start, other.size, other.state) == ("1g.5gb", 1, 1, "leased")
    assert (waiting.position, waiting.shape, waiting.course) == (2, "1g.5gb", "")
    assert (other.user, other.server, other.course, other.uuid, waiting.user) == (None,) * 5
    for secret in SECRETS:
        assert secret not in snapshot.model_dump_json()


def test_only_staff_see_why_a_slice_is_quarantined() -> None:
    """It is nobody's, and what is wrong concerns who runs the class; admins and spawner see all."""
    assert slices(snapshot_for(ILSE))[2].reason == "destroy failed 8 times"
    assert slices(snapshot_for(ALICE))[2].reason == ""
    assert snapshot_for(ROOT) == snapshot_for(SPAWNER) == WHOLE


def test_who_reserved_is_for_the_courses_staff() -> None:
    """Everybody sees that a place is reserved; by whom and what for, the course's staff."""
    reservation = reservation_view(1, course="ml")
    assert visible_reservation(reservation, TIMO) == reservation
    other = visible_reservation(reservation_view(1, course="vision"), ILSE)
    assert (other.course, other.count, other.made_by, other.message) == ("vision", 7, None, "")


async def test_lists_hold_what_one_may_see(client: httpx.AsyncClient, world: World) -> None:
    """An instructor's list of leases is of the own courses, with whatever they hold elsewhere."""
    for user in ("victor", "ilse"):
        world.run(user, course="vision")

    async def users(token: str, query: str = "") -> list[str]:
        answer = await client.get(f"/api/leases{query}", headers=as_(token))
        return [lease["user"] for lease in answer.json()]

    assert await users("instructor-token") == ["alice", "bob", "alice", "ilse"]
    assert await users("vision-token") == ["victor", "ilse"]
    assert await users("vision-token", "?user=alice") == []
    assert await users("service-token-alice") == []  # of the hub, not the person of its name
    assert len(await users("admin-token")) == 5


@pytest.mark.parametrize(
    ("token", "user", "expected"),
    [("alice-token", None, ["ml", "everyone"]), ("instructor-token", "alice", ["ml"])],
)
async def test_offers_are_of_the_own_courses(
    client: httpx.AsyncClient, token: str, user: str | None, expected: list[str]
) -> None:
    """A person asks about their courses and the default one; an instructor about a student's
    quotas in the own course, and in no other.
    """
    query = {"course": ["ml", "vision", "everyone"]} | ({"user": user} if user else {})
    answer = await client.get("/api/offers", params=query, headers=as_(token))
    assert [course["course"] for course in answer.json()["courses"]] == expected


async def test_only_the_spawner_attends_a_ticket_with_its_offers(client: httpx.AsyncClient) -> None:
    """A student's offers of a named server would keep a position that nobody waits at."""
    query = {"course": "ml", "user": "alice", "server": ""}
    answer = await client.get("/api/offers", params=query, headers=as_("alice-token"))
    assert answer.status_code == 403
