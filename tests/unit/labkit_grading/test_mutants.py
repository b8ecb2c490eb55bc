"""Each exercise's check refuses wrong solutions, and accepts right ones in any style.

All go over the wire, as when they are marked.
"""

import functools
from pathlib import Path

import pytest
from tests.needs import needs
from tests.unit.labkit_grading import (
    exercise_mutants,
    exercise_mutants_attention,
    exercise_mutants_choosing,
    exercise_mutants_incident,
    exercise_mutants_kernels,
    exercise_mutants_parallel,
    exercise_mutants_sharding,
)
from tests.unit.labkit_grading.in_process import InProcess

from labkit_grading import grade_code
from labkit_grading.grade_code import ExerciseResult, Key

needs("torch", "the exercises are written with torch")

SOURCES = Path(__file__).parents[3] / "notebooks" / "src"
EXERCISES = {
    **exercise_mutants.EXERCISES,
    **exercise_mutants_attention.EXERCISES,
    **exercise_mutants_kernels.EXERCISES,
    **exercise_mutants_parallel.EXERCISES,
    **exercise_mutants_sharding.EXERCISES,
    **exercise_mutants_choosing.EXERCISES,
    **exercise_mutants_incident.EXERCISES,
}
MUTANTS = [
    pytest.param(name, mutant, id=f"{name}: {teaches}")
    for name, exercise in EXERCISES.items()
    for teaches, mutant in exercise.mutants.items()
]
STYLES = [
    pytest.param(name, style, id=f"{name}: {difference}")
    for name, exercise in EXERCISES.items()
    for difference, style in exercise.styles.items()
]


@functools.cache
def key_of(notebook: str) -> Key:
    return grade_code.answer_key(SOURCES / f"{notebook}.py")


def marked(name: str, code: str) -> ExerciseResult:
    """The mark of the exercise with this code for it, and the notebook's for the others."""
    exercise, key = EXERCISES[name], key_of(EXERCISES[name].notebook)
    solved = {exercise: key.defined[exercise] for exercise in key.exercises}
    submitted = solved | grade_code.definitions([code])
    of_verdict = grade_code.program(exercise.verdict, key, submitted)
    return grade_code.mark_exercise(of_verdict, key, InProcess())


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_a_wrong_solution_is_refused(name: str, mutant: exercise_mutants.Mutant) -> None:
    """And told in a sentence what is wrong."""
    code = mutant
    if not isinstance(mutant, str):
        solved = key_of(EXERCISES[name].notebook).defined[name]
        assert mutant[0] in solved
        code = solved.replace(*mutant)
    mark = marked(name, code)
    assert not mark.right
    assert len(mark.message) > len("not yet right: ")


@pytest.mark.parametrize(("name", "style"), STYLES)
def test_a_right_solution_in_another_style_is_accepted(name: str, style: str) -> None:
    """A check asks for what is right, not for its own way."""
    mark = marked(name, style)
    assert mark.right, mark.message


def test_every_exercise_has_its_mutants_and_styles() -> None:
    """At least eight of the ones and three of the others, whatever exercise is added."""
    exercises = {name for source in SOURCES.glob("*.py") for name in key_of(source.stem).exercises}
    assert exercises == EXERCISES.keys()
    assert {name for name, exercise in EXERCISES.items() if len(exercise.mutants) < 8} == set()
    assert {name for name, exercise in EXERCISES.items() if len(exercise.styles) < 3} == set()
