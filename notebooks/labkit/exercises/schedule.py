"""Pipeline schedules: the exact check of the student's, its picture, and the ideal to hold it to.

Pure functions; a schedule is a list of ticks, each the (stage, micro-batch) pairs worked on then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from labkit.exercises.code_checks import CodeVerdict, verdict_of

Tick = Sequence[tuple[int, int]]
Schedule = Sequence[Tick]


def check_schedule(function: Callable[[int, int], Schedule]) -> CodeVerdict:
    """Whether `schedule(stages, micro_batches)` is a forward pipeline without a wasted tick.

    Args:
        function: returns the ticks; tick 0 is the first.
    """

    def check(stages: int, batches: int) -> str:
        return _fault([list(tick) for tick in function(stages, batches)], stages, batches)

    sizes = ((1, 3), (2, 1), (2, 4), (3, 5), (4, 2), *_drawn_sizes())
    right = "every micro-batch passes every stage in order, in m + p - 1 ticks"
    return verdict_of(right, *((_sizes(*size), partial(check, *size)) for size in sizes))


def _drawn_sizes() -> list[tuple[int, int]]:
    """Some more numbers of stages and micro-batches, so that no table of orders passes."""
    luck = random.SystemRandom()
    return [(luck.randrange(2, 7), luck.randrange(1, 10)) for _ in range(6)]


def _fault(ticks: list[list[tuple[int, int]]], stages: int, batches: int) -> str:
    """Describe what is wrong with a schedule; empty when nothing is."""
    tick_of_work: dict[tuple[int, int], int] = {}
    for number, tick in enumerate(ticks):
        if len({stage for stage, _ in tick}) < len(tick):
            return f"in tick {number} a stage works on two micro-batches at once"
        for stage, batch in tick:
            if (stage, batch) in tick_of_work:
                return f"stage {stage} works twice on micro-batch {batch}"
            if stage and tick_of_work.get((stage - 1, batch), number) >= number:
                return (
                    f"in tick {number} stage {stage} works on micro-batch {batch}, "
                    f"which stage {stage - 1} has not finished"
                )
            tick_of_work[stage, batch] = number
    all_work = {(stage, batch) for stage in range(stages) for batch in range(batches)}
    if set(tick_of_work) != all_work:
        return (
            f"{len(all_work - set(tick_of_work))} pieces of work are missing, "
            f"{len(set(tick_of_work) - all_work)} extra"
        )
    ideal = batches + stages - 1
    return "" if len(ticks) == ideal else f"it takes {len(ticks)} ticks; {ideal} are enough"


def order_of(schedule: Schedule, stage: int) -> list[int]:
    """The micro-batches of one stage in the order in which it works on them."""
    return [batch for tick in schedule for owner, batch in tick if owner == stage]


def _sizes(stages: int, batches: int) -> str:
    """The label of a case: its stages and micro-batches."""
    plural = "" if batches == 1 else "es"
    return f"with {stages} stage{'' if stages == 1 else 's'} and {batches} micro-batch{plural}"


def bubble(stages: int, batches: int) -> float:
    """The share of a stage's time that is spent waiting: (p - 1) / (m + p - 1)."""
    return (stages - 1) / (batches + stages - 1)


def check_order(function: Callable[[int, int, int], str]) -> CodeVerdict:
    """Whether a stage's order is 1F1B: as few micro-batches kept as can be, and no tick lost.

    Args:
        function: `order(stage, stages, micro_batches)` returning a text of F (the next micro-batch
            forward) and B (the oldest one backward).
    """

    def check(stages: int, batches: int) -> str:
        orders = [function(stage, stages, batches) for stage in range(stages)]
        return _order_fault(orders, stages, batches)

    sizes = ((1, 3), (2, 4), (3, 6), (4, 8), (4, 2), *_drawn_sizes())
    right = "each stage keeps as few micro-batches as it can, and none waits longer than in GPipe"
    return verdict_of(right, *((_sizes(*size), partial(check, *size)) for size in sizes))


