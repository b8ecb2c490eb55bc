"""Quotas: whom they concern, what they count, and what is said when they are used up."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World
from tests.unit.pool.test_pool import refusal

from miglab_api.tickets import TicketState
from miglab_pool.queue import quotas
from miglab_pool.queue.quotas import (
    Quotas,
    SliceClaim,
    describe_excess,
    longest_allowed_s,
    slice_hours_left_s,
)
from miglab_pool.schedule import DAY_S
from miglab_pool.settings import Course, Quota
from miglab_pool.state.fair_share import HOUR_S, LeaseUse

MakeWorld = Callable[..., World]
NOW = 100 * DAY_S
ADA = SliceClaim("ada", "vision", "", 1)


def live_use(size: int = 1, hours: float = 1.0, **fields: object) -> LeaseUse:
    """A live lease of ada's, of another server than the one asked for."""
    values = {"user": "ada", "course": "vision", "server": "other", **fields}
    return LeaseUse(1, size=size, began_at=NOW - hours * HOUR_S, ended_at=None, **values)  # type: ignore[arg-type]


def ended_use(hours: float, ago_s: float = DAY_S, **fields: object) -> LeaseUse:
    """A lease of one slice that ended a while ago."""
    live = live_use(1, hours, **fields)
    assert live.began_at is not None
    return replace(live, began_at=live.began_at - ago_s, ended_at=NOW - ago_s)


EACH, ALL = Quota(memory_slices=4), Quota(course="vision", shared=True, memory_slices=1)
WEEK = Quota(slice_hours_week=10)
OF_VISION = Quota(course="vision", shared=True, slice_hours_week=5)
EVERY = {"every": Quota(slice_hours_week=1), "course": Quota(course="vision", slice_hours_week=2)}
TWO = ADA._replace(size=2)


@pytest.mark.parametrize(
    ("quota", "uses", "new_request", "message_parts"),
    [
        ({"each": EACH}, [live_use(3)], ADA, []),
        ({"each": EACH}, [live_use(4)], ADA,
         ["4 of the 4 memory slices", "“each”", "Stop another server", "smaller shape"]),
        ({"each": EACH}, [live_use(4, server="")], ADA, []),  # it gives up what it holds
        ({"each": EACH}, [], ADA._replace(size=5), ["Choose a smaller shape"]),
        ({"each": Quota(course="vision", memory_slices=1)},
         [live_use(user="bob"), live_use(course="audio")], ADA, []),
        ({"each": Quota(memory_slices=1)}, [live_use(course="audio")], ADA, ["“each”"]),
        ({"all": ALL}, [live_use(user="bob")], ADA, []),  # the student waits in line
        ({"all": ALL}, [], TWO, ["your course may hold at most 1"]),
        ({"each": WEEK}, [ended_use(10, ago_s=2 * DAY_S)], ADA,
         ["10.0 of 10 slice-hours", "again in 4 days 14 hours"]),
        ({"each": WEEK}, [ended_use(10, ago_s=7 * DAY_S)], ADA, []),  # forgiven
        ({"all": OF_VISION}, [ended_use(3), ended_use(2, user="bob")], ADA,
         ["Your course has used 5.0 of 5"]),
        (EVERY | {"ada": Quota(user="ada", slice_hours_week=50)}, [ended_use(10)], ADA, []),
        (EVERY, [ended_use(10)], ADA, ["“course”"]),  # the most exact quota counts
    ],
)  # fmt: skip
def test_why_not(
    quota: Quotas, uses: list[LeaseUse], new_request: SliceClaim, message_parts: list[str]
) -> None:
    """Whom a quota concerns, what it counts, and what a refusal says; nothing: it is granted."""
    message = describe_excess(quota, new_request, uses, NOW)
    assert (message is not None) == bool(message_parts)
    assert [part for part in message_parts if part not in (message or "")] == []


def test_only_a_shared_quota_of_slices_holds_the_queue_up() -> None:
    """Room comes when somebody else of the course gives a slice back, not by time or by oneself."""
    full = {
        "own": Quota(memory_slices=1),
        "hours": Quota(shared=True, slice_hours_week=1.0),
        "course": Quota(shared=True, memory_slices=1),
    }
    for name, quota in full.items():
        applying_limits = quotas.applying_limits(
            {name: quota}, ADA, [live_use(1), ended_use(2.0)], NOW
        )
        holds = quotas.blocking_limit(applying_limits, ADA)
        assert (holds is not None) == (name == "course")


def test_the_end_of_the_limit_is_exact() -> None:
    """At the moment that is named there is enough, and a minute before there is not."""
    quota = {"each": Quota(slice_hours_week=10)}
    uses = [ended_use(7, ago_s=3 * DAY_S), ended_use(4, ago_s=2 * DAY_S)]
    (limit,) = quotas.applying_limits(quota, ADA, uses, NOW)
    wait_s = quotas.seconds_until_enough(limit, ADA, uses, NOW)
    assert wait_s is not None
    assert describe_excess(quota, ADA, uses, NOW + wait_s + 1) is None
    assert describe_excess(quota, ADA, uses, NOW + wait_s - 60) is not None


