"""The state of a simulated machine: records, and the file that processes share.

Writers take an exclusive lock, change a fresh copy and put it in place atomically; readers take
no lock.  Each GPU is a line of the file, and only lines that are looked at are read: an act touches
one GPU, and with 64 full ones all the others took 8 ms of it.  Must not know NVML.
"""

import contextlib
import fcntl
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from pydantic import TypeAdapter

from miglab_pool.gpu.readings import GpuError

STATE_VERSION = 1
HEAD, BETWEEN, TAIL = '{"gpus":[\n', ",\n", "\n],"
Stamp = tuple[int, int, int]  # which file it is: its device, its inode, when it was written


@dataclass
class ComputeInstance:
    """A compute instance; ``mig_index`` is the index of its MIG device.

    ``ready_at`` and ``gone_at`` (seconds since the host started: no clock that is set moves them)
    bound the time in which it is being made or destroyed.
    """

    ci_id: int
    profile_id: int
    start: int
    size: int
    mig_index: int
    ready_at: float = 0.0
    gone_at: float | None = None


@dataclass
class GpuInstance:
    """A GPU instance; ``leaked`` counts handles that some other client holds open."""

    gi_id: int
    profile_id: int
    start: int
    size: int
    compute: list[ComputeInstance] = field(default_factory=list)
    leaked: int = 0
    ready_at: float = 0.0
    gone_at: float | None = None


@dataclass
class Process:
    """A process on a slice, or on the whole GPU (both ids None); MiB, None = not told."""

    pid: int
    memory_mib: int | None
    gi_id: int | None = None
    ci_id: int | None = None
    activity_pct: float = 0.0


@dataclass
class Gpu:
    """A GPU: its mode, what it is cut into, and what is broken on it."""

    uuid: str
    model: str
    mig: bool
    mig_pending: bool
    instances: list[GpuInstance] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    lost: bool = False
    missing: bool = False  # not on the bus at all: no enumeration shows it
    stuck: bool = False
    ecc_errors: int = 0
    temperature_c: int = 34
    recovery_action: int = 0  # NVML_GPU_RECOVERY_ACTION_…


@dataclass
class XidEvent:
    """An Xid fault of which event sets hear; the ids are of the slice that it came from, if any."""

    number: int
    gpu_uuid: str
    xid: int
    gi_id: int | None = None
    ci_id: int | None = None


@dataclass
class Fault:
    """A failure ordered in advance: the next ``times`` calls of a function return ``code``.

    ``gpu_uuid`` None = on any GPU.
    """

    function: str
    code: int
    times: int
    gpu_uuid: str | None = None


@dataclass
class Hang:
    """Calls that do not come back until it is taken out.

    Attributes:
        function: how the functions' names begin; empty: every function.
        gpu_uuid: only calls about this GPU; None: whatever they are about.
    """

    function: str = ""
    gpu_uuid: str | None = None


@dataclass
class Delays:
    """How long the acts take, s.

    Attributes:
        search_gpu_s: how long a search by UUID takes for each GPU that it passes.
        list_mig_device_s: how long a new MIG device is missing from the walk over these.
    """

    create_gpu_instance_s: float = 0.0
    create_compute_instance_s: float = 0.0
    destroy_compute_instance_s: float = 0.0
    destroy_gpu_instance_s: float = 0.0
    search_gpu_s: float = 0.0
    list_mig_device_s: float = 0.0


@dataclass
class MachineState:
    """Everything about a simulated machine."""

    gpus: Sequence[Gpu] = ()
    delays: Delays = field(default_factory=Delays)
    may_configure: bool = True
    driver_loaded: bool = True
    boots: int = 1
    events: list[XidEvent] = field(default_factory=list)
    events_ever: int = 0
    faults: list[Fault] = field(default_factory=list)
    hangs: list[Hang] = field(default_factory=list)
    version: int = STATE_VERSION


_GPU, _OTHERS = TypeAdapter(Gpu), TypeAdapter(MachineState)


class StateError(GpuError):
    """The state file cannot be read; says which and what to do."""


