"""Notebook 3b: what fusing saves of memory and time, when compiling pays, what a trace shows."""

from __future__ import annotations

from typing import Any, cast

from labkit.evidence.evidence import Point
from labkit.evidence.relations import Data
from labkit.notebook.catalogue import reading
from labkit.panel.experiment import Curves, Experiment, Look, Points

NAIVE, FUSED = "naive", "flash"
MEMORY, ARITHMETIC = "limit of memory", "limit of products"
EAGER, COMPILED = "eager", "compiled"


def memory_at_twice_the_length(points: Points) -> Data:
    """What attention holds at the longest length over what it holds at half of it, by way."""
    return {
        f"{way}, twice the length": [_last(points, way).value / _last(points, way, 2).value]
        for way in (NAIVE, FUSED)
    }


def _last(points: Points, series: str, place: int = 1) -> Point:
    return sorted((p for p in points if p.series == series), key=lambda p: p.x)[-place]


def longest_naive_over_fused(points: Points) -> Point | None:
    """How many times as much the naive way holds at the longest length."""
    try:
        naive, fused = _last(points, NAIVE), _last(points, FUSED)
    except IndexError:
        return None
    ratio = naive.value / fused.value
    return Point(naive.x, naive.label, ratio, naive.records, series=naive.series)


def attention_in_two_ways(points: Points) -> Data:
    """Seconds of attention, naive and fused, and how far their results lie apart."""
    naive, fused = (reading.at(f"attention, {way}")(points) for way in (NAIVE, FUSED))
    return {
        "naive attention": naive.records[0].samples_s,
        "fused attention": fused.records[0].samples_s,
        "distance of the results": [reading.facts(naive)["apart"]],
    }


def roof(points: Points) -> Curves:
    """The slant of the memory's limit and the roof of the products', as lines."""
    limits = {point.label: point for point in points if point.label in (MEMORY, ARITHMETIC)}
    if len(limits) < 2:
        return {}
    slope = limits[MEMORY].value / limits[MEMORY].x
    height, right = limits[ARITHMETIC].value, max(point.x for point in points)
    ridge, first_x = height / slope, min(point.x for point in points)
    corners = [(first_x, first_x * slope), (min(ridge, right), min(height, right * slope))]
    return {"the roof": [*corners, *([(right, height)] if ridge < right else [])]}


def slowest_over_plain(points: Points) -> Data:
    """Seconds of the plain program and of the slowest; how far the results lie from plain's."""
    plain = reading.at("plain")(points)
    slowest = max(points, key=lambda point: point.value)
    facts_of = {point.label: cast("dict[str, Any]", reading.facts(point)) for point in points}
    return {
        "plain": facts_of[plain.label]["each"],
        "slowest": facts_of[slowest.label]["each"],
        "distance from plain's result": [facts["apart"] for facts in facts_of.values()],
    }


def calls_to_pay(points: Points) -> Data:
    """After how many calls compiling has paid, and how many times as fast a call is then."""
    facts = reading.facts(points[0])
    eager_s, compiled_s = facts["eager_s"], facts["compiled_s"]
    saved_s = max(eager_s - compiled_s, 1e-12)
    return {
        "calls until compiling has paid": [facts["compile_s"] / saved_s],
        "eager over compiled": [eager_s / compiled_s],
    }


EXPERIMENTS = (
    Experiment(
        key="KN-1",
        title="Memory that attention holds, by the length of the sequence",
        question="At the longest length, how many times as much does the naive one hold?",
        x_label="length of the sequence",
        y_label="peak MiB beside q, k and v",
        unit="x",
        asked=longest_naive_over_fused,
        data=memory_at_twice_the_length,
        look=Look.LOG_X | Look.LOG_Y,
    ),
    Experiment(
        key="KN-2",
        title="Naive and fused, under the roof",
        question="How many times as long does naive attention take as flash?",
        x_label="FLOP per byte that must move (counted)",
        y_label="GFLOP/s",
        unit="x",
        asked=reading.ratio(f"attention, {FUSED}", f"attention, {NAIVE}", "GFLOP/s"),
        data=attention_in_two_ways,
        curves=roof,
        look=Look.LOG_X | Look.LOG_Y | Look.UNJOINED,
    ),
    Experiment(
        key="KN-3",
        title="Four programs that compute the same",
        question="How many times as long does C take as plain?",
        x_label="program",
        y_label="ms for two steps",
        unit="x",
        asked=reading.ratio("C", "plain", "ms"),
        data=slowest_over_plain,
        look=Look.BARS,
    ),
    Experiment(
        key="KN-4",
        title="Seconds until so many calls are done, with compiling",
        question="How many seconds does it take to compile, and then to call once?",
        x_label="calls",
        y_label="seconds",
        unit="s",
        asked=reading.at("compiled, 1 call"),
        data=calls_to_pay,
        look=Look.LOG_X | Look.LOG_Y | Look.OPTIONAL,
    ),
    Experiment(
        key="KN-5",
        title="What a product loses in 8 bits",
        question="What relative error do you expect of e4m3 with a scale?",
        x_label="format",
        y_label="relative error{how}",
        unit="",
        asked=reading.at("e4m3, scaled"),
        look=Look.BARS | Look.LOG_Y | Look.OPTIONAL,
    ),
)
