"""Exact checks of mixed precision: a dynamic loss scaler, and a step that is taken or skipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, is_same, verdict_of

TINY = 2.0**-26  # less than fp16 can hold
MOST_STEPS = 5000  # until a scale must have grown
STORIES, STORY_STEPS = 6, 60


def check_loss_scaler(make: Callable[[], Any]) -> CodeVerdict:
    """Whether a dynamic loss scaler backs off at infinities, skips those steps, and grows again.

    Args:
        make: `LossScaler(start, growth_every)`, which may be called without them, returns a scaler
            with `scale` (a number) and `update(found_inf) -> bool`, which is told whether the
            step's gradients held an inf or nan, and answers whether the step may be taken.
    """
    right = "it halves at an inf, skips that step, and doubles after so many good ones in a row"
    checks = (_fault_at_inf, _fault_of_growth)
    cases = [("", lambda check=check: check(make())) for check in checks]
    return verdict_of(right, *cases, *[("", partial(_fault_of_story, make))] * STORIES)


def _fault_at_inf(scaler: Any) -> str:
    start = float(scaler.scale)
    if start < 2**8:
        return f"it starts at {start:g}; a small scale loses gradients to zero (E9)"
    if scaler.update(True) is not False:
        return "a step with inf gradients must be skipped: update(True) must be False"
    after = float(scaler.scale)
    if after != start / 2:
        return f"at an inf the scale must be halved; it went from {start:g} to {after:g}"
    return ""


def _fault_of_growth(scaler: Any) -> str:
    """The fault in a scaler's growth: it must double after exactly N good steps in a row."""
    start, steps = float(scaler.scale), 0
    while float(scaler.scale) == start and steps < MOST_STEPS:
        if scaler.update(False) is not True:
            return "a step with finite gradients must be taken: update(False) must be True"
        steps += 1
    grown, growth_every = float(scaler.scale), getattr(scaler, "growth_every", steps)
    if grown != 2 * start or steps != growth_every:
        return (
            f"{growth_every} good steps in a row must double the scale; after {steps} it went from "
            f"{start:g} to {grown:g}"
        )
    row = [False] * steps
    for story, factor, rule in (
        (row, 2, "doubling must start the count of good steps anew"),
        ([*row[1:], True, *row[1:]], 0.5, "an inf must start the count of good steps anew"),
    ):
        before = float(scaler.scale)
        for found_inf in story:
            scaler.update(found_inf)
        if float(scaler.scale) != factor * before:
            return f"{rule}: the scale went from {before:g} to {float(scaler.scale):g}"
    return ""


def _fault_of_story(make: Callable[..., Any]) -> str:
    """The fault in a story that was drawn: a start, a length of growth, and steps of both kinds."""
    luck = random.SystemRandom()
    growth_every, scale, good = luck.randrange(1, 8), 2.0 ** luck.randrange(20, 30), 0
    scaler = make(start=scale, growth_every=growth_every)
    for number in range(1, STORY_STEPS + 1):
        found_inf = luck.random() < 1 / (2 * growth_every)
        good = 0 if found_inf else good + 1
        scale = scale / 2 if found_inf else scale * (2 if good == growth_every else 1)
        good %= growth_every
        answer, after = scaler.update(found_inf), float(scaler.scale)
        if answer is not (not found_inf) or after != scale:
            return (
                f"with growth_every={growth_every}, after step {number} of a drawn row of steps "
                f"the scale must be {scale:g} and update({found_inf}) {not found_inf}; "
                f"they are {after:g} and {answer}"
            )
    return ""


class _Scaler:
    """A correct scaler that records its updates, and offers students' code what theirs has."""

    offered = ("scale", "update")

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.told: list[bool] = []

    def update(self, found_inf: bool) -> bool:
        self.told.append(bool(found_inf))
        self.scale *= 0.5 if found_inf else 2.0
        return not found_inf


def check_scaled_step(function: Callable[..., Any]) -> CodeVerdict:
    """Whether one step in fp16 takes the true gradients, or is skipped.

    Args:
        function: `scaled_step(gradients_at, step, scaler)` returning whether the step was taken.
            `gradients_at(scale)` goes back from scale × loss in fp16 and returns the gradients;
            `step(gradients)` takes a step with them.
    """
    infinity = float("inf")
    stories = (
        ("at scale 1024", 2.0**10, None, 0),
        ("at scale 65536, where one gradient overflows", 2.0**16, infinity, 1),
        ("with an inf below zero", 2.0**11, -infinity, 2),
        ("with a nan", 2.0**12, float("nan"), 1),
        ("at scale 256", 2.0**8, None, 0),
    )
    right = "the step gets the true gradients in fp32, and a step with inf is skipped"
    cases = [(label, partial(_fault_of_step, function, *story)) for label, *story in stories]
    return verdict_of(right, *cases)


def _true_gradients() -> list[Any]:
    """Gradients of three shapes, drawn so that fp16 holds them exactly at the scales tried."""
    import torch

    luck = random.SystemRandom()
    parts = ([TINY, 3.0], [[luck.choice((-1, 1)) * 2.0 ** luck.randrange(-20, -8)] * 2], [1.5])
    return [torch.tensor(part, dtype=torch.float64) for part in parts]


def _fault_of_step(
    function: Callable[..., Any], scale: float, broken: float | None, place: int
) -> str:
    """The fault in one step; `broken` is the last number of the gradient at `place`."""
    true = _true_gradients()
    scaler, requested_scales, taken_steps = _Scaler(scale), list[float](), list[list[Any]]()

    def gradients_at(factor: float) -> list[Any]:
        requested_scales.append(float(factor))
        gradients = [(gradient * float(factor)).half() for gradient in true]
        if broken is not None:
            gradients[place][..., -1] = broken
        return gradients

    answer = function(gradients_at, taken_steps.append, scaler)
    is_inf = broken is not None
    rules = (
        (bool(requested_scales), "write scaled_step first: it asked for no gradients"),
        (
            requested_scales == [scale],
            f"ask for the gradients at the scaler's scale, not at {requested_scales}",
        ),
        (len(scaler.told) == 1, "the scaler's update must be called once for each step"),
        (scaler.told == [is_inf], f"update must be told {is_inf}: look for inf and nan"),
        (
            len(taken_steps) == int(not is_inf),
            "a step with inf must be skipped, and any other taken",
        ),
        (answer is (not is_inf), "return what update returned"),
    )
    broken_rule = next((rule for is_kept, rule in rules if not is_kept), "")
    return broken_rule or ("" if is_inf else _wrong_gradients(list(taken_steps[0]), true, scale))


def _wrong_gradients(gradients: Sequence[Any], true: Sequence[Any], scale: float) -> str:
    """Describe the mistake in the gradients that a step received; empty when they are right."""
    shapes = [tuple(getattr(gradient, "shape", ())) for gradient in gradients]
    if shapes != [tuple(gradient.shape) for gradient in true]:
        return f"the step got gradients of the shapes {shapes}"
    pairs = list(zip((gradient.double() for gradient in gradients), true, strict=True))
    if all(is_same(gradient, right) for gradient, right in pairs):
        return ""
    if all(is_same(gradient, right * scale) for gradient, right in pairs):
        return "they are still scaled: divide by the scale"
    if float(pairs[0][0].flatten()[0]) == 0:
        return "the smallest gradient became 0: divide in fp32, not in fp16"
    return f"the step got {gradients[0].tolist()} for {true[0].tolist()}"