class GpuLines(Sequence[Gpu]):
    """The GPUs of a state file, each read when it is first asked for.

    Args:
        lines: a GPU's JSON each.
        before: an earlier file's, whose GPUs are these where the lines are the same.
    """

    def __init__(self, lines: Sequence[str], earlier: "GpuLines | None" = None) -> None:
        self._lines = lines
        self._read: dict[int, Gpu] = {}
        if earlier is not None and len(earlier) == len(lines):
            parsed = list(earlier._read.items())  # other threads go on reading
            self._read = {n: gpu for n, gpu in parsed if earlier._lines[n] == lines[n]}

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Gpu: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Gpu]: ...
    def __getitem__(self, index: int | slice) -> Gpu | Sequence[Gpu]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        if (gpu := self._read.get(index)) is not None:
            return gpu
        line, at = self._lines[index], index % len(self)
        if at not in self._read:
            try:
                self._read.setdefault(at, _GPU.validate_json(line))
            except ValueError as error:
                raise StateError(
                    f"The state of simulated GPU {at} is damaged ({error}); make the machine anew."
                ) from error
        return self._read[at]

    def as_lines(self) -> list[str]:
        """The GPUs as they are now."""
        read = self._read
        return [_json(read[n]) if n in read else line for n, line in enumerate(self._lines)]


class StateFile:
    """The state of one machine in a folder, shared by processes and threads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.json"
        self._lock_path = folder / "lock"
        self._cached: tuple[Stamp, MachineState] | None = None
        self._guard = threading.Lock()

    def read(self) -> MachineState:
        """The present state; not to be changed.  Parsed anew only when the file was replaced.

        A reader takes no lock: with 64 GPUs' threads at one lock, each call waited for the others.
        """
        cached, stamp = self._cached, self._stamp()
        if cached is not None and cached[0] == stamp:
            return cached[1]
        with self._guard:
            before = self._cached
            if before is None or before[0] != self._stamp():
                before = self._cached = self._parse(before and before[1])
            return before[1]

    @contextlib.contextmanager
    def change(self) -> Iterator[MachineState]:
        """A copy of the state to change, under the lock; written when the block ends well."""
        with self._locked():
            _, machine = self._parse()
            yield machine
            self.write(machine)

    def create(self, machine: MachineState) -> None:
        """Put the first state in place.

        Raises:
            FileExistsError: there is one already.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            if self.path.exists():
                raise FileExistsError(f"{self.path} exists: a machine lives there already.")
            self.write(machine)

    def write(self, machine: MachineState) -> None:
        """Replace the file atomically; the caller holds the lock.

        Its time is set to the nanosecond: the file system's own may be that of the last tick, and
        an inode is used again, so that two files would look the same.
        """
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=".state-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(_text_of(machine))
        os.utime(name, ns=(0, time.time_ns()))
        Path(name).replace(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _stamp(self) -> Stamp | None:
        with contextlib.suppress(FileNotFoundError):
            return _stamp_of(os.stat(self.path))  # noqa: PTH116 -- each call of NVML asks
        return None

    def _parse(self, before: MachineState | None = None) -> tuple[Stamp, MachineState]:
        try:
            with self.path.open(encoding="utf-8") as file:
                return _stamp_of(os.fstat(file.fileno())), _machine_from(file.read(), before)
        except FileNotFoundError:
            raise StateError(
                f"There is no simulated machine in {self.path.parent}; make one with "
                f"'miglab sim create --state {self.path.parent}'."
            ) from None
        except ValueError as error:
            raise StateError(
                f"{self.path} is damaged ({error}); remove the folder and make the machine anew."
            ) from error


def _stamp_of(file: os.stat_result) -> Stamp:
    return file.st_dev, file.st_ino, file.st_mtime_ns


def _text_of(machine: MachineState) -> str:
    gpus = machine.gpus
    lines = gpus.as_lines() if isinstance(gpus, GpuLines) else [_json(gpu) for gpu in gpus]
    fields = {name: value for name, value in vars(machine).items() if name != "gpus"}
    return f"{HEAD}{BETWEEN.join(lines)}{TAIL}{_json(fields).removeprefix('{')}"


def _json(value: object) -> str:
    """In C, which ``json.dump`` is not; ``asdict`` alone would take five times as long."""
    return json.dumps(value, default=vars, separators=(",", ":"))


def _machine_from(text: str, before: MachineState | None) -> MachineState:
    """The machine that a file describes; a GPU of an earlier file is kept if its line is."""
    gpus, tail, fields = text.removeprefix(HEAD).partition(TAIL)
    if not (text.startswith(HEAD) and tail):
        raise ValueError("a GPU a line is what it should have")
    machine = _OTHERS.validate_json("{" + fields)
    if machine.version != STATE_VERSION:
        raise ValueError(f"version {machine.version}, this miglab writes {STATE_VERSION}")
    earlier_gpus = before.gpus if before is not None else None
    machine.gpus = GpuLines(
        gpus.split(BETWEEN), earlier_gpus if isinstance(earlier_gpus, GpuLines) else None
    )
    return machine
