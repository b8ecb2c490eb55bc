"""A reservation is a promise: what is certain of it, over HTTP, with the clock passed in."""

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, SHAPES, World

from miglab_pool.reservations.certainty import week_outlooks
from miglab_pool.reservations.slots import slots_of
from miglab_pool.schedule import Schedule, parse_window
from miglab_pool.settings import Course, PoolSettings

from .conftest import as_, visiting
from .full_lab import apps

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
NINE = dt.datetime(2026, 6, 2, 9, tzinfo=dt.UTC).timestamp()  # a Tuesday
RULES = changed(
    SETTINGS,
    courses={"deep": Course(title="Deep", shapes=SHAPES), **SETTINGS.courses},
    lease_s=4 * HOUR_S,
    borrow_s=1800.0,
    reserve_lead_s=900.0,
    offer_s=7200.0,
    attend_grace_s=2 * DAY_S,
    longest_wait_s=2 * DAY_S,
)


class PromisedLab:
    """Two A100s, a class for every number, and the management listener."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.app: FastAPI = apps(world.pool)[0]

    def call(
        self, method: str, path: str, body: Any = None, token: str = "admin-token"
    ) -> tuple[int, Any]:
        """What the management listener answers, to an admin where nobody else is named."""

        async def call() -> tuple[int, Any]:
            async with visiting(self.app, **as_(token)) as client:
                answer = await client.request(method, f"/api{path}", json=body)
                return answer.status_code, answer.json()

        return asyncio.run(call())

    def go_to(self, at: float) -> None:
        """To a moment, with everybody's ticket attended."""
        self.world.at = at
        self.world.attend_all()
        self.world.work()

    def fill(self, count: int = 14, shape: str = "1g.5gb", **fields: Any) -> list[Any]:
        """Leases of strangers."""
        return [self.world.run(f"s{n}", shape, **fields) for n in range(count)]

    def offer(self, shape: str, course: str) -> Any:
        """What the spawn page offers of a shape."""
        (course_offers,) = self.world.pool.offers([course]).courses
        return next(
            shape_offer for shape_offer in course_offers.shapes if shape_offer.shape == shape
        ).model_dump()

    def attach(self, ticket: int) -> Any:
        """The lease of an offer, attached."""
        lease = self.world.pool.tickets.take(ticket)
        holder = self.world.new_holder()
        return self.world.pool.leases.attach(lease.id, lease.generation, holder)

    def preview(self, *arguments: Any, **fields: Any) -> Any:
        return self.call("POST", "/reservations/preview", request(*arguments, **fields))[1]

    def reserve(self, *arguments: Any, **fields: Any) -> Any:
        status, answer = self.call("POST", "/reservations", request(*arguments, **fields))
        assert status == 201, answer
        return answer

    def all(self) -> dict[int, Any]:
        return {
            reservation["id"]: reservation for reservation in self.call("GET", "/reservations")[1]
        }


def request(
    count: int, shape: str, begins: float, hours: float = 2.0, **fields: Any
) -> dict[str, Any]:
    """So many of a shape for `deep`, once, from a moment on."""
    starts, ends = (
        dt.datetime.fromtimestamp(at, dt.UTC) for at in (begins, begins + hours * HOUR_S)
    )
    return {
        "course": "deep", "shape": shape, "count": count, "date": starts.date().isoformat(),
        "from_time": f"{starts:%H:%M}", "to_time": f"{ends:%H:%M}", "tz": "UTC", **fields,
    }  # fmt: skip


@pytest.fixture
def lab(make_world: Callable[..., World]) -> PromisedLab:
    return lab_of(make_world)


def lab_of(make_world: Callable[..., World], settings: Any = RULES, **machine: Any) -> PromisedLab:
    world = make_world(settings, **({"gpus": 2} | machine))
    world.at = NINE - 600
    world.pool.reconcile()
    world.pool.sample()
    return PromisedLab(world)


# -- how much is certain --------------------------------------------------------------------------


def drain_second_gpu(lab: PromisedLab) -> None:
    gpu = lab.world.driver.gpus()[1].uuid
    lab.world.pool.staff.drain(gpu, "new fan", "ina", anyway="it smells")


def let_members_hold(lab: PromisedLab) -> None:
    """Three of the class hold the shape, one of them twice; the rest is strangers'."""
    for server in ("", "b"):
        lab.world.run("ada", course="deep", server=server)
    lab.world.run("bob", course="deep")
    lab.world.run("cy", course="deep")
    lab.fill(10)


def reserve_a_whole_gpu(lab: PromisedLab) -> None:
    lab.reserve(1, "7g.40gb", NINE + 2 * HOUR_S)


ALL_FROM = NINE - 600 + 4 * HOUR_S + 120  # when the leases of now have ended


