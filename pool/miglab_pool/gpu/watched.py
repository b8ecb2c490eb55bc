"""Watches every driver call: NVML may hang, and a thread that hangs in it cannot be killed.

Each GPU has a thread for its calls, with a `Driver` of its own, so that a call that hangs shares no
lock of ours with another GPU's (what NVML itself shares: handles.py).  The caller waits for a
limit and then gets `GpuHung`; the thread is left behind, and the next call gets a new one.  What
such a call answers late reaches nobody: the ledger is written by whoever waited, never by the
thread.  Creating or destroying a slice is several calls of NVML, each of which may take seconds on
a healthy GPU: such changes have a longer limit than readings.

What it *does* late is fenced as well: while a call that creates or destroys is still out, no other
call is made for its GPU, so that it cannot meet what was decided meanwhile.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import pynvml

from miglab_pool.gpu.driver import Driver, DriverMemory
from miglab_pool.gpu.handles import pci_ids_of_kernel
from miglab_pool.gpu.readings import DriverMissing, GpuError, GpuHung, GpuInfo, Versions

P = ParamSpec("P")
T = TypeVar("T")
Wait = Callable[["Future[Any]", float], bool]
OpenDriver = Callable[[Sequence[str], DriverMemory], Driver]

MOST_HANGING = 3  # of one GPU's threads; more would hang as these do
ADVICE = "see dmesg | grep -i nvrm; the GPU takes no lease until it answers"
S = TypeVar("S")


def wait_for_outcome(outcome: "Future[Any]", limit_s: float) -> bool:
    """Wait for a call's outcome; return whether it came in time."""
    return bool(wait_for([outcome], limit_s).done)


@dataclass(frozen=True, eq=False)
class DriverCall(Generic[T]):
    """One driver call: its work, when it started, how long it may take, and its outcome.

    Attributes:
        changes: whether it creates or destroys.
    """

    work: Callable[[Driver], T]
    started_at: float
    limit_s: float
    changes: bool
    outcome: Future[T] = field(default_factory=Future)


Calls = SimpleQueue[DriverCall[Any] | None]


def _run_calls(calls: Calls, open_driver: Callable[[], Driver]) -> None:
    """On a thread of its own: call after call, until None, with a driver that it opens itself."""
    driver: Driver | None = None
    while (call := calls.get()) is not None:
        try:
            driver = driver or open_driver()
            call.outcome.set_result(call.work(driver))
        except BaseException as error:  # raised anew where it was called
            call.outcome.set_exception(error)
    if driver is not None:
        with contextlib.suppress(GpuError):
            driver.close()


