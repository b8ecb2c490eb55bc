"""What a worker can be asked to do: time, call, count calls as one of several copies, look around.

Runs in the child, after torch is there. Each task says what it finds in messages.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

from labkit import stats
from labkit.arguments import public
from labkit.errors import LabError
from labkit.machine import device, lease
from labkit.machine.side_by_side import SideBySide
from labkit.records import Verdict, to_data
from labkit.run import source
from labkit.timing import HostClock, make_clock, plan_block, plan_inner, timing_loop, warm_up

Emit = Callable[[Mapping[str, Any]], None]


@public
def peak_rss_mib() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _prepare(torch: Any, packed: Mapping[str, Any], job: Mapping[str, Any]) -> tuple[Any, bool]:
    """Call the student's function once.

    Returns:
        What to time or what was returned, and whether it is a function to be timed. A function that
        returns a function has prepared something outside the timing; any other is itself what is
        timed.
    """
    function = source.unpack(packed)
    arguments = {name: source.unpack_value(text) for name, text in job["arguments"].items()}
    result = function(**arguments)
    if callable(result) and not isinstance(result, torch.nn.Module):
        return result, True
    return (lambda: function(**arguments)) if job["kind"] != "call" else result, False


def _barrier(torch: Any, world: int) -> Callable[[], None] | None:
    return torch.distributed.barrier if world > 1 and torch.distributed.is_initialized() else None


def time_functions(torch: Any, job: Mapping[str, Any], emit: Emit) -> None:
    """Warm up and time the job's functions in turns, looking where the job says so."""
    torch.manual_seed(0)
    works = {name: _prepare(torch, packed, job)[0] for name, packed in job["functions"].items()}
    _time_works(torch, works, job, emit)


def _time_works(torch: Any, works: dict[str, Any], job: Mapping[str, Any], emit: Emit) -> None:
    clock = make_clock(torch, cold=job["cold"], barrier=_barrier(torch, job["world"]))
    emit({"type": "stage", "stage": "warming up"})
    _start_peak(torch)
    warm = {
        name: warm_up(name, work, clock, fixed=job["world"] > 1) for name, work in works.items()
    }
    typical = sum(samples[-1] for samples in warm.values())
    inner = max(plan_inner(samples, clock) for samples in warm.values())
    emit(
        {
            "type": "warm",
            "samples": warm,
            "inner": inner,
            "clock": clock.name,
            "cold": clock.is_cold,
            **_peak(torch, clock.flush_bytes),
        }
    )
    emit({"type": "stage", "stage": "measuring"})
    block = 1 if job["world"] > 1 else plan_block(typical * inner)
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
    begun, cpu, done = time.perf_counter(), time.process_time(), 0
    cores = SideBySide(torch)
    for goal in job["looks"]:
        for turns in timing_loop(works, range(done, goal), clock, inner, block):
            cores.measure()
            for turn in turns:
                times[turn.name].append(turn.seconds)
            emit(
                {
                    "type": "turns",
                    "turns": [[t.round, t.name, t.seconds, t.launch_s] for t in turns],
                }
            )
            if job["world"] == 1 and time.perf_counter() - begun > job["budget_s"]:
                break
        done = goal
        if len(next(iter(times.values()))) < goal:
            emit({"type": "budget", "budget_s": job["budget_s"]})
            break
        if len(job["looks"]) > 1 and _is_decided(torch, times, job, goal):
            break
    used = (time.process_time() - cpu) / max(time.perf_counter() - begun, 1e-9)
    emit({"type": "usage", "cpu_per_copy": used, "side_by_side": cores.summary()})


def _is_decided(
    torch: Any, times: dict[str, list[float]], job: Mapping[str, Any], goal: int
) -> bool:
    """Judge this look; ranks first agree on each turn's slowest, so that all come to one answer."""
    lists = list(times.values())
    if job["world"] > 1 and torch.distributed.is_initialized():
        everyone: list[Any] = [None] * job["world"]
        torch.distributed.all_gather_object(everyone, lists)
        lists = [
            [max(turn) for turn in zip(*ranks, strict=True)]
            for ranks in zip(*everyone, strict=True)
        ]
    seen = stats.look(lists[0][:goal], lists[1][:goal], tuple(job["band"]))
    return seen.verdict is not Verdict.UNDECIDED


def call_function(torch: Any, job: Mapping[str, Any], emit: Emit) -> None:
    """Run the job's function once; time the function it returns, or send the value home."""
    torch.manual_seed(0)
    ((name, packed),) = job["functions"].items()
    _start_peak(torch)
    emit({"type": "stage", "stage": f"running {name}"})
    result, is_work = _prepare(torch, packed, job)
    if is_work:
        _time_works(torch, {name: result}, job, emit)
        return
    emit({"type": "value", "value": _plain(torch, result), **_peak(torch)})


def _plain(torch: Any, value: Any) -> Any:
    """A returned value as JSON data; tensors become lists.

    Raises:
        LabError: it cannot be sent home.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, dict):
        return {str(key): _plain(torch, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(torch, item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise LabError(
        f"The function returned a {type(value).__name__}; return numbers, text, lists or tensors."
    )


def look_around(torch: Any, job: Mapping[str, Any], emit: Emit) -> None:
    """Describe every device this process could use; asked when no one device was chosen."""
    held = lease.from_environment(os.environ)
    count = torch.cuda.device_count()
    seen = [device.read_device(torch, held, os.environ, index) for index in range(count)]
    emit({"type": "around", "devices": [to_data(one) for one in seen]})


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
    "time": time_functions,
    "call": call_function,
    "around": look_around,
}
