"""Real child processes: what they measure, how they fail, and that nothing is left of them."""

import asyncio
import functools
import http.server
import json
import threading
from multiprocessing.forkserver import _forkserver
from pathlib import Path

import psutil
import pytest
from tests.needs import needs

import labkit
from labkit import errors
from labkit.measuring import place as placing
from labkit.measuring.measure import measure_async
from labkit.measuring.sharing import Copies, Way, run_copies
from labkit.records import CpuBudget, Device, Lease, Place, Tier, Verdict
from labkit.run import worker
from labkit.run.jobs import make_job

needs("torch", "children measure with torch")


def product(n=48, dtype="float32"):
    import torch

    matrix = torch.ones(n, n, dtype=getattr(torch, dtype))
    return lambda: matrix @ matrix


def eight_times():
    work = product()
    return lambda: [work() for _ in range(8)]


def wrong_shape():
    import torch

    a = torch.ones(2, 3)
    return a @ a


def dies():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)


def hogs():
    import torch

    return torch.empty(1 << 60)


def sleeps():
    import time

    def work():
        time.sleep(0.05)

    return work


def sleeps_with_child(note):
    import subprocess
    import sys

    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(note).write_text(str(started.pid))
    return sleeps()


def breaks_later():
    calls = []

    def work():
        calls.append(1)
        assert len(calls) < 120, "worn out"
        import time

        time.sleep(0.001)

    return work


def total(start=1.0):
    import torch
    import torch.distributed as dist

    value = torch.full((3,), start + dist.get_rank())
    dist.all_reduce(value)
    print("summed", dist.get_rank())
    return value


def reduces():
    import torch
    import torch.distributed as dist

    value = torch.ones(1000)
    return lambda: dist.all_reduce(value)


def leaves_first():
    """Rank 1 ends at once; rank 0 waits until that process is gone."""
    import os
    import time
    from pathlib import Path

    import torch.distributed as dist

    pids = [None, None]
    dist.all_gather_object(pids, os.getpid())
    status = Path(f"/proc/{pids[1]}/status")
    while dist.get_rank() == 0 and status.exists() and "zombie" not in status.read_text():
        time.sleep(0.01)
    return dist.get_rank()


def one_rank_stays_away():
    import time

    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(600)


def living_workers():
    """Living workers of this process's fork server."""
    pid = _forkserver._forkserver_pid
    return psutil.Process(pid).children() if pid else []


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert living_workers() == []


def test_a_measurement_carries_all_its_circumstances():
    """Samples, device, tier, versions, clock, date; on a CPU it says so.

    A size called n is the function's, and a dtype is both an argument and part of the record.
    """
    record = labkit.measure(product, samples=12, n=16, dtype="float64")
    assert len(record.samples_s) == 12
    assert record.tier is Tier.CPU
    assert record.clock == "host"
    assert record.setting == {"n": 16, "dtype": "float64"}
    assert record.dtype == "float64"
    assert record.ranks == 1
    assert record.versions["torch"]
    assert len(record.warmup_s) >= 2
    assert "not a GPU" in str(record)


def test_eight_times_the_work_is_not_the_same():
    """A comparison in turns finds a plain difference at its first look."""
    comparison = labkit.compare(eight_times, product)
    assert comparison.verdict is Verdict.CONTRADICTED
    assert comparison.ratio > 2
    assert comparison.looks[0].rounds == 20


def test_the_students_line_comes_first():
    """An error in the function shows its line, as numbered in the cell, then what it raised."""
    with pytest.raises(errors.StudentError) as caught:
        labkit.measure(wrong_shape)
    lines = str(caught.value).splitlines()
    number = wrong_shape.__code__.co_firstlineno + 4
    assert lines[0].startswith(f"line {number} of the cell, in `wrong_shape`:")
    assert lines[0].endswith("return a @ a")
    assert lines[1].startswith("RuntimeError: mat1 and mat2")
    assert caught.value._render_traceback_() == [str(caught.value)]
    assert "Traceback" in caught.value.details


def says_who():
    import os
    import random
    import sys

    has_compiler = "torch._dynamo" in sys.modules
    return [os.getppid(), os.environ.get("COLOUR"), random.random(), has_compiler]


