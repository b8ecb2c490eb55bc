"""The notebooks' drawings: fixed ones, and a partition, a pipeline's schedule, a step's timeline.

Each of these is lanes with boxes in them, which JupyterLab draws as it draws a plot. What is wrong
in what a student put together is drawn too, and said; nothing is refused that one can learn from.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from importlib import resources
from typing import Any, NamedTuple

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.exercises.packing import (
    A100,
    COMPUTE,
    MEMORY,
    SMS_OF_SEVEN,
    PackingProfile,
    misplaced,
)
from labkit.exercises.schedule import ticks_of_orders
from labkit.machine.profiling import (
    KERNELS,
    LAUNCHES,
    MESSAGES,
    OPERATORS,
    Span,
    busy_ms,
    hidden_ms,
    outermost,
)
from labkit.panel import theme
from labkit.panel.theme import INK, label_expression
from labkit.shown import Showable

FOLDER = resources.files("labkit").joinpath("drawn")
TITLE = re.compile("<title>(.*?)</title>", re.DOTALL)
LANE = 46
WIDE = 44  # characters of a line, so that a telephone holds it
FREE = ""  # the kind of a box that nothing fills
BLUE, ORANGE, GREEN, PURPLE = "#0b84c4", "#d55e00", "#009e73", "#b0629c"  # as in plots
SLICES = {str(number): colour for number, colour in enumerate((BLUE, ORANGE, GREEN, PURPLE))}
ARITHMETIC = re.compile(
    r"gemm|nvjet|cutlass|xmma|wgmma|sdpa|flash|fmha|conv|aten::(addmm|mm|bmm|baddbmm|linear)$"
    r"|mkldnn|scaled_dot_product",
    re.IGNORECASE,
)
"""Products, convolutions and attention, by name: for the colour of a span, and nothing else."""
PRODUCTS, OTHERS = "products of matrices", "other operations"
LANES = (OPERATORS, LAUNCHES, KERNELS, MESSAGES)
LONGEST_NAME = 60
NO_AXIS = {"labels": False, "ticks": False, "domain": False, "grid": False, "title": None}


def pictures() -> list[str]:
    """The names of the notebooks' drawings."""
    return sorted(file.name.removesuffix(".svg") for file in FOLDER.iterdir())


@public
def picture(name: str) -> Showable:
    """One of the notebooks' drawings: "geometry", "ring", "split" or "pair".

    Raises:
        WrongArgument: there is no such drawing.
    """
    if name not in pictures():
        raise WrongArgument(f"No picture {name!r} is known; there are {', '.join(pictures())}.")
    svg = FOLDER.joinpath(f"{name}.svg").read_text(encoding="utf-8")
    return Showable(unescape(TITLE.findall(svg)[0]), svg)


class _LaneBox(NamedTuple):
    """Something in a lane from here to there, the words in it, and those for whoever points at it.

    Its kind is what its colour stands for.
    """

    lane: str
    begin: float
    end: float
    kind: str = FREE
    words: str = ""
    said: str = ""


@dataclass(frozen=True)
class LaneDrawing:
    """Lanes with boxes, as Vega-Lite, and what they show in words; these alone without a box."""

    says: str
    spec: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return self.says

    def _repr_mimebundle_(self, **_: Any) -> Any:
        said = {"text/plain": self.says}
        return said if self.spec is None else theme.output(self.spec, self.says)


