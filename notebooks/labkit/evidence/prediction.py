"""A prediction, made before measuring: a number with its unit, or a trend, and because."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from labkit.errors import NotAPrediction
from labkit.records import now_text

NUMBER = re.compile(r"[-+]?(\d[\d  ]*([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
BECAUSE_MIN = 3


class Trend(StrEnum):
    """What a curve does from left to right."""

    RISES = "rises"
    FLAT = "flat"
    FALLS = "falls"

    @property
    def verb(self) -> str:
        """What "it" does."""
        return "stays flat" if self is Trend.FLAT else self.value


@dataclass(frozen=True)
class Prediction:
    """What the student expects; `number` or `trend`, never both."""

    because: str
    at: str
    number: float | None = None
    unit: str | None = None
    trend: Trend | None = None

    def __str__(self) -> str:
        if self.trend is not None:
            return f"it {self.trend.verb}, because {self.because}"
        return f"{with_unit(self.number or 0.0, self.unit)}, because {self.because}"


def with_unit(value: float, unit: str | None) -> str:
    """A number as it is said; one without a unit stands alone."""
    return f"{value:g} {unit or ''}".rstrip()


def parse_number(text: str, unit: str) -> float:
    """Read a number as people type it: "1,5", "2 x", "1e3 GB/s".

    Args:
        text: what was typed.
        unit: what is expected, empty where there is none; it is accepted after the number.

    Raises:
        NotAPrediction: there is no number, another unit, or it is below zero or not finite.
    """
    typed, asked = text.strip(), f" in {unit}" if unit else ""
    if not typed:
        raise NotAPrediction(f"Type a number{asked} first, for example 1.5.")
    found = NUMBER.match(typed)
    if found is None:
        raise NotAPrediction(f"“{typed[:40]}” is not a number. Type one{asked}, for example 1.5.")
    rest = typed[found.end() :].strip()
    if rest and rest.casefold() != unit.casefold() and rest not in ("x", "×"):
        raise NotAPrediction(f"“{rest[:40]}” is not the unit asked for. Type a number{asked}.")
    digits = found.group().replace(" ", "").replace(" ", "").replace(",", ".")
    value = float(digits)
    if not math.isfinite(value):
        raise NotAPrediction(f"“{typed[:40]}” is not a finite number. Type one{asked}.")
    if value < 0:
        raise NotAPrediction(f"“{typed[:40]}” is below zero, and what is measured here cannot be.")
    return value


def parse_trend(text: str) -> Trend:
    """Read rises, flat or falls.

    Raises:
        NotAPrediction: it is none of them.
    """
    typed = text.strip().casefold()
    if not typed:
        raise NotAPrediction("Choose first what it does: rises, flat or falls.")
    try:
        return Trend(typed)
    except ValueError as error:
        raise NotAPrediction(f"“{text[:40]}” is none of rises, flat, falls.") from error


def predict(said: str, because: str, unit: str | None) -> Prediction:
    """Make a prediction, stamped with the time.

    Args:
        said: the number, or the trend where `unit` is None.
        because: the reason, a few words at least.
        unit: of the number; None asks for a trend.

    Raises:
        NotAPrediction: the number, the trend or the reason cannot be used.
    """
    trend = parse_trend(said) if unit is None else None
    number = None if unit is None else parse_number(said, unit)
    reason = because.strip()
    if len(reason) < BECAUSE_MIN:
        raise NotAPrediction("Say in a few words why you expect that; a guess teaches little.")
    return Prediction(reason, now_text(), number=number, unit=unit, trend=trend)
