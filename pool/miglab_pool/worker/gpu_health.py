"""How each GPU is, as it said last: temperature, power, memory errors, Xid faults.

Reads nothing itself: reconcile asks every GPU anyhow, and keeps here what it said.  What is new of
faults and memory errors goes into the ledger as notes on the GPU, so that a history remains when
the driver, or the host, was started anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from miglab_pool.gpu.readings import GpuInfo, Health, Versions
from miglab_pool.ledger.rows import GpuRow
from miglab_pool.state.store import Wellness
from miglab_pool.worker.worker import Worker

BY = "driver"
"""How the ledger names who noticed."""


def keep(worker: Worker, gpu: str, health: Health) -> Health:
    """Remember what a GPU said; news of faults goes into the ledger.  Returns what it was given."""
    with worker.store.lock:
        before = worker.store.wellness.get(gpu)
        worker.store.wellness[gpu] = Wellness(worker.store.now(), health)
        row = worker.store.state.gpus.get(gpu)
    if row is not None:
        _record(worker, row, news(before.health if before else None, health))
    return health


def _record(worker: Worker, row: GpuRow, found: Sequence[str]) -> None:
    if found:
        with worker.store.write() as tx:
            for line in found:
                tx.record(row, BY, line)


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened to a GPU, as the ledger has it.

    It began or ceased to answer, there was a fault, or a person did something.

    Attributes:
        gpu: its UUID.
        state: how it was afterwards.
        by: who noticed, or did it.
        what: in words.
    """

    at: float
    gpu: str
    state: str
    by: str
    what: str


@dataclass(frozen=True, slots=True)
class Condition:
    """How the GPUs are and were.

    Attributes:
        versions: of the driver.
        infos: what each GPU is, by its UUID; none for one that never answered.
        said: what each said last.
        history: what happened to them, the newest first.
    """

    versions: Versions
    infos: Mapping[str, GpuInfo]
    said: Mapping[str, Wellness]
    history: tuple[Happening, ...]


def condition(worker: Worker, most: int = 100) -> Condition:
    """How the GPUs are and were; ``most`` happenings."""
    rows = worker.store.ledger.history("gpu", limit=most)
    history = (
        Happening(row["at"], row["target"], row["to_state"], row["by"], row["reason"])
        for row in rows
    )
    return Condition(
        worker.store.versions, dict(worker.store.infos), dict(worker.store.wellness), tuple(history)
    )


def news(before: Health | None, now: Health) -> list[str]:
    """What is new of faults and memory errors since the last look, in words.  Pure.

    Args:
        before: what was said last; None at the first look, when everything is new.
        now: what is said now.
    """
    told = before.xids if before else None
    found = [f"Xid {xid}" for xid in appended(told or (), now.xids or ())]
    errors = before.ecc_errors if before else None
    if now.ecc_errors is not None and now.ecc_errors > (errors or 0):
        found.append(f"{now.ecc_errors} uncorrected memory errors since its last reset")
    return found


def appended(before: Sequence[int], now: Sequence[int]) -> list[int]:
    """What was added to a list that also forgets its oldest entries.  Pure."""
    for forgotten in range(len(before) + 1):
        rest = list(before[forgotten:])
        if rest == list(now[: len(rest)]):
            return list(now[len(rest) :])
    return list(now)
