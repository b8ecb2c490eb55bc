"""`measure`, `compare`, `ranks` and `peak`: what a notebook calls.

Each sends the function's source to child processes and returns a frozen record. Each has a twin
ending in `_async` for panels, which hands out the readings while they come in. Nothing here imports
torch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from labkit import errors, stats
from labkit.arguments import name_of, public, refuse_band, split_options
from labkit.measuring.place import assign_devices
from labkit.records import ByShape, Comparison, Measurement, RankResults, counted_record
from labkit.run import borrowed
from labkit.run.child import run_blocking
from labkit.run.jobs import (
    BUDGET_S,
    TIMEOUT_S,
    Function,
    Readings,
    distinct_names,
    is_quick,
    make_job,
    rounds,
    run_job,
    workers,
)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def _run_and_read(
    kind: str,
    functions: Sequence[Function],
    arguments: Mapping[str, Any],
    record: Callable[[Readings, str], Any] = lambda readings, stopped: None,
    *,
    ranks: int = 1,
    timeout_s: float,
    on: str | None = None,
    on_update: Callable[[Any], None] | None = None,
    **options: Any,
) -> Readings:
    """Run a job in children and return their readings.

    Args:
        kind: of the job.
        functions: what is sent.
        arguments: passed to the functions.
        record: makes the record that an error keeps, from the readings and the reason; asked once
            every function has a sample.
        ranks: how many children.
        timeout_s: how long the children may live.
        on: the shape to borrow, or "cpu"; None for what the server holds, or the course's usual
            shape where it lends.
        on_update: called with the record while readings come in.
        options: as for `make_job`.
    """
    readings, added = Readings(ranks), [dict[str, str]()] * ranks
    shape = borrowed.shape_to_borrow(on, os.environ, ranks)

    def update() -> None:
        if on_update is not None and readings.count() >= len(functions):
            on_update(record(readings, "not finished"))

    try:
        if shape is None:
            share_device = bool(options.get("share_device"))
            added, readings.backend = await assign_devices(
                ranks, share_device=share_device, on_cpu=on == borrowed.ON_CPU
            )
        job = make_job(kind, functions, arguments, backend=readings.backend, **options)
        await run_job(workers(job, added, timeout_s, shape), readings, update)
    except errors.LabError as error:
        if readings.count() >= len(functions):
            error.kept = record(readings, str(error))
        raise
    return readings


async def measure_async(
    function: Function,
    *,
    samples: int | None = None,
    ranks: int = 1,
    cold: bool = True,
    dtype: str | None = None,
    flops: float | None = None,
    moved_bytes: float | None = None,
    budget_s: float = BUDGET_S,
    timeout_s: float = TIMEOUT_S,
    on: str | None = None,
    on_update: Callable[[Measurement], None] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Measurement:
    """Time a function in a child process; see `measure`.

    Args:
        function: what to time; if it returns a function, that one is timed and the rest is
            preparation.
        samples: how many; 20, or 5 under LAB_QUICK.
        ranks: how many run it together, timed from a common start; each sample is then the slowest
            rank's.
        cold: empty the L2 cache before each call (on a GPU).
        dtype: named in the record.
        flops: floating-point operations per call, counted by you or by `labkit.exercises.roofline`.
        moved_bytes: bytes per call, counted likewise.
        budget_s: stop after this long and say so.
        timeout_s: end the children after this long, whatever they do.
        on: the shape to borrow, on a server that borrows; the course's usual one by default.
            "cpu" is the container's CPU on every server.
        on_update: called with the unfinished record while samples come in.
        arguments: passed to the function.
    """
    function_arguments = dict(arguments or {})
    work_counts = {"dtype": dtype, "flops": flops, "moved_bytes": moved_bytes}

    def record(readings: Readings, stopped: str | None = None) -> Measurement:
        return readings.measurement(
            name_of(function), stopped, setting=_as_setting(function_arguments), **work_counts
        )

    job_options: dict[str, Any] = {
        "looks": [samples or rounds()],
        "cold": cold,
        "budget_s": budget_s,
    }
    job_options |= {"ranks": ranks, "timeout_s": timeout_s, "on": on, "on_update": on_update}
    return record(
        await _run_and_read("time", [function], function_arguments, record, **job_options)
    )


def _once_per_shape(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a call accept a list for `on`: it runs once for each shape; results come by shape."""

    @functools.wraps(call)
    def call_per_shape(*positional: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        shapes = keywords.get("on")
        if not isinstance(shapes, list | tuple):
            return call(*positional, **keywords)
        if not shapes:
            raise errors.WrongArgument('`on=[]` names no shape: `on=["1g.5gb", "3g.20gb"]` does.')
        for shape in shapes:  # all are checked before anything is measured
            borrowed.shape_to_borrow(shape, os.environ)
        results = ByShape(
            (shape, call(*positional, **{**keywords, "on": shape})) for shape in shapes
        )
        return cast("Result", results)

    return call_per_shape


@_once_per_shape
@public
def measure(function: Function, **options: Any) -> Measurement:
    """Time a function in a child process and return every sample.

    Options named in `measure_async` are taken as such; all others are passed to the function:
    `measure(matmul, samples=40, size=1024)` calls `matmul(size=1024)`.

    Where your course lends slices, `on="3g.20gb"` names the one to borrow; with a list of shapes,
    it is measured on each, and the records come by shape.

    A script measures below `if __name__ == "__main__":`, as Python's multiprocessing asks.

    Raises:
        LabError: in words; its `kept` is the record of what was measured before.
    """
    call_options, arguments = split_options("measure", measure_async, function, options)
    return run_blocking(lambda: measure_async(function, arguments=arguments, **call_options))


async def compare_async(
    a: Function,
    b: Function,
    *,
    band: tuple[float, float] = (0.95, 1.05),
    ranks: int = 1,
    cold: bool = True,
    dtype: str | None = None,
    budget_s: float = 2 * BUDGET_S,
    timeout_s: float = TIMEOUT_S,
    on: str | None = None,
    on_update: Callable[[Comparison], None] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Comparison:
    """Time two functions in turns in one child, and judge the ratio of their times; see `compare`.

    Args:
        a: the numerator.
        b: the denominator.
        band: what is claimed of a's time over b's.
        ranks: how many run both together.
        cold: empty the L2 cache before each call (on a GPU).
        dtype: named in the records.
        budget_s: no new look after this long.
        timeout_s: end the children after this long.
        on: as in `measure_async`.
        on_update: as in `measure_async`.
        arguments: passed to both functions.
    """
    function_arguments = dict(arguments or {})
    looks = stats.LOOKS[:1] if is_quick() else stats.LOOKS
    names = distinct_names([a, b])

    def record(readings: Readings, stopped: str | None = None) -> Comparison:
        record_fields: dict[str, Any] = {"dtype": dtype, "setting": _as_setting(function_arguments)}
        first, second = (readings.measurement(name, stopped, **record_fields) for name in names)
        interim_looks = stats.judge(first.samples_s, second.samples_s, band, looks)
        return Comparison(first, second, band, interim_looks, stats.explain(interim_looks, band))

    job_options: dict[str, Any] = {"looks": list(looks), "band": list(band), "cold": cold}
    job_options |= {"budget_s": budget_s, "ranks": ranks, "timeout_s": timeout_s, "on": on}
    return record(
        await _run_and_read(
            "time", [a, b], function_arguments, record, on_update=on_update, **job_options
        )
    )


@_once_per_shape
@public
def compare(
    a: Function, b: Function, *, band: tuple[float, float] = (0.95, 1.05), **options: Any
) -> Comparison:
    """Time two functions in turns, both alive, and say whether a's time over b's lies in the band.

    At most three looks are taken (20, 40, 80 rounds), each at 98.3 %, so that all together are
    wrong in at most 5 %. Other options as in `measure`.
    """
    refuse_band(band)
    call_options, arguments = split_options("compare", compare_async, a, options)
    return run_blocking(lambda: compare_async(a, b, band=band, arguments=arguments, **call_options))


async def ranks_async(
    function: Function,
    *,
    n: int = 2,
    timeout_s: float = TIMEOUT_S,
    share_device: bool = False,
    on: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> RankResults:
    """Run a function in several processes that can talk to one another; see `ranks`.

    Args:
        function: runs in every rank, with `torch.distributed` ready.
        n: how many ranks.
        timeout_s: end them after this long.
        share_device: with fewer GPUs or slices than ranks, share them instead of going to the CPU.
        on: as in `measure_async`.
        arguments: passed to the function.
    """
    job_options: dict[str, Any] = {"timeout_s": timeout_s, "on": on, "share_device": share_device}
    readings = await _run_and_read("call", [function], arguments or {}, ranks=n, **job_options)
    printed = [(index, line) for index, rank in enumerate(readings.ranks) for line in rank.printed]
    return RankResults(
        values=tuple(rank.facts.get("value") for rank in readings.ranks),
        devices=readings.devices,
        tier=readings.tier,
        link=readings.link,
        backend=readings.backend,
        printed=tuple(f"[rank {index}] {line}" for index, line in printed),
        versions=readings.versions,
        borrowed=readings.borrowed,
    )


@_once_per_shape
@public
def ranks(function: Function, **options: Any) -> RankResults:
    """Run a function in `n` processes (2) and return what each returned, in order of rank.

    Several GPUs use NCCL, several slices gloo with tensors on their slice; with fewer devices than
    ranks they are gloo processes on the container's CPU, or with `share_device=True` gloo processes
    that share what there is; the result says so.
    """
    call_options, arguments = split_options("ranks", ranks_async, function, options)
    return run_blocking(lambda: ranks_async(function, arguments=arguments, **call_options))


async def peak_async(
    function: Function, *, timeout_s: float = TIMEOUT_S, **arguments: Any
) -> Measurement:
    """Run a function once in a fresh process and report its peak memory; see `peak`."""
    readings = await _run_and_read("call", [function], arguments, timeout_s=timeout_s)
    facts, on_gpu = readings.ranks[0].facts, readings.devices[0].backend == "cuda"
    counted = "tensors on the device" if on_gpu else "process RSS, allocator and torch included"
    memory_facts = ("reserved_mib", "device_used_mib")
    setting = {"counted": counted} | {name: facts[name] for name in memory_facts if name in facts}
    return counted_record(name_of(function), readings, setting, peak_mib=facts["peak_mib"])


@public
def peak(function: Function, **arguments: Any) -> Measurement:
    """Peak memory of one call, in a fresh process: the record's `peak_mib`.

    Its `setting` says what was counted: on a GPU the tensors, and beside them what the allocator
    took (`reserved_mib`) and what the slice reports in all (`device_used_mib`, the CUDA context
    included); on a CPU only the process's resident memory is known.

    Raises:
        OutOfMemory: it does not fit, whichever way torch put that.
    """
    split_options("peak", peak_async, function, arguments)
    return run_blocking(lambda: peak_async(function, **arguments))


def _as_setting(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a record keeps them: plain values as they are, others as text."""
    plain_types = (bool, int, float, str, type(None))
    return {
        name: value if isinstance(value, plain_types) else str(value)
        for name, value in arguments.items()
    }