def _drawing(
    says: str,
    heads: Sequence[str],
    boxes: Sequence[_LaneBox],
    colours: Mapping[str, str],
    axis: Mapping[str, Any],
    *,
    with_legend: bool = True,
    lanes: Mapping[str, Sequence[str]] | None = None,
) -> LaneDrawing:
    """Draw boxes in their lanes.

    Args:
        says: what the drawing shows.
        heads: the lines above it.
        boxes: from the lowest up; the lanes stand in the order in which they come.
        colours: by kind.
        axis: of the places from left to right.
        with_legend: whether kinds are explained.
        lanes: the lines that name a lane, where its name alone does not.
    """
    rows = [one._asdict() | {"middle": (one.begin + one.end) / 2} for one in boxes]
    y = _lane_axis({one.lane: (lanes or {}).get(one.lane, [one.lane]) for one in boxes})
    x = {
        "type": "quantitative",
        "scale": {"domain": [0, max(one.end for one in boxes)], "nice": False},
        "axis": dict(axis),
    }
    bars = {
        "data": {"values": rows},
        "mark": {"type": "bar", "fillOpacity": 0.3, "strokeWidth": 1.2, "aria": False},
        "encoding": {
            "y": y,
            "x": {**x, "field": "begin"},
            "x2": {"field": "end"},
            **_colouring(colours, with_legend=with_legend),
            "tooltip": {"field": "said", "type": "nominal"},
        },
    }
    size = {"expr": "clamp(width / 45, 5, 12)"}
    words = {
        "data": {"values": [row for row in rows if row["words"]]},
        "mark": {"type": "text", "fontSize": size, "aria": False},
        "encoding": {"y": y, "x": {**x, "field": "middle"}, "text": {"field": "words"}},
    }
    lines = [line for head in heads for line in textwrap.wrap(head, WIDE)]
    title = {"text": lines[0], "subtitle": lines[1:], "offset": 12}
    made = theme.frame(says, {"step": LANE}, [bars, words])
    return LaneDrawing(says, {**made, "title": title})


