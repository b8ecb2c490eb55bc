"""What measuring returns: frozen records with every sample, device, versions and method.

Records know how to become JSON and how to come back unchanged; nothing here measures, draws or
imports torch.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import statistics
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from labkit import shown
from labkit.shown import ShapeBar

NORMAL_95 = 1.96
METHOD_VERSION = "2"  # raised when the timing loop or the statistics change what a number means
LAUNCH_BOUND = 0.8  # of a call's time: where queueing it takes more, it is Python that is timed


class Tier(StrEnum):
    """What the student holds, from most to least."""

    SEVERAL_GPUS = "several-gpus"
    SEVERAL_SLICES = "several-slices"
    WHOLE_GPU = "whole-gpu"
    SLICE = "slice"
    CPU = "cpu"


class Verdict(StrEnum):
    """What a measured interval says about a claimed band."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Device:
    """What one process measured on; memory and L2 are those of the slice, not of its GPU."""

    backend: str
    name: str
    memory_mib: int
    sms: int | None = None
    l2_mib: float | None = None
    uuid: str | None = None
    is_slice: bool = False
    capability: str | None = None
    cpu_cores: float = 1.0
    threads: int = 1
    emulated: str | None = None

    @property
    def label(self) -> str:
        """One phrase for captions, e.g. "NVIDIA A100 slice, 14 SMs, 4.8 GiB"."""
        if self.backend == "cpu":
            return f"{self.name}, {self.cpu_cores:g} CPU cores (not a GPU)"
        suffix = " slice" if self.is_slice else ""
        emulation = f", emulated ({self.emulated})" if self.emulated else ""
        return f"{self.name}{suffix}, {self.sms} SMs, {self.memory_mib / 1024:.1f} GiB{emulation}"


@dataclass(frozen=True)
class Lease:
    """What the pool says this server holds; empty outside miglab."""

    lease: str | None = None
    shape: str | None = None
    course: str | None = None
    slices: tuple[str, ...] = ()
    simulated: bool = False
    api: str | None = None

    @property
    def real_slices(self) -> tuple[str, ...]:
        """The UUIDs CUDA must be able to open; none when the slices are simulated."""
        return () if self.simulated else self.slices


@dataclass(frozen=True)
class Borrowed:
    """The slices that a measurement borrowed, the runner that it ran in, and the wait for them."""

    shape: str
    slices: tuple[str, ...]
    lease: str
    runner: str
    waited_s: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"borrowed {self.shape} ({', '.join(self.slices)}) in runner {self.runner}"


@dataclass(frozen=True)
class CpuBudget:
    """Cores this container may use: the smaller of its cgroup quota and its affinity mask."""

    cores: float
    affinity: int
    quota: float | None = None