def fill_with_strangers(count: int = 14, shape: str = "1g.5gb") -> Callable[[PromisedLab], object]:
    return lambda lab: lab.fill(count, shape)


@pytest.mark.parametrize(
    ("before", "arguments", "certain", "all_from", "outlook"),
    [
        (fill_with_strangers(), (10, "1g.5gb", NINE + DAY_S), 10, None, ""),
        (fill_with_strangers(), (10, "1g.5gb", NINE, 6), 0, ALL_FROM,
         "0 of 10 at 09:00 UTC, all from 12:52 UTC."),
        (fill_with_strangers(7), (10, "1g.5gb", NINE, 6), 7, ALL_FROM,
         "7 of 10 at 09:00 UTC, all from 12:52 UTC."),
        (fill_with_strangers(7), (10, "1g.5gb", NINE, 2), 7, None, "7 of 10 at 09:00 UTC."),
        (reserve_a_whole_gpu, (7, "1g.5gb", NINE, 3), 7, None, ""),
        (fill_with_strangers(1, "2g.10gb"), (4, "3g.20gb", NINE, 1), 3, None, "3 of 4"),
        (fill_with_strangers(3), (6, "2x1g.5gb", NINE, 1), 5, None, "5 of 6"),
        (fill_with_strangers(1), (2, "7g.40gb", NINE, 1), 1, None, "1 of 2"),
        (let_members_hold, (5, "1g.5gb", NINE, 1), 3, None, "3 of 5"),
        (let_members_hold, (3, "1g.5gb", NINE, 1), 3, None, ""),
        (lambda lab: lab.world.borrow("ada", "3g.20gb"), (2, "7g.40gb", NINE), 1,
         NINE - 600 + 1800 + 120, "1 of 2 at 09:00 UTC, all from 09:22 UTC."),
        (drain_second_gpu, (10, "1g.5gb", NINE), 7, None,
         "7 of 10 at 09:00 UTC: GPU 1 takes no new leases (new fan)."),
    ],
    ids=[
        "a full lab, next day", "a full lab, in ten minutes", "half a lab", "never all",
        "7 x 1g beside 7g", "mixed", "two slices each", "one of a GPU", "one person, one claim",
        "members who hold", "borrowed", "drained",
    ],
)  # fmt: skip
def test_what_is_certain(
    lab: PromisedLab,
    before: Any,
    arguments: Any,
    certain: int,
    all_from: float | None,
    outlook: str,
) -> None:
    """Before it is saved, and once it is, everybody reads how many are certain, and from when."""
    before(lab)
    preview = lab.preview(*arguments)
    assert (preview["certain"], preview["all_from"]) == (certain, all_from)
    assert preview["outlook"].startswith(outlook) and bool(preview["outlook"]) is bool(outlook)
    reservation = lab.reserve(*arguments)
    keys = ("certain", "all_from", "outlook")
    assert [reservation[key] for key in keys] == [preview[key] for key in keys]


def test_a_courses_own_gpu(make_world: Callable[..., World]) -> None:
    """It is nobody else's: another course has one GPU here, its own course both.

    Neither what a preview would make nor what it would refuse is in the ledger.
    """
    lab = lab_of(make_world, changed(RULES, assigned={"0": "deep"}))
    assert lab.preview(14, "1g.5gb", NINE)["certain"] == 14
    assert (lab.all(), lab.world.ledger.history("reservation")) == ({}, [])
    assert lab.reserve(14, "1g.5gb", NINE)["certain"] == 14
    noted = lab.world.ledger.history("reservation")
    for count, at, reason in (
        (1, NINE, "reservation-clash"),
        (8, NINE + DAY_S, "impossible-reservation"),
    ):
        assert lab.preview(count, "1g.5gb", at, course="vision")["reason"] == reason
    assert lab.world.ledger.history("reservation") == noted


def test_two_instructors_at_once(lab: PromisedLab) -> None:
    """Who comes second is told with whom it clashes; what was made first keeps its slices."""
    first = lab.reserve(10, "1g.5gb", NINE + DAY_S)
    status, refused = lab.call("POST", "/reservations", request(5, "1g.5gb", NINE + DAY_S))
    assert (status, refused["reason"]) == (409, "reservation-clash")
    lab.reserve(4, "1g.5gb", NINE + DAY_S)
    drain_second_gpu(lab)
    reservations = lab.all()
    assert [reservations[number]["certain"] for number in sorted(reservations)] == [7, 0]
    assert reservations[first["id"]]["outlook"].startswith("7 of 10")


def test_without_reclaim_nothing_is_certain(make_world: Callable[..., World]) -> None:
    """Where no lease is ended a reservation says so."""
    lab = lab_of(make_world, changed(RULES, enabled=False))
    assert lab.reserve(3, "1g.5gb", NINE)["outlook"].startswith("Not certain")


