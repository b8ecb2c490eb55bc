"""The wait of one start, moment by moment: a wish, a slice, and an end that come together."""

import asyncio
from typing import Any

import pytest

from miglab_api.tickets import TicketState, TicketView
from miglab_spawner.backends.base import BackendUnreachable, RefusedByBackend
from miglab_spawner.pages.waiting import NOTHING, Wait


def ticket(state: TicketState = TicketState.WAITING, **more: Any) -> TicketView:
    values: dict[str, Any] = {
        "id": 1, "user": "ada", "server": "", "course": "everyone", "shape": "3g.20gb",
        "state": state, "position": 1 if state is TicketState.WAITING else None, "waiting": 1,
        "created_at": 1000.0,
    }  # fmt: skip
    return TicketView(**{**values, **more})


class FakeLine:
    """A pool that answers when the test says so, and refuses what ``refuses`` says."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[TicketView] = asyncio.Queue()
        self.calls: list[tuple[str, Any]] = []
        self.refuses: Exception | None = None

    async def attended(self, number: int) -> TicketView:
        return await self.news.get()

    async def asked(self, shape: str) -> TicketView:
        self._called("asked", shape)
        return ticket(TicketState.OFFERED, id=2, shape=shape)

    async def given_up(self, number: int) -> TicketView:
        self._called("given_up", number)
        return ticket(TicketState.CANCELLED, reason="cancelled")

    def _called(self, what: str, value: Any) -> None:
        self.calls.append((what, value))
        if self.refuses is not None:
            raise self.refuses


@pytest.fixture
def line() -> FakeLine:
    return FakeLine()


async def begun(line: FakeLine, *, keeps_ticket: bool = True) -> tuple[Wait, Any]:
    """A wait that stands in line, and its task."""
    wait = Wait(line, lambda _note: None, keeps_ticket=keeps_ticket)
    task = asyncio.create_task(wait.until_over(ticket()))
    while wait.ticket is None:
        await asyncio.sleep(0)
    return wait, task


async def test_a_slice_ends_the_wait(line: FakeLine):
    """Whatever moves in line before; afterwards there is nothing to wish for."""
    wait, task = await begun(line)
    line.news.put_nowait(ticket(position=2))
    line.news.put_nowait(ticket(TicketState.OFFERED))
    assert (await task).state is TicketState.OFFERED
    with pytest.raises(RefusedByBackend, match="does not wait"):
        await wait.wish("cpu")


@pytest.mark.parametrize(("keeps_ticket", "kept", "calls"), [
    (True, 1, []),
    (False, None, [("given_up", 1)]),
])  # fmt: skip
async def test_on_cpu(line: FakeLine, keeps_ticket: bool, kept: int | None, calls: list[Any]):
    """The ticket is left alone where somebody will attend it, and given up where nobody would."""
    wait, task = await begun(line, keeps_ticket=keeps_ticket)
    await wait.wish("cpu")
    assert (await task, wait.kept, line.calls) == (None, kept, calls)


async def test_another_shape(line: FakeLine):
    """Its ticket is the one that is waited for from now on."""
    wait, task = await begun(line)
    await wait.wish("1g.5gb")
    after = await task
    assert (after.id, after.shape) == (2, "1g.5gb")


async def test_giving_up(line: FakeLine):
    """Said in words that the start then fails with."""
    wait, task = await begun(line)
    await wait.wish(NOTHING)
    assert (await task).message == "You gave up your place in line."


@pytest.mark.parametrize(
    "error",
    [RefusedByBackend("over-quota", "You hold all you may.", 403), BackendUnreachable("silent")],
)
async def test_a_wish_that_fails_costs_nothing(line: FakeLine, error: Exception):
    """Who wished is told; the start waits on."""
    wait, task = await begun(line)
    line.refuses = error
    with pytest.raises(type(error)):
        await wait.wish("1g.5gb")
    await asyncio.wait([task], timeout=0.05)
    assert wait.ticket is not None
    line.news.put_nowait(ticket(TicketState.OFFERED))
    assert (await task).id == 1


async def test_a_start_that_fails_leaves_no_wish_behind(line: FakeLine):
    """Whatever went wrong: who wished is told that nothing waits, and the start fails."""
    wait, task = await begun(line)
    line.refuses = OSError("the hub's database is busy")
    with pytest.raises(RefusedByBackend, match="does not wait"):
        await wait.wish("1g.5gb")
    with pytest.raises(OSError, match="busy"):
        await task


async def test_a_wish_that_comes_with_the_slice(line: FakeLine):
    """The slice is there: it is taken, and the wish is refused."""
    wait, task = await begun(line)
    line.news.put_nowait(ticket(TicketState.OFFERED))
    with pytest.raises(RefusedByBackend, match="does not wait"):
        await wait.wish("cpu")
    assert (await task).state is TicketState.OFFERED


async def test_two_wishes_at_once(line: FakeLine):
    """The first counts."""
    wait, task = await begun(line)
    first = asyncio.create_task(wait.wish("cpu"))
    await asyncio.sleep(0)
    with pytest.raises(RefusedByBackend, match="does not wait"):
        await wait.wish("1g.5gb")
    await first
    assert await task is None


async def test_a_hub_that_ends(line: FakeLine):
    """Nobody who wished waits for ever."""
    wait, task = await begun(line)
    wish = asyncio.create_task(wait.wish("cpu"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(RefusedByBackend):
        await wish
    assert wait.ticket is None
