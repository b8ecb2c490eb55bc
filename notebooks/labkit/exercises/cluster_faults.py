"""What can be wrong with one worker of the cluster: each does one thing otherwise, and for real.

Nothing here raises an error, and no fault writes a figure: whatever a measurement shows follows
from what the worker does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.exercises.cluster import (
    OTHER_SEED,
    SHAPES,
    WORKERS,
    Checkpoint,
    ClockedRing,
    ClusterWorker,
    samples_at,
)

THROTTLE = 4  # times the work, as a card at a quarter of its clock
LINK_DELAY_S = 1e-3  # of each message
LOST_LAYER = 2  # whose bucket is dropped


class ThrottledCard(ClusterWorker):
    """It computes as if its card ran at a quarter of the clock."""

    def gradients(self, samples: Any, step: int) -> tuple[float, list[Any]]:
        for _ in range(THROTTLE - 1):
            super().gradients(samples, step)
        return super().gradients(samples, step)


class SlowLink(ClusterWorker):
    """Whatever its place sends is held up, to whomever."""

    is_of_the_place = True

    def __init__(self, place: int, ring: ClockedRing) -> None:
        super().__init__(place, ring)
        ring.delay_s = LINK_DELAY_S


class DuplicatedShard(ClusterWorker):
    """It reads the shard of the next place, so that nobody reads its own."""

    def samples(self, step: int) -> Any:
        return samples_at((self.place + 1) % WORKERS, step)


class DroppedBucket(ClusterWorker):
    """The mean of one bucket never arrives, so that it goes on with its own gradient."""

    def exchanged(self, layer: int, gradient: Any) -> Any:
        mean = super().exchanged(layer, gradient)
        return gradient if layer == LOST_LAYER else mean


class ScaledGradients(ClusterWorker):
    """It adds its micro-batches' gradients up, and does not divide by their number."""

    def averaged(self, sums: list[Any]) -> list[Any]:
        return sums


class AnotherDropoutSeed(ClusterWorker):
    """It switches other units off than all other workers."""

    seed = OTHER_SEED


class Bf16Accumulator(ClusterWorker):
    """It adds its micro-batches' gradients up in bf16."""

    def accumulators(self) -> list[Any]:
        import torch

        return [torch.zeros(shape, dtype=torch.bfloat16) for shape in SHAPES]


class StaleOptimizerState(ClusterWorker):
    """It went on with the momentum of an older checkpoint."""

    def restore(self, last: Checkpoint, older: Checkpoint) -> None:
        super().restore(last, older)
        self.momenta = older.momenta


FAULTS: Mapping[str, type[ClusterWorker]] = {
    "throttled card": ThrottledCard,
    "slow link": SlowLink,
    "duplicated shard": DuplicatedShard,
    "dropped bucket": DroppedBucket,
    "scaled gradients": ScaledGradients,
    "another dropout seed": AnotherDropoutSeed,
    "bf16 accumulator": Bf16Accumulator,
    "stale optimizer state": StaleOptimizerState,
}
