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


@dataclass(frozen=True)
class Prediction:
    """What the student expects; `number` or `trend`, never both."""

    because: str
    at: str
    number: float | None = None
    unit: str | None = None
    trend: Trend | None = None

    def __str__(self) -> str:
        said = with_unit(self.number, self.unit) if self.number is not None else str(self.trend)
        return f"{said}, because {self.because}"


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
    found = NUMBER.match(typed)
    if found is None:
        raise NotAPrediction(f"“{typed[:40]}” is not a number. Type one{asked}, for example 1.5")
    rest = typed[found.end() :].strip()
    if rest and rest.casefold() != unit.casefold() and rest not in ("x", "×"):
        raise NotAPrediction(f"“{rest[:40]}” is not the unit asked for. Type a number{asked}")
    digits = found.group().replace(" ", "").replace(" ", "").replace(",", ".")
    value = float(digits)
    if not math.isfinite(value):
        raise NotAPrediction(f"“{typed[:40]}” is not a finite number. Type one{asked}")
    if value < 0:
        raise NotAPrediction(f"“{typed[:40]}” is below zero, and what is measured here cannot be")
    return value


def parse_trend(text: str) -> Trend:
    """Read rises, flat or falls.

    Raises:
        NotAPrediction: it is none of them.
    """
    try:
        return Trend(text.strip().casefold())
    except ValueError as error:
        raise NotAPrediction(f"“{text[:40]}” is none of rises, flat, falls") from error


def predict(said: str, because: str, unit: str | None) -> Prediction:
    """Make a prediction, stamped with the time.

    Args:
        said: the number, or the trend where `unit` is None.
        because: the reason, a few words at least.
        unit: of the number; None asks for a trend.

    Raises:
        NotAPrediction: the number, the trend or the reason cannot be used.
    """
    reason = because.strip()
    if len(reason) < BECAUSE_MIN:
        raise NotAPrediction("Say in a few words why you expect that; a guess teaches little")
    if unit is None:
        return Prediction(reason, now_text(), trend=parse_trend(said))
    return Prediction(reason, now_text(), number=parse_number(said, unit), unit=unit)
