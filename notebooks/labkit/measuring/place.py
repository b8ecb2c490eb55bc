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


async def _where_async() -> Place:
    """Find out what this notebook measures on, in a child that is gone afterwards.

    A server that holds no slice borrows its usual shape for it, as every measurement does.

    Raises:
        NoRealSlice: the lease names a real slice and torch sees none.
        NotBorrowed: the slice or its runner did not come, or went.
    """
    held, budget = device.read_lease(os.environ), device.cpu_budget()
    shape, lends = borrowed.chosen(None, os.environ), borrowed.lent(os.environ)
    found: list[Device] = []
    for choice in held.real_slices or (None,):
        readings = await _look_around({"CUDA_VISIBLE_DEVICES": choice} if choice else {}, shape)
        (own,), seen = readings.devices, readings.ranks[0].facts["devices"]
        is_alone = own.is_slice or not seen  # on a slice or a CPU; else every GPU that is there
        found += [own] if is_alone else [from_data(Device, one) for one in seen]
    tier, versions = device.tier_of(found), readings.ranks[0].versions
    link, devices = device.LINKS[tier], tuple(found)
    here = Place(tier, devices, link, budget, held, versions, lends, readings.borrowed)
    _PLACE["here"] = here
    return here


async def _look_around(added: Mapping[str, str], shape: str | None = None) -> Readings:
    """What one child sees that has this in its environment, or a slice of a shape."""
    readings = Readings(1)
    await run_job(workers(make_job("around", [], {}), [added], TIMEOUT_S, shape), readings)
    return readings


async def _choices(count: int) -> tuple[tuple[str, ...], str]:
    """The devices `count` processes may be spread over, and the backend between these.

    torch is asked only where no lease says. NCCL is for whole GPUs: before 2.30 it refuses slices.
    """
    held = device.read_lease(os.environ).real_slices
    if held or count == 1:
        return held or only_one(os.environ), "gloo"
    here = _PLACE.get("here") or await _where_async()
    return _visible(here, os.environ), "nccl" if here.tier is Tier.SEVERAL_GPUS else "gloo"


def only_one(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The device of a process that needs one, where several whole GPUs are known to be held.

    Each GPU that a process sees is opened when CUDA starts, which takes its time.
    """
    here = _PLACE.get("here")
    if here is None or here.lease.real_slices or _gpus(here) < 2:
        return ()
    return _visible(here, environ)[:1]


def _visible(here: Place, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES may be, one choice a process; empty without a GPU."""
    listed = [part.strip() for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return tuple(filter(None, listed)) or tuple(map(str, range(_gpus(here))))


def _gpus(place: Place) -> int:
    return sum(card.backend == "cuda" for card in place.devices)


@public
def count_visible(choices: Sequence[str]) -> int:
    """How many devices a process finds that was given several names in CUDA_VISIBLE_DEVICES.

    Raises:
        WrongArgument: there is no name, or one is no text.
    """
    if not choices or not all(isinstance(one, str) for one in choices):
        raise WrongArgument(f"count_visible takes a list of devices' names, not {choices!r:.60}.")
    added = {"CUDA_VISIBLE_DEVICES": ",".join(choices)}
    return len(run_blocking(lambda: _look_around(added)).ranks[0].facts["devices"])


async def spread(count: int, *, share_device: bool = False) -> tuple[list[dict[str, str]], str]:
    """Per rank, what its environment gets; and the backend that suits.

    Args:
        count: how many ranks.
        share_device: with fewer devices than ranks, these share them instead of going to the CPU.
    """
    choices, backend = await _choices(count)
    backend = backend if 1 < count <= len(choices) else "gloo"
    if share_device and choices:
        choices = tuple(choices[rank % len(choices)] for rank in range(count))
    budget = device.cpu_budget()
    added = [device.child_environment(choices, rank, count, budget) for rank in range(count)]
    return added, backend


@public
def where() -> Place:
    """Where this notebook measures: tier, devices, link, CPU budget, and the lease."""
    return run_blocking(_where_async)
