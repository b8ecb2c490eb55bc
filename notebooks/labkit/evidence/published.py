"""The published figures: what the seed articles print, on what, and with which known errors.

`published.json` holds one record per figure. A figure that is known to be wrong is kept, marked,
and never drawn without its mark: finding out why is an exercise.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.records import from_data

SCHEMA = 1
SHORT = {
    "cern5": "CERN part 5",
    "cern6": "CERN part 6",
    "dettmers": "Dettmers",
    "habr": "Habr",
    "nvidia": "NVIDIA",
}


class Overlay(StrEnum):
    """How a published figure may be drawn over a measured one."""

    RATIO = "ratio"
    PER_SM = "per-sm"
    ABSOLUTE = "absolute"


@dataclass(frozen=True)
class Source:
    """Where the figure is printed: seed text, file, line (from 1) and section."""

    seed: str
    file: str
    line: int
    section: str


@dataclass(frozen=True)
class Publication:
    """An article that figures are taken from: who wrote it, its title and where it is."""

    seed: str
    author: str
    title: str
    link: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.author}: {self.title}, {self.link}{self.where}"


@dataclass(frozen=True)
class KnownError:
    """An error or trap in a seed: what it says, what is right, and the exercise made of it."""

    seed: str
    says: str
    correct: str
    exercise: str


@dataclass(frozen=True)
class Figure:
    """One published figure; `value` is None where the source prints a failure (out of memory).

    `as_printed` is the source's own spelling, None for a figure worked out from printed ones.
    `left_out_because` says why no experiment and no notebook shows it.
    """

    id: str
    what: str
    value: float | None
    unit: str
    source: Source
    overlay: Overlay
    tool: str | None = None
    size: str | None = None
    dtype: str | None = None
    device: str | None = None
    sms: int | None = None
    as_printed: str | None = None
    error: str | None = None
    left_out_because: str = ""

    @property
    def per_sm(self) -> float | None:
        """The value divided by the SMs it was measured on."""
        return None if self.value is None or not self.sms else self.value / self.sms

    def height(self, base: Figure | None = None) -> float | None:
        """How high it may be drawn over a measurement; None where the source prints no value.

        Args:
            base: what ratios are taken over; needed for figures that may only be drawn as ratios.

        Raises:
            ValueError: a ratio was asked for without a base, or a base has no value.
        """
        if self.overlay is Overlay.PER_SM:
            return self.per_sm
        if self.value is None or self.overlay is Overlay.ABSOLUTE or self.unit in ("ratio", "%"):
            return self.value
        if base is not None and base.value:
            return self.value / base.value
        raise ValueError(f"{self.id} may only be drawn as a ratio; name the figure it is over")

    @property
    def label(self) -> str:
        """What every overlay must say: tool, size, type, device and source."""
        said_by = SHORT.get(self.id.split(".")[0], self.source.file)
        parts = [self.tool, self.size, self.dtype, self.device, said_by]
        mark = [f"known error {self.error}"] if self.error else []
        return ", ".join([part for part in parts if part] + mark)


@functools.cache
def _data() -> Mapping[str, Any]:
    text = resources.files("labkit").joinpath("published.json").read_text(encoding="utf-8")
    data: Mapping[str, Any] = json.loads(text)
    if data["schema"] != SCHEMA:
        raise ValueError(f"published.json has schema {data['schema']}, this labkit reads {SCHEMA}")
    return data


@functools.cache
def figures() -> Mapping[str, Figure]:
    """Every published figure by its id."""
    return {record["id"]: from_data(Figure, record) for record in _data()["figures"]}


@functools.cache
def known_errors() -> Mapping[str, KnownError]:
    """The seeds' errors, by their numbers."""
    return {key: from_data(KnownError, record) for key, record in _data()["errors"].items()}


@public
def corrections(*keys: str) -> str:
    """What the seeds get wrong, each error with its correction, as text."""
    errors = [known_errors()[key] for key in keys]
    return "\n\n".join(f"Published: {error.says}\n   But: {error.correct}" for error in errors)


@functools.cache
def publications() -> Mapping[str, tuple[Publication, ...]]:
    """The articles by the first word of their figures' ids."""
    articles_by_seed = _data()["publications"]
    return {
        name: tuple(from_data(Publication, article) for article in articles)
        for name, articles in articles_by_seed.items()
    }


@public
def figure(name: str) -> Figure:
    """Look up a published figure by its id.

    Raises:
        WrongArgument: there is none of this name; it names those with the same first word.
    """
    if name not in figures():
        near = [
            figure_id for figure_id in figures() if figure_id.split(".")[0] == name.split(".")[0]
        ]
        hint = f": {', '.join(near)}" if near else "; `labkit.published.figures()` has all"
        raise WrongArgument(f"There is no published figure `{name}`{hint}.")
    return figures()[name]
