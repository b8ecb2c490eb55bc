"""What the children of one job have said so far, and the records that follow from it at any moment.

Because records can be made at any moment, a run that is stopped, killed or reclaimed keeps its
samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.machine import device as device_room
from labkit.records import (
    Borrowed,
    Device,
    Measurement,
    Tier,
    circumstances,
    from_data,
    now_text,
)


@dataclass
class RankReadings:
    """One rank's messages, sorted."""

    device: Device | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    warm: Mapping[str, list[float]] = field(default_factory=dict)
    turns: dict[str, dict[int, tuple[float, float]]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)


class Readings:
    """The messages of all ranks; `measurement` may be asked for at any time."""

    def __init__(self, ranks: int) -> None:
        self.ranks = [RankReadings() for _ in range(ranks)]
        self.over_budget_s: float | None = None
        self.began = now_text()
        self.borrowed: Borrowed | None = None

    def take(self, rank: int, message: Mapping[str, Any]) -> None:
        """Sort one message in; unknown kinds are kept as facts of the rank."""
        mine, kind = self.ranks[rank], message["type"]
        if kind == "hello":
            mine.device, mine.versions = from_data(Device, message["device"]), message["versions"]
        elif kind == "turns":
            for number, name, seconds, launch_s in message["turns"]:
                mine.turns.setdefault(name, {})[number] = (seconds, launch_s)
        elif kind == "print":
            mine.printed.append(message["text"])
        elif kind == "borrowed":
            self.borrowed = message["borrowed"]
        else:
            known = {name: value for name, value in message.items() if name != "type"}
            mine.warm = known.pop("samples", mine.warm)
            self.over_budget_s = known.get("budget_s", self.over_budget_s)
            mine.facts |= known

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the ranks that have said hello."""
        return tuple(rank.device for rank in self.ranks if rank.device is not None)

    @property
    def versions(self) -> Mapping[str, str]:
        return dict(self.ranks[0].versions)

    @property
    def tier(self) -> Tier:
        return device_room.tier_of(self.devices) if self.devices else Tier.CPU

    @property
    def link(self) -> str:
        return device_room.link_of(self.tier, len(self.ranks))

    def rounds(self, name: str) -> list[int]:
        """The rounds of a function that every rank has finished."""
        done = [set(rank.turns.get(name, {})) for rank in self.ranks]
        return sorted(set.intersection(*done))

    def samples(self, name: str) -> tuple[float, ...]:
        """Seconds per call; with several ranks, the slowest rank's."""
        return tuple(
            max(rank.turns[name][number][0] for rank in self.ranks) for number in self.rounds(name)
        )

    def count(self) -> int:
        """How many samples there are in all."""
        return sum(len(self.samples(name)) for name in self.ranks[0].turns)

    def measurement(self, name: str, stopped: str | None = None, **known: Any) -> Measurement:
        """The record of one function as it stands now.

        Args:
            name: the function.
            stopped: why the run ended early, in words.
            known: what the caller knows beside the readings (dtype, flops, moved_bytes, setting).
        """
        first = self.ranks[0]
        if stopped is None and self.over_budget_s is not None:
            stopped = f"the time budget of {self.over_budget_s:g} s was spent"
        return Measurement(
            name=name,
            samples_s=self.samples(name),
            clock=first.facts.get("clock", "unknown"),
            cold=bool(first.facts.get("cold", False)),
            inner=first.facts.get("inner", 1),
            ranks=len(self.ranks),
            link=self.link,
            warmup_s=tuple(first.warm.get(name, ())),
            launch_s=tuple(first.turns[name][number][1] for number in self.rounds(name)),
            peak_mib=first.facts.get("peak_mib"),
            cpu_per_copy=first.facts.get("cpu_per_copy"),
            side_by_side=dict(first.facts.get("side_by_side", {})),
            date=self.began,
            stopped=stopped,
            **circumstances(self),
            **known,
        )
