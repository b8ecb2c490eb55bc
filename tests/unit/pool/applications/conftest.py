"""The two applications over a fake hub and a real pool on simulated GPUs, without a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, SHAPES, Keep, World

from miglab_api.gpus import SliceState
from miglab_api.tickets import TicketView
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.applications.student_app import student_app
from miglab_pool.http.access.auth import SignIn
from miglab_pool.pool import Pool
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.settings import Course

from .fakes import ACCESS, BOOK, PREFIX, SECRET, FakeTokens

NOTICES = ("simulated GPUs", "no isolation: trial only")
NOW = 1_780_300_800.0  # 1 June 2026, 8:00 UTC, a Monday
COURSES = {name: Course(title=name.title(), shapes=SHAPES) for name in ("everyone", "ml", "vision")}
LAB = changed(SETTINGS, courses=COURSES)


def free_slice(world: World) -> int:
    rows = world.ledger.state.slices.values()
    return next(row.id for row in rows if row.state == SliceState.FREE)


def foreign_slice(world: World) -> int:
    """Somebody makes a slice with nvidia-smi."""
    info = world.driver.gpus()[0]
    profile = info.geometry.by_name["1g.5gb"]
    taken_starts = {reading.placement.start for reading in world.driver.slices(info.uuid)}
    place = next(place for place in profile.placements if place.start not in taken_starts)
    world.driver.create(info.uuid, profile, place)
    world.pool.reconcile()
    rows = world.ledger.state.slices.values()
    return next(row.id for row in rows if row.state == SliceState.FOREIGN)


def enqueue(world: World, user: str = "alice", course: str = "ml") -> TicketView:
    """Somebody waits for a whole GPU, of which there is none."""
    return world.ask(user, "7g.40gb", server="lab3", course=course)


def actions_taken(world: World) -> list[tuple[str, str, str, str]]:
    """What people did: which act, to what, who, why; the newest first."""
    return [
        (step["action"], step["target"], step["by"], step["reason"])
        for step in world.ledger.history()
        if step["action"]
    ]


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Of ml alice has lease 1 and, for lab2, lease 3, and bob lease 2; a slice is free; closed."""
    world = World(tmp_path_factory.mktemp("furnished"), LAB)
    world.pass_time(NOW - world.at)
    for user, server in (("alice", ""), ("bob", ""), ("alice", "lab2")):
        world.run(user, course="ml", server=server)
    world.end(world.run("carol", course="vision"))
    world.close()
    return world


@pytest.fixture
def world(furnished: World, tmp_path: Path, keep: Keep[World]) -> World:
    """A copy of it that is open."""
    return keep(furnished.copied(tmp_path / "lab"))


@pytest.fixture
def pool(world: World) -> Pool:
    return world.pool


@pytest.fixture
def gpu(world: World) -> str:
    return world.driver.uuids[0]


@pytest.fixture
async def runner(pool: Pool) -> AsyncIterator[PoolRunner]:
    runner = PoolRunner(pool, Metrics({"1g.5gb"}))
    runner.is_reconciled = True  # as after start, but without its timers
    yield runner
    await runner.stop()


@pytest.fixture
def tokens() -> FakeTokens:
    return FakeTokens(ACCESS)


@pytest.fixture
def sign_in(tokens: FakeTokens) -> SignIn:
    return SignIn(ACCESS, SECRET, BOOK, tokens)


def visiting(app: FastAPI, url: str = f"http://lab{PREFIX}", **headers: str) -> httpx.AsyncClient:
    """A client of the management listener."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=url, headers=headers)


@pytest.fixture
async def client(runner: PoolRunner, sign_in: SignIn) -> AsyncIterator[httpx.AsyncClient]:
    """The management listener."""
    app = management_app(
        runner,
        sign_in,
        default_course="everyone",
        notices=NOTICES,
    )
    async with visiting(app) as client:
        yield client


@pytest.fixture
def board() -> SignalBoard:
    return SignalBoard()


@pytest.fixture
async def student(
    runner: PoolRunner, tokens: FakeTokens, board: SignalBoard
) -> AsyncIterator[httpx.AsyncClient]:
    """The student listener."""
    app = student_app(runner, tokens, board, courses=BOOK.courses, default_course="everyone")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://student") as client:
        yield client


def as_(token: str) -> dict[str, str]:
    """The header of whoever has this token."""
    return {"Authorization": f"Bearer {token}"}
