"""A reservation is a promise: what is certain of it, over HTTP, with the clock passed in."""

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, SHAPES, World, make_world

from miglab_pool.settings import Course

from .conftest import as_
from .fakes import PREFIX
from .full_lab import apps

__all__ = ["make_world"]

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
        self, method: str, path: str, body: Any = None, who: str = "admin-token"
    ) -> tuple[int, Any]:
        """What the management listener answers, to an admin where nobody else is named."""

        async def call() -> tuple[int, Any]:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(
                transport=transport, base_url=f"http://lab{PREFIX}/api"
            ) as client:
                answer = await client.request(method, path, json=body, headers=as_(who))
                return answer.status_code, answer.json()

        return asyncio.run(call())

    def go_to(self, at: float) -> None:
        """To a moment, with everybody's ticket attended."""
        self.world.at = at
        self.world.attend_all()
        self.world.work()

    def fill(self, count: int = 14, shape: str = "1g.5gb", **more: Any) -> list[Any]:
        """Leases of strangers."""
        return [self.world.run(f"s{n}", shape, **more) for n in range(count)]

    def preview(self, *asked: Any, **more: Any) -> Any:
        return self.call("POST", "/reservations/preview", request(*asked, **more))[1]

    def reserve(self, *asked: Any, **more: Any) -> Any:
        status, answer = self.call("POST", "/reservations", request(*asked, **more))
        assert status == 201, answer
        return answer

    def all(self) -> dict[int, Any]:
        return {one["id"]: one for one in self.call("GET", "/reservations")[1]}


