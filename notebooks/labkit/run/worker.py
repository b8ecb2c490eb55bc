"""What the fork server's children do: one job, and what they find out as messages.

A job times functions, calls one, or looks around. When the other end of the pipe closes, the
notebook is gone and so are we. The student's own prints go elsewhere, so that the messages are ours
alone.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import multiprocessing
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from labkit import stats
from labkit.arguments import public
from labkit.errors import LabError
from labkit.machine import device
from labkit.machine.parts import Emulation, enter_green_context
from labkit.records import Verdict, to_data
from labkit.run import source
from labkit.timing import (
    HostClock,
    SideBySide,
    make_clock,
    plan_block,
    plan_inner,
    ranks_of,
    timing_loop,
    warm_up,
)

Emit = Callable[[Mapping[str, Any]], None]
LATER_S = 5.0  # the notebook ends a job that hangs, and says so, before gloo gives up
WORLD = "LABKIT_WORLD"  # "module:id" of a broken world, entered before the job is unpacked


def main(
    messages: Connection, prints: Connection, env: dict[str, str], folder: str, job: dict[str, Any]
) -> None:
    """In a new process: its own session, streams, environment and folder; never returns."""
    code = 1
    try:
        os.setsid()  # so that what the student's code starts is ended with it
        for stream in (1, 2):
            os.dup2(prints.fileno(), stream)
        sys.stdout = sys.stderr
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        random.seed()
        # The job may start processes of its own; only this one must end with the notebook.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        threading.Thread(target=_end_with_parent, args=(messages,), daemon=True).start()
        code = _run_and_report(
            job, lambda message: messages.send_bytes(json.dumps(message).encode())
        )
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_and_report(job: Mapping[str, Any], emit: Emit) -> int:
    """Run a job; the exit status says only whether it ended well, the messages say why."""
    try:
        _run(job, emit)
    except LabError as error:
        failure = {"kind": type(error).__name__, "message": str(error), "trace": "", "said": True}
        emit({"type": "error", **failure})
        return 1
    except BaseException as error:  # outermost frame: whatever the student's code raises
        emit(source.describe_error(error))
        return 1
    emit({"type": "done"})
    return 0


def _end_with_parent(messages: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        messages.recv_bytes()
    os._exit(3)


def _run(job: Mapping[str, Any], emit: Emit) -> None:
    emit({"type": "stage", "stage": "starting torch"})
    import torch  # only here: the notebook's kernel must hold no CUDA context

    torch.set_num_threads(int(os.environ.get("LABKIT_THREADS", torch.get_num_threads())))
    if world := os.environ.get(WORLD):
        module, _, world_id = world.rpartition(":")
        importlib.import_module(module).enter(world_id)
    emulation = Emulation.from_environment(os.environ)
    emulation.apply(torch)
    _enter_partition(torch)
    device_data = to_data(device.read_device(torch, os.environ))
    emit({"type": "hello", "device": device_data, "versions": device.read_versions(torch)})
    with emulation.translating(torch), _group(torch, job, emit):
        TASKS[job["kind"]](torch, job, emit)


def _enter_partition(torch: Any) -> None:
    """Confine this copy to some SMs when the job asks for it.

    Raises:
        LabError: there is no GPU, or it cannot be partitioned.
    """
    if sms := os.environ.get("LABKIT_PARTITION"):
        if not torch.cuda.is_available():
            raise LabError("There is no GPU here whose SMs could be partitioned.")
        enter_green_context(torch, int(sms))


@contextlib.contextmanager
def _group(torch: Any, job: Mapping[str, Any], emit: Emit) -> Iterator[None]:
    """The process group of this job's ranks, met through a file on this machine's loopback."""
    if job["world"] == 1:
        yield
        return
    emit({"type": "stage", "stage": "meeting the other ranks"})
    # Without it a rank that has little to do is gone before another has met everybody.
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    torch.distributed.init_process_group(
        job["backend"],
        init_method=f"file://{job['rendezvous']}",
        rank=job["rank"],
        world_size=job["world"],
        timeout=datetime.timedelta(seconds=job["timeout_s"] + LATER_S),
    )
    yield  # after an error the others may never come to say goodbye
    torch.distributed.destroy_process_group()


@public
def peak_rss_mib() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _with_arguments(packed: Mapping[str, Any], job: Mapping[str, Any]) -> Callable[[], Any]:
    """One of the job's functions with its arguments."""
    arguments = {name: source.unpack_value(text) for name, text in job["arguments"].items()}
    return partial(source.unpack(packed), **arguments)


def _is_work(torch: Any, result: Any) -> bool:
    """Whether a function has only prepared something, and returned the function that is meant."""
    return callable(result) and not isinstance(result, torch.nn.Module)


def _work_of(torch: Any, packed: Mapping[str, Any], job: Mapping[str, Any]) -> Callable[[], Any]:
    """What is timed: the function that a function returned, else that itself."""
    function = _with_arguments(packed, job)
    result = function()
    return result if _is_work(torch, result) else function


