"""What a benchmark says: what many samples come to, and how it is printed.

The two of a ratio's round ran one right after the other, so that what slows the machine slows both.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

RESAMPLES = 2000
LEVEL_PCT = 95


@dataclass(frozen=True)
class Ratio:
    """A median ratio, and the interval that holds it in 95 of 100 such measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"

    def verdict_on(self, bound: float, *, by_low: bool = False) -> str:
        """Whether a bound holds, in words; by the interval's lower end, where noise is large."""
        is_held = (self.low if by_low else self.median) <= bound
        return f"the bound of {bound} {'holds' if is_held else 'DOES NOT HOLD'}"


def ratio_of(ours_s: Sequence[float], theirs_s: Sequence[float], seed: int = 0) -> Ratio:
    """Return the median over the rounds of ours / theirs, with its interval.

    Args:
        ours_s: seconds, one a round.
        theirs_s: seconds, of the same rounds.
        seed: makes the interval of given samples reproducible.

    Raises:
        ValueError: not the same number of rounds, or fewer than two.
    """
    ratios = [our_s / their_s for our_s, their_s in zip(ours_s, theirs_s, strict=True)]
    if len(ratios) < 2:
        raise ValueError(f"{len(ratios)} round; at least two are needed for an interval")
    rng = random.Random(seed)  # noqa: S311 -- statistics, not a secret
    medians = [median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)]
    ends = quantiles(medians, n=200 // (100 - LEVEL_PCT))
    return Ratio(median(ratios), ends[0], ends[-1])


def compare_times(
    subject: str, plain: str, ours_s: Sequence[float], plain_s: Sequence[float]
) -> str:
    """Return a clause that compares the times of ``subject`` and the plain spawner."""
    return (
        f"{subject} takes {ratio_of(ours_s, plain_s)} of plain {plain}'s time; "
        f"medians {median(ours_s):.2f} s and {median(plain_s):.2f} s"
    )


def p95(samples: Sequence[float]) -> float:
    """Return the 95th percentile, at most the largest sample; 0 without samples."""
    if len(samples) < 2:
        return max(samples, default=0.0)
    return quantiles(samples, n=20, method="inclusive")[-1]


def table_of(records: Sequence[Mapping[str, Any]], title: str = "") -> Table:
    """Return a table with a row for each record; numbers are aligned on the right."""
    table = Table(title=title, box=box.SIMPLE, padding=0)
    for name, value in (records[0] if records else {}).items():
        width = max(len(part) for record in records for part in f"{record[name]} ".split(" "))
        table.add_column(
            name.replace("_", " "),
            justify="right" if isinstance(value, int | float) else "left",
            min_width=width,
        )
    for record in records:
        table.add_row(*(escape(str(value)) for value in record.values()))
    return table


def say(figures: Mapping[str, Any], *renderables: object, as_json: bool) -> None:
    """Print the figures as one JSON object, or else the renderables one below the other."""
    if as_json:
        print(json.dumps(figures))
    else:
        Console().print(*renderables, sep="\n")
