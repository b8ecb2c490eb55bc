"""Where this notebook measures, found out in a child; and which rank gets which device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.machine import device
from labkit.records import Device, Place, Tier, from_data
from labkit.run import borrowed
from labkit.run.child import run_blocking
from labkit.run.jobs import TIMEOUT_S, Readings, make_job, run_job, workers

_PLACE: dict[str, Place] = {}


async def _find_place() -> Place:
    """Find out what this notebook measures on, in a child that is gone afterwards.

    A server that holds no slice borrows its usual shape for it, as every measurement does.

    Raises:
        NoRealSlice: the lease names a real slice and torch sees none.
        NotBorrowed: the slice or its runner did not come, or went.
    """
    lease, budget = device.read_lease(os.environ), device.cpu_budget()
    shape, lends = borrowed.shape_to_borrow(None, os.environ), borrowed.lent_shapes(os.environ)
    devices: list[Device] = []
    for choice in lease.real_slices or (None,):
        readings = await _describe_visible(
            {"CUDA_VISIBLE_DEVICES": choice} if choice else {}, shape
        )
        (child_device,), visible = readings.devices, readings.ranks[0].facts["devices"]
        # a slice or a CPU is alone; otherwise every visible GPU counts
        is_alone = child_device.is_slice or not visible
        devices += [child_device] if is_alone else [from_data(Device, data) for data in visible]
    tier, versions = device.tier_of(devices), readings.ranks[0].versions
    link, borrowed_slices = device.LINKS[tier], readings.borrowed
    place = Place(tier, tuple(devices), link, budget, lease, versions, lends, borrowed_slices)
    _PLACE["here"] = place
    return place


async def _describe_visible(added: Mapping[str, str], shape: str | None = None) -> Readings:
    """Ask one child, with additions to its environment or on a slice of a shape, what it sees."""
    readings = Readings(1)
    await run_job(workers(make_job("around", [], {}), [added], TIMEOUT_S, shape), readings)
    return readings


async def _device_choices(count: int) -> tuple[tuple[str, ...], str]:
    """The devices that `count` processes may use, and the backend through which they talk.

    torch is asked only where no lease names devices. NCCL is for whole GPUs: before 2.30 it refuses
    slices.
    """
    slices = device.read_lease(os.environ).real_slices
    if slices or count == 1:
        return slices or one_of_several_gpus(os.environ), "gloo"
    place = _PLACE.get("here") or await _find_place()
    return _visible(place, os.environ), "nccl" if place.tier is Tier.SEVERAL_GPUS else "gloo"


def one_of_several_gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The first of several whole GPUs, for a process that needs one; empty where there are fewer.

    Each GPU that a process sees is opened when CUDA starts, which takes its time.
    """
    place = _PLACE.get("here")
    if place is None or place.lease.real_slices or _count_gpus(place) < 2:
        return ()
    return _visible(place, environ)[:1]


def _visible(place: Place, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values that CUDA_VISIBLE_DEVICES may have for one process; empty without a GPU."""
    listed = [part.strip() for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return tuple(filter(None, listed)) or tuple(map(str, range(_count_gpus(place))))


def _count_gpus(place: Place) -> int:
    return sum(gpu.backend == "cuda" for gpu in place.devices)


@public
def count_visible(choices: Sequence[str]) -> int:
    """How many devices a process finds that was given several names in CUDA_VISIBLE_DEVICES.

    Raises:
        WrongArgument: there is no name, or a name is no text.
    """
    if not choices or not all(isinstance(choice, str) for choice in choices):
        raise WrongArgument(f"count_visible takes a list of devices' names, not {choices!r:.60}.")
    added = {"CUDA_VISIBLE_DEVICES": ",".join(choices)}
    return len(run_blocking(lambda: _describe_visible(added)).ranks[0].facts["devices"])


async def assign_devices(
    count: int, *, share_device: bool = False, on_cpu: bool = False
) -> tuple[list[dict[str, str]], str]:
    """Assign a device and threads to each rank.

    Args:
        count: how many ranks.
        share_device: with fewer devices than ranks, these share them instead of going to the CPU.
        on_cpu: no rank gets a device.

    Returns:
        For each rank the additions to its environment, and the backend.
    """
    choices, backend = ((), "gloo") if on_cpu else await _device_choices(count)
    backend = backend if 1 < count <= len(choices) else "gloo"
    if share_device and choices:
        choices = tuple(choices[rank % len(choices)] for rank in range(count))
    budget = device.cpu_budget()
    added = [
        device.child_environment(choices, rank, count, budget, on_cpu=on_cpu)
        for rank in range(count)
    ]
    return added, backend


@public
def where() -> Place:
    """Where this notebook measures: tier, devices, link, CPU budget, and the lease."""
    return run_blocking(_find_place)
