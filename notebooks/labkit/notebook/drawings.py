"""Drawings of what students put together: a GPU's partition, a pipeline's schedule.

What is wrong in them is drawn too, and said; nothing is refused that one can learn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.exercises.packing import A100, COMPUTE, MEMORY, SMS_OF_SEVEN, PackingProfile
from labkit.exercises.schedule import played
from labkit.notebook.pictures import FIRST, SECOND, WIDE, Picture, box, text

LEFT, UNIT, ROW = 100.0, 70.0, 40.0
SMS_TOP, MEMORY_TOP = 24.0, 70.0
GIB = 39.5
COLOURS = (FIRST, SECOND, "#009e73", "#b05f9f")  # as in plots
Piece = tuple[int, str, int]
"""A stage, F or B, and the micro-batch."""


@public
def partition(*slices: tuple[str, int]) -> Picture:
    """An A100 with these slices in it, each a profile and the memory slice at which it begins.

    Where a profile cannot begin, or a memory slice is taken twice, the picture says so.

    Raises:
        WrongArgument: a slice is not a profile's name and a number.
    """
    placed = [_placed(one) for one in slices]
    faults = [*_misplaced(placed), *_overlaps(placed)]
    sms = sum(profile.sms for profile, _ in placed)
    gib = sum(profile.gib for profile, _ in placed)
    said = f"{sms} of {SMS_OF_SEVEN} SMs and {gib:.4g} of {GIB} GiB are in use"
    if faults:
        said = "This does not fit: " + "; ".join(faults)
    parts = [text(LEFT - 8, SMS_TOP + 25, "SMs", "end")]
    parts.append(text(LEFT - 8, MEMORY_TOP + 25, "memory", "end"))
    parts += _grid(SMS_TOP, COMPUTE, "14 SMs")
    parts += _grid(MEMORY_TOP, MEMORY, "5 GB")
    for number, (profile, start) in enumerate(placed):
        parts += _slice(profile, start, COLOURS[number % len(COLOURS)])
    parts += [text(LEFT + UNIT * (n + 0.5), MEMORY_TOP + 60, str(n)) for n in range(MEMORY)]
    parts += [text(8, 158 + 20 * row, words, "start") for row, words in enumerate(faults or [said])]
    return Picture(f"{_named(placed)}. {said}.", 172 + 20 * len(faults), tuple(parts))


def _placed(one: tuple[str, int]) -> tuple[PackingProfile, int]:
    try:
        name, start = one
        return A100[name], range(MEMORY)[start]
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise WrongArgument(
            f'partition takes slices such as ("3g.20gb", 4), not {one!r}; profiles are '
            f"{', '.join(A100)}, and memory slices count from 0 to {MEMORY - 1}."
        ) from error


def _misplaced(placed: Sequence[tuple[PackingProfile, int]]) -> Iterator[str]:
    for profile, start in placed:
        if start not in profile.starts:
            allowed = " or ".join(map(str, profile.starts))
            yield f"a {profile.name} begins at {allowed}, not at {start}"


def _overlaps(placed: Sequence[tuple[PackingProfile, int]]) -> Iterator[str]:
    for where in range(MEMORY):
        held = [p.name for p, start in placed if start <= where < start + p.memory]
        if len(held) > 1:
            yield f"memory slice {where} is taken {len(held)} times ({', '.join(held)})"


def _named(placed: Sequence[tuple[PackingProfile, int]]) -> str:
    return ", ".join(f"{one.name} at {start}" for one, start in placed) or "An A100, not cut"


def _grid(top: float, count: int, words: str) -> Iterator[str]:
    for n in range(count):
        yield box(LEFT + UNIT * n, top, UNIT - 4, ROW, words)


def _slice(profile: PackingProfile, start: int, colour: str) -> Iterator[str]:
    left = LEFT + UNIT * start
    compute, memory = min(profile.compute, COMPUTE - start), min(profile.memory, MEMORY - start)
    if compute > 0:
        yield box(left, SMS_TOP, UNIT * compute - 4, ROW, "", colour)
    yield text(left + 2, SMS_TOP - 8, profile.name, "start")
    yield box(left, MEMORY_TOP, UNIT * memory - 4, ROW, "", colour)


@public
def pipeline(schedule: Sequence[object], stages: int) -> Picture:
    """A pipeline's schedule: a row for each stage, a column for each tick, the waiting left empty.

    Args:
        schedule: ticks, each a list of (stage, micro-batch); or for each stage a text of F and B.
        stages: how many there are.

    Raises:
        WrongArgument: it is neither.
    """
    ticks = _ticks(schedule)
    if not ticks:
        return Picture(
            "No schedule yet.", 40, (text(8, 24, "There is no schedule to draw yet.", "start"),)
        )
    wide = min(48.0, (WIDE - LEFT) / len(ticks))
    busy = sum(len(tick) for tick in ticks)
    waits = 1 - busy / (stages * len(ticks))
    bottom = 10 + stages * ROW
    parts = [text(LEFT - 8, 35 + ROW * row, f"stage {row}", "end") for row in range(stages)]
    parts += [
        box(LEFT + wide * at, 10 + ROW * row, wide - 3, ROW - 4)
        for at in range(len(ticks))
        for row in range(stages)
    ]
    for at, tick in enumerate(ticks):
        for stage, action, batch in tick:
            colour = FIRST if action == "F" else SECOND
            parts.append(
                box(LEFT + wide * at, 10 + ROW * stage, wide - 3, ROW - 4, str(batch), colour)
            )
    said = f"{stages} stages, {len(ticks)} ticks: empty is waiting, {waits:.0%} of the time"
    parts.append(text(LEFT, bottom + 18, said, "start"))
    parts += _legend(bottom + 42)
    return Picture(f"{said}.", int(bottom + 56), tuple(parts))


def _legend(y: float) -> Iterator[str]:
    for number, (words, colour) in enumerate((("forward", FIRST), ("backward", SECOND))):
        yield box(LEFT + 130 * number, y - 12, 14, 14, "", colour)
        yield text(LEFT + 130 * number + 20, y, words, "start")


def _ticks(schedule: Sequence[object]) -> list[list[Piece]]:
    """What is done in each tick."""
    given = list(schedule or ())
    if given and all(isinstance(one, str) for one in given):
        return played([str(one) for one in given]) or []
    try:
        return [[(int(stage), "F", int(batch)) for stage, batch in tick] for tick in given]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise WrongArgument(
            "pipeline takes ticks, each a list of (stage, micro-batch), or a text of F and B for "
            "each stage."
        ) from error
