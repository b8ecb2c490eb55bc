"""Where the names of points stand: on no mark, on no line, and on no other name, if there is room.

Pure geometry in pixels, from the top left; `vega` says where the marks lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LETTER, LINE = 6.2, 13.0  # pixels of a letter and of a line, at the size of a name
MARK = (10.0, 8.0)  # half of what a point takes with the ends of its interval
AWAY = (12.0, 24.0)  # how far a name stands off its point
OUTSIDE = (
    12  # marks that a name would rather lie on than stick out; above, there is room for a line
)

Pixel = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class LabelPosition:
    """Where a name stands relative to its point.

    Attributes:
        align: which side of the name is at the point.
        dx: pixels to the right.
        dy: pixels down.
    """

    align: str
    dx: float
    dy: float


def _spots() -> Iterator[LabelPosition]:
    """The spots to be tried, the nicest first."""
    for away in AWAY:
        yield LabelPosition("left", away, 0.0)
        yield LabelPosition("center", 0.0, -away - 3)
        yield LabelPosition("center", 0.0, away + 3)
        yield LabelPosition("right", -away, 0.0)
        for dy in (-away, away):
            yield LabelPosition("left", away, dy)
            yield LabelPosition("right", -away, dy)


SPOTS = tuple(_spots())


def place_names(
    names: Sequence[tuple[str, Pixel]], marks: Sequence[Pixel], page: Pixel
) -> list[LabelPosition]:
    """A spot for each name, in turn, where it covers least.

    Args:
        names: each with the pixel of its point.
        marks: the pixels of all points, and along all lines.
        page: width and height of the plot.
    """
    obstacles = [(x - MARK[0], y - MARK[1], x + MARK[0], y + MARK[1]) for x, y in marks]
    spots = []
    for name, pixel in names:
        boxes = {spot: _box(name, pixel, spot) for spot in SPOTS}
        spot = min(SPOTS, key=lambda spot: _cost(boxes[spot], obstacles, page))
        spots.append(spot)
        obstacles.append(boxes[spot])
    return spots


def pixels_between(start: Pixel, end: Pixel, every: float) -> Iterator[Pixel]:
    """The pixels of a straight line, both ends included, at most so far from each other."""
    count = 1 + int(math.dist(start, end) / every)
    for step in range(count + 1):
        part = step / count
        yield start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])


def _box(name: str, pixel: Pixel, spot: LabelPosition) -> Box:
    width = LETTER * len(name)
    left_edge = pixel[0] + spot.dx - {"left": 0.0, "center": 0.5, "right": 1.0}[spot.align] * width
    top = pixel[1] + spot.dy - LINE / 2
    return left_edge, top, left_edge + width, top + LINE


def _cost(box: Box, obstacles: Sequence[Box], page: Pixel) -> int:
    """How many marks and names a name would lie on."""
    covered = sum(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in obstacles
    )
    is_outside = box[0] < 0 or box[1] < -LINE or box[2] > page[0] or box[3] > page[1]
    return covered + OUTSIDE * is_outside
