"""What the fork server's children do: one job, and what they find out as messages.

When the other end of the pipe closes, the notebook is gone and so are we. The student's own prints
go elsewhere, so that the messages are ours alone.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from labkit.errors import LabError
from labkit.machine import device, lease
from labkit.machine.emulate import Emulation, enter_green_context
from labkit.records import to_data
from labkit.run import source
from labkit.run.tasks import TASKS, Emit

LATER_S = 5.0  # the notebook ends a job that hangs, and says so, before gloo gives up
TWIN = "LABKIT_TWIN"  # "module:key" of a changed world, entered before the job is unpacked


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
        code = _done(job, lambda message: messages.send_bytes(json.dumps(message).encode()))
    finally:
        sys.stderr.flush()
        os._exit(code)


def _done(job: Mapping[str, Any], emit: Emit) -> int:
    """Run a job; the exit status says only whether it ended well, the messages say why."""
    try:
        _run(job, emit)
    except LabError as error:
        said = {"kind": type(error).__name__, "message": str(error), "trace": "", "said": True}
        emit({"type": "error", **said})
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
    if twin := os.environ.get(TWIN):
        room, _, key = twin.rpartition(":")
        importlib.import_module(room).enter(key)
    emulation = Emulation.from_environment(os.environ)
    emulation.apply(torch)
    _enter_partition(torch)
    here = device.read_device(torch, lease.from_environment(os.environ), os.environ)
    versions = device.read_versions(torch)
    emit({"type": "hello", "device": to_data(here), "versions": versions})
    with emulation.translating(torch), _group(torch, job, emit):
        TASKS[job["kind"]](torch, job, emit)


def _enter_partition(torch: Any) -> None:
    """Confine this copy to some SMs when the job asks for it.

    Raises:
        LabError: there is no GPU, or it cannot be partitioned.
    """
    if wanted := os.environ.get("LABKIT_PARTITION"):
        if not torch.cuda.is_available():
            raise LabError("There is no GPU here whose SMs could be partitioned.")
        enter_green_context(torch, int(wanted))


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
