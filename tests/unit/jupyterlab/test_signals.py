"""What a server says of itself: ages by one clock, unknown where it is unknown."""

import asyncio
import os
from typing import Any

import psutil
import pytest
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

from miglab_api.leases import Signals
from miglab_jupyterlab.signals import (
    MANY,
    Ages,
    OpenTabs,
    ServerReading,
    Tabs,
    ask_starting_kernels,
    process_cpu_s,
    read_server,
    signals,
)

STARTS_S = 60.0
NOBODY = Tabs(open=0, active_age_s=None, unsaved=None)


def reading(
    kernels: dict[str, tuple[str, object]] | None = None,
    terminals: dict[str, object] | None = None,
    sockets: int = 0,
) -> ServerReading:
    return ServerReading(kernels or {}, terminals, sockets, cpu_s=1.5)


def test_what_is_sent_is_the_pools_message():
    """The pool's own class takes it, and understands it."""
    ages = Ages()
    look = reading({"a": ("busy", 1), "b": ("idle", 1)}, {"1": "x"}, sockets=2)
    message = Signals.model_validate(signals(look, Tabs(1, 3.0, 2), ages, 10.0))
    assert [kernel.busy for kernel in message.kernels or ()] == [True, False]
    assert (message.terminals, message.browsers, message.unsaved) == (1, 2, 2)
    assert (message.browser_age_s, message.cpu_s) == (3.0, 1.5)
    other = signals(reading(sockets=1), NOBODY, Ages(), 0.0)
    assert other["browsers"] == 1, "a connection without our tab is somebody all the same"


@pytest.mark.parametrize("state", ["starting", "unknown", "dead", "", "новый"])
def test_a_state_that_is_neither_busy_nor_idle_is_unknown(state: str):
    """Unknown is never idle."""
    body = signals(reading({"a": (state, 1)}), NOBODY, Ages(), 0.0)
    assert body["kernels"][0]["busy"] is None


def test_an_age_grows_until_there_is_activity():
    """It starts when a change is seen, whatever the mark itself says about time."""
    ages = Ages()

    def age(mark: object, now: float) -> Any:
        body = signals(reading({"a": ("idle", mark)}), NOBODY, ages, now)
        return body["kernels"][0]["last_execution_age_s"]

    looks = ((5, "2030", 0), (20, "2030", 15), (35, "1999", 0), (36, "1999", 1))  # it jumps back
    assert [age(mark, now) for now, mark, _ in looks] == [age_s for *_, age_s in looks]
    signals(reading(), NOBODY, ages, 40.0)
    assert ages.first_seen == {}, "a kernel of the same name later starts anew"


def test_the_youngest_terminal_counts():
    """One that is used keeps the age small; with none there is no age."""
    ages = Ages()
    signals(reading(terminals={"1": "a", "2": "a"}), NOBODY, ages, 0.0)
    body = signals(reading(terminals={"1": "a", "2": "b"}), NOBODY, ages, 30.0)
    assert (body["terminals"], body["terminal_age_s"]) == (2, 0)
    body = signals(reading(terminals={"1": "a"}), NOBODY, ages, 40.0)
    assert (body["terminals"], body["terminal_age_s"]) == (1, 40)
    for terminals, count in (({}, 0), (None, None)):  # what cannot be told is not zero
        body = signals(reading(terminals=terminals), NOBODY, ages, 50.0)
        assert (body["terminals"], body["terminal_age_s"]) == (count, None)


def test_tabs_add_up():
    """Unsaved documents are summed; the last key press counts, even of a tab that was closed."""
    tabs = OpenTabs()
    tabs.add("a")
    tabs.add("b")
    assert tabs.summary(0.0) == Tabs(2, None, None)
    tabs.take_report("a", {"unsaved": 2, "active_age_s": 4.0}, 10.0)
    tabs.take_report("b", {"unsaved": 1, "active_age_s": 60.0}, 11.0)
    assert tabs.summary(20.0) == Tabs(2, 14.0, 3)
    tabs.remove("a")
    assert tabs.summary(20.0) == Tabs(1, 14.0, 1)


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"unsaved": -1, "active_age_s": -5},
        {"unsaved": "many", "active_age_s": "now"},
        {"unsaved": True, "active_age_s": False},
        {"unsaved": 1e400, "active_age_s": float("nan")},
        {"unsaved": MANY + 1, "active_age_s": 1e12},
        {"unsaved": [1], "active_age_s": {"s": 1}},
    ],
)
def test_nonsense_of_a_tab_changes_nothing(report: dict[str, Any]):
    """What the pool would refuse is not believed in the first place."""
    tabs = OpenTabs()
    tabs.add("a")
    tabs.take_report("a", report, 10.0)
    assert tabs.summary(10.0) == Tabs(1, None, None)