class WatchedCalls:
    """The calls about one GPU, one at a time, and those of them that hang.

    Args:
        name: what the calls are about, to follow "the driver call about".
        open_driver: opens the driver, on the thread that calls it.
        limit_s: how long a reading may take.
        change_limit_s: how long a change may take; None: as a reading.
        wait: waits for what comes of a call, and says whether it came.
        clock: seconds that never jump.
    """

    def __init__(
        self,
        name: str,
        open_driver: Callable[[], Driver],
        limit_s: float,
        change_limit_s: float | None = None,
        wait: Wait = wait_for_outcome,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._open = open_driver
        self._limit_s = limit_s
        self._change_limit_s = limit_s if change_limit_s is None else change_limit_s
        self._wait = wait
        self._clock = clock
        self._one_at_a_time = threading.Lock()
        self._calls: Calls | None = None
        self._under_way: DriverCall[Any] | None = None
        self._hanging: list[DriverCall[Any]] = []

    def run(
        self,
        work: Callable[[Driver], T],
        *,
        changes: bool = False,
        limit_s: float | None = None,
    ) -> T:
        """Make a call and wait for it, for ``limit_s`` if not as long as usual.

        Calls before it are waited for as long as any of them may take: behind the one that is
        under way another may wait already, which may change the GPU.

        Raises:
            GpuHung: it has not come back, or others have not.
            GpuError: what the driver says.
        """
        if limit_s is None:
            limit_s = self._change_limit_s if changes else self._limit_s
        turn_s = max(limit_s, self._limit_s, self._change_limit_s)
        if not self._one_at_a_time.acquire(timeout=turn_s):
            raise self._hung(turn_s)
        try:
            self._check_may_call()
            call = DriverCall(work, self._clock(), limit_s, changes)
            self._under_way = call
            self._running_thread().put(call)
            if not self._wait(call.outcome, limit_s):
                self._hanging.append(call)
                self.end()
                raise self._hung(limit_s)
            return call.outcome.result()
        finally:
            self._under_way = None
            self._one_at_a_time.release()

    @property
    def longest_s(self) -> float:
        """How long the oldest call that has not come back has lasted; 0 if there is none."""
        pending = [*self._hanging, self._under_way]
        starts = [
            call.started_at for call in pending if call is not None and not call.outcome.done()
        ]
        return self._clock() - min(starts) if starts else 0.0

    @property
    def is_hung(self) -> bool:
        """Whether a call has lasted longer than it may, and has not come back."""
        return any(not call.outcome.done() for call in self._hanging)

    def end(self) -> None:
        """End the thread once it is at rest; one that hangs is left behind."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None

    def _running_thread(self) -> Calls:
        """The queue of the GPU's thread, which is started if none is running."""
        if self._calls is None:
            self._calls = SimpleQueue()
            arguments, name = (self._calls, self._open), f"miglab-nvml-{self._name}"
            threading.Thread(target=_run_calls, args=arguments, name=name, daemon=True).start()
        return self._calls

    def _check_may_call(self) -> None:
        self._hanging = [call for call in self._hanging if not call.outcome.done()]
        if len(self._hanging) >= MOST_HANGING or any(call.changes for call in self._hanging):
            raise self._hung(self._hanging[0].limit_s)

    def _hung(self, limit_s: float) -> GpuHung:
        return GpuHung(
            f"A driver call about {self._name} has not come back for {limit_s:.0f} s: {ADVICE}."
        )


def _watched(
    call: Callable[Concatenate[Driver, str, P], T], *, changes: bool = False
) -> Callable[Concatenate["WatchedDriver", str, P], T]:
    """Wrap a method of `Driver` about one GPU so that the GPU's own thread runs it."""

    def watch(self: "WatchedDriver", gpu_uuid: str, /, *args: P.args, **options: P.kwargs) -> T:
        def work(driver: Driver) -> T:
            answer: T = getattr(driver, call.__name__)(gpu_uuid, *args, **options)
            return answer

        return self._gpus[gpu_uuid].run(work, changes=changes)

    return watch


class WatchedDriver:
    """The GPUs of this host, each watched by itself; answers as `Driver` does.

    Any thread may call it.

    Attributes:
        simulated: whether the GPUs are simulated.
        uuids: of the GPUs in use here.
    """

    def __init__(
        self,
        open_driver: OpenDriver,
        uuids: Iterable[str],
        *,
        simulated: bool,
        limit_s: float,
        change_limit_s: float | None = None,
        pci_ids: Mapping[str, str] | None = None,
        wait: Wait = wait_for_outcome,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet: the first call about a GPU does.

        Args:
            open_driver: opens a driver for some GPUs, with what others before it left.
            uuids: of the GPUs.
            simulated: see above.
            limit_s: how long a reading may take.
            change_limit_s: how long creating or destroying a slice may take; None: as a reading.
            pci_ids: where the GPUs are, by UUID, as far as that is known.
            wait: waits for what comes of a call, and says whether it came.
            clock: seconds that never jump.
        """
        self.simulated = simulated
        self.uuids = tuple(uuids)
        memory, limits = DriverMemory(pci_ids=dict(pci_ids or {})), (limit_s, change_limit_s)

        def watched(name: str, gpus: Sequence[str]) -> WatchedCalls:
            return WatchedCalls(name, lambda: open_driver(gpus, memory), *limits, wait, clock)

        self._gpus = {uuid: watched(uuid, [uuid]) for uuid in self.uuids}
        self._host = watched("the driver itself", [])

    @property
    def longest_call_s(self) -> float:
        """How long the oldest call that has not come back has lasted; 0 if there is none."""
        return max(calls.longest_s for calls in self._all)

    @property
    def is_hung(self) -> bool:
        """Whether a call has lasted longer than it may, and has not come back."""
        return any(calls.is_hung for calls in self._all)

    def check(self, limit_s: float) -> None:
        """Open every GPU, whatever comes of any of them: each later call about it says that.

        Raises:
            DriverMissing: there is no driver, so no GPU can be had.
        """
        _map_in_parallel(lambda calls: _try_reading(calls, lambda _: None, limit_s), self._all)

    def gpus(self) -> list[GpuInfo]:
        """Every GPU that answers, in NVML's order.

        Raises:
            DriverMissing: there is no driver.
        """

        def read_info(uuid: str) -> GpuInfo | None:
            return _try_reading(self._gpus[uuid], lambda driver: driver.info(uuid))

        infos = [info for info in _map_in_parallel(read_info, self.uuids) if info is not None]
        return sorted(infos, key=lambda info: info.index)

    info = _watched(Driver.info)
    slices = _watched(Driver.slices)
    placements = _watched(Driver.placements)
    create = _watched(Driver.create, changes=True)
    destroy = _watched(Driver.destroy, changes=True)
    usages = _watched(Driver.usages)
    gpu_usage = _watched(Driver.gpu_usage)
    health = _watched(Driver.health)  # a call that hangs is an error

    def versions(self) -> Versions:
        """As `Driver.versions`."""
        return self._host.run(lambda driver: driver.versions())

    def close(self) -> None:
        """Let every thread give its driver back and end; nobody waits for one that hangs."""
        for calls in self._all:
            calls.end()

    @property
    def _all(self) -> list[WatchedCalls]:
        return [self._host, *self._gpus.values()]


def _try_reading(
    calls: WatchedCalls, work: Callable[[Driver], T], limit_s: float | None = None
) -> T | None:
    """Return a reading; None if it fails, in which case the next call about the GPU says why.

    Raises:
        DriverMissing: there is no driver, which concerns all GPUs.
    """

    def try_work(driver: Driver) -> T | None:
        with contextlib.suppress(GpuError):
            return work(driver)
        return None

    try:
        return calls.run(try_work, limit_s=limit_s)
    except DriverMissing:
        raise
    except GpuError:
        return None


def _map_in_parallel(work: Callable[[S], T], arguments: Sequence[S]) -> list[T]:
    """Call ``work`` with every argument at the same time; raise the first error once all ended."""
    if not arguments:
        return []
    with ThreadPoolExecutor(len(arguments), "miglab-each") as threads:
        return list(threads.map(work, arguments))


class Stopwatch:
    """Times the calls that make and destroy slices; nobody publishes how long these take.

    Only those that succeed are told: one that fails ends sooner, or later, for reasons that say
    nothing of the work itself.

    Attributes:
        on_time: called with ``create`` or ``destroy``, the slice's profile, and the seconds taken.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.on_time: Callable[[str, str, float], None] = lambda *_: None
        self._clock = clock

    @contextlib.contextmanager
    def time(self, kind: str, profile: str) -> Iterator[None]:
        """Report how long the block took, unless it fails."""
        started_at = self._clock()
        yield
        self.on_time(kind, profile, self._clock() - started_at)


def open_gpus(
    *, simulated_state: Path | None = None, gpu_uuids: Sequence[str] | None = None
) -> Driver:
    """Open the GPUs.

    Args:
        simulated_state: the folder of a simulated machine; None = this host's real GPUs.
        gpu_uuids: the GPUs to use; None = all there are.

    Raises:
        GpuError: there is no driver, or a listed GPU is not there.
    """
    return Driver(_nvml(simulated_state), gpu_uuids)


def open_watched(
    *,
    simulated_state: Path | None,
    gpu_uuids: Sequence[str] | None,
    limit_s: float,
    change_limit_s: float | None = None,
) -> WatchedDriver:
    """The GPUs, each call to them watched; nothing is asked of them yet.

    Args:
        simulated_state: the folder of a simulated machine; None = this host's real GPUs.
        gpu_uuids: the GPUs to use; None = all those of a simulated machine.
        limit_s: how long a reading may take.
        change_limit_s: how long creating or destroying a slice may take; None: as a reading.

    Raises:
        GpuError: there is no such simulated machine.
    """
    nvml = _nvml(simulated_state)
    pci_ids = pci_ids_of_kernel() if simulated_state is None else nvml.pci_ids
    return WatchedDriver(
        lambda gpus, memory: Driver(nvml, gpus, memory),
        gpu_uuids or (() if simulated_state is None else pci_ids),
        simulated=simulated_state is not None,
        limit_s=limit_s,
        change_limit_s=change_limit_s,
        pci_ids=pci_ids,
    )


def _nvml(simulated_state: Path | None) -> Any:
    if simulated_state is None:
        return pynvml
    from miglab_pool.gpu.simulated.nvml import SimulatedNvml  # a real lab never loads it

    return SimulatedNvml(simulated_state)