def test_workers_have_the_kernels_environment_of_now_and_their_own_luck(monkeypatch):
    """A fork inherits what torch's import left, and neither old variables nor a random state.

    The fork server is started again if it was killed for memory, or ended as nothing was asked.
    """
    monkeypatch.setenv("COLOUR", "red")
    (first,) = labkit.ranks(says_who, n=1).values
    monkeypatch.delenv("COLOUR")
    (second,) = labkit.ranks(says_who, n=1).values
    assert first[0] == second[0] == _forkserver._forkserver_pid
    assert (first[1], second[1]) == ("red", None)
    assert first[2] != second[2]
    psutil.Process(first[0]).kill()
    (restarted,) = labkit.ranks(says_who, n=1).values
    assert restarted[0] == _forkserver._forkserver_pid != first[0]
    assert restarted[3], "no job waits for what optimizers import"


def test_what_is_asked_to_run_on_the_cpu_borrows_nothing(monkeypatch):
    """Where the course lends slices, and no hub could be asked for one."""
    monkeypatch.setenv("MIGLAB_BORROW", '["1g.5gb"]')
    ranks = labkit.ranks(says_who, n=2, on="cpu")
    assert (ranks.tier, ranks.backend, ranks.borrowed) == (Tier.CPU, "gloo", None)
    with pytest.raises(errors.LabError):
        labkit.ranks(says_who, n=2)


@pytest.mark.parametrize(
    ("call", "function", "error", "message"),
    [
        (labkit.measure, dies, errors.ChildKilled, r"SIGKILL.*memory was full"),
        (labkit.peak, hogs, errors.OutOfMemory, r"torch\.empty.*\n.*Out of memory"),
    ],
)
def test_the_end_of_a_child_is_explained(call, function, error, message):
    """SIGKILL is most often the container's memory; of an exabyte the line that asked is named."""
    with pytest.raises(error, match=message):
        call(function)


def test_samples_taken_before_a_failure_are_kept():
    """A function that breaks in mid-measurement leaves a record that says why it is short."""
    with pytest.raises(errors.StudentError, match="worn out") as caught:
        labkit.measure(breaks_later, samples=1000, budget_s=100)
    assert len(caught.value.kept.samples_s) > 0
    assert "worn out" in caught.value.kept.stopped


def test_ranks_talk_and_come_back_in_order(tmp_path, monkeypatch):
    """Two gloo ranks on the CPU sum their values; prints are kept by rank, no folder is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    total_run = labkit.ranks(total, n=2, start=2.0)
    assert not list(tmp_path.glob("labkit-*"))
    assert total_run.values == ([5.0] * 3, [5.0] * 3)
    assert total_run.backend == "gloo"
    assert "not a GPU link" in total_run.link
    assert "[rank 1] summed 1" in total_run.printed


def test_a_collective_is_timed_from_a_common_start():
    """Each sample of several ranks is the slowest rank's."""
    timed = labkit.measure(reduces, ranks=2, samples=8)
    assert len(timed.samples_s) == 8
    assert timed.ranks == 2
    side = timed.side_by_side
    assert [len(side[name]) for name in ("alone_s", "together_s", "core_share")] == [8] * 3
    assert all(seconds > 0 for seconds in side["alone_s"] + side["together_s"])
    assert all(0 < share < 2 for share in side["core_share"])
    assert f"side by side {timed.parallel_gain:.1f} times one alone" in timed.caption


def test_a_rank_that_is_done_may_leave_before_the_others():
    """Its end is no death: what the others still find out counts."""
    assert labkit.ranks(leaves_first, n=2).values == (0, 1)


@pytest.mark.long
def test_a_hanging_collective_is_ended_and_explained():
    """One rank waits for another that never comes: a sentence after the time limit."""
    with pytest.raises(errors.ChildTimeout, match="same collective calls"):
        labkit.ranks(one_rank_stays_away, n=2, timeout_s=8.0)