def test_the_calendar_says_it(lab: PromisedLab) -> None:
    """Each date of a weekly one by itself: this week some are missing, next week none."""
    lab.fill(7)
    reservation = lab.reserve(10, "1g.5gb", NINE, weekdays=("tue",))
    outlooks = week_outlooks(lab.world.pool.view, NINE - DAY_S, NINE + 8 * DAY_S, "UTC")
    assert outlooks == {(reservation["id"], NINE): "7 of 10 at 09:00 UTC."}


# -- no grant breaks it ---------------------------------------------------------------------------

FULL_S = 4 * HOUR_S
CUT = NINE - 120


@pytest.mark.parametrize(
    ("reservation", "asker", "until"),
    [
        ((7, "1g.5gb", NINE), ("bob", "1g.5gb", "everyone"), None),
        ((14, "1g.5gb", NINE), ("bob", "1g.5gb", "everyone"), CUT),
        ((14, "1g.5gb", NINE), ("bob", "2x1g.5gb", "everyone"), CUT),
        ((14, "1g.5gb", NINE), ("ada", "1g.5gb", "deep"), None),
        ((14, "1g.5gb", NINE), ("ada", "2g.10gb", "deep"), CUT),
        ((1, "7g.40gb", NINE), ("bob", "7g.40gb", "everyone"), None),
        ((2, "7g.40gb", NINE), ("bob", "1g.5gb", "everyone"), CUT),
        ((14, "1g.5gb", NINE + 4 * HOUR_S), ("bob", "1g.5gb", "everyone"), None),
        ((14, "1g.5gb", NINE - 1200), ("bob", "1g.5gb", "everyone"), "waits"),
    ],
    ids=[
        "elsewhere", "nowhere else", "two slices", "a member draws", "of another shape", "beside",
        "a whole one is needed", "after its guarantee", "too soon",
    ],
)  # fmt: skip
def test_what_a_grant_is_guaranteed(
    lab: PromisedLab, reservation: Any, asker: Any, until: Any
) -> None:
    """As long as ever where it breaks nothing; else it ends before, and too short is none."""
    lab.go_to(NINE - HOUR_S / 2)
    lab.reserve(*reservation)
    user, shape, course = asker
    offer = lab.offer(shape, course)
    ticket = lab.world.ask(user, shape, course=course)
    lab.world.work()
    if until == "waits":
        assert (offer["free_now"], offer["reserved_s"]) == (0, 1500.0)
        ticket_now = lab.world.pool.tickets.find(ticket.id)
        assert ticket_now.message.startswith("What is free is kept for a class")
        return
    assert (until == CUT) == (offer["shortened"] == "until Tue 08:58: reserved for Deep")
    lease = lab.attach(ticket.id)
    assert lease.guaranteed_until == (until or lab.world.at + FULL_S)


def test_one_person_has_one_claim(lab: PromisedLab) -> None:
    """A member's second server draws on nothing: its guarantee ends before the class."""
    lab.go_to(NINE - HOUR_S)
    lab.reserve(14, "1g.5gb", NINE)
    ends = [lab.world.run("ada", course="deep", server=name).guaranteed_until for name in ("", "b")]
    assert ends == [lab.world.at + FULL_S, CUT]
    lab.go_to(NINE - 600)
    again = lab.world.ask("ada", course="deep", server="c")
    lab.world.work()
    assert lab.world.pool.tickets.find(again.id).state == "waiting"


def test_seven_small_ones_beside_a_large_one(lab: PromisedLab) -> None:
    """7 x 1g.5gb 9-12 beside 7g.40gb 11-13: who draws lies on one GPU; both are had in full."""
    lab.reserve(7, "1g.5gb", NINE, 3)
    lab.reserve(1, "7g.40gb", NINE + 2 * HOUR_S)
    lab.go_to(NINE)
    small = [lab.world.run(f"d{n}", course="deep") for n in range(7)]
    assert {lease.slices[0].gpu for lease in small} == {small[0].slices[0].gpu}
    assert {lease.guaranteed_until for lease in small} == {NINE + 3 * HOUR_S}
    lab.go_to(NINE + 2 * HOUR_S)
    large = lab.world.run("e", "7g.40gb", course="deep")
    assert large.guaranteed_until == NINE + 4 * HOUR_S


def test_who_held_before_is_guaranteed_to_its_end(lab: PromisedLab) -> None:
    """A member who holds the shape when it begins draws on it, and keeps it until it ends."""
    lab.go_to(NINE - 3.5 * HOUR_S)
    lease = lab.world.run("ada", course="deep")
    lab.reserve(14, "1g.5gb", NINE)
    lab.go_to(NINE)
    lease_now = lab.world.pool.leases.find(lease.id)
    assert lease_now.guaranteed_until == NINE + 2 * HOUR_S
    assert lab.all()[1]["in_use"] == 1


