"""One small real model: a transformer that reads Python's own source code, byte by byte.

It runs in the child. The text is fixed (`labkit/text`, with its licence), so that a loss can be
compared between machines; it is split by module into what is trained on and what is held out.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any

from labkit.arguments import public
from labkit.errors import NotMeasured

WIDTH, LAYERS, LENGTH, BATCH = 64, 2, 64, 32
BYTES = 256
HELD_OUT = 64  # sequences of the held-out text that a loss is taken over


@functools.cache
def text_bytes(name: str) -> bytes:
    """The text that is trained on ("train") or not ("held_out")."""
    return resources.files("labkit").joinpath("text", f"{name}.txt").read_bytes()


@public
def text_digest() -> str:
    """SHA-256 of both texts, one after the other; it belongs into every record of a training."""
    return hashlib.sha256(text_bytes("train") + text_bytes("held_out")).hexdigest()


@public
def model(seed: int) -> tuple[Any, str]:
    """The transformer with causal attention; the same weights for a seed on every rank.

    Returns:
        A function of bytes, shape (sequences, length), to logits; and the device's name for torch.
    """
    import torch

    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Reader(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.byte = torch.nn.Embedding(BYTES, WIDTH)
            self.place = torch.nn.Embedding(LENGTH, WIDTH)
            layer = torch.nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
            self.out = torch.nn.Linear(WIDTH, BYTES)
            ahead = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
            self.register_buffer("ahead", ahead)

        def forward(self, read: Any) -> Any:
            places = torch.arange(read.shape[1], device=read.device)
            hidden = self.byte(read) + self.place(places)
            return self.out(self.layers(hidden, mask=self.ahead, is_causal=True))

    return Reader().to(device), device


def _sequences(name: str, starts: Any, device: str) -> tuple[Any, Any]:
    import torch

    data = torch.frombuffer(bytearray(text_bytes(name)), dtype=torch.uint8)
    rows = torch.stack([data[start : start + LENGTH + 1] for start in starts]).long().to(device)
    return rows[:, :-1], rows[:, 1:]


@public
def batch_of(seed: int, step: int, device: str) -> tuple[Any, Any]:
    """The inputs and targets of a step: the same whole batch on every rank."""
    import torch

    luck = torch.Generator().manual_seed(1_000_003 * seed + step)
    last_start = len(text_bytes("train")) - LENGTH - 1
    return _sequences(
        "train", torch.randint(0, last_start, (BATCH,), generator=luck).tolist(), device
    )


@public
def loss_of(reader: Any, read: Any, follows: Any) -> Any:
    """The mean cross entropy of the next byte, in nats."""
    import torch

    logits = reader(read).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), follows.flatten())


@public
def held_out_bits(reader: Any, device: str) -> float:
    """Bits per byte on modules that no training sees."""
    import torch

    last_start = len(text_bytes("held_out")) - LENGTH - 1
    starts = [last_start * index // HELD_OUT for index in range(HELD_OUT)]
    with torch.no_grad():
        return float(loss_of(reader, *_sequences("held_out", starts, device))) / math.log(2)


def facts_of_seeds(ends: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The facts of a record: bits per byte and seconds of training, for each seed."""
    bits, seconds = zip(*ends, strict=True)
    middle = sorted(bits)[len(bits) // 2]
    return {"bits": middle, "each": list(bits), "seconds": list(seconds), "text": text_digest()}


def seconds_to_loss(learned: Any, arm: str) -> float:
    """Seconds of training to the lowest loss that every run reaches: the median of the seeds.

    Args:
        learned: the panel of the trainings.
        arm: which of them.

    Raises:
        NotMeasured: they have not been measured, or not all of them.
    """
    evidence = learned.evidence
    if not evidence.ended or evidence.stopped:
        raise NotMeasured(f"Measure {evidence.experiment} first.")
    points_with_facts = [(point, point.records[0].setting) for point in evidence.points]
    last = max(point.x for point, _ in points_with_facts)
    level = max(
        bits for point, facts in points_with_facts if point.x == last for bits in facts["each"]
    )
    facts_of_arm = [facts for point, facts in points_with_facts if point.series == arm]
    times = [
        next(facts["seconds"][seed] for facts in facts_of_arm if facts["each"][seed] <= level)
        for seed in range(len(facts_of_arm[0]["each"]))
    ]
    return float(sorted(times)[len(times) // 2])


def seeds_apart(points: Sequence[Any]) -> None:
    """Print the range of the seeds' results at the end of a training."""
    for point in points:
        if point.x == max(p.x for p in points):
            bits_by_seed = point.records[0].setting["each"]
            ends = f"the seeds end between {min(bits_by_seed):.3f} and {max(bits_by_seed):.3f}"
            print(f"{point.series}: {point.value:.3f} bits per byte; {ends}")
