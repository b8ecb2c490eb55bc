"""`measure`, `compare`, `ranks`, `peak` and `where`: what a notebook calls.

Each sends the function's source to child processes and returns a frozen record. Each has a twin
ending in `_async` for panels, which hands out the readings while they come in. Nothing here imports
torch.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit import device, errors, lease, source, stats
from labkit.child import Crew, run_blocking
from labkit.memory import PeakMemory
from labkit.readings import Readings
from labkit.records import Comparison, Device, Lease, Measurement, Place, RankResults, Tier

Function = Callable[..., Any]
OnUpdate = Callable[[Readings], None]
TIMEOUT_S = 120.0
BUDGET_S = 10.0
SAMPLES = 20


def is_quick() -> bool:
    """Whether LAB_QUICK asks for the small budget of a test run."""
    return os.environ.get("LAB_QUICK") == "1"


def _ignore(_: Readings) -> None:
    """What an update means to nobody who watches."""


def _job(
    kind: str, functions: Sequence[Function], arguments: Mapping[str, Any], **options: Any
) -> dict[str, Any]:
    """Describe a job for the worker."""
    names = _distinct_names(functions)
    packed = {name: source.pack(function) for name, function in zip(names, functions, strict=True)}
    sent = {
        name: source.pack_value(value, name, functions[0].__name__)
        for name, value in arguments.items()
    }
    defaults = {
        "looks": [SAMPLES],
        "band": [0.0, 0.0],
        "budget_s": BUDGET_S,
        "cold": True,
        "seed": 0,
        "flush_bytes": 0,
    }
    return {
        "kind": kind,
        "functions": packed,
        "arguments": sent,
        "backend": "gloo",
        **defaults,
        **options,
    }


def _distinct_names(functions: Sequence[Function]) -> list[str]:
    names = [getattr(function, "__name__", "work") for function in functions]
    return (
        names
        if len(set(names)) == len(names)
        else [f"{name} {index}" for index, name in enumerate(names, 1)]
    )


async def run_job(
    job: Mapping[str, Any],
    added: Sequence[Mapping[str, str]],
    timeout_s: float,
    on_update: OnUpdate,
    readings: Readings,
) -> None:
    """Run a job's children to the end, filling `readings`.

    Raises:
        LabError: with `kept` left to the caller, who knows what record the readings make.
        LeaseGone: the pool says the slice was taken back, whatever CUDA made of that.
    """
    try:
        async with Crew(job, added, timeout_s) as crew:
            async for rank, message in crew.messages():
                readings.take(rank, message)
                if message["type"] in ("turns", "stage", "warm"):
                    on_update(readings)
    except (
        errors.StudentError,
        errors.ChildKilled,
        errors.ChildTimeout,
        errors.NoRealSlice,
    ) as error:
        held = lease.from_environment(os.environ)
        if await asyncio.to_thread(lease.is_held, held, os.environ) is False:
            raise errors.LeaseGone(
                lease.gone_sentence(held, readings.count()), details=error.details
            ) from error
        raise


async def where_async() -> Place:
    """Find out what this notebook measures on, in a child that is gone afterwards.

    Raises:
        NoRealSlice: the lease names a real slice and torch sees none.
    """
    held, budget = lease.from_environment(os.environ), device.cpu_budget()
    choices = held.real_slices or (None,)
    found: list[Device] = []
    readings = Readings(1)
    for choice in choices:
        readings = Readings(1)
        added = {"CUDA_VISIBLE_DEVICES": choice} if choice else {}
        await run_job(_job("around", [], {}), [added], TIMEOUT_S, _ignore, readings)
        found += _around(readings, held)
    tier = device.tier_of(found)
    return Place(tier, tuple(found), device.LINKS[tier], budget, held, readings.ranks[0].versions)


def _around(readings: Readings, held: Lease) -> list[Device]:
    """The devices one process saw: on a slice just that, else every GPU, else the CPU."""
    (own,) = readings.devices
    cards = readings.ranks[0].facts.get("devices", [])
    if own.backend == "cpu" or own.is_slice or held.real_slices:
        return [own]
    shared: dict[str, Any] = {
        "cpu_cores": own.cpu_cores,
        "threads": own.threads,
        "emulated": own.emulated,
    }
    return [Device(backend="cuda", capability=own.capability, **card, **shared) for card in cards]


_PLACE: dict[str, Place] = {}


async def _choices(count: int) -> tuple[tuple[str, ...], Tier]:
    """The devices `count` processes may be spread over; asks torch only where no lease says."""
    held = lease.from_environment(os.environ)
    if held.real_slices:
        return held.real_slices, Tier.SEVERAL_SLICES if count > 1 else Tier.SLICE
    if count == 1:
        return (), Tier.CPU
    if "here" not in _PLACE:
        _PLACE["here"] = await where_async()
    place = _PLACE["here"]
    gpus = sum(card.backend == "cuda" for card in place.devices)
    return device.visible_choices(held, os.environ, gpus), place.tier


async def _spread(count: int) -> tuple[list[dict[str, str]], str]:
    """Per rank, what its environment gets; and the backend that suits."""
    choices, tier = await _choices(count)
    budget = device.cpu_budget()
    added = [device.child_environment(choices, rank, count, budget) for rank in range(count)]
    return added, device.backend_for(tier) if 1 < count <= len(choices) else "gloo"


def where() -> Place:
    """Where this notebook measures: tier, devices, link, CPU budget, and the lease."""
    place = run_blocking(where_async)
    _PLACE["here"] = place
    return place


async def measure_async(
    function: Function,
    *,
    samples: int | None = None,
    n: int = 1,
    cold: bool = True,
    dtype: str | None = None,
    flops: float | None = None,
    moved_bytes: float | None = None,
    budget_s: float = BUDGET_S,
    timeout_s: float = TIMEOUT_S,
    on_update: OnUpdate = _ignore,
    readings: Readings | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Measurement:
    """Time a function in a child process; see `measure`.

    Args:
        function: what to time; if it returns a function, that one is timed and the rest is
            preparation.
        samples: how many; 20, or 8 under LAB_QUICK.
        n: ranks that run it together, timed from a common start; each sample is then the slowest
            rank's.
        cold: empty the L2 cache before each call (on a GPU).
        dtype: named in the record.
        flops: floating-point operations per call, counted by you or by `labkit.roofline`.
        moved_bytes: bytes per call, counted likewise.
        budget_s: stop after this long and say so.
        timeout_s: end the children after this long, whatever they do.
        on_update: called while readings come in.
        readings: where to collect them, for a caller that wants them after an error.
        arguments: passed to the function.
    """
    given = dict(arguments or {})
    added, backend = await _spread(n)
    rounds = samples or (8 if is_quick() else SAMPLES)
    job = _job(
        "time", [function], given, looks=[rounds], cold=cold, budget_s=budget_s, backend=backend
    )
    taken = readings or Readings(n)
    (name,) = _distinct_names([function])
    known: dict[str, Any] = {
        "dtype": dtype,
        "flops": flops,
        "moved_bytes": moved_bytes,
        "setting": _readable(given),
    }
    try:
        await run_job(job, added, timeout_s, on_update, taken)
    except errors.LabError as error:
        error.kept = taken.measurement(name, str(error), **known) if taken.count() else None
        raise
    return taken.measurement(name, **known)


def measure(
    function: Function, *, samples: int | None = None, n: int = 1, **options: Any
) -> Measurement:
    """Time a function in a child process and return every sample.

    Options named in `measure_async` are taken as such; all others are passed to the function:
    `measure(matmul, samples=40, size=1024)` calls `matmul(size=1024)`.

    Raises:
        LabError: in words; its `kept` is the record of what was measured before.
    """
    known, arguments = _split(options)
    return run_blocking(
        lambda: measure_async(function, samples=samples, n=n, arguments=arguments, **known)
    )


async def compare_async(
    a: Function,
    b: Function,
    *,
    band: tuple[float, float] = (0.95, 1.05),
    n: int = 1,
    cold: bool = True,
    dtype: str | None = None,
    budget_s: float = 2 * BUDGET_S,
    timeout_s: float = TIMEOUT_S,
    on_update: OnUpdate = _ignore,
    readings: Readings | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Comparison:
    """Time two functions in turns in one child, and judge the ratio of their times; see `compare`.

    Args:
        a: the numerator.
        b: the denominator.
        band: what is claimed of a's time over b's.
        n: ranks that run both together.
        cold: empty the L2 cache before each call (on a GPU).
        dtype: named in the records.
        budget_s: no new look after this long.
        timeout_s: end the children after this long.
        on_update: called while readings come in.
        readings: where to collect them.
        arguments: passed to both functions.
    """
    given = dict(arguments or {})
    added, backend = await _spread(n)
    looks = stats.LOOKS[:1] if is_quick() else stats.LOOKS
    options = {
        "looks": list(looks),
        "band": list(band),
        "cold": cold,
        "budget_s": budget_s,
        "backend": backend,
    }
    taken = readings or Readings(n)
    names = _distinct_names([a, b])
    known: dict[str, Any] = {"dtype": dtype, "setting": _readable(given)}

    def record(stopped: str | None = None) -> Comparison:
        first, second = (taken.measurement(name, stopped, **known) for name in names)
        seen = stats.judge(first.samples_s, second.samples_s, band, looks)
        return Comparison(first, second, band, seen, stats.why(seen, band))

    try:
        await run_job(_job("time", [a, b], given, **options), added, timeout_s, on_update, taken)
    except errors.LabError as error:
        error.kept = record(str(error)) if taken.count() > 1 else None
        raise
    return record()


def compare(
    a: Function, b: Function, *, band: tuple[float, float] = (0.95, 1.05), **options: Any
) -> Comparison:
    """Time two functions in turns, both alive, and say whether a's time over b's lies in the band.

    At most three looks are taken (20, 40, 80 rounds), each at 98.3 %, so that all together are
    wrong in at most 5 %. Other options as in `measure`.
    """
    known, arguments = _split(options)
    return run_blocking(lambda: compare_async(a, b, band=band, arguments=arguments, **known))


async def ranks_async(
    function: Function,
    *,
    n: int = 2,
    timeout_s: float = TIMEOUT_S,
    samples: int | None = None,
    budget_s: float = BUDGET_S,
    on_update: OnUpdate = _ignore,
    readings: Readings | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> RankResults:
    """Run a function in several processes that can talk to one another; see `ranks`.

    Args:
        function: runs in every rank, with `torch.distributed` ready.
        n: how many ranks.
        timeout_s: end them after this long.
        samples: how many, if the function returns a function to be timed.
        budget_s: unused with several ranks, which must all make the same calls.
        on_update: called while readings come in.
        readings: where to collect them.
        arguments: passed to the function.
    """
    added, backend = await _spread(n)
    rounds = samples or (8 if is_quick() else SAMPLES)
    job = _job(
        "call", [function], arguments or {}, looks=[rounds], backend=backend, budget_s=budget_s
    )
    taken = readings or Readings(n)
    known: dict[str, Any] = {"setting": _readable(arguments or {})}
    try:
        await run_job(job, added, timeout_s, on_update, taken)
    except errors.LabError as error:
        error.kept = (
            taken.measurement(function.__name__, str(error), **known) if taken.count() else None
        )
        raise
    timed = taken.measurement(function.__name__, **known) if taken.count() else None
    return RankResults(
        values=tuple(rank.facts.get("value") for rank in taken.ranks),
        devices=taken.devices,
        tier=taken.tier,
        link=taken.link,
        backend=backend,
        timed=timed,
        printed=tuple(
            f"[rank {index}] {line}"
            for index, rank in enumerate(taken.ranks)
            for line in rank.printed
        ),
    )


def ranks(
    function: Function, *, n: int = 2, timeout_s: float = TIMEOUT_S, **options: Any
) -> RankResults:
    """Run a function in `n` processes and return what each returned, in order of rank.

    Several GPUs use NCCL, several slices gloo with tensors on their slice; with fewer devices than
    ranks they are gloo processes on the container's CPU, and the result says so.
    """
    known, arguments = _split(options)
    return run_blocking(
        lambda: ranks_async(function, n=n, timeout_s=timeout_s, arguments=arguments, **known)
    )


async def peak_async(
    function: Function, *, timeout_s: float = TIMEOUT_S, **arguments: Any
) -> PeakMemory:
    """Run a function once in a fresh process and report its peak memory; see `peak`."""
    added, _ = await _spread(1)
    taken = Readings(1)
    await run_job(_job("call", [function], arguments, looks=[1]), added, timeout_s, _ignore, taken)
    facts, (where_run,) = taken.ranks[0].facts, taken.devices
    kind = (
        "tensors on the device"
        if where_run.backend == "cuda"
        else "process RSS, allocator and torch included"
    )
    return PeakMemory(
        facts["peak_mib"], kind, where_run, facts.get("reserved_mib"), facts.get("device_used_mib")
    )


def peak(function: Function, *, timeout_s: float = TIMEOUT_S, **arguments: Any) -> PeakMemory:
    """Peak memory of one call.

    Raises:
        OutOfMemory: it does not fit, whichever way torch put that.
    """
    return run_blocking(lambda: peak_async(function, timeout_s=timeout_s, **arguments))


OPTIONS = frozenset(
    {
        "n",
        "cold",
        "dtype",
        "flops",
        "moved_bytes",
        "budget_s",
        "timeout_s",
        "on_update",
        "readings",
        "samples",
    }
)


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell our options from the function's arguments."""
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    return ours, {name: value for name, value in options.items() if name not in OPTIONS}


def _readable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None))
    return {
        name: value if isinstance(value, plain) else str(value) for name, value in arguments.items()
    }
