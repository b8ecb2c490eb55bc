"""Measurements on borrowed slices: a real hub, a real pool, labkit in a real runner process.

The kernel's side is labkit itself, in a thread with the environment of the student's server.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.hubs import Hub
from tests.needs import needs
from traitlets.config import Config

import labkit
from labkit import errors
from labkit.exercises.networks import transformer_step
from labkit.measuring.sharing import Turns, Way, turns_async
from labkit.notebook.steps import timed_step
from labkit.panel.experiment import Experiment
from labkit.panel.runner import Runner
from labkit.run import borrowed
from miglab_api.offers import BORROW
from miglab_api.tickets import Purpose, borrower_of
from miglab_spawner import borrower

from .lab import PoolLab

needs("torch", "runners measure with torch")
LONG_S = 240.0
SHAPES = ("1g.5gb", "2g.10gb", "3g.20gb", "2x1g.5gb")


def product(size: int = 8) -> Any:
    import torch

    matrix = torch.ones(size, size)
    return lambda: matrix @ matrix


def sleeps() -> Any:
    import time

    return lambda: time.sleep(0.2)


def signals_its_runner(signal_name: str) -> Any:
    """Signals the runner's program, two processes up, once something has been measured."""
    import os
    import signal
    import time
    from pathlib import Path

    calls = []
    server = Path(f"/proc/{os.getppid()}/stat").read_text()
    runner = int(server.rpartition(")")[2].split()[1])

    def work() -> None:
        calls.append(1)
        time.sleep(0.05)
        if len(calls) == 30:
            os.kill(runner, signal.Signals[signal_name])

    return work


def everything(size: int) -> str:
    return "x" * size


def prints_for_ever() -> None:
    while True:
        print("x" * 65536)


def sees() -> dict[str, str]:
    import os

    return dict(os.environ)


