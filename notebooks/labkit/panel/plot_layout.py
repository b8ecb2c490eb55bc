"""Where a plot's words go, so that none is cut off or drawn over another.

A browser's font is not known here: a character is taken a little wider than usual ones are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TICK_CHARACTER, TICK_GAP = 8.2, 8.0  # pixels at 15 px
WIDE_CHARACTER = 9.4  # the same in a wide font, such as DejaVu Sans
LINE_CHARACTERS, HALF_CHARACTERS = 80, 38  # of a legend at 14 px
TITLE_CHARACTERS = 60  # at 17 px; a longer title is set smaller
CAPTION_CHARACTERS = 100  # at 12 px
Y_LABEL_CHARACTERS = 36  # as high as the plot is
MOST_LINES = 3  # of a category's label


@dataclass(frozen=True)
class Entry:
    """A legend's text: the column and row of its marker, and its lines below each other."""

    column: int
    row: int
    lines: tuple[str, ...]


def legend(names: Sequence[str]) -> tuple[Entry, ...]:
    """Two short names beside each other; a long one has a row, or several, of its own."""
    found: list[Entry] = []
    row, column = 0, 0
    for name in names:
        lines = tuple(textwrap.wrap(name, LINE_CHARACTERS)) or ("",)
        is_short = len(name) <= HALF_CHARACTERS
        if column and not is_short:
            row, column = row + 1, 0
        found.append(Entry(column, row, lines))
        column = 1 - column if is_short else 0
        row += 0 if column else len(lines)
    return tuple(found)


def legend_rows(entries: Iterable[Entry]) -> int:
    """How many rows the legend takes."""
    return max((entry.row + len(entry.lines) for entry in entries), default=0)


def caption(text: str) -> list[str]:
    """The caption's lines, none left out."""
    return textwrap.wrap(text, CAPTION_CHARACTERS)


def clear_of_each_other(ticks: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    """Those of the labels, pixel and text, that overlap none before them in the given order."""
    kept: list[tuple[float, str]] = []
    for pixel, words in ticks:
        if all(abs(pixel - other) >= _apart(words, text) for other, text in kept):
            kept.append((pixel, words))
    return sorted(kept)


def _apart(one: str, other: str) -> float:
    return (len(one) + len(other)) / 2 * TICK_CHARACTER + TICK_GAP


def left_of_ticks(words: Iterable[str]) -> float:
    """Where the plot begins, so that the y axis's label lies over none of its ticks."""
    return 46.0 + TICK_CHARACTER * max((len(one) for one in words), default=4)


def is_tight(lines: Iterable[str], room: float) -> bool:
    """Whether a label could touch its neighbour's in a wide font, so that it is set smaller."""
    longest = max((len(words) for words in lines), default=0)
    return longest * WIDE_CHARACTER + TICK_GAP / 2 > room


def wrapped(words: str, room: float) -> list[str]:
    """A category's label in as many pixels; what is too long ends with an ellipsis."""
    characters = max(4, int(room / TICK_CHARACTER))
    lines = textwrap.wrap(words, characters) or [""]
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[: MOST_LINES - 1], lines[MOST_LINES - 1][: characters - 1] + "…"]
