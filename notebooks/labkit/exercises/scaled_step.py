"""The exact check of a mixed-precision step: scaled, unscaled in fp32, taken or skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from labkit.exercises.code_checks import CodeVerdict, judged

TRUE = (2.0**-26, -(2.0**-20), 3.0)  # the first is less than fp16 can hold
TOO_MUCH = 2.0**14  # from this scale on the last one overflows


class _Scaler:
    """A right scaler that notes what it was told."""

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
    cases = [(f"at scale {scale:g}", partial(_fault, function, scale)) for scale in scales]
    return judged(right, *cases)


def _fault(function: Callable[..., Any], scale: float) -> str:
    import torch

    scaler, asked, taken = _Scaler(scale), list[float](), list[list[Any]]()

    def gradients_at(by: float) -> list[Any]:
        asked.append(float(by))
        return [torch.tensor([value * float(by)]).half() for value in TRUE]

    answer = function(gradients_at, taken.append, scaler)
    is_inf = scale >= TOO_MUCH
    rules = (
        (bool(asked), "write scaled_step first: it asked for no gradients"),
        (asked == [scale], f"ask for the gradients at the scaler's scale, not at {asked}"),
        (len(scaler.told) == 1, "the scaler's update must be called once for each step"),
        (scaler.told == [is_inf], f"update must be told {is_inf}: look for inf and nan"),
        (len(taken) == int(not is_inf), "a step with inf must be skipped, and any other taken"),
        (answer is (not is_inf), "return what update returned"),
    )
    broken = next((words for is_kept, words in rules if not is_kept), "")
    return broken or ("" if is_inf else _wrong_gradients(taken[0], scale))


def _wrong_gradients(found: Sequence[Any], scale: float) -> str:
    """Which mistake made the gradients that the step got; empty when they are the true ones."""
    values = [float(one) for one in found]
    if values == list(TRUE):
        return ""
    known = (
        ([one * scale for one in TRUE], "they are still scaled: divide by the scale"),
        ([one / 2 for one in TRUE], "update has changed the scale: divide by the one you used"),
        ([0.0, *TRUE[1:]], "the smallest gradient became 0: divide in fp32, not in fp16"),
    )
    for wrong, words in known:
        if values == wrong:
            return words
    if len({round(a / b, 5) for a, b in zip(values, TRUE, strict=True) if b}) == 1:
        return "they are off by one factor: the scale is not a constant, ask the scaler"
    return f"the step got {values} for {list(TRUE)}"