def _order_fault(orders: Sequence[str], stages: int, batches: int) -> str:
    for stage, order in enumerate(orders):
        if not isinstance(order, str) or not order:
            return "write order first: it returns a string of F and B"
        if sorted(order) != ["B"] * batches + ["F"] * batches:
            return (
                f"stage {stage} must run forward and backward once for each micro-batch, "
                f"not {order}"
            )
        kept_counts = list(accumulate(1 if action == "F" else -1 for action in order))
        if min(kept_counts) < 0:
            return f"stage {stage} runs backward before it has run forward: {order}"
        if max(kept_counts) > min(batches, stages - stage):
            limit = min(batches, stages - stage)
            kept = f"stage {stage} keeps {max(kept_counts)} micro-batches"
            return f"{kept}; 1F1B keeps {limit} ({order})"
    ticks, ideal = ticks_of_orders(orders), 2 * (batches + stages - 1)
    if ticks is None:
        return "the stages wait for one another forever"
    took = len(ticks)
    return (
        "" if took == ideal else f"it takes {took} ticks; {ideal} are enough: who waits for whom?"
    )


def check_zero_bubble(function: Callable[[int, int, int], str]) -> CodeVerdict:
    """Whether a stage's order fills the bubble with weights, and keeps no more than 1F1B does.

    Args:
        function: `zero_bubble(stage, stages, micro_batches)`, with at least as many micro-batches
            as stages, returning a text of F (the next micro-batch forward), B (the oldest one's
            gradient of the input) and W (the oldest one's gradient of the weights).
    """

    def check(stages: int, batches: int) -> str:
        orders = [function(stage, stages, batches) for stage in range(stages)]
        return _zero_bubble_fault(orders, stages, batches)

    drawn_sizes = [(stages, stages + batches - 1) for stages, batches in _drawn_sizes()]
    sizes = ((1, 3), (2, 4), (3, 6), (4, 4), (4, 9), *drawn_sizes)
    right = "weights fill what 1F1B waits; no stage keeps more micro-batches than 1F1B's first one"
    return verdict_of(right, *((_sizes(*size), partial(check, *size)) for size in sizes))


def _zero_bubble_fault(orders: Sequence[str], stages: int, batches: int) -> str:
    for stage, order in enumerate(orders):
        if fault := _fault_of_stage(order, stages, batches):
            return f"stage {stage} {fault}" if order else fault
    ticks, ideal = ticks_of_orders(orders), 3 * batches + stages - 1
    if ticks is None:
        return "the stages wait for one another forever"
    took = len(ticks)
    return "" if took == ideal else f"it takes {took} ticks; {ideal} are enough: when is a W free?"


def _fault_of_stage(order: str, stages: int, batches: int) -> str:
    """What a stage does wrong in its order of F, B and W; empty where nothing is."""
    if not isinstance(order, str) or not order:
        return "write zero_bubble first: it returns a string of F, B and W"
    if sorted(order) != sorted("FBW" * batches):
        return f"must do F, B and W once for each micro-batch, not {order}"
    if _comes_late(order, "FB"):
        return f"runs backward before it has run forward: {order}"
    if _comes_late(order, "BW"):
        return f"does a W before its B, which makes what W needs: {order}"
    most = max(accumulate({"F": 1, "B": 0, "W": -1}[action] for action in order))
    if most > stages:
        first = f"1F1B's first stage keeps {stages}"
        return f"keeps {most} micro-batches until their W; {first} ({order})"
    return ""


def _comes_late(order: str, pair: str) -> bool:
    """Whether the first action of a pair ever comes after the second."""
    change = {pair[0]: 1, pair[1]: -1}
    return min(accumulate(change.get(action, 0) for action in order)) < 0


def ticks_of_orders(orders: Sequence[str]) -> list[list[tuple[int, str, int]]] | None:
    """Play the orders: the stage, action and micro-batch of all work in each tick.

    None where they block one another.
    """
    finished: set[tuple[int, str, int]] = set()
    at, ticks = [0] * len(orders), []
    while any(a < len(order) for a, order in zip(at, orders, strict=True)):
        ready = [
            work for work in _next_actions(orders, at) if _may_start(work, finished, len(orders))
        ]
        if not ready:
            return None
        ticks.append(ready)
        finished.update(ready)
        for stage, _, _ in ready:
            at[stage] += 1
    return ticks


def _next_actions(orders: Sequence[str], at: Sequence[int]) -> Iterator[tuple[int, str, int]]:
    """The next action of each stage that has not finished."""
    for stage, order in enumerate(orders):
        if at[stage] < len(order):
            action = order[at[stage]]
            yield stage, action, order[: at[stage]].count(action)


def _may_start(
    work: tuple[int, str, int], finished: set[tuple[int, str, int]], stages: int
) -> bool:
    """Whether the input of a stage's action was made in an earlier tick; a W has its own."""
    stage, action, number = work
    if action == "W":
        return True
    source, ends = (stage - 1, 0) if action == "F" else (stage + 1, stages - 1)
    return stage == ends or (source, action, number) in finished
