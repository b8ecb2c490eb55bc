"""Formulas of the student's: what is right passes, and each typical mistake has its name."""

from collections.abc import Callable
from typing import Any

import pytest

from labkit import exercises
from labkit.exercises import check_busy_share, check_choose, check_per_sm_ratio
from labkit.exercises.formula_checks import ExactFormula

FORMULAS = [
    exercise
    for name, exercise in vars(exercises).items()
    if isinstance(exercise, ExactFormula) and name not in ("check_fits", "check_ledger")
]
MISTAKES = {
    f"{formula.name}-{number}": (formula, sentence, mistake)
    for formula in FORMULAS
    for number, (sentence, mistake) in enumerate(formula.mistakes.items())
}
NONSENSE: dict[str, Callable[..., Any]] = {
    "nothing": lambda *_: None,
    "word": lambda *_: "banana",
    "empty": lambda *_: [],
    "object": lambda *_: object(),
    "nan": lambda *_: float("nan"),
    "arguments": lambda: 1,
    "error": lambda *_: 1 / 0,
}


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.name)
def test_what_is_right_passes(formula: ExactFormula) -> None:
    """Each case has one answer."""
    assert formula(formula.right).right


@pytest.mark.parametrize(
    ("formula", "sentence", "mistake"), list(MISTAKES.values()), ids=list(MISTAKES)
)
def test_a_typical_mistake_is_called_by_its_own_name(
    formula: ExactFormula, sentence: str, mistake: Callable[..., Any]
) -> None:
    """And by no other's."""
    verdict = formula(mistake)
    assert not verdict.right
    assert verdict.reason == sentence


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda f: f.name)
@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=list(NONSENSE))
def test_nonsense_is_answered_with_a_sentence(
    formula: ExactFormula, nonsense: Callable[..., Any]
) -> None:
    """Whatever a cell returns or raises, nothing else falls over it."""
    verdict = formula(nonsense)
    assert not verdict.right
    assert verdict.reason


def test_an_unknown_mistake_is_told_with_its_case() -> None:
    """The call, what is right and what was said; of one that is not written, its name."""
    outcome = check_per_sm_ratio(lambda *_: 7.0)
    assert outcome.reason == "per_sm_ratio(200, 100, 20, 10) is 1, you say 7"
    assert check_choose(lambda *_: None).reason == "write choose first"
    outcome = check_busy_share(lambda *_: 0.123)
    assert outcome.reason == "busy_share of operations apart is 0.4, you say 0.123"
    assert "you say 'huge'" in check_choose(lambda *_: "huge").reason
