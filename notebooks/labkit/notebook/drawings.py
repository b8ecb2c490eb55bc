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
ACTIONS = {"F": "forward", "B": "backward", "W": "weights"}
ACTION_COLOURS = {"forward": BLUE, "backward": ORANGE, "weights": GREEN}
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
    """A coloured box in a lane, with its label and its tooltip; its kind decides the colour."""

    lane: str
    begin: float
    end: float
    kind: str = FREE
    label: str = ""
    tooltip: str = ""


@dataclass(frozen=True)
class LaneDrawing:
    """A drawing of boxes in lanes, as Vega-Lite, and its description; without boxes only that."""

    description: str
    spec: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return self.description

    def _repr_mimebundle_(self, **_: Any) -> Any:
        text_bundle = {"text/plain": self.description}
        return text_bundle if self.spec is None else theme.output(self.spec, self.description)


def _drawing(
    description: str,
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
        description: what the drawing shows.
        heads: the lines above it.
        boxes: from the lowest up; the lanes stand in the order in which they come.
        colours: by kind.
        axis: of the places from left to right.
        with_legend: whether kinds are explained.
        lanes: the lines that name a lane, where its name alone does not.
    """
    rows = [box._asdict() | {"middle": (box.begin + box.end) / 2} for box in boxes]
    y = _lane_axis({box.lane: (lanes or {}).get(box.lane, [box.lane]) for box in boxes})
    x = {
        "type": "quantitative",
        "scale": {"domain": [0, max(box.end for box in boxes)], "nice": False},
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
            "tooltip": {"field": "tooltip", "type": "nominal"},
        },
    }
    size = {"expr": "clamp(width / 45, 5, 12)"}
    labels = {
        "data": {"values": [row for row in rows if row["label"]]},
        "mark": {"type": "text", "fontSize": size, "aria": False},
        "encoding": {"y": y, "x": {**x, "field": "middle"}, "text": {"field": "label"}},
    }
    lines = [line for head in heads for line in textwrap.wrap(head, WIDE)]
    title = {"text": lines[0], "subtitle": lines[1:], "offset": 12}
    specification = theme.frame(description, {"step": LANE}, [bars, labels])
    return LaneDrawing(description, {**specification, "title": title})


def _lane_axis(lane_names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The axis that puts lanes below each other, each with the lines of its name."""
    return {
        "field": "lane",
        "type": "nominal",
        "scale": {"domain": list(lane_names), "paddingInner": 0.25, "paddingOuter": 0.1},
        "axis": {
            **NO_AXIS,
            "labels": True,
            "labelExpr": label_expression(list(lane_names), list(lane_names.values())),
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
    placed_slices = [_parse_slice(s) for s in slices]
    faults = list(misplaced((profile.name, start) for profile, start in placed_slices))
    sms = sum(profile.sms for profile, _ in placed_slices)
    gib = sum(profile.gib for profile, _ in placed_slices)
    total_gib = A100["7g.40gb"].gib
    heads = [f"{sms} of {SMS_OF_SEVEN} SMs in use", f"{gib:.4g} of {total_gib} GiB in use"]
    summary = ", ".join(heads)
    if faults:
        heads, summary = ["This does not fit:", *faults], f"This does not fit: {'; '.join(faults)}"
    boxes = [
        *(_LaneBox("SMs", n, n + 1, FREE, "", "14 SMs") for n in range(COMPUTE)),
        *(_LaneBox("memory", n, n + 1, FREE, "", "5 GB") for n in range(MEMORY)),
    ]
    for number, (profile, start) in enumerate(placed_slices):
        kind = str(number % len(SLICES))
        lane_shares = (("SMs", profile.compute, COMPUTE), ("memory", profile.memory, 8))
        for lane, share, lane_end in lane_shares:
            if start < lane_end:
                end = min(start + share, lane_end)
                boxes.append(
                    _LaneBox(lane, start, end, kind, profile.name, f"{profile.name} at {start}")
                )
    slice_names = ", ".join(f"{profile.name} at {start}" for profile, start in placed_slices)
    axis = {"values": list(range(MEMORY)), "title": "memory slice", "grid": False, "format": "d"}
    lanes = {"SMs": ["SMs", "(7 × 14)"], "memory": ["memory", "(8 × 5 GB)"]}
    description = f"{slice_names or 'An A100, not cut'}. {summary}."
    return _drawing(description, heads, boxes, SLICES, axis, with_legend=False, lanes=lanes)


def _parse_slice(profile_and_start: tuple[str, int]) -> tuple[PackingProfile, int]:
    try:
        name, start = profile_and_start
        return A100[name], range(MEMORY)[start]
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise WrongArgument(
            f'partition takes slices such as ("3g.20gb", 4), not {profile_and_start!r}; '
            f"profiles are {', '.join(A100)}, and memory slices count from 0 to {MEMORY - 1}."
        ) from error


@public
def pipeline(schedule: Sequence[object], stages: int) -> LaneDrawing:
    """A pipeline's schedule: a row for each stage, a column for each tick, the waiting left empty.

    Args:
        schedule: ticks, each a list of (stage, micro-batch); or for each stage a text of F, B
            and W.
        stages: how many there are.

    Raises:
        WrongArgument: it is neither.
    """
    ticks = _ticks(schedule)
    if not ticks:
        return LaneDrawing("There is no schedule to draw yet.")
    waits = 1 - sum(map(len, ticks)) / (stages * len(ticks))
    heads = [f"{stages} stages, {len(ticks)} ticks", f"empty is waiting, {waits:.0%} of the time"]
    work_boxes = [
        _LaneBox(f"stage {stage}", at, at + 1, ACTIONS[action], str(batch))
        for at, tick in enumerate(ticks)
        for stage, action, batch in tick
    ]
    empty = (
        _LaneBox(f"stage {row}", at, at + 1) for row in range(stages) for at in range(len(ticks))
    )
    kinds = dict.fromkeys(box.kind for box in work_boxes)
    colours = {kind: colour for kind, colour in ACTION_COLOURS.items() if kind in kinds}
    working = (box._replace(tooltip=f"{box.kind}, micro-batch {box.label}") for box in work_boxes)
    boxes = [*empty, *working]
    return _drawing(f"{': '.join(heads)}.", heads, boxes, colours, NO_AXIS)


def _ticks(schedule: Sequence[object]) -> list[list[tuple[int, str, int]]]:
    """Parse a schedule into ticks; each work is a stage, F or B, and a micro-batch."""
    ticks_or_orders = list(schedule or ())
    if ticks_or_orders and all(isinstance(part, str) for part in ticks_or_orders):
        return ticks_of_orders([str(order) for order in ticks_or_orders]) or []
    try:
        return [[(int(stage), "F", int(batch)) for stage, batch in t] for t in ticks_or_orders]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise WrongArgument(
            "pipeline takes ticks, each a list of (stage, micro-batch), or a text of F and B for "
            "each stage."
        ) from error


@public
def pipeline_run(spans: Sequence[Sequence[Any]], ranks: int, title: str) -> LaneDrawing:
    """A step of a pipeline as it ran: a row for each rank, every action where the clock saw it.

    Args:
        spans: stage, F, B or W, micro-batch, begin and end in seconds, of all ranks; rank r has
            every stage that leaves r when it is divided by `ranks`.
        ranks: how many there are.
        title: what ran.

    Raises:
        WrongArgument: there are none, or they are something else.
    """
    try:
        actions = [(int(s), ACTIONS[a], int(m), float(b), float(e)) for s, a, m, b, e in spans]
        start_s = min(begin_s for *_, begin_s, _ in actions)
    except (TypeError, ValueError, KeyError) as error:
        raise WrongArgument(
            "pipeline_run takes (stage, action, micro-batch, begin, end) for each action of a step."
        ) from error
    boxes = [
        _LaneBox(
            f"rank {stage % ranks}",
            1e3 * (begin_s - start_s),
            1e3 * (end_s - start_s),
            kind,
            str(micro_batch),
            f"stage {stage}, {kind}, micro-batch {micro_batch}: {1e3 * (end_s - begin_s):.3g} ms",
        )
        for stage, kind, micro_batch, begin_s, end_s in sorted(
            actions, key=lambda action: (action[0] % ranks, action[3])
        )
    ]
    step_ms = max(box.end for box in boxes)
    waits = 1 - sum(box.end - box.begin for box in boxes) / (ranks * step_ms)
    heads = [title, f"{step_ms:.3g} ms; empty is waiting, {waits:.0%} of the time"]
    axis = {"title": "ms", "tickCount": 6, "gridOpacity": 0.16}
    return _drawing(f"{': '.join(heads)}.", heads, boxes, ACTION_COLOURS, axis)


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
        parsed_spans = [(str(a), str(b), float(c), float(d)) for a, b, c, d in spans]
    except (TypeError, ValueError) as error:
        raise WrongArgument("timeline takes what labkit.spans_of returned for `spans`.") from error
    operations = list(outermost(parsed_spans))
    if not operations:
        raise WrongArgument("timeline has nothing to draw: no operation was seen.")
    ends = max(ended for *_, ended in operations) or 1.0
    lanes_seen = {lane for lane, *_ in operations}
    busy = {lane: busy_ms(operations, lane) / ends for lane in LANES if lane in lanes_seen}
    shares = ", ".join(f"{lane} {share:.0%}" for lane, share in busy.items())
    description = f"{title}: {ends:.3g} ms, of which busy: {shares}."
    heads = [title]
    if message_ms := busy_ms(operations, MESSAGES):
        hidden = hidden_ms(operations)
        heads += [f"Of {message_ms:.3g} ms of messages, {hidden:.3g} ms pass while it computes."]
    boxes = [_box(*operation) for lane in busy for operation in operations if operation[0] == lane]
    colours = {PRODUCTS: BLUE, OTHERS: ORANGE, MESSAGES: GREEN}
    lanes = {lane: [lane, f"{share:.0%} busy"] for lane, share in busy.items()}
    axis = {"title": "ms", "tickCount": 6, "gridOpacity": 0.16}
    return _drawing(" ".join([description, *heads[1:]]), heads, boxes, colours, axis, lanes=lanes)


def _box(lane: str, name: str, begin_ms: float, end_ms: float) -> _LaneBox:
    kind = PRODUCTS if ARITHMETIC.search(name) else OTHERS
    tooltip = f"{name:.{LONGEST_NAME}}: {end_ms - begin_ms:.3g} ms"
    return _LaneBox(lane, begin_ms, end_ms, MESSAGES if lane == MESSAGES else kind, "", tooltip)