def test_hours_end_a_guarantee() -> None:
    """It ends when the student's hours are used up, the sooner the more is held."""
    assert longest_allowed_s({}, ADA, 3600.0) == 3600.0
    assert longest_allowed_s({"each": Quota(lease_s=7200)}, ADA, 3600.0) == 7200.0
    quota = {"each": Quota(slice_hours_week=10)}
    assert slice_hours_left_s(quota, TWO, [ended_use(6)], NOW) == pytest.approx(2 * HOUR_S)
    both = [ended_use(5), live_use(2, hours=0.5)]
    assert slice_hours_left_s(quota, TWO, both, NOW) == pytest.approx(HOUR_S)


def world_with(make_world: MakeWorld, quota_table: Quotas) -> World:
    courses = {**SETTINGS.courses, "b": Course(title="B", shapes=("1g.5gb",))}
    return make_world(changed(SETTINGS, quotas=quota_table, courses=courses, extension_s=7 * DAY_S))


def test_a_refusal_is_in_the_ledger(make_world: MakeWorld) -> None:
    """A second server beyond the quota, which a ticket fills too, is refused, and it is noted."""
    world = world_with(make_world, {"each": Quota(memory_slices=1)})
    ticket = world.ask("ada")
    for _ in range(2):
        error = refusal(lambda: world.ask("ada", server="second"))
        assert error.reason == "over-quota"
        (last,) = world.ledger.history("ticket", limit=1)
        assert (last["to_state"], last["reason"]) == ("refused", error.message)
        assert world.ask("ada").id == ticket.id
        world.work()
    world.pool.tickets.cancel(ticket.id, "ada")
    assert world.ask("ada", server="second").id != ticket.id
    assert isinstance(world.ask("bob").id, int)


def test_a_course_waits_for_its_own(make_world: MakeWorld) -> None:
    """A course that holds all it may waits, is told so, and keeps nobody else from the GPUs."""
    world = world_with(make_world, {"b": Quota(course="b", shared=True, memory_slices=2)})
    leases = [world.run(f"b{n}", course="b") for n in range(2)]
    held_back = world.ask("b2", course="b")
    assert world.wait("ada", "3g.20gb").state == TicketState.OFFERED
    view = world.pool.tickets.find(held_back.id)
    assert view.state == TicketState.WAITING
    assert "holds 2 of the 2 memory slices" in view.message
    world.end(leases[0])
    assert world.pool.tickets.find(held_back.id).state == TicketState.OFFERED


def test_many_at_once_stay_within(make_world: MakeWorld) -> None:
    """Of a course that asks all at once no more are served than its quota allows."""
    world = world_with(make_world, {"b": Quota(course="b", shared=True, memory_slices=3)})
    for n in range(6):
        world.ask(f"b{n}", course="b")
    world.work()
    assert len(world.pool.leases.live()) == 3


def test_hours_end_and_bound_a_lease(make_world: MakeWorld) -> None:
    """A guarantee ends when the week's hours are used up, and is extended no further."""
    world = world_with(make_world, {"each": Quota(slice_hours_week=2, lease_s=1800)})
    lease = world.run("ada")
    longer = world.pool.leases.extend(lease.id, 5400, "ada")
    assert longer.guaranteed_until == pytest.approx(world.at + 2 * HOUR_S)
    world.pass_time(HOUR_S)
    error = refusal(lambda: world.pool.leases.extend(lease.id, 600, "ada"))
    assert error.reason == "no-extension"
    assert "last for 1 hour more" in error.message


def test_the_offers_say_what_is_left(make_world: MakeWorld) -> None:
    """The spawn page's data hold what is used of every limit, for the user it is shown to."""
    world = world_with(
        make_world, {"each": Quota(memory_slices=4, slice_hours_week=2, lease_s=3600)}
    )
    lease = world.run("ada", "2x1g.5gb")
    world.pass_time(HOUR_S)
    (course,) = world.pool.offers(["everyone"], "ada").courses
    assert {quota.limit: (quota.used, quota.allowed) for quota in course.quotas} == {
        "memory_slices": (2, 4),
        "slice_hours_week": (2, 2),
    }
    assert course.guaranteed_s == 3600
    (week,) = (quota for quota in course.quotas if quota.limit == "slice_hours_week")
    assert week.more_in_s == pytest.approx(6 * DAY_S + 23 * HOUR_S + 300, abs=2)
    assert world.pool.offers(["everyone"]).courses[0].quotas == ()
    assert lease.guaranteed_until is not None