@dataclass(frozen=True)
class Place:
    """Where this notebook measures: the devices, and beside them what the lease promised.

    On a server that borrows, `lends` are the shapes that its course lends, the usual one first;
    the devices are those of a slice of that shape, which was `borrowed` to look at them.
    """

    tier: Tier
    devices: tuple[Device, ...]
    link: str
    cpu: CpuBudget
    lease: Lease
    versions: Mapping[str, str] = field(default_factory=dict)
    lends: tuple[str, ...] = ()
    borrowed: Borrowed | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, or a slice of one."""
        return self.devices[0].backend == "cuda"

    @property
    def is_several(self) -> bool:
        """Whether two ranks have a device each."""
        return self.tier in (Tier.SEVERAL_GPUS, Tier.SEVERAL_SLICES)

    @property
    def slices(self) -> int:
        """How many slices several copies or ranks can have: those held, or lent together."""
        if not self.lends:
            return len(self.lease.real_slices)
        lent = (count for count in range(2, 8) if f"{count}x{self.lends[0]}" in self.lends)
        return max(lent, default=1) if self.is_gpu else 0

    @property
    def emulated(self) -> bool:
        """Whether this is a make-believe slice on a bigger GPU."""
        return any(device.emulated for device in self.devices)


def median_interval(samples: Sequence[float]) -> tuple[float | None, float | None]:
    """Where the median of such samples lies in 95 of 100 cases: two of their order statistics."""
    n = len(samples)
    first = math.floor(n / 2 - NORMAL_95 * math.sqrt(n) / 2)
    if first < 1:
        return None, None
    ordered = sorted(samples)
    return ordered[first - 1], ordered[n - first]


@dataclass(frozen=True)
class Measurement:
    """One timed function: every sample, what was discarded, and under which circumstances.

    `samples_s` are seconds per call; with several ranks each is the slowest rank's. `launch_s` is
    the host's time to queue the call. `sensors` are the GPU's clock,
    power and temperature, which older recordings hold. `side_by_side` are
    the seconds that the same piece of work took one rank alone and all ranks together, in the same
    rounds, and the share of a core that the first had meanwhile; empty where each rank has a device
    of its own. `stopped` says in words why a run ended early, and is None for a complete one.
    `borrowed` names the slices if they were held for this measurement alone.
    """

    name: str
    samples_s: tuple[float, ...]
    tier: Tier
    devices: tuple[Device, ...]
    clock: str
    cold: bool
    inner: int = 1
    ranks: int = 1
    link: str = "none"
    dtype: str | None = None
    warmup_s: tuple[float, ...] = ()
    launch_s: tuple[float, ...] = ()
    flops: float | None = None
    moved_bytes: float | None = None
    peak_mib: float | None = None
    cpu_per_copy: float | None = None
    sensors: Mapping[str, Any] = field(default_factory=dict)
    side_by_side: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    method: str = METHOD_VERSION
    date: str = ""
    stopped: str | None = None
    borrowed: Borrowed | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s) if self.samples_s else float("nan")

    @property
    def iqr_s(self) -> float:
        """Distance of the quartiles: the spread of the middle half of the samples."""
        if len(self.samples_s) < 2:
            return float("nan")
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return high - low

    @property
    def tflops(self) -> float | None:
        """Floating-point operations per second, in 10^12, from a count of the work."""
        return None if self.flops is None else self.flops / self.median_s / 1e12

    @property
    def gbytes_per_s(self) -> float | None:
        """Bytes per second, in 10^9, from the algorithm's minimum; a model, not a counter."""
        return None if self.moved_bytes is None else self.moved_bytes / self.median_s / 1e9

    @property
    def is_cpu_bound(self) -> bool:
        """Whether copies on a GPU used up the container's CPU: no GPU result then.

        Of ranks it cannot be told: whoever waits for the others keeps a core busy as well.
        """
        if self.cpu_per_copy is None or self.tier is Tier.CPU or "copies" not in self.setting:
            return False
        return self.cpu_per_copy * self.ranks >= 0.9 * self.devices[0].cpu_cores

    @property
    def parallel_gain(self) -> float | None:
        """How many times as much the ranks got done side by side as one alone, on CPU cores."""
        if not self.side_by_side:
            return None
        alone, together = (self.side_by_side[name] for name in ("alone_s", "together_s"))
        return float(self.ranks * statistics.median(alone) / statistics.median(together))

    @property
    def is_emulated(self) -> bool:
        """Whether it was measured on an emulated slice, which has the whole GPU's memory paths."""
        return any(device.emulated for device in self.devices)

    @property
    def is_launch_bound(self) -> bool:
        """Whether a GPU waited for Python: queueing the calls took nearly all of their time."""
        if not self.launch_s or self.clock != "cuda events" or not self.samples_s:
            return False
        return statistics.median(self.launch_s) >= LAUNCH_BOUND * self.median_s

    @property
    def caption(self) -> str:
        """Device, tier, n, dtype, samples and date: what every plotted figure carries."""
        device = self.devices[0].label if self.devices else "unknown device"
        parts = [
            device,
            f"tier {self.tier}" + (", emulated" if self.is_emulated else ""),
            f"{self.ranks} {'rank' if self.ranks == 1 else 'ranks'}",
        ]
        parts += [f"{len(self.samples_s)} samples"] if self.samples_s else []  # else it is counted
        parts += [self.dtype] if self.dtype else []
        parts += [f"link: {self.link}"] if self.ranks > 1 else []
        gain = self.parallel_gain
        parts += [] if gain is None else [f"side by side {gain:.1f} times one alone"]
        parts += ["CPU-bound"] if self.is_cpu_bound else []
        parts += ["launch-bound"] if self.is_launch_bound else []
        parts += [str(self.borrowed)] if self.borrowed else []
        return ", ".join([*parts, self.date[:10]])

    @property
    def bar(self) -> ShapeBar:
        """The bar that a notebook cell draws for it."""
        low, high = (None if end is None else end * 1e3 for end in median_interval(self.samples_s))
        waited = self.borrowed.waited_s if self.borrowed else None
        name = self.borrowed.shape if self.borrowed else self.name
        samples = tuple(sample * 1e3 for sample in self.samples_s)
        return ShapeBar(name, self.median_s * 1e3, low, high, self.caption, samples, waited)

    def _repr_html_(self) -> str | None:
        return shown.bars_html([self.bar]) if self.samples_s else None

    def __str__(self) -> str:
        ended = f"; stopped: {self.stopped}" if self.stopped else ""
        if not self.samples_s:
            peak = "" if self.peak_mib is None else f"{self.peak_mib:.4g} MiB at its peak, "
            return f"{self.name}: {peak}on {self.caption}{ended}"
        timing = f"{self.median_s * 1e3:.4g} ms (IQR {self.iqr_s * 1e3:.2g} ms)"
        return f"{self.name}: {timing} on {self.caption}{ended}"