def _lane_axis(named: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The lanes below each other, each under the lines that name it."""
    return {
        "field": "lane",
        "type": "nominal",
        "scale": {"domain": list(named), "paddingInner": 0.25, "paddingOuter": 0.1},
        "axis": {
            **NO_AXIS,
            "labels": True,
            "labelExpr": label_expression(list(named), list(named.values())),
            "labelLimit": 0,
        },
    }


def _colouring(colours: Mapping[str, str], *, with_legend: bool) -> dict[str, Any]:
    """A colour for each kind of box; what nothing fills has an outline only."""

    def channel(free: str, legend: Mapping[str, Any] | None) -> dict[str, Any]:
        scale = {"domain": [*colours, FREE], "range": [*colours.values(), free]}
        return {"field": "kind", "type": "nominal", "scale": scale, "legend": legend}

    explained = {"values": list(colours)} if with_legend else None
    return {"fill": channel("transparent", explained), "stroke": channel(INK, None)}


@public
def partition(*slices: tuple[str, int]) -> LaneDrawing:
    """An A100 with these slices in it, each a profile and the memory slice at which it begins.

    Where a profile cannot begin, or a memory slice is taken twice, the picture says so.

    Raises:
        WrongArgument: a slice is not a profile's name and a number.
    """
    placed = [_placed(one) for one in slices]
    faults = list(misplaced((profile.name, start) for profile, start in placed))
    sms, gib = (sum(getattr(one, name) for one, _ in placed) for name in ("sms", "gib"))
    whole = A100["7g.40gb"].gib
    heads = [f"{sms} of {SMS_OF_SEVEN} SMs in use", f"{gib:.4g} of {whole} GiB in use"]
    said = ", ".join(heads)
    if faults:
        heads, said = ["This does not fit:", *faults], f"This does not fit: {'; '.join(faults)}"
    boxes = [
        *(_LaneBox("SMs", n, n + 1, FREE, "", "14 SMs") for n in range(COMPUTE)),
        *(_LaneBox("memory", n, n + 1, FREE, "", "5 GB") for n in range(MEMORY)),
    ]
    for number, (profile, start) in enumerate(placed):
        kind = str(number % len(SLICES))
        for lane, share, most in (("SMs", profile.compute, COMPUTE), ("memory", profile.memory, 8)):
            if start < most:
                end = min(start + share, most)
                boxes.append(
                    _LaneBox(lane, start, end, kind, profile.name, f"{profile.name} at {start}")
                )
    named = ", ".join(f"{one.name} at {start}" for one, start in placed) or "An A100, not cut"
    axis = {"values": list(range(MEMORY)), "title": "memory slice", "grid": False, "format": "d"}
    lanes = {"SMs": ["SMs", "(7 × 14)"], "memory": ["memory", "(8 × 5 GB)"]}
    return _drawing(f"{named}. {said}.", heads, boxes, SLICES, axis, with_legend=False, lanes=lanes)


def _placed(one: tuple[str, int]) -> tuple[PackingProfile, int]:
    try:
        name, start = one
        return A100[name], range(MEMORY)[start]
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise WrongArgument(
            f'partition takes slices such as ("3g.20gb", 4), not {one!r}; profiles are '
            f"{', '.join(A100)}, and memory slices count from 0 to {MEMORY - 1}."
        ) from error


@public
def pipeline(schedule: Sequence[object], stages: int) -> LaneDrawing:
    """A pipeline's schedule: a row for each stage, a column for each tick, the waiting left empty.

    Args:
        schedule: ticks, each a list of (stage, micro-batch); or for each stage a text of F and B.
        stages: how many there are.

    Raises:
        WrongArgument: it is neither.
    """
    ticks = _ticks(schedule)
    if not ticks:
        return LaneDrawing("There is no schedule to draw yet.")
    waits = 1 - sum(map(len, ticks)) / (stages * len(ticks))
    heads = [f"{stages} stages, {len(ticks)} ticks", f"empty is waiting, {waits:.0%} of the time"]
    done = [
        _LaneBox(
            f"stage {stage}", at, at + 1, "forward" if action == "F" else "backward", str(batch)
        )
        for at, tick in enumerate(ticks)
        for stage, action, batch in tick
    ]
    empty = (
        _LaneBox(f"stage {row}", at, at + 1) for row in range(stages) for at in range(len(ticks))
    )
    colours = {"forward": BLUE, "backward": ORANGE}
    boxes = [*empty, *(one._replace(said=f"{one.kind}, micro-batch {one.words}") for one in done)]
    return _drawing(f"{': '.join(heads)}.", heads, boxes, colours, NO_AXIS)


def _ticks(schedule: Sequence[object]) -> list[list[tuple[int, str, int]]]:
    """What is done in each tick: a stage, F or B, and the micro-batch."""
    given = list(schedule or ())
    if given and all(isinstance(one, str) for one in given):
        return ticks_of_orders([str(one) for one in given]) or []
    try:
        return [[(int(stage), "F", int(batch)) for stage, batch in tick] for tick in given]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise WrongArgument(
            "pipeline takes ticks, each a list of (stage, micro-batch), or a text of F and B for "
            "each stage."
        ) from error


@public
def timeline(spans: Sequence[Span], title: str) -> LaneDrawing:
    """The operations of one step, as `labkit.spans_of` found them.

    Args:
        spans: lane, name, begin and end in milliseconds.
        title: what they are of.

    Raises:
        WrongArgument: there are none, or they are something else.
    """
    try:
        read = [(str(a), str(b), float(c), float(d)) for a, b, c, d in spans]
    except (TypeError, ValueError) as error:
        raise WrongArgument("timeline takes what labkit.spans_of returned for `spans`.") from error
    known = list(outermost(read))
    if not known:
        raise WrongArgument("timeline has nothing to draw: no operation was seen.")
    ends = max(ended for *_, ended in known) or 1.0
    busy = {
        lane: busy_ms(known, lane) / ends for lane in LANES if lane in {one[0] for one in known}
    }
    shares = ", ".join(f"{lane} {share:.0%}" for lane, share in busy.items())
    says = f"{title}: {ends:.3g} ms, of which busy: {shares}."
    heads = [title]
    if sent := busy_ms(known, MESSAGES):
        hidden = hidden_ms(known)
        heads += [f"Of {sent:.3g} ms of messages, {hidden:.3g} ms pass while it computes."]
    boxes = [_box(*one) for lane in busy for one in known if one[0] == lane]
    colours = {PRODUCTS: BLUE, OTHERS: ORANGE, MESSAGES: GREEN}
    lanes = {lane: [lane, f"{share:.0%} busy"] for lane, share in busy.items()}
    axis = {"title": "ms", "tickCount": 6, "gridOpacity": 0.16}
    return _drawing(" ".join([says, *heads[1:]]), heads, boxes, colours, axis, lanes=lanes)


def _box(lane: str, name: str, begun: float, ended: float) -> _LaneBox:
    kind = PRODUCTS if ARITHMETIC.search(name) else OTHERS
    said = f"{name:.{LONGEST_NAME}}: {ended - begun:.3g} ms"
    return _LaneBox(lane, begun, ended, MESSAGES if lane == MESSAGES else kind, "", said)