def test_a_class_takes_no_slot_from_its_own_members(lab: PromisedLab) -> None:
    """Who holds the shape already draws on it: the slots lie where strangers' open leases are."""
    lab.go_to(NINE - 5 * HOUR_S)
    lease = lab.world.run("ada", course="deep")
    lab.fill(13)
    lab.go_to(NINE - 60)
    lab.reserve(13, "1g.5gb", NINE)
    view = lab.world.pool.view
    leased_slices = [
        (name, gpu.placement_of(row))
        for name, gpu in view.gpus.items()
        for row in gpu.slices
        if row.lease == lease.id
    ]
    slots = [(slot.gpu, slot.placed_slice) for slot in slots_of(view)[1]]
    assert len(leased_slices) == 1 and len(slots) == 12
    assert leased_slices[0] not in slots


def test_whole_gpus_are_left(make_world: Callable[..., World]) -> None:
    """Of two, one is reserved: the first stranger has the other, the second one for less.

    They are promised by number.
    """
    lab = lab_of(make_world, mig=False)
    lab.go_to(NINE - HOUR_S)
    assert lab.preview(3, "full", NINE)["reason"] == "impossible-reservation"
    lab.reserve(1, "full", NINE)
    lab.world.pool.sample()
    ends = [lab.world.run(name, "full").guaranteed_until for name in ("a", "b")]
    assert ends == [lab.world.at + FULL_S, CUT]
    certain_counts = [
        lab.preview(1, "full", at)["certain"] for at in (NINE + 2 * HOUR_S, NINE + DAY_S)
    ]
    assert certain_counts == [1, 1]


def test_the_best_whole_gpu_is_offered(make_world: Callable[..., World]) -> None:
    """A course's own is guaranteed for longer than the one that somebody else reserved."""
    lab = lab_of(make_world, changed(RULES, assigned={"1": "deep"}), mig=False)
    lab.reserve(1, "full", NINE + HOUR_S, course="everyone")
    lab.world.pool.sample()
    assert lab.offer("full", "deep")["shortened"] == ""


# -- what staff do --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_gpu", "count", "remaining"), [(True, 14, 7), (False, 14, 13), (True, 7, None)]
)
def test_draining_names_what_it_breaks(
    lab: PromisedLab, is_gpu: bool, count: int, remaining: int | None
) -> None:
    """It is refused, saying which reservation loses what; with a reason why it is done anyway.

    Where every reservation has its slices beside it nothing more is asked.
    """
    lab.world.end(lab.world.run("bob"))
    lab.reserve(count, "1g.5gb", NINE + DAY_S)
    (row,) = lab.world.ledger.state.slices.values()
    path = f"/gpus/{row.gpu}/drain" if is_gpu else f"/slices/{row.id}/drain"
    status, refused = lab.call("POST", path, {"reason": "new fan"})
    if remaining is None:
        assert (status, lab.all()[1]["outlook"]) == (200, "")
        return
    assert (status, refused["reason"]) == (409, "breaks-reservation")
    assert refused["way_on"] == "anyway"
    assert "reservation 1 (14 times 1g.5gb for deep, 2026-06-03" in refused["message"]
    assert f"would have {remaining} of its slices instead of 14" in refused["message"]
    assert lab.call("POST", path, {"reason": "new fan", "anyway": "it smells"})[0] == 200
    assert lab.all()[1]["certain"] == remaining
    (noted, *_) = lab.world.ledger.history("gpu" if is_gpu else "slice")
    assert noted["reason"] == "new fan (anyway: it smells)"


class ClosedOnTuesdays(PoolSettings):
    """A lab with a maintenance window."""

    @property
    def maintenance_windows(self) -> tuple[Schedule, ...]:
        return (parse_window("tue 10:00-11:00", "UTC"),)


def test_not_inside_maintenance(make_world: Callable[..., World]) -> None:
    """Neither once nor on one of its days."""
    rules = {name: getattr(RULES, name) for name in PoolSettings.model_fields}
    lab = lab_of(make_world, ClosedOnTuesdays(**rules))
    assert lab.preview(1, "1g.5gb", NINE)["reason"] == "in-maintenance"
    week = lab.preview(1, "1g.5gb", NINE - DAY_S, weekdays=("mon", "tue"))
    assert "On 2026-06-02 at 10:00 UTC the lab is closed" in week["message"]
    assert lab.preview(1, "1g.5gb", NINE, 1)["certain"] == 1
