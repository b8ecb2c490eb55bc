"""The two applications over a fake hub and a fake pool, without a socket."""

from collections.abc import AsyncIterator

import httpx
import pytest

from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.management_app import management_app
from miglab_pool.http.metrics import Metrics
from miglab_pool.http.pool_runner import PoolRunner
from miglab_pool.http.student_app import student_app
from miglab_pool.reclaim.activity import SignalBoard

from .fakes import ACCESS, BOOK, PREFIX, SECRET, FakePool, FakeTokens, lease_view, slice_view

NOTICES = ("simulated GPUs", "no isolation: trial only")


@pytest.fixture
def pool() -> FakePool:
    """Alice holds lease 1 for her server, and lease 3 for lab2; bob holds lease 2."""
    return FakePool(
        slices=[slice_view(1, 0, "alice"), slice_view(2, 2, "bob"), slice_view(4, 5)],
        held={
            1: lease_view(1, "alice"),
            2: lease_view(2, "bob"),
            3: lease_view(3, "alice", server="lab2"),
        },
    )


@pytest.fixture
async def runner(pool: FakePool) -> AsyncIterator[PoolRunner]:
    runner = PoolRunner(pool, Metrics({"1g.5gb"}))  # type: ignore[arg-type]
    runner._is_reconciled = True  # as after start, but without its timers
    yield runner
    await runner.stop()


@pytest.fixture
def tokens() -> FakeTokens:
    return FakeTokens(ACCESS)


@pytest.fixture
def sign_in(tokens: FakeTokens) -> SignIn:
    return SignIn(ACCESS, SECRET, BOOK, tokens)


@pytest.fixture
async def client(runner: PoolRunner, sign_in: SignIn) -> AsyncIterator[httpx.AsyncClient]:
    """The management listener."""
    app = management_app(
        runner,
        sign_in,
        default_course="everyone",
        notices=NOTICES,
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://lab{PREFIX}") as client:
        yield client


@pytest.fixture
def board() -> SignalBoard:
    return SignalBoard()


@pytest.fixture
async def student(
    runner: PoolRunner, tokens: FakeTokens, board: SignalBoard
) -> AsyncIterator[httpx.AsyncClient]:
    """The student listener."""
    transport = httpx.ASGITransport(student_app(runner, tokens, board, default_course="everyone"))
    async with httpx.AsyncClient(transport=transport, base_url="http://student") as client:
        yield client


def as_(token: str) -> dict[str, str]:
    """The header of whoever has this token."""
    return {"Authorization": f"Bearer {token}"}