def test_never_more_than_the_pool_takes():
    """A report that is refused as a whole would make a busy server an unknown one."""
    tabs = OpenTabs()
    for tab in range(MANY + 1):
        tabs.add(tab)
        tabs.take_report(tab, {"unsaved": MANY}, 0.0)
    names = [str(number) for number in range(MANY + 1)]
    look = reading({name: ("busy", 1) for name in names}, dict.fromkeys(names), MANY + 1)
    message = Signals.model_validate(signals(look, tabs.summary(0.0), Ages(), 0.0))
    assert (len(message.kernels or ()), message.terminals, message.browsers) == (MANY, MANY, MANY)


def test_cpu_time_is_of_the_whole_family(monkeypatch: pytest.MonkeyPatch):
    """This process and what it started, never less than its own; without psutil it is unknown."""
    own_times = psutil.Process().cpu_times()
    family_s = process_cpu_s(os.getpid())
    assert family_s is not None
    assert family_s >= own_times.user + own_times.system
    monkeypatch.setattr("miglab_jupyterlab.signals.psutil", None)
    assert process_cpu_s() is None


class Kernels:
    """A kernel manager, as far as it is read."""

    def list_kernels(self) -> list[dict[str, Any]]:
        model = {"id": "a", "execution_state": "busy", "last_activity": "t"}
        return [model | {"connections": 2}, model | {"id": "b"}]


def test_a_server_without_terminals_has_none():
    """Switched off is known to be zero; on but not there is unknown."""
    off = read_server({"kernel_manager": Kernels()}, None)
    assert (off.terminals, off.sockets, off.kernels["a"]) == ({}, 2, ("busy", "t"))
    on = read_server({"kernel_manager": Kernels(), "terminals_available": True}, None)
    assert on.terminals is None


@pytest.fixture
async def kernel():
    """A kernel that has run nothing, its manager, and a client of it."""
    manager = AsyncMappingKernelManager()
    kernel_manager = manager.get_kernel(await manager.start_kernel())
    client = kernel_manager.client()
    client.start_channels()
    yield kernel_manager, {"kernel_manager": manager}, client
    client.stop_channels()
    await manager.shutdown_all(now=True)
    manager.context.destroy(linger=0)  # its own is left to the garbage collector, which complains


async def state_heard(kernel):
    """Wait until the server has heard its status."""
    async with asyncio.timeout(STARTS_S):
        while kernel.execution_state == "starting":
            await asyncio.sleep(0.01)
    return kernel.execution_state


async def test_a_kernel_that_was_not_heard_is_idle_once_it_was_asked(kernel):
    """Without the question it would stay as it is."""
    kernel_manager, settings, client = kernel
    await client.wait_for_ready()
    kernel_manager.execution_state = "starting"
    ask_starting_kernels(settings)
    assert await state_heard(kernel_manager) == "idle"


async def test_one_that_computes_answers_when_it_has_done_so(kernel):
    """Its first "busy" was lost; while its cell runs nobody takes it for idle."""
    kernel_manager, settings, client = kernel
    await client.wait_for_ready()
    prompts: asyncio.Queue[str] = asyncio.Queue()
    cell = "input('first'); input('second')"
    running = asyncio.create_task(
        client.execute_interactive(
            cell, stdin_hook=lambda request: prompts.put_nowait(request["content"]["prompt"])
        )
    )
    async with asyncio.timeout(STARTS_S):
        assert await prompts.get() == "first"
        while (
            kernel_manager.execution_state != "busy"
        ):  # it comes by another channel than the prompt
            await asyncio.sleep(0.01)
        kernel_manager.execution_state = "starting"
        ask_starting_kernels(settings)
        client.input("")
        assert await prompts.get() == "second"  # the kernel was there and back
        assert kernel_manager.execution_state == "starting"
        client.input("")
        await running
    assert await state_heard(kernel_manager) == "idle"
