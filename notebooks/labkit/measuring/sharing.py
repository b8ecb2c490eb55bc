"""Ways to share a GPU between copies of one job, and what each copy gets.

Slices (when the lease has them), time sharing, SM partitions by green contexts, and MPS where it
runs. Each is tried in children with a time limit before it is offered. CPU per copy is always
reported, because a container's CPU quota decides silently. A server that borrows sends the copies
to a runner: with a slice each where the course lends so many together, else on one slice of the
usual shape.

Every copy is a process. In one window all of them work, in the next only the first; windows change
places from pair to pair, so that what drifts hurts both alike. One run shows what neighbours cost a
call, and what all copies do together.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from labkit import errors
from labkit.arguments import public
from labkit.machine import device
from labkit.measuring.place import one_of_several_gpus
from labkit.records import Borrowed, Device, Measurement, Tier, circumstances, counted_record
from labkit.run import borrowed
from labkit.run.borrowed import BorrowedCrew
from labkit.run.child import Crew, run_blocking
from labkit.run.jobs import Readings, is_quick, make_job, run_job

PROBE_S, MPS_S = 60.0, 20.0
PAIRS, QUICK_PAIRS = 20, 5
WARM_CALLS = 5
ORDER = ("together", "alone", "alone", "together")  # two pairs of windows, again and again
WINDOW_S = 0.15
START_S = 0.2  # from the word of the first copy to the first window
WORKED = 0.9  # of a window; the rest is for the last call to end
CALLS_A_WINDOW = 2  # of each copy while all work, or a window says nothing about rates


class Way(StrEnum):
    """How copies share."""

    TIME = "time sharing"
    SMS = "SM partitions"
    MPS = "MPS"
    SLICES = "slices"


@dataclass(frozen=True)
class Copies:
    """How many copies of a job run at once, and how they share; `sms` are each copy's partition."""

    way: Way
    count: int
    sms: int | None = None

    def __post_init__(self) -> None:
        if self.way is Way.SMS and not self.sms:
            raise errors.WrongArgument("Say how many SMs each copy is to have: sms_per_copy=16.")


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What copies of one job did that shared a device, window by window.

    Attributes:
        cpu_per_copy: CPU seconds each copy used per second; the wait for the GPU sleeps and is not
            in it.
        each_per_s: calls of each copy per second while all worked.
        together: calls of all copies per second, one value a window.
        alone: calls of the first copy per second while the others rested, paired with `together`.
        crowded: calls of the first copy per second while all worked.
        borrowed: the slices, if they were held for this alone.
    """

    way: Way
    copies: int
    cpu_per_copy: tuple[float, ...]
    devices: tuple[Device, ...]
    tier: Tier
    each_per_s: tuple[float, ...]
    together: tuple[float, ...]
    alone: tuple[float, ...]
    crowded: tuple[float, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    borrowed: Borrowed | None = None

    def record(
        self,
        name: str,
        samples_s: tuple[float, ...] = (),
        *,
        ranks: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Measurement:
        """A record of all copies, or of the first `ranks` of them."""
        first_ranks = replace(self, devices=self.devices[:ranks])
        return counted_record(
            name,
            first_ranks,
            {"way": str(self.way), "copies": self.copies, **(facts or {})},
            samples_s=samples_s,
            clock="host",
            ranks=ranks or self.copies,
            link="none: the copies do not talk",
            cpu_per_copy=statistics.mean(self.cpu_per_copy),
        )

    def series(self, name: str) -> Measurement:
        """The rates of one kind of window as a record of seconds per call."""
        rates: Sequence[float] = getattr(self, name)
        ranks = 1 if name == "alone" else self.copies
        return self.record(name, tuple(1 / rate for rate in rates), ranks=ranks)


def way_of(way: Way | str) -> Way:
    """Look up a way to share by its name.

    Raises:
        WrongArgument: there is no such way.
    """
    if way not in list(Way):
        raise errors.WrongArgument(f"`{way}` is no way to share; there are {', '.join(Way)}.")
    return Way(way)


async def turns_async(
    function: Callable[..., Any],
    way: Way | str,
    *,
    copies: int,
    sms_per_copy: int | None = None,
    pairs: int | None = None,
    timeout_s: float = 180.0,
    **arguments: Any,
) -> Turns:
    """Run copies in windows: all together, then one alone, and so on.

    Args:
        function: as for `labkit.measure`; it returns the function to be called.
        way: how the copies share the device.
        copies: how many.
        sms_per_copy: for SM partitions.
        pairs: how many pairs of windows; 20, or 5 under LAB_QUICK.
        timeout_s: end the copies after this long.
        arguments: passed to the function.

    Raises:
        LabError: the way does not work here, or a copy failed.
    """
    sharing_copies = Copies(way_of(way), copies, sms_per_copy)
    counted = _counted_in_windows(function, copies, pairs or (QUICK_PAIRS if is_quick() else PAIRS))
    job = make_job("call", [counted], arguments)
    readings = await run_copies(job, sharing_copies, timeout_s)
    values = [rank.facts["value"] for rank in readings.ranks]
    together = [value["together"] for value in values]
    return Turns(
        way=sharing_copies.way,
        copies=copies,
        each_per_s=tuple(statistics.median(rates) for rates in together),
        together=tuple(sum(rates) for rates in zip(*together, strict=True)),
        alone=tuple(values[0]["alone"]),
        crowded=tuple(together[0]),
        cpu_per_copy=tuple(value["cpu_per_copy"] for value in values),
        **circumstances(readings),
    )


async def run_copies(job: Mapping[str, Any], copies: Copies, timeout_s: float) -> Readings:
    """Run copies of a job to their end: on what this server holds, or on slices borrowed for it.

    Raises:
        LabError: the way does not work here, or a copy failed.
    """
    readings, shape = Readings(copies.count), _shape_for(copies, borrowed.lent_shapes(os.environ))
    if shape is None:
        await run_job(crew_of(job, copies, timeout_s), readings)
    else:
        copies_data = asdict(copies)
        await run_job(BorrowedCrew(job, copies.count, shape, timeout_s, copies_data), readings)
    return readings


def _shape_for(copies: Copies, lent: Sequence[str]) -> str | None:
    """The shape that copies borrow: a slice each, or one for all; None where nothing is lent.

    Raises:
        TooFewRanks: slices were asked for, and the course does not lend so many together.
    """
    if not lent:
        return None
    if copies.way is not Way.SLICES:
        return lent[0]
    several = f"{copies.count}x{lent[0]}"
    if several in lent:
        return several
    raise errors.TooFewRanks(
        f"{copies.count} copies on slices need {several}, and your course lends "
        f"{', '.join(lent)}. Choose as many copies as it lends slices together, or share one slice "
        f'by time: way="{Way.TIME}".'
    )


@contextlib.asynccontextmanager
async def crew_of(job: Mapping[str, Any], copies: Copies, timeout_s: float) -> AsyncIterator[Crew]:
    """Start the workers of a job's copies on this process's devices, and MPS if they use it."""
    partition = {"LABKIT_PARTITION": str(copies.sms)} if copies.way is Way.SMS else {}
    daemon: contextlib.AbstractAsyncContextManager[Mapping[str, str]] = contextlib.nullcontext({})
    if copies.way is Way.MPS:
        daemon = _mps_daemon()
    async with daemon as shared_environment:
        environments = [
            {**device_environment, **shared_environment, **partition}
            for device_environment in _devices_for(copies.way, copies.count)
        ]
        async with Crew(job, environments, timeout_s) as crew:
            yield crew


def _devices_for(way: Way, copies: int) -> list[dict[str, str]]:
    """The device and the threads of each copy, as additions to its environment.

    Raises:
        TooFewRanks: slices were asked for and the lease holds fewer.
    """
    lease = device.read_lease(os.environ)
    threads = device.thread_environment(copies, device.cpu_budget())
    if way is Way.SLICES:
        if len(lease.real_slices) < copies:
            raise errors.TooFewRanks(
                f"{copies} copies on slices need {copies} slices; your lease holds "
                f"{len(lease.real_slices)}. Ask for a shape with more, or share by time."
            )
        return [{**threads, "CUDA_VISIBLE_DEVICES": lease.real_slices[i]} for i in range(copies)]
    choices = lease.real_slices[:1] or one_of_several_gpus(os.environ)
    device_choice = {"CUDA_VISIBLE_DEVICES": choices[0]} if choices else {}
    return [{**threads, **device_choice} for _ in range(copies)]


def _probe_work() -> Callable[[], Any]:
    import torch

    place = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.ones(64, 64, device=place)
    return lambda: matrix @ matrix


@public
def why_not(way: Way | str, *, sms: int = 16) -> str:
    """Why a way to share does not work here, tried in children with a time limit; empty if it does.

    Args:
        way: how copies would share.
        sms: of a partition, where that is tried.
    """
    tried_way = way_of(way)
    copies, own_sms = (1, sms) if tried_way is Way.SMS else (2, None)
    options: dict[str, Any] = {"copies": copies, "sms_per_copy": own_sms, "timeout_s": PROBE_S}
    try:
        turns = run_blocking(lambda: turns_async(_probe_work, tried_way, pairs=1, **options))
    except errors.LabError as error:
        return str(error)
    on_cores = "there is no GPU here; copies on CPU cores say nothing about one"
    return on_cores if turns.tier is Tier.CPU else ""


@contextlib.asynccontextmanager
async def _mps_daemon() -> AsyncIterator[Mapping[str, str]]:
    """Run NVIDIA's MPS control daemon in a private folder, for as long as the block lasts.

    Yields:
        What a copy's environment needs; one that works alone may use every SM.

    Raises:
        LabError: the daemon is not installed or does not start.
    """
    if shutil.which("nvidia-cuda-mps-control") is None:
        raise errors.LabError("MPS is not installed here (no nvidia-cuda-mps-control).")
    folder = Path(tempfile.mkdtemp(prefix="labkit-mps-"))
    added = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    try:
        status, output = await _run_mps_control(["-d"], "", added)
        if status != 0:
            raise errors.LabError(f"MPS does not start here: {output.strip()[:200]}")
        try:
            all_sms = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
            yield added | _first_gpu_by_number(os.environ) | all_sms
        finally:
            await _run_mps_control([], "quit -t 5\n", added)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first_gpu_by_number(environ: Mapping[str, str]) -> dict[str, str]:
    """The first GPU by the number that MPS gives it: the daemon counts from 0, but keeps UUIDs.

    Source: NVIDIA, Multi-Process Service, "CUDA_VISIBLE_DEVICES", https://docs.nvidia.com/deploy/mps/
    """
    first = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return {"CUDA_VISIBLE_DEVICES": "0"} if first.isdecimal() else {}


async def _run_mps_control(
    options: Sequence[str], text: str, added: Mapping[str, str]
) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        "nvidia-cuda-mps-control",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **added},
    )
    try:
        _, error_output = await asyncio.wait_for(process.communicate(text.encode()), MPS_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        return 1, f"no answer within {MPS_S:g} s"
    return process.returncode or 0, error_output.decode(errors="replace")


def _counted_in_windows(
    function: Callable[..., Any], copies: int, pairs: int
) -> Callable[..., Any]:
    """Wrap a function so that a copy calls its work in windows and counts the calls."""

    def in_turns(**arguments: Any) -> Any:
        from labkit.measuring import sharing

        return sharing.count_in_windows(function(**arguments), copies, pairs)

    return in_turns


def count_in_windows(work: Callable[[], Any], copies: int, pairs: int) -> dict[str, Any]:
    """One copy: warm up, meet the others, then work in its windows; in a child only.

    Returns:
        The calls per second of each window, and the CPU used while all worked.
    """
    import torch

    settle = _sleeping_wait(torch)
    number, start, window_s = _agree_on_windows(copies, _warm_call_s(work, settle))
    rates: dict[str, list[float]] = {"together": [], "alone": []}
    cpu = 0.0
    for window, name in enumerate(islice(cycle(ORDER), 2 * pairs)):
        if name == "alone" and number:
            continue
        begins = start + window * window_s
        time.sleep(max(0.0, begins - time.monotonic()))
        rate, used = calls_per_s(work, settle, begins + WORKED * window_s)
        rates[name].append(rate)
        cpu += used if name == "together" else 0.0
    return {**rates, "cpu_per_copy": cpu / pairs}


def _warm_call_s(work: Callable[[], Any], settle: Callable[[], Any]) -> float:
    """Warm up and return the seconds of the fastest call."""
    times = []
    for _ in range(WARM_CALLS):
        started_s = time.monotonic()
        work()
        settle()
        times.append(time.monotonic() - started_s)
    return min(times)


def calls_per_s(
    work: Callable[[], Any], settle: Callable[[], Any], ends: float
) -> tuple[float, float]:
    """Calls per second until `ends` (at least one call), and CPU seconds per second."""
    started_s, cpu, calls = time.monotonic(), time.process_time(), 0
    while calls == 0 or time.monotonic() < ends:
        work()
        settle()
        calls += 1
    wall = time.monotonic() - started_s
    return calls / wall, (time.process_time() - cpu) / wall


def _agree_on_windows(copies: int, typical_s: float) -> tuple[int, float, float]:
    """Wait until every copy is warm, then agree on when the windows begin and how long they are.

    The monotonic clock is the same for all processes of a Linux machine.
    """
    import torch.distributed as dist

    window_s = max(WINDOW_S, CALLS_A_WINDOW * copies * typical_s)
    if copies == 1:
        return 0, time.monotonic(), window_s
    dist.barrier()
    plan = [time.monotonic() + START_S, window_s]
    dist.broadcast_object_list(plan, 0)
    return dist.get_rank(), plan[0], plan[1]


def _sleeping_wait(torch: Any) -> Callable[[], None]:
    """Wait for the GPU asleep: a spinning wait would count as CPU that copies need."""
    if not torch.cuda.is_available():
        return lambda: None

    def settle() -> None:
        event = torch.cuda.Event(blocking=True)
        event.record()
        event.synchronize()

    return settle