class Desk:
    """A student's server that borrows, and labkit in it."""

    def __init__(self, lab: PoolLab, hub: Hub, env: Mapping[str, str]) -> None:
        self.lab, self.hub, self.env = lab, hub, env

    async def calls(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """A call of labkit, on a thread as a kernel is."""
        return await asyncio.wait_for(asyncio.to_thread(call, *arguments, **options), LONG_S)


@pytest.fixture
def hub_config(hub_config: Config) -> Config:
    """The GPUs are simulated: what is measured is this machine's CPU."""
    hub_config.MIGLocalSpawner.simulated = True
    hub_config.MIGLocalSpawner.borrow_linger_s = 600
    return hub_config


@pytest.fixture
async def desk(
    lab: PoolLab, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Desk]:
    """Ada's server, in the course that lends; this process has its environment."""
    env = await hub.start("ada", shape=BORROW)
    for name, value in env.items():
        if name.startswith(("MIGLAB_", "JUPYTERHUB_")):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAB_QUICK", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield Desk(lab, hub, env)
    await hub.stop("ada")
    await lab.until_empty()


@pytest.mark.long
async def test_measured_on_borrowed_slices(desk: Desk) -> None:
    """On the usual shape, on others by name, with ranks; evidence says on what and in which runner.

    Between two measurements on one shape the runner stays; the server itself never holds anything.
    """
    assert json.loads(desk.env["MIGLAB_BORROW"]) == list(SHAPES)
    assert "MIGLAB_LEASE" not in desk.env
    first = await desk.calls(labkit.measure, product, size=16)
    again = await desk.calls(labkit.measure, product)
    assert first.borrowed is not None and first.borrowed == again.borrowed
    assert first.borrowed.shape == "1g.5gb" and first.borrowed.slices[0].startswith("MIG-")
    assert len(first.samples_s) == len(again.samples_s) == 5 and first.setting == {"size": 16}
    assert "borrowed 1g.5gb (MIG-" in first.caption
    both = await desk.calls(labkit.measure, product, on=["2g.10gb", "3g.20gb"])
    assert [record.borrowed.shape for record in both.values()] == ["2g.10gb", "3g.20gb"]
    assert desk.lab.lease_of("ada") is None
    place = await desk.calls(labkit.where)
    assert place.borrowed is not None and place.borrowed.shape == place.lends[0] == "1g.5gb"
    assert "measurements borrow 1g.5gb; other shapes for on=: " in repr(labkit.card(place))
    pair = await desk.calls(labkit.ranks, sees, n=2)
    assert len(pair.values) == 2
    assert pair.borrowed is not None and pair.borrowed.shape == "2x1g.5gb"
    assert len(pair.borrowed.slices) == 2
    visible = pair.values[0]
    assert not [name for name in visible if "TOKEN" in name or name.startswith("JUPYTERHUB")]
    assert visible["HOME"] != os.environ["HOME"]


@pytest.mark.long
async def test_copies_share_what_is_borrowed(desk: Desk) -> None:
    """Copies that share one slice run in a runner, all of them, and count together there."""
    turns = await desk.calls(_in_turns)
    assert turns.copies == 2 and len(turns.together) == len(turns.alone) == 5
    assert turns.borrowed is not None and turns.borrowed.shape == "1g.5gb"
    assert turns.series("alone").borrowed == turns.borrowed
    shared = await desk.calls(_shared, product, Way.TIME, copies=3, pairs=1)
    assert shared.borrowed == turns.borrowed and len(shared.each_per_s) == 3
    with pytest.raises(errors.TooFewRanks, match="your lease holds 0"):  # simulated slices
        await desk.calls(_shared, product, Way.SLICES, copies=2)
    with pytest.raises(errors.TooFewRanks, match="and your course lends 1g"):
        await desk.calls(_shared, product, Way.SLICES, copies=3)


def _shared(*arguments: Any, **options: Any) -> Turns:
    return asyncio.run(turns_async(*arguments, **options))


def _in_turns() -> Turns:
    tiny = {"batch": 1, "width": 64, "layers": 1, "length": 4}
    return asyncio.run(turns_async(transformer_step, Way.TIME, copies=2, **tiny))


async def test_refused_before_anything_is_borrowed(desk: Desk) -> None:
    """A shape that is not lent, and what cannot be sent: by name, and no ticket is made.

    Another student's token measures nothing, and a server that holds a slice does not borrow.
    """
    with pytest.raises(errors.WrongArgument, match="lends 1g"):
        await desk.calls(labkit.measure, product, on="7g.40gb")
    packed = {"train": {"modules": ["labkit"]}}
    with pytest.raises(errors.Unsendable, match="`train` uses `labkit`"):
        borrowed.refuse_own_files(packed, home=Path(labkit.__file__).parents[1])
    desk.hub.user("eve")
    path = "api/miglab/runs/ada/?shape=1g.5gb"
    assert (await desk.hub.ask("eve", "POST", path, content=b"{}")).status_code == 403
    assert not desk.lab.waiting() and not desk.lab.pool.leases.live()
    await desk.hub.start("eve", shape="1g.5gb")
    answer = await desk.hub.ask("eve", "POST", path.replace("ada", "eve"), content=b"{}")
    assert answer.status_code == 409
    await desk.hub.stop("eve")


@pytest.mark.long
async def test_what_was_sampled_is_kept(desk: Desk) -> None:
    """A runner that dies in the middle: a sentence, the samples so far, and the slice goes back."""
    with pytest.raises(errors.NotBorrowed, match="ended without a word") as failed:
        await desk.calls(labkit.measure, signals_its_runner, samples=500, signal_name="SIGKILL")
    assert failed.value.kept is not None and failed.value.kept.samples_s
    await desk.lab.until_empty()
    assert (await desk.calls(labkit.measure, product)).samples_s


@pytest.mark.long
async def test_too_much_is_ended(desk: Desk) -> None:
    """A huge result is refused by the runner; a flood of prints is cut off by the hub."""
    with pytest.raises(errors.LabError, match="16 MiB"):
        await desk.calls(labkit.ranks, everything, n=1, size=17 << 20)
    with pytest.raises(errors.LabError, match="too large to be sent"):
        await desk.calls(labkit.ranks, everything, n=1, size=1 << 30)
    with pytest.raises(errors.NotBorrowed, match="16 MiB"):
        await desk.calls(labkit.ranks, prints_for_ever, n=1)
    await desk.lab.until_empty()


@pytest.mark.long
@pytest.mark.parametrize("hangs", [False, True])
async def test_its_end_is_told(desk: Desk, hangs: bool) -> None:
    """The pool takes a lease back in the middle, by force if need be: why is read, samples kept."""
    options = {"signal_name": "SIGSTOP"} if hangs else {}
    work = signals_its_runner if hangs else sleeps
    measuring = asyncio.create_task(desk.calls(labkit.measure, work, samples=500, **options))
    is_so_far = _stands_still if hangs else _runs
    await desk.lab.until(lambda: is_so_far(desk.lab), "the runner runs, or stands still")
    (lease,) = desk.lab.pool.leases.live("ada")
    assert lease.purpose is Purpose.BORROW and lease.server == borrower_of("")
    desk.lab.pool.leases.release(lease.id, "pool", "The class ends at 12:00.")
    with pytest.raises(errors.NotBorrowed, match="The class ends") as failed:
        await measuring
    if hangs:
        assert failed.value.kept is not None and failed.value.kept.samples_s
    await desk.lab.until_empty()


@pytest.mark.long
async def test_the_pool_dies_in_the_middle(desk: Desk) -> None:
    """The measurement goes on to its end, on the same lease, which the new pool still knows."""
    measuring = asyncio.create_task(desk.calls(labkit.measure, sleeps, samples=10))
    await desk.lab.until(lambda: _runs(desk.lab), "the runner runs")
    await desk.lab.stop()
    await desk.lab.start()
    record = await measuring
    (lease,) = desk.lab.pool.leases.live("ada")
    assert record.borrowed is not None and record.borrowed.slices == lease.uuids
    assert not record.stopped and record.borrowed.lease == str(lease.id)
    assert desk.lab.pool.check_invariants() == []
    await desk.lab.stop()
    with pytest.raises(errors.NotBorrowed, match="pool does not answer"):
        await desk.calls(labkit.measure, product, on="3g.20gb")
    await desk.lab.start()


async def test_waits_in_the_queue_and_can_be_given_up(desk: Desk) -> None:
    """Who waits is told by how many; who hangs up leaves the queue.

    A student who floods is refused politely; those who wait already wait on.
    """
    lab = desk.lab
    await desk.hub.start("bob", shape="7g.40gb")
    announced = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def measure() -> None:
        borrowed.waits.set(lambda text: loop.call_soon_threadsafe(announced.set))
        await labkit.measuring.measure.measure_async(product)

    measuring = asyncio.create_task(measure())
    await asyncio.wait_for(announced.wait(), LONG_S)
    assert [ticket.purpose for ticket in lab.waiting()] == [Purpose.BORROW]
    measuring.cancel()
    ada_borrower = desk.hub.spawner("ada").borrower
    await lab.until(lambda: not lab.waiting() and not ada_borrower._runs, "the place is given up")
    many = [
        asyncio.create_task(labkit.measuring.measure.measure_async(product))
        for _ in range(borrower.MAX_ORDERS)
    ]
    await lab.until(lambda: len(ada_borrower._runs) == borrower.MAX_ORDERS, "all wait")
    with pytest.raises(errors.NotBorrowed, match="wait already"):
        await desk.calls(labkit.measure, product)
    assert len(lab.waiting()) == 1
    for task in many:
        task.cancel()
    await lab.until(lambda: not lab.waiting() and not ada_borrower._runs, "all are given up")
    await desk.hub.stop("bob")


@pytest.mark.long
async def test_lingers_unless_somebody_waits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slice stays after a measurement, and goes as soon as somebody else waits for it."""
    await desk.calls(labkit.measure, product, on="3g.20gb")
    assert _runs(desk.lab)
    await desk.hub.start("bob", shape="7g.40gb")
    assert [lease.user for lease in desk.lab.pool.leases.live()] == ["bob"]
    await desk.hub.stop("bob")


def _runs(lab: PoolLab) -> bool:
    return any(lease.attached_at is not None for lease in lab.pool.leases.live("ada"))


def _stands_still(lab: PoolLab) -> bool:
    holders = [lease.holder for lease in lab.pool.leases.live("ada")]
    numbers = [int(holder.removeprefix("process:").split(",")[0]) for holder in holders if holder]
    return any(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in numbers)


@pytest.mark.long
async def test_a_panel_says_how_it_waits(desk: Desk, tmp_path: Path) -> None:
    """Place and likely wait stand where the step's progress stood; no seconds are counted down."""
    await desk.hub.start("bob", shape="7g.40gb")
    step = timed_step("one", 1.0, product)
    experiment = Experiment("T-9", "A product", "How long?", "x", "y", (step,))
    announced = asyncio.Event()

    def look() -> None:
        if runner.message.startswith("1g.5gb: "):
            announced.set()

    runner = Runner(experiment, tmp_path, look)
    running = asyncio.create_task(runner.run(None, headless=True))
    try:
        await asyncio.wait_for(announced.wait(), 90)
        assert runner.is_waiting
        await desk.hub.stop("bob")
    finally:
        results = await running
    assert results.samples and not results.stopped and not runner.is_waiting
