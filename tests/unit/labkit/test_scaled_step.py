"""A step in mixed precision: the right one passes, each typical mistake gets its sentence."""

import pytest
from tests.needs import needs

from labkit.exercises.scaled_step import check_scaled_step

needs("torch", "gradients are tensors")


def right(gradients_at, step, scaler, **wrong):
    scale = wrong.get("scale", scaler.scale)
    gradients = gradients_at(scale)
    found_inf = any(not one.isfinite().all() for one in gradients) and not wrong.get("blind")
    taken = scaler.update(found_inf) if not wrong.get("deaf") else True
    by = wrong.get("by", scaler.scale if wrong.get("late") else scale)
    if taken or wrong.get("careless"):
        step([one / by if wrong.get("narrow") else one.float() / by for one in gradients])
    return None if wrong.get("silent") else taken


MISTAKES = {
    "inf is not looked for": ({"blind": True}, "look for inf"),
    "update is not told": ({"deaf": True}, "must be called once for each step"),
    "a step with inf is taken": ({"careless": True}, "must be skipped"),
    "not divided": ({"by": 1.0}, "still scaled"),
    "divided by 1000": ({"by": 1000.0}, "not a constant"),
    "divided by the new scale": ({"late": True}, "the one you used"),
    "divided in fp16": ({"narrow": True}, "in fp32, not in fp16"),
    "never scaled": ({"scale": 1.0}, "the scaler's scale"),
    "says nothing": ({"silent": True}, "what update returned"),
}


@pytest.mark.parametrize(("mistake", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_typical_mistake_is_named(mistake, said):
    """Without it the same step passes, so that it is the mistake that fails."""
    assert check_scaled_step(right).right
    verdict = check_scaled_step(lambda *given: right(*given, **mistake))
    assert not verdict.right
    assert said in verdict.why


def test_an_unwritten_step_is_a_sentence():
    """What the student's build holds."""
    assert "first" in check_scaled_step(lambda *_: None).why
