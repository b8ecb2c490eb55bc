"""What each may see: of their own course the names, of other courses place, profile and state."""

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.gpus import PoolSnapshot, SliceState, SliceView
from miglab_pool.http.access.principal import (
    SPAWNER,
    Principal,
    PrincipalKind,
    visible_reservation,
    visible_snapshot,
)

from .conftest import as_
from .fakes import (
    ALICE,
    ILSE,
    ROOT,
    TIMO,
    gpu_view,
    reservation_view,
    slice_view,
    snapshot,
    ticket_view,
)

SECRETS = ("victor", "vision", "MIG-2", "a word to victor", "victors-lab")
ILSE_IN_VISION = Principal(PrincipalKind.PERSON, "victor", instructs=frozenset({"ml"}))
OF_VICTOR = {"course": "vision", "server": "victors-lab"}
BROKEN = {"state": SliceState.QUARANTINED, "reason": "destroy failed 8 times"}
# Alice of ml, victor of vision; one slice set aside, one free; one of each waits.
ALL = snapshot(
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


def seen_by(principal: Principal) -> PoolSnapshot:
    return visible_snapshot(ALL, principal)


def slices(of: PoolSnapshot) -> tuple[SliceView, ...]:
    return of.gpus[0].slices


@pytest.mark.parametrize("principal", [ILSE, TIMO], ids=["instructor", "assistant"])
def test_staff_see_their_own_course(principal: Principal) -> None:
    """Names, servers and UUIDs of the own course; of another nothing that names anybody."""
    seen = seen_by(principal)
    assert slices(seen)[0] == slices(ALL)[0]
    assert seen.waiting[0] == ALL.waiting[0]
    for secret in SECRETS:
        assert secret not in seen.model_dump_json()


@pytest.mark.parametrize("principal", [ILSE, TIMO, ALICE])
def test_of_others_one_sees_placement_and_state(principal: Principal) -> None:
    """Profile, place, state and how long yet; a place in line without whose it is."""
    seen = seen_by(principal)
    other = slices(seen)[1]
    assert (other.profile, other.start, other.size, other.state) == ("1g.5gb", 1, 1, "leased")
    assert (other.user, other.server, other.course, other.uuid, other.reason) == (None,) * 4 + ("",)
    waiting = seen.waiting[1]
    assert (waiting.position, waiting.shape, waiting.user, waiting.course) == (
        2,
        "1g.5gb",
        None,
        "",
    )


def test_only_staff_see_why_a_slice_is_quarantined() -> None:
    """It is nobody's, and what is wrong with it concerns who runs the class."""
    assert slices(seen_by(ILSE))[2].reason == "destroy failed 8 times"
    assert slices(seen_by(ALICE))[2].reason == ""


def test_an_instructor_who_is_a_student_elsewhere_sees_their_own_there() -> None:
    """Each role reaches its own: the course by one, the own slice by the other."""
    users = [item.user for item in slices(seen_by(ILSE_IN_VISION))]
    assert users == ["alice", "victor", None, None]


@pytest.mark.parametrize("principal", [ROOT, SPAWNER], ids=["admin", "spawner"])
def test_admins_and_the_spawner_see_all(principal: Principal) -> None:
    """Nothing is taken away."""
    assert seen_by(principal) == ALL


def test_who_reserved_is_for_the_courses_staff() -> None:
    """Everybody sees that a place is reserved; by whom and what for, the course's staff."""
    one = reservation_view(1, course="ml")
    assert visible_reservation(one, TIMO) == one
    other = visible_reservation(reservation_view(1, course="vision"), ILSE)
    assert (other.course, other.count, other.made_by, other.message) == ("vision", 7, None, "")


async def test_lists_hold_what_one_may_see(client: httpx.AsyncClient, world: World) -> None:
    """An instructor's list of leases is of the own courses, with whatever they hold elsewhere."""
    for user in ("victor", "ilse"):
        world.run(user, course="vision")

    async def users(token: str, query: str = "") -> list[str]:
        answer = await client.get(f"/api/leases{query}", headers=as_(token))
        return [one["user"] for one in answer.json()]

    assert await users("instructor-token") == ["alice", "bob", "alice", "ilse"]
    assert await users("vision-token") == ["victor", "ilse"]
    assert await users("vision-token", "?user=alice") == []
    assert len(await users("admin-token")) == 5


async def test_offers_to_another_are_of_the_own_courses(client: httpx.AsyncClient) -> None:
    """An instructor learns what a student's quotas leave in the own course, and in no other."""
    query = {"user": "alice", "course": ["ml", "vision"]}
    answer = await client.get("/api/offers", params=query, headers=as_("instructor-token"))
    assert [course["course"] for course in answer.json()["courses"]] == ["ml"]