def request(
    count: int, shape: str, begins: float, hours: float = 2.0, **more: Any
) -> dict[str, Any]:
    """So many of a shape for `deep`, once, from a moment on."""
    starts, ends = (
        dt.datetime.fromtimestamp(at, dt.UTC) for at in (begins, begins + hours * HOUR_S)
    )
    return {
        "course": "deep", "shape": shape, "count": count, "date": starts.date().isoformat(),
        "from_time": f"{starts:%H:%M}", "to_time": f"{ends:%H:%M}", "tz": "UTC", **more,
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


def drained(lab: PromisedLab) -> None:
    gpu = lab.world.driver.gpus()[1].uuid
    lab.world.pool.staff.drain_gpu(gpu, "new fan", "ina")


def held_by_members(lab: PromisedLab) -> None:
    """Three of the class hold the shape, one of them twice; the rest is strangers'."""
    for server in ("", "b"):
        lab.world.run("ada", course="deep", server=server)
    lab.world.run("bob", course="deep")
    lab.world.run("cy", course="deep")
    lab.fill(10)


def beside_a_large_one(lab: PromisedLab) -> None:
    lab.reserve(1, "7g.40gb", NINE + 2 * HOUR_S)


ALL = ("", None)


@pytest.mark.parametrize(
    ("before", "asked", "certain", "all_from", "words"),
    [
        (lambda lab: lab.fill(), (10, "1g.5gb", NINE + DAY_S), 10, None, ""),
        (
            lambda lab: lab.fill(),
            (10, "1g.5gb", NINE, 6),
            0,
            NINE - 600 + 4 * HOUR_S + 120,
            "0 of 10 at 09:00 UTC, all from 12:52 UTC.",
        ),
        (
            lambda lab: lab.fill(7),
            (10, "1g.5gb", NINE, 6),
            7,
            NINE - 600 + 4 * HOUR_S + 120,
            "7 of 10 at 09:00 UTC, all from 12:52 UTC.",
        ),
        (lambda lab: lab.fill(7), (10, "1g.5gb", NINE, 2), 7, None, "7 of 10 at 09:00 UTC."),
        (beside_a_large_one, (7, "1g.5gb", NINE, 3), 7, None, ""),
        (lambda lab: lab.fill(1, "2g.10gb"), (4, "3g.20gb", NINE, 1), 3, None, "3 of 4"),
        (lambda lab: lab.fill(3), (6, "2x1g.5gb", NINE, 1), 5, None, "5 of 6"),
        (lambda lab: lab.fill(1), (2, "7g.40gb", NINE, 1), 1, None, "1 of 2"),
        (held_by_members, (5, "1g.5gb", NINE, 1), 3, None, "3 of 5"),
        (held_by_members, (3, "1g.5gb", NINE, 1), 3, None, ""),
        (lambda lab: lab.world.borrow("ada", "3g.20gb"), (2, "7g.40gb", NINE), 1,
         NINE - 600 + 1800 + 120, "1 of 2 at 09:00 UTC, all from 09:22 UTC."),
        (drained, (10, "1g.5gb", NINE), 7, None,
         "7 of 10 at 09:00 UTC: GPU 1 takes no new leases (new fan)."),
    ],
    ids=[
        "a full lab, next day", "a full lab, in ten minutes", "half a lab", "never all",
        "7 x 1g beside 7g", "mixed", "two slices each", "one of a GPU", "one person, one claim",
        "members who hold", "borrowed", "drained",
    ],
)  # fmt: skip
def test_what_is_certain(
    lab: PromisedLab, before: Any, asked: Any, certain: int, all_from: float | None, words: str
) -> None:
    """Before it is saved, and once it is, everybody reads how many are certain, and from when."""
    before(lab)
    said = lab.preview(*asked)
    assert (said["certain"], said["all_from"]) == (certain, all_from)
    assert said["outlook"].startswith(words) and bool(said["outlook"]) is bool(words)
    made = lab.reserve(*asked)
    keys = ("certain", "all_from", "outlook")
    assert [made[key] for key in keys] == [said[key] for key in keys]


def test_a_preview_writes_nothing(lab: PromisedLab) -> None:
    """Neither what would be made nor what would be refused is in the ledger."""
    lab.preview(3, "1g.5gb", NINE)
    assert lab.preview(15, "1g.5gb", NINE)["reason"] == "impossible-reservation"
    assert (lab.all(), lab.world.ledger.history("reservation")) == ({}, [])


def test_whole_gpus(make_world: Callable[..., World]) -> None:
    """GPUs with MIG off are promised by number."""
    lab = lab_of(make_world, mig=False)
    lab.world.run("s1", "full")
    assert lab.preview(2, "full", NINE)["certain"] == 1
    assert lab.preview(2, "full", NINE + DAY_S)["certain"] == 2
    assert lab.preview(3, "full", NINE)["reason"] == "impossible-reservation"


def test_a_courses_own_gpu(make_world: Callable[..., World]) -> None:
    """It is nobody else's: another course has one GPU here, its own course both."""
    lab = lab_of(make_world, changed(RULES, assigned={"0": "deep"}))
    assert lab.reserve(14, "1g.5gb", NINE)["certain"] == 14
    assert lab.preview(1, "1g.5gb", NINE, course="vision")["reason"] == "reservation-clash"
    assert lab.preview(8, "1g.5gb", NINE + DAY_S, course="vision")["reason"] == (
        "impossible-reservation"
    )


def test_two_instructors_at_once(lab: PromisedLab) -> None:
    """Who comes second is told with whom it clashes; what was made first keeps its slices."""
    first = lab.reserve(10, "1g.5gb", NINE + DAY_S)
    status, refused = lab.call("POST", "/reservations", request(5, "1g.5gb", NINE + DAY_S))
    assert (status, refused["reason"]) == (409, "reservation-clash")
    lab.reserve(4, "1g.5gb", NINE + DAY_S)
    drained(lab)
    found = lab.all()
    assert [found[number]["certain"] for number in sorted(found)] == [7, 0]
    assert found[first["id"]]["outlook"].startswith("7 of 10")


def test_without_reclaim_nothing_is_certain(make_world: Callable[..., World]) -> None:
    """Where no lease is ended a reservation says so."""
    lab = lab_of(make_world, changed(RULES, enabled=False))
    assert lab.reserve(3, "1g.5gb", NINE)["outlook"].startswith("Not certain")


def test_the_calendar_says_it(lab: PromisedLab) -> None:
    """Each date of a weekly one by itself: this week some are missing, next week none."""
    lab.fill(7)
    made = lab.reserve(10, "1g.5gb", NINE, weekdays=("tue",))
    words = lab.world.pool.reservations.outlooks(NINE - DAY_S, NINE + 8 * DAY_S)
    assert words == {(made["id"], NINE): "7 of 10 at 09:00 UTC."}