def _time_functions(torch: Any, job: Mapping[str, Any], emit: Emit) -> None:
    """Warm up and time the job's functions in turns, looking where the job says so."""
    torch.manual_seed(0)
    works = {name: _work_of(torch, packed, job) for name, packed in job["functions"].items()}
    clock = make_clock(torch, cold=job["cold"])
    emit({"type": "stage", "stage": "warming up"})
    _start_peak(torch)
    warm = {name: warm_up(work, clock) for name, work in works.items()}
    typical = sum(samples[-1] for samples in warm.values())
    inner = max(plan_inner(samples, clock) for samples in warm.values())
    method = {"samples": warm, "inner": inner, "clock": clock.name, "cold": clock.is_cold}
    emit({"type": "warm", **method, **_peak(torch, clock.flush_bytes)})
    emit({"type": "stage", "stage": "measuring"})
    block = 1 if clock.is_shared else plan_block(typical * inner)
    _rounds(torch, works, job, clock, inner, block, emit)


def _rounds(
    torch: Any,
    works: dict[str, Any],
    job: Mapping[str, Any],
    clock: HostClock,
    inner: int,
    block: int,
    emit: Emit,
) -> None:
    """Time until the rounds are done, a look decides, or the job's time budget is spent."""
    times: dict[str, list[float]] = {name: [] for name in works}
    started_s, cpu, rounds_done = time.perf_counter(), time.process_time(), 0
    cores = SideBySide(torch)
    for goal in job["looks"]:
        for turns in timing_loop(works, range(rounds_done, goal), clock, inner, block):
            cores.measure()
            for turn in turns:
                times[turn.name].append(turn.seconds)
            turn_data = [[turn.round, turn.name, turn.seconds, turn.launch_s] for turn in turns]
            emit({"type": "turns", "turns": turn_data})
            if job["world"] == 1 and time.perf_counter() - started_s > job["budget_s"]:
                break
        rounds_done = goal
        if len(next(iter(times.values()))) < goal:
            emit({"type": "budget", "budget_s": job["budget_s"]})
            break
        if len(job["looks"]) > 1 and _is_decided(torch, times, job, goal):
            break
    cpu_share = (time.process_time() - cpu) / max(time.perf_counter() - started_s, 1e-9)
    emit({"type": "usage", "cpu_per_copy": cpu_share, "side_by_side": cores.summary()})


def _is_decided(
    torch: Any, times: dict[str, list[float]], job: Mapping[str, Any], goal: int
) -> bool:
    """Judge this look; ranks first agree on each turn's slowest, so that all come to one answer."""
    times_by_function = list(times.values())
    if ranks := ranks_of(torch):
        everyone: list[Any] = [None] * job["world"]
        ranks.all_gather_object(everyone, times_by_function)
        times_by_function = [
            list(map(max, zip(*ranks, strict=True))) for ranks in zip(*everyone, strict=True)
        ]
    interim_look = stats.look(
        times_by_function[0][:goal], times_by_function[1][:goal], tuple(job["band"])
    )
    return interim_look.verdict is not Verdict.UNDECIDED


def _call_function(torch: Any, job: Mapping[str, Any], emit: Emit) -> None:
    """Run the job's function once and send its value home; a function that it returns runs, too."""
    torch.manual_seed(0)
    ((name, packed),) = job["functions"].items()
    _start_peak(torch)
    emit({"type": "stage", "stage": f"running {name}"})
    result = _with_arguments(packed, job)()
    if _is_work(torch, result):
        _start_peak(torch)
        result()
        result = None
    emit({"type": "value", "value": _to_json_data(torch, result), **_peak(torch)})


def _to_json_data(torch: Any, value: Any) -> Any:
    """Convert a returned value to JSON data; tensors become lists.

    Raises:
        LabError: it cannot be sent home.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, dict):
        return {str(key): _to_json_data(torch, element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_data(torch, element) for element in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise LabError(
        f"The function returned a {type(value).__name__}; return numbers, text, lists or tensors."
    )


def _describe_devices(torch: Any, job: Mapping[str, Any], emit: Emit) -> None:
    """Describe every device this process could use; asked when no one device was chosen."""
    count = torch.cuda.device_count()
    devices = [device.read_device(torch, os.environ, index) for index in range(count)]
    emit({"type": "around", "devices": [to_data(description) for description in devices]})


def _start_peak(torch: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak(torch: Any, own_bytes: int = 0) -> dict[str, float]:
    """Peak memory so far: tensors, cache and device on a GPU; the whole process on a CPU.

    Args:
        torch: the module.
        own_bytes: of the tensors, what is labkit's own all the time.
    """
    if not torch.cuda.is_available():
        return {"peak_mib": peak_rss_mib()}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_mib": (torch.cuda.max_memory_allocated() - own_bytes) / 2**20,
        "reserved_mib": torch.cuda.max_memory_reserved() / 2**20,
        "device_used_mib": (total - free) / 2**20,
    }


TASKS: dict[str, Callable[[Any, Mapping[str, Any], Emit], None]] = {
    "time": _time_functions,
    "call": _call_function,
    "around": _describe_devices,
}