async def test_cancelling_ends_the_child_and_what_it_started(tmp_path):
    """Stop kills the whole process group and keeps what was read."""
    records, started, note = [], asyncio.Event(), tmp_path / "note"
    task = asyncio.create_task(
        measure_async(
            sleeps_with_child,
            samples=1000,
            on_update=lambda record: (records.append(record), started.set()),
            arguments={"note": str(note)},
        )
    )
    await asyncio.wait_for(started.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert records[-1].samples_s and records[-1].stopped == "not finished"
    grandchild = int(note.read_text())
    assert (
        not psutil.pid_exists(grandchild)
        or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE
    )


def test_a_lease_without_a_device_never_falls_back(monkeypatch):
    """A real slice in the lease and no GPU in torch: an error, no CPU figure."""
    monkeypatch.setenv("MIGLAB_LEASE", "7")
    monkeypatch.setenv("MIGLAB_SHAPE", "1g.5gb")
    monkeypatch.setenv("MIGLAB_SLICES", "MIG-0000")
    with pytest.raises(errors.NoRealSlice, match="Nothing was measured"):
        labkit.measure(product)


@pytest.fixture
def released_lease(monkeypatch, tmp_path):
    """The environment of a server whose lease the pool took back."""
    (tmp_path / "api").mkdir()
    (tmp_path / "api/lease").write_text('{"id": 7, "state": "released"}')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("MIGLAB_API", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MIGLAB_LEASE", "7")
    monkeypatch.setenv("MIGLAB_SHAPE", "1g.5gb")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def device_name():
    import os

    return os.environ.get("CUDA_VISIBLE_DEVICES")


def name_and_sum():
    import os

    import torch
    import torch.distributed as dist

    tensor = torch.full((1,), 1.0 + dist.get_rank())
    dist.all_reduce(tensor)
    return os.environ.get("CUDA_VISIBLE_DEVICES"), tensor.item()


@pytest.mark.parametrize(
    ("visible", "daemon_number"), [("1", "0"), ("1,0", "0"), ("GPU-4f0a", "GPU-4f0a"), (None, None)]
)
async def test_under_mps_copies_name_the_gpu_as_its_daemon_counts_it(
    visible, daemon_number, monkeypatch, tmp_path
):
    """The daemon counts the GPUs it was given from 0: under its own number, GPU 1 was not found."""
    daemon = tmp_path / "nvidia-cuda-mps-control"
    daemon.write_text("#!/bin/sh\ncat >/dev/null\n")
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    job = make_job("call", [device_name], {})
    copies = await run_copies(job, Copies(Way.MPS, 2), 60.0)
    assert [rank.facts["value"] for rank in copies.ranks] == [daemon_number, daemon_number]


def giving(value):
    def work():
        return value

    return work


def test_two_functions_of_one_job_keep_what_each_closes_over():
    """One name, two values: the second was timed twice."""
    import torch

    job = json.loads(json.dumps(make_job("time", [giving(1), giving(2)], {})))
    works = [worker._work_of(torch, packed, job) for packed in job["functions"].values()]
    assert [work() for work in works] == [1, 2]


@pytest.mark.parametrize(("share_device", "name"), [(True, "GPU-4f0a"), (False, "")])
def test_ranks_share_the_one_gpu_only_where_that_is_asked(share_device, name, monkeypatch):
    """Both see it and can all-reduce; unasked they see none."""
    gpu = Device("cuda", "A100", 40_000)
    place = Place(Tier.WHOLE_GPU, (gpu,), "", CpuBudget(2.0, 2), Lease())
    monkeypatch.setitem(placing._PLACE, "here", place)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-4f0a")
    ranks = labkit.ranks(name_and_sum, n=2, share_device=share_device)
    assert (ranks.values, ranks.backend) == (([name, 3.0], [name, 3.0]), "gloo")


@pytest.mark.usefixtures("released_lease")
def test_a_reclaimed_slice_is_named_as_the_reason():
    """The child's error after a reclaim is the reclaim, and earlier samples are kept."""
    with pytest.raises(errors.LeaseGone, match=r"took back 1g\.5gb") as caught:
        labkit.measure(breaks_later, samples=1000, budget_s=100)
    assert len(caught.value.kept.samples_s) > 0


def swaps():
    """Both ranks send first and receive then, a matrix and a vector."""
    import torch
    import torch.distributed as dist

    from labkit.exercises.code_checks import Wires

    rank, wires = dist.get_rank(), Wires()
    matrix = torch.full((3, 2), float(rank))
    wires.send(1 - rank, matrix)
    matrix += 100  # a copy was sent
    wires.send(1 - rank, torch.arange(4.0) + rank)
    first, second = wires.receive(1 - rank), wires.receive(1 - rank)
    wires.finish()
    return [first, second]


def test_tensors_arrive_whole_and_in_order():
    """Shape and values survive, and both may send before either receives."""
    rank_0, rank_1 = labkit.ranks(swaps, n=2).values
    assert rank_0 == [[[1.0, 1.0]] * 3, [1.0, 2.0, 3.0, 4.0]]
    assert rank_1 == [[[0.0, 0.0]] * 3, [0.0, 1.0, 2.0, 3.0]]
