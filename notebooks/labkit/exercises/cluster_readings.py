"""Run the cluster once, and read from it what measurements show, worker by worker.

A reading is a table: by row, one value for each worker. Only what a worker could tell of itself, or
two of each other, is read: nothing here knows which worker has which fault.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.arguments import public
from labkit.exercises import cluster
from labkit.exercises.cluster import LAYERS, WORKERS, ClockedRing, ClusterWorker, StepNotes
from labkit.exercises.cluster_faults import FAULTS

Table = dict[str, list[Any]]
LOW_BITS = 0xFFFF  # of an fp32 number, which bf16 does not have
MOST_UNITS = 6  # that are listed
REPLAYED_STEP = 10_000  # of no training


@public
def run_cluster(
    fault: str = "", at: int = 0, seats: Sequence[int] = tuple(range(WORKERS))
) -> dict[str, Any]:
    """Train in the cluster and return what measurements show; each rank calls it.

    Args:
        fault: one of `FAULTS`, or none.
        at: the worker that has it; of a slow link the place.
        seats: the worker at each place.

    Returns:
        Readings by name, `pings` in ms by pair of places, and the bits per byte on held-out text:
        `bits` at the end, and `at restart`.
    """
    import torch

    torch.set_num_threads(1)
    ring = ClockedRing()
    worker = cluster.train_to_restart(
        ClusterWorker(ring.rank, ring), kind_at(fault, at, ring.rank, seats)
    )
    at_restart = cluster.held_out_bits(worker.parameters)
    notes = [cluster.take_step(worker, step) for step in range(cluster.RESTART, cluster.STEPS)]
    own_rows = {name: read(worker, notes) for name, read in READ.items()}
    own_rows["replay"] = replay(worker)
    everybody = ring.gathered((own_rows, _pings(ring), cluster.held_out_bits(worker.parameters)))
    by_worker = [everybody[list(seats).index(number)][0] for number in range(WORKERS)]
    readings = {name: _joined([rows[name] for rows in by_worker]) for name in own_rows}
    pings = {pair: ms for _, own_pings, _ in everybody for pair, ms in own_pings.items()}
    bits = statistics.mean(own_bits for *_, own_bits in everybody)
    return {"readings": readings, "pings": pings, "bits": bits, "at restart": at_restart}


def kind_at(fault: str, at: int, place: int, seats: Sequence[int]) -> type[ClusterWorker]:
    """The kind of the worker at a place."""
    kind = FAULTS.get(fault, ClusterWorker)
    is_here = place == at if kind.is_of_the_place else seats[place] == at
    return kind if is_here else ClusterWorker


def _joined(rows_of_workers: Sequence[Mapping[str, Any]]) -> Table:
    return {row: [rows[row] for rows in rows_of_workers] for row in rows_of_workers[0]}


def times(_: ClusterWorker, notes: Sequence[StepNotes]) -> dict[str, Any]:
    """What a step takes by the clock on the wall, and how long the worker itself computes."""
    return {
        "whole step, ms": 1e3 * statistics.median(note.step_s for note in notes),
        "own computing, ms": 1e3 * statistics.median(note.computing_s for note in notes),
    }


def waits(_: ClusterWorker, notes: Sequence[StepNotes]) -> dict[str, Any]:
    """What messages take: to hand one over, to wait for a step's first, for all of a step."""
    handing_s = statistics.median(seconds for note in notes for seconds in note.sending_s)
    first_s = statistics.median(note.waiting_s[0] for note in notes)
    all_s = statistics.median(sum(note.waiting_s) for note in notes)
    return {
        "handing a message over, ms": 1e3 * handing_s,
        "waiting for the first message, ms": 1e3 * first_s,
        "waiting for all messages, ms": 1e3 * all_s,
    }


def norms(_: ClusterWorker, notes: Sequence[StepNotes]) -> dict[str, Any]:
    """The last gradient's norm by layer, before and after the all-reduce."""
    last = notes[-1]
    sides = {"before": last.before, "after": last.after}
    return {
        f"{layer}, {side}": gradients[number].norm().item()
        for side, gradients in sides.items()
        for number, layer in enumerate(LAYERS)
    }


def checksums(worker: ClusterWorker, _: Sequence[StepNotes]) -> dict[str, Any]:
    """A checksum of the parameters after the last step, by layer."""
    return {
        layer: cluster.checksum(matrix)
        for layer, matrix in zip(LAYERS, worker.parameters, strict=True)
    }


def losses(_: ClusterWorker, notes: Sequence[StepNotes]) -> dict[str, Any]:
    """The loss of the worker's own samples, in the last three steps."""
    names = ("two steps before", "the step before", "last step")
    return {name: note.loss for name, note in zip(names, notes[-3:], strict=True)}


def samples(worker: ClusterWorker, notes: Sequence[StepNotes]) -> dict[str, Any]:
    """A checksum of the samples that it read last, and that of its place's own shard."""
    listed = cluster.samples_at(worker.place, cluster.STEPS - 1)
    return {
        "samples read": cluster.checksum(notes[-1].samples),
        "samples of its shard": cluster.checksum(listed),
    }


def numbers(_: ClusterWorker, notes: Sequence[StepNotes]) -> dict[str, Any]:
    """What the numbers of the gradient that it sent look like."""
    import torch

    first, message = notes[-1].before[1], torch.cat([g.flatten() for g in notes[-1].before])
    bits = message[message != 0].view(torch.int32)
    fits_bf16 = ((bits & LOW_BITS) == 0).float().mean().item()
    units_off = (first == 0).all(dim=0).nonzero().flatten().tolist()
    return {
        "units without a gradient": " ".join(map(str, [*units_off[:MOST_UNITS], "…"])),
        "numbers that bf16 can hold, %": round(100 * fits_bf16, 1),
    }


READ: Mapping[str, Callable[[ClusterWorker, Sequence[StepNotes]], dict[str, Any]]] = {
    read.__name__: read for read in (times, waits, norms, checksums, losses, samples, numbers)
}


def replay(worker: ClusterWorker) -> dict[str, Any]:
    """One step on the same samples for all: the loss, and how far the gradient is from the median.

    The distance is the norm of the difference over that of the median, by layer.
    """
    import torch

    loss, gradients = worker.gradients(cluster.samples_at(0, REPLAYED_STEP), REPLAYED_STEP)
    rows = {"loss": loss}
    for layer, gradient in zip(LAYERS, gradients, strict=True):
        everybody = [torch.empty_like(gradient) for _ in range(worker.ring.world)]
        torch.distributed.all_gather(everybody, gradient, group=worker.ring.group)
        middle = torch.stack(everybody).median(dim=0).values
        rows[f"{layer}, distance"] = ((gradient - middle).norm() / middle.norm()).item()
    return rows


def _pings(ring: ClockedRing) -> dict[str, float]:
    """A round trip in ms with each place after this one; every pair is tried once, in one order."""
    seconds = {}
    for low in range(ring.world):
        for high in range(low + 1, ring.world):
            if ring.rank in (low, high):
                seconds[low, high] = ring.round_trip_s(low + high - ring.rank)
    return {f"{low}-{high}": 1e3 * s for (low, high), s in seconds.items() if low == ring.rank}
