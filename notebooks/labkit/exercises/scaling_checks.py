"""Exact checks of mixed precision: a dynamic loss scaler, and a step that is taken or skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, verdict_of

TRUE = (2.0**-26, -(2.0**-20), 3.0)  # the first is less than fp16 can hold
TOO_MUCH = 2.0**14  # from this scale on the last one overflows
MOST_STEPS = 5000  # until a scale must have grown


def check_loss_scaler(make: Callable[[], Any]) -> CodeVerdict:
    """Whether a dynamic loss scaler backs off at infinities, skips those steps, and grows again.

    Args:
        make: returns a scaler with `scale` (a number) and `update(found_inf) -> bool`, which is
            told whether the step's gradients held an inf or nan, and answers whether the step may
            be taken.
    """
    right = "it halves at an inf, skips that step, and doubles after so many good ones in a row"
    checks = (_fault_at_inf, _fault_of_growth)
    return verdict_of(right, *(("", lambda check=check: check(make())) for check in checks))


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
    scales = (2.0**10, 2.0**16)
    right = "the step gets the true gradients in fp32, and a step with inf is skipped"
    cases = [(f"at scale {scale:g}", partial(_fault_of_step, function, scale)) for scale in scales]
    return verdict_of(right, *cases)


def _fault_of_step(function: Callable[..., Any], scale: float) -> str:
    import torch

    scaler, requested_scales, taken_steps = _Scaler(scale), list[float](), list[list[Any]]()

    def gradients_at(factor: float) -> list[Any]:
        requested_scales.append(float(factor))
        return [torch.tensor([value * float(factor)]).half() for value in TRUE]

    answer = function(gradients_at, taken_steps.append, scaler)
    is_inf = scale >= TOO_MUCH
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
    broken = next((rule for is_kept, rule in rules if not is_kept), "")
    return broken or ("" if is_inf else _wrong_gradients(taken_steps[0], scale))


def _wrong_gradients(gradients: Sequence[Any], scale: float) -> str:
    """Describe the mistake in the gradients that a step received; empty when they are right."""
    values = tuple(float(gradient) for gradient in gradients)
    if values == TRUE:
        return ""
    known_mistakes = {
        tuple(value * scale for value in TRUE): "they are still scaled: divide by the scale",
        (0.0, *TRUE[1:]): "the smallest gradient became 0: divide in fp32, not in fp16",
    }
    return known_mistakes.get(values, f"the step got {values} for {TRUE}")
