"""The wait of one start: a choice, a slice, and an end that come together.

What a choice does where nothing comes between is seen on a real hub, in tests/hub/spawner.
"""

import asyncio
from typing import Any

import pytest
from tests.polling import until
from tests.refusals import because
from tests.unit.pool.applications.fakes import ticket_view

from miglab_api.tickets import TicketState, TicketView
from miglab_spawner.backends import RefusedByBackend
from miglab_spawner.pages.waiting import Wait


def ticket(state: TicketState = TicketState.WAITING, **fields: Any) -> TicketView:
    position = 1 if state is TicketState.WAITING else None
    defaults = {"shape": "3g.20gb", "state": state, "position": position}
    return ticket_view(1, "ada", **{**defaults, **fields})


class FakeQueue:
    """A pool that answers when the test says so, and refuses what ``refuses`` says."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[TicketView] = asyncio.Queue()
        self.calls: list[tuple[str, Any]] = []
        self.refuses: Exception | None = None

    async def attend_ticket(self, number: int) -> TicketView:
        return await self.news.get()

    async def request_shape(self, shape: str) -> TicketView:
        self._called("asked", shape)
        return ticket(TicketState.OFFERED, id=2, shape=shape)

    async def cancel_ticket(self, number: int) -> TicketView:
        self._called("given_up", number)
        return ticket(TicketState.CANCELLED, reason="cancelled")

    def _called(self, method: str, value: Any) -> None:
        self.calls.append((method, value))
        if self.refuses is not None:
            raise self.refuses


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


async def start_waiting(queue: FakeQueue, *, keeps_ticket: bool = True) -> tuple[Wait, Any]:
    """Start a wait; return it, and its task."""
    wait = Wait(queue, lambda _pct, _text: None, keeps_ticket=keeps_ticket)
    task = asyncio.create_task(wait.wait_until_over(ticket()))
    await until(lambda: wait.ticket is not None, "the wait to begin")
    return wait, task


async def test_on_cpu_where_nobody_would_attend_the_ticket(queue: FakeQueue):
    """It is given up."""
    wait, task = await start_waiting(queue, keeps_ticket=False)
    await wait.change_to("cpu")
    assert (await task, wait.background_ticket, queue.calls) == (None, None, [("given_up", 1)])


async def test_a_start_that_fails_leaves_no_change_behind(queue: FakeQueue):
    """Whatever went wrong: whoever asked is told that nothing waits, and the start fails."""
    wait, task = await start_waiting(queue)
    queue.refuses = OSError("the hub's database is busy")
    with pytest.raises(RefusedByBackend, check=because("not-waiting")):
        await wait.change_to("1g.5gb")
    with pytest.raises(OSError, match="busy"):
        await task


async def test_a_change_that_comes_with_the_slice(queue: FakeQueue):
    """The slice is there: it is taken, and the change is refused."""
    wait, task = await start_waiting(queue)
    queue.news.put_nowait(ticket(TicketState.OFFERED))
    with pytest.raises(RefusedByBackend, check=because("not-waiting")):
        await wait.change_to("cpu")
    assert (await task).state is TicketState.OFFERED


async def test_two_changes_at_once(queue: FakeQueue):
    """The first counts."""
    wait, task = await start_waiting(queue)
    first, second = await asyncio.gather(
        wait.change_to("cpu"), wait.change_to("1g.5gb"), return_exceptions=True
    )
    assert first is None
    assert isinstance(second, RefusedByBackend) and second.reason == "not-waiting"
    assert await task is None


async def test_a_hub_that_ends(queue: FakeQueue):
    """Nobody who asked waits for ever."""
    wait, task = await start_waiting(queue)
    change = asyncio.create_task(wait.change_to("cpu"))
    task.cancel()
    with pytest.raises(RefusedByBackend):
        await change
    assert wait.ticket is None