@dataclass(frozen=True)
class InterimLook:
    """One of at most three looks at a comparison: the interval seen after so many rounds."""

    rounds: int
    ratio: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Two variants measured in turns while both were alive; `ratio` is a's time over b's."""

    a: Measurement
    b: Measurement
    band: tuple[float, float]
    looks: tuple[InterimLook, ...]
    reason: str

    @property
    def verdict(self) -> Verdict:
        return self.looks[-1].verdict if self.looks else Verdict.UNDECIDED

    @property
    def ratio(self) -> float:
        return self.looks[-1].ratio if self.looks else self.a.median_s / self.b.median_s

    def __str__(self) -> str:
        bounds = (
            f"[{self.looks[-1].low:.3f}, {self.looks[-1].high:.3f}]"
            if self.looks
            else "too few rounds"
        )
        ratio = f"{self.a.name} / {self.b.name}: {self.ratio:.3f} {bounds}"
        return f"{ratio}: {self.verdict}, {self.reason}"


@dataclass(frozen=True)
class RankResults:
    """What each rank returned and printed, in order of rank."""

    values: tuple[Any, ...]
    devices: tuple[Device, ...]
    tier: Tier
    link: str
    backend: str
    printed: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    borrowed: Borrowed | None = None


class ByShape(dict[str, Any]):
    """What was measured on each shape, in the order asked for."""

    def _repr_html_(self) -> str | None:
        records = [record for record in self.values() if isinstance(record, Measurement)]
        bars = [record.bar for record in records if record.samples_s]
        return shown.bars_html(bars) if len(bars) == len(self) else None


def circumstances(result: Any) -> dict[str, Any]:
    """The tier, devices, versions and borrowed slices of a result, as fields of a `Measurement`."""
    return {name: getattr(result, name) for name in ("tier", "devices", "versions", "borrowed")}


def counted_record(
    name: str, result: Any, setting: Mapping[str, Any], **fields: Any
) -> Measurement:
    """Make the record of a count, which has no timed samples.

    Args:
        name: what was counted.
        result: anything that has circumstances.
        setting: the facts.
        fields: what differs from the usual record of a count.
    """
    usual: dict[str, Any] = {"samples_s": (), "clock": "none", "cold": False, "date": now_text()}
    return Measurement(name=name, setting=setting, **usual | circumstances(result) | fields)


def now_text() -> str:
    """The time as evidence stores it: UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def to_data(record: Any) -> dict[str, Any]:
    """A record as plain JSON data; the way back is `from_data`."""
    data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(record)))
    return data


def from_data(kind: Any, data: Any) -> Any:
    """Rebuild a record of type `kind` from JSON data.

    Raises:
        ValueError: the data has a field the record does not know, lacks one, or has one of the
            wrong type.
    """
    origin = typing.get_origin(kind)
    if kind is Any or origin in (Mapping, dict):
        return data
    if origin in (typing.Union, types.UnionType):  # with None
        return None if data is None else from_data(typing.get_args(kind)[0], data)
    if origin is tuple:
        return _from_list(kind, data)
    if dataclasses.is_dataclass(kind):
        return _from_fields(kind, data)
    return _from_scalar(kind, data)


def _from_list(kind: Any, data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"expected a list, found {data!r}")
    parts = typing.get_args(kind)
    kinds = [parts[0]] * len(data) if parts[-1] is Ellipsis else list(parts)
    return tuple(from_data(part, value) for part, value in zip(kinds, data, strict=True))


def _from_fields(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"expected the fields of {kind.__name__}, found {data!r}")
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {', '.join(unknown)}")
    try:
        return kind(**{name: from_data(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__} is incomplete: {error}") from error


def _from_scalar(kind: Any, data: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind is not bool and isinstance(data, bool)):
        raise ValueError(f"expected {kind.__name__}, found {data!r}")
    return data
