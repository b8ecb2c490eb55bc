"""Lines about a program that uses a slice or GPU: whether NVML shows it, and when it is gone."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from miglab_hub.prove.lines import CannotTry, LineAnswer
from miglab_hub.prove.pace import wait_until
from miglab_hub.prove.trial import Trial
from miglab_pool.gpu.readings import ProcessReading, SliceReading

MIB = 1 << 20
TORCH_FACTS = """
import json
try:
    import torch
except ImportError:
    print(json.dumps({"torch": None}))
else:
    count = torch.cuda.device_count()
    devices = [torch.cuda.get_device_properties(number) for number in range(count)]
    print(json.dumps({
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "memory_mib": [device.total_memory >> 20 for device in devices],
        "sm_count": [device.multi_processor_count for device in devices],
    }))
"""
"""Says what PyTorch sees, as one line of JSON."""
HOLDING_PROGRAM = """
import time, torch
held = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
print("ready", flush=True)
time.sleep(600)
"""
"""Uses the GPU until it is ended."""


def try_host_program(trial: Trial) -> Iterator[LineAnswer]:
    """Run a program of this host on an idle GPU with MIG off."""
    if trial.simulated_state is not None:
        raise CannotTry("simulated GPUs run no program")
    if not trial.runs_programs:
        raise CannotTry("it is tried only with --program")
    if find_spec("torch") is None:
        raise CannotTry("PyTorch is not installed here")
    uuid = _idle_gpu(trial)
    torch_facts = read_torch_facts(trial, uuid)
    with _running(uuid, 3 * trial.pace.program_s) as program:
        is_listed = wait_until(
            lambda: program.pid in pids(trial.driver.gpu_usage(uuid).processes),
            trial.pace.program_s,
        )
        processes = trial.driver.gpu_usage(uuid).processes
    ended_at = time.perf_counter()
    is_gone = wait_until(
        lambda: program.pid not in pids(trial.driver.gpu_usage(uuid).processes),
        trial.pace.program_s,
        0.001,
    )
    gone_ms = 1000 * (time.perf_counter() - ended_at)
    facts = {**torch_facts, "listed": len(processes or ()), "memory_mib_of_it": _memory(processes)}
    result = (
        f"PyTorch sees {len(torch_facts.get('memory_mib', ()))} device; NVML "
        f"{'lists' if is_listed else 'does not list'} the process by its pid, and "
        f"{'no longer' if is_gone else 'still'} {gone_ms:.0f} ms after its end"
    )
    holds = is_listed and is_gone and len(torch_facts.get("memory_mib", ())) == 1
    yield LineAnswer.judged("host-program", holds, result, {"gone_ms": [gone_ms]}, facts=facts)


def read_torch_facts(trial: Trial, uuid: str) -> dict[str, Any]:
    """Return what this host's PyTorch sees of a GPU or slice."""
    try:
        look = subprocess.run(
            [sys.executable, "-c", TORCH_FACTS],
            env=_environment(uuid),
            capture_output=True,
            text=True,
            check=False,
            timeout=3 * trial.pace.program_s,
        )
    except subprocess.TimeoutExpired:
        raise CannotTry("PyTorch does not start in time") from None
    return parse_facts(look.stdout)


def parse_facts(output: str) -> dict[str, Any]:
    """Parse the output of `TORCH_FACTS`; empty if there is none."""
    try:
        values = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def pids(processes: Collection[ProcessReading] | None) -> set[int]:
    """Return the process ids of a reading."""
    return {process.pid for process in processes or ()}


def slice_pids(trial: Trial, reading: SliceReading) -> set[int]:
    """Return the ids of processes that NVML shows on a slice."""
    usage = trial.driver.usages(reading.gpu_uuid, [reading]).get(reading)
    return pids(usage.processes if usage else None)


def _idle_gpu(trial: Trial) -> str:
    if trial.has_lab:  # a whole GPU may be a student's on which nothing runs just now
        raise CannotTry("a lab lends GPUs with MIG off to students: try it on a host without a lab")
    for uuid, info in trial.infos.items():
        if info.mig is False and trial.driver.gpu_usage(uuid).processes == ():
            return uuid
    raise CannotTry("there is no GPU with MIG off on which nothing runs")


@contextmanager
def _running(uuid: str, limit_s: float) -> Iterator["subprocess.Popen[str]"]:
    program = subprocess.Popen(
        [sys.executable, "-c", HOLDING_PROGRAM],
        env=_environment(uuid),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    end_it = threading.Timer(limit_s, program.kill)
    end_it.start()
    try:
        assert program.stdout is not None
        if program.stdout.readline().strip() != "ready":
            raise CannotTry("PyTorch cannot use the GPU here")
        yield program
    finally:
        program.kill()
        program.communicate()
        end_it.cancel()


def _environment(uuid: str) -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}


def _memory(processes: Collection[ProcessReading] | None) -> list[int | None]:
    return [process.memory_mib for process in processes or ()]
