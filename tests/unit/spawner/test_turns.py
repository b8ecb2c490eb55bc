"""Turns of starts: in order, so many at once, and not for longer than their time."""

import asyncio

import pytest
from tests.polling import until

from miglab_spawner.containers.turns import StartTurns


class Starts:
    """Starts that last until they are told to end, and who has begun."""

    def __init__(self, turns):
        self.turns, self.started, self.ends = turns, [], {}

    async def start(self, name):
        self.ends[name] = asyncio.Event()
        async with self.turns.turn():
            self.started.append(name)
            await self.ends[name].wait()


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("at_once", "first"), [(1, ["a"]), (2, ["a", "b"])])
async def test_so_many_begin_and_the_others_follow_in_order(at_once, first):
    """Who comes next begins when somebody has ended."""
    starts = Starts(StartTurns(at_once, longest_s=60.0, longest_wait_s=60.0))
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(starts.start(name))
        await settle()
        assert starts.started == first
        starts.ends["a"].set()
        await settle()
        assert starts.started == list("abc"[: at_once + 1])
        for end in starts.ends.values():
            end.set()


async def test_one_that_hangs_keeps_its_turn_for_a_while_only():
    """The next begins beside it; its end later gives no second turn back."""
    starts = Starts(StartTurns(1, longest_s=0.01, longest_wait_s=60.0))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(starts.start("hangs"))
        await settle()
        starts.turns._longest_s = 60.0
        for name in "abc":
            tasks.create_task(starts.start(name))
        await until(lambda: "a" in starts.started, "the next to begin")
        starts.ends["hangs"].set()
        await settle()
        assert starts.started == ["hangs", "a"]
        for end in starts.ends.values():
            end.set()


async def test_nobody_waits_for_ever():
    """However many hang; who began without a turn gives none back."""
    turns = StartTurns(1, longest_s=60.0, longest_wait_s=0.01)
    starts = Starts(turns)
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            tasks.create_task(starts.start(name))
        await until(lambda: starts.started == list("abc"), "all to begin")
        for end in starts.ends.values():
            end.set()
    assert turns._free is not None
    assert turns._free._value == 1


async def test_one_that_fails_or_is_cancelled_gives_its_turn_back():
    """So does one that is cancelled while it waits."""
    turns = StartTurns(1, longest_s=60.0, longest_wait_s=60.0)
    starts = Starts(turns)
    with pytest.raises(ValueError, match="refused"):
        async with turns.turn():
            raise ValueError("refused")
    running, waiting = (asyncio.create_task(starts.start(name)) for name in "ab")
    await settle()
    waiting.cancel()
    await settle()
    running.cancel()
    await settle()
    async with asyncio.timeout(5), turns.turn():
        pass


def test_it_belongs_to_no_loop():
    """Another event loop finds every turn free."""
    turns = StartTurns(1, longest_s=60.0, longest_wait_s=60.0)
    starts = Starts(turns)

    async def two():
        tasks = [asyncio.create_task(starts.start(name)) for name in "ab"]
        await settle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(two())
    asyncio.run(two())
    assert starts.started == ["a", "a"]
