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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from pydantic import TypeAdapter

from miglab_pool.gpu.readings import GpuError

STATE_VERSION = 1
HEAD, BETWEEN, TAIL = '{"gpus":[\n', ",\n", "\n],"


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
    stuck: bool = False
    ecc_errors: int = 0
    temperature_c: int = 34


@dataclass
class XidEvent:
    """An Xid fault of which event sets hear."""

    number: int
    gpu_uuid: str
    xid: int


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
    """How long the acts take, s."""

    create_gpu_instance_s: float = 0.0
    create_compute_instance_s: float = 0.0
    destroy_compute_instance_s: float = 0.0
    destroy_gpu_instance_s: float = 0.0


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

    def __init__(self, lines: Sequence[str], before: "GpuLines | None" = None) -> None:
        self._lines = lines
        self._read: dict[int, Gpu] = {}
        if before is not None and len(before) == len(lines):
            known = list(before._read.items())  # other threads go on reading
            self._read = {n: gpu for n, gpu in known if before._lines[n] == lines[n]}

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Gpu: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Gpu]: ...
    def __getitem__(self, index: int | slice) -> Gpu | Sequence[Gpu]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
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


@dataclass(frozen=True)
class CachedState:
    """A state as it was read, the file that it was read from, kept open, and which file that is."""

    descriptor: int
    inode: tuple[int, int]
    machine: MachineState

    def is_at(self, path: Path) -> bool:
        """Whether the file at this path is still the one that was read."""
        try:
            there = path.stat()
        except FileNotFoundError:
            return False
        return (there.st_ino, there.st_dev) == self.inode


class StateFile:
    """The state of one machine in a folder, shared by processes and threads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state.json"
        self._lock_path = folder / "lock"
        self._cached: CachedState | None = None
        self._guard = threading.Lock()

    def read(self) -> MachineState:
        """The present state; not to be changed.  Parsed anew only when the file was replaced.

        The cache keeps the file it read open: as long as it is, no new file can have its inode
        number, so that an equal number means the same, never rewritten, content.  A reader takes
        no lock: with 64 GPUs' threads at one lock, each call waited for the others.
        """
        cached = self._cached
        if cached is not None and cached.is_at(self.path) and cached is self._cached:
            return cached.machine  # and its file was open all the time
        with self._guard:
            before = self._cached
            if before is not None and before.is_at(self.path):
                return before.machine
            self._cached = self._read_anew(before)
            if before is not None:
                os.close(before.descriptor)
            return self._cached.machine

    @contextlib.contextmanager
    def change(self) -> Iterator[MachineState]:
        """A copy of the state to change, under the lock; written when the block ends well."""
        with self._locked():
            descriptor = self._open()
            try:
                machine = self._parse(descriptor)
            finally:
                os.close(descriptor)
            yield machine
            self.write(machine)

    def create(self, machine: MachineState) -> None:
        """Put the first state in place.

        Raises:
            FileExistsError: there is one already.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            if self.path.exists():
                raise FileExistsError(f"{self.path} exists: a machine lives there already.")
            self.write(machine)

    def write(self, machine: MachineState) -> None:
        """Replace the file atomically; the caller holds the lock."""
        descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix=".state-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(_text_of(machine))
        Path(name).replace(self.path)

    def close(self) -> None:
        """Give back what the cache holds open."""
        with self._guard:
            if self._cached is not None:
                os.close(self._cached.descriptor)
                self._cached = None

    def __del__(self) -> None:
        if getattr(self, "_cached", None) is not None:
            self.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read_anew(self, before: CachedState | None) -> CachedState:
        fresh = self._open()
        try:
            machine = self._parse(fresh, None if before is None else before.machine)
        except BaseException:
            os.close(fresh)
            raise
        there = os.fstat(fresh)
        return CachedState(fresh, (there.st_ino, there.st_dev), machine)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StateError(
                f"There is no simulated machine in {self.path.parent}; make one with "
                f"'miglab sim create --state {self.path.parent}'."
            ) from None

    def _parse(self, descriptor: int, before: MachineState | None = None) -> MachineState:
        text = os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()
        try:
            return _machine_from(text, before)
        except ValueError as error:
            raise StateError(
                f"{self.path} is damaged ({error}); remove the folder and make the machine anew."
            ) from error


def _text_of(machine: MachineState) -> str:
    gpus = machine.gpus
    lines = gpus.as_lines() if isinstance(gpus, GpuLines) else [_json(gpu) for gpu in gpus]
    others = {name: value for name, value in vars(machine).items() if name != "gpus"}
    return f"{HEAD}{BETWEEN.join(lines)}{TAIL}{_json(others).removeprefix('{')}"


def _json(value: object) -> str:
    """In C, which ``json.dump`` is not; ``asdict`` alone would take five times as long."""
    return json.dumps(value, default=vars, separators=(",", ":"))


def _machine_from(text: str, before: MachineState | None) -> MachineState:
    """The machine that a file describes; a GPU of an earlier file is kept if its line is."""
    gpus, tail, others = text.removeprefix(HEAD).partition(TAIL)
    if not (text.startswith(HEAD) and tail):
        raise ValueError("a GPU a line is what it should have")
    machine = _OTHERS.validate_json("{" + others)
    if machine.version != STATE_VERSION:
        raise ValueError(f"version {machine.version}, this miglab writes {STATE_VERSION}")
    known = before.gpus if before is not None else None
    machine.gpus = GpuLines(gpus.split(BETWEEN), known if isinstance(known, GpuLines) else None)
    return machine
