"""What the fork server's children do: a job on stdin, JSON lines on stdout.

The job's first line comes on stdin and stdin stays open: when it closes, the notebook is gone and
so are we. The student's own prints go to stderr, so that the lines on stdout are ours alone.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from labkit.errors import LabError
from labkit.machine import device, lease
from labkit.machine.emulate import Emulation, count_sms, enter_green_context
from labkit.records import to_data
from labkit.run import source
from labkit.run.tasks import TASKS, Emit, peak_rss_mib

TWIN = "LABKIT_TWIN"  # "module:key" of a changed world, entered before the job is unpacked


def main() -> int:
    """Run the job on stdin; the exit status says only whether it ended well, the lines say why."""
    emit = _take_stdout()
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _run(job, emit)
    except LabError as error:
        emit(
            {
                "type": "error",
                "kind": type(error).__name__,
                "message": str(error),
                "trace": "",
                "said": True,
            }
        )
        return 1
    except (
        BaseException
    ) as error:  # outermost frame: whatever the student's code raises becomes a sentence
        emit(source.describe_error(error))
        return 1
    emit({"type": "done", "cpu_s": time.process_time(), "rss_mib": peak_rss_mib()})
    return 0


def _take_stdout() -> Emit:
    """Keep the real stdout for JSON lines and send everything else printed to stderr."""
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def emit(message: Mapping[str, Any]) -> None:
        own.write(json.dumps(message) + "\n")

    return emit


def _end_with_parent() -> None:
    while sys.stdin.readline():
        pass
    os._exit(3)


def _run(job: Mapping[str, Any], emit: Emit) -> None:
    emit({"type": "stage", "stage": "starting torch"})
    import torch  # only here: the notebook's kernel must hold no CUDA context

    torch.set_num_threads(int(os.environ.get("LABKIT_THREADS", torch.get_num_threads())))
    if twin := os.environ.get(TWIN):
        room, _, key = twin.rpartition(":")
        importlib.import_module(room).enter(key)
    emulation = Emulation.from_environment(os.environ)
    emulation.apply(torch)
    given = _enter_partition(torch)
    here = device.read_device(torch, lease.from_environment(os.environ), os.environ)
    emit(
        {
            "type": "hello",
            "device": to_data(here),
            "versions": device.read_versions(torch),
            "pid": os.getpid(),
        }
    )
    if given is not None:
        emit({"type": "partition", "sms_given": given})
    with emulation.translating(torch), _Group(torch, job, emit):
        TASKS[job["kind"]](torch, job, emit, int((here.l2_mib or 0) * 2**20))


def _enter_partition(torch: Any) -> int | None:
    """Confine this copy to some SMs when the job asks for it.

    Returns:
        The SMs really given, counted on the GPU; None when no partition was asked for.

    Raises:
        LabError: there is no GPU, or it cannot be partitioned.
    """
    wanted = os.environ.get("LABKIT_PARTITION")
    if not wanted:
        return None
    if not torch.cuda.is_available():
        raise LabError("There is no GPU here whose SMs could be partitioned.")
    enter_green_context(torch, int(wanted))
    return count_sms(torch)


class _Group:
    """The process group of this job's ranks, met through a file on this machine's loopback."""

    def __init__(self, torch: Any, job: Mapping[str, Any], emit: Emit) -> None:
        self._torch, self._job, self._emit = torch, job, emit
        self._wanted = job["world"] > 1 and job.get("group", True)

    def __enter__(self) -> None:
        if not self._wanted:
            return
        self._emit({"type": "stage", "stage": "meeting the other ranks"})
        # Without it a rank that has little to do is gone before another has met everybody.
        os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
        self._torch.distributed.init_process_group(
            self._job["backend"],
            init_method=f"file://{self._job['rendezvous']}",
            rank=self._job["rank"],
            world_size=self._job["world"],
            timeout=datetime.timedelta(seconds=self._job["timeout_s"]),
        )

    def __exit__(self, kind: object, *_: object) -> None:
        if self._wanted and kind is None:  # after an error the others may never come to say goodbye
            self._torch.distributed.destroy_process_group()
