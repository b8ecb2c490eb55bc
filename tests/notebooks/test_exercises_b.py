"""Exercises of notebooks 3 to 5: solutions pass their exact checks, typical mistakes do not."""

import ast
import re
from pathlib import Path

import pytest
from tests.needs import needs

from labkit.exercises.code_checks import (
    check_all_reduce,
    check_gradient_averaging,
    check_loss_scaler,
    check_split_matmul,
    run_ranks,
)
from labkit.exercises.ddp_checks import check_buckets, check_sync
from labkit.exercises.memory_checks import check_ledger, check_zero_step
from labkit.exercises.scaled_step import check_scaled_step
from labkit.exercises.schedule import check_order, check_schedule
from make_notebooks import build_text

needs("torch", "the exercises are written with torch")

SOURCES = Path(__file__).parents[2] / "notebooks" / "src"
MIXED, AVERAGING, SENDING = "3_mixed_precision", "4a_averaging", "4b_sending"
LAYERS, MEMORY = "5a_splitting_layers", "5b_memory_and_pipelines"


def cat(parts, dim=0):
    """`torch.cat`; torch is not imported while tests are collected."""
    import torch

    return torch.cat(parts, dim=dim)


def written(notebook, name, *, solutions=True):
    """A function or class of a notebook, as the solutions or as the student finds it."""
    import torch

    text = (SOURCES / f"{notebook}.py").read_text(encoding="utf-8")
    tree = ast.parse(build_text(text, solutions=solutions))
    kinds = (ast.FunctionDef, ast.ClassDef)
    tree.body = [node for node in tree.body if isinstance(node, kinds)]
    space = {"torch": torch}
    exec(compile(tree, f"{notebook}.py", "exec"), space)
    return space[name]


EXERCISES = {
    "loss scaler": (MIXED, "LossScaler", check_loss_scaler),
    "mixed-precision step": (MIXED, "scaled_step", check_scaled_step),
    "average": (AVERAGING, "average", check_gradient_averaging),
    "naive all-reduce": (AVERAGING, "naive_all_reduce", check_all_reduce),
    "ring all-reduce": (AVERAGING, "ring_all_reduce", lambda f: check_all_reduce(f, ring=True)),
    "per tensor": (SENDING, "per_tensor", check_sync),
    "flat": (SENDING, "flat", lambda f: check_sync(f, flat=True)),
    "buckets": (SENDING, "Buckets", check_buckets),
    "row split": (LAYERS, "split_rows", lambda f: check_split_matmul(f, by="rows")),
    "column split": (LAYERS, "split_columns", lambda f: check_split_matmul(f, by="columns")),
    "1F1B": (MEMORY, "order", check_order),
    "ledger": (MEMORY, "ledger", check_ledger),
    "ZeRO-1": (MEMORY, "zero_step", check_zero_step),
    "schedule": (MEMORY, "schedule", check_schedule),
}


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_the_solution_passes(exercise):
    """What the instructor's build holds is right."""
    notebook, name, check = exercise
    verdict = check(written(notebook, name))
    assert verdict.right, verdict.why


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
def test_the_unwritten_exercise_is_judged_without_a_traceback(exercise):
    """What the student's build holds is not right yet, and the check says so in words."""
    notebook, name, check = exercise
    verdict = check(written(notebook, name, solutions=False))
    assert not verdict.right
    assert verdict.why


class Scaler:
    """The notebook's rules, each open to one mistake."""

    start, shrink, skip, grow = 2.0**16, 2.0, True, 2.0

    def __init__(self):
        self.scale, self.good = self.start, 0

    def update(self, found_inf):
        self.good = 0 if found_inf else self.good + 1
        is_due = self.good and self.good % 50 == 0
        self.scale *= 1 / self.shrink if found_inf else self.grow if is_due else 1
        return not (found_inf and self.skip)


SCALERS = {
    "starts at 2^-10, as the article has it": ({"start": 2.0**-10}, "small scale"),
    "takes the step with inf in it": ({"skip": False}, "must be skipped"),
    "never shrinks": ({"shrink": 1.0}, "must shrink"),
    "grows at an inf": ({"shrink": 0.5}, "must shrink"),
    "never grows again": ({"grow": 1.0}, "must grow"),
}


@pytest.mark.parametrize(("mistake", "said"), SCALERS.values(), ids=SCALERS)
def test_a_wrong_loss_scaler_is_found(mistake, said):
    """Each rule of the loss scaler is missed when it is broken."""
    verdict = check_loss_scaler(type("Wrong", (Scaler,), mistake))
    assert not verdict.right
    assert said in verdict.why


def test_the_scaler_behind_the_mistakes_is_right():
    """Without a mistake the same class passes, so that it is the mistake that fails."""
    assert check_loss_scaler(Scaler).right


AVERAGES = {
    "added and not averaged": sum,
    "always halved": lambda gradients: sum(gradients) / 2,
    "the first rank's alone": lambda gradients: gradients[0],
    "divided twice": lambda gradients: sum(gradients) / len(gradients) ** 2,
}


@pytest.mark.parametrize("wrong", AVERAGES.values(), ids=AVERAGES)
def test_wrong_averaging_is_found(wrong):
    """A gradient that is not the whole batch's is off, by how much is said."""
    verdict = check_gradient_averaging(wrong)
    assert not verdict.right
    assert "is off by" in verdict.why


def ring(chunks, rank, world, send, receive, *, add_steps, pass_steps):
    """The ring, over so many steps of either kind."""
    after, before = (rank + 1) % world, (rank - 1) % world
    for step in range(add_steps):
        send(after, chunks[(rank - step) % world])
        chunks[(rank - step - 1) % world] += receive(before)
    for step in range(pass_steps):
        send(after, chunks[(rank - step + 1) % world])
        chunks[(rank - step) % world] = receive(before)
    return cat(chunks)


def forgets_a_chunk(tensor, rank, world, send, receive):
    parts = list(tensor.tensor_split(world))
    steps = {"add_steps": world - 1, "pass_steps": max(0, world - 2)}
    return ring(parts, rank, world, send, receive, **steps)


def never_passes_on(tensor, rank, world, send, receive):
    parts = list(tensor.tensor_split(world))
    return ring(parts, rank, world, send, receive, add_steps=world - 1, pass_steps=0)


def drops_the_rest(tensor, rank, world, send, receive):
    parts = list(tensor[: len(tensor) // world * world].tensor_split(world))
    steps = {"add_steps": world - 1, "pass_steps": world - 1}
    return ring(parts, rank, world, send, receive, **steps)


def sends_to_itself(tensor, rank, world, send, receive):
    for other in range(world):
        send(other, tensor)
    return tensor


@pytest.mark.parametrize(
    "wrong", [forgets_a_chunk, never_passes_on, drops_the_rest, sends_to_itself]
)
def test_a_wrong_all_reduce_is_found(wrong):
    """Whoever loses a part of the sum, or sends where nobody is, is told with how many ranks."""
    verdict = check_all_reduce(wrong, ring=True)
    assert not verdict.right
    assert re.search("with [0-9]+ ranks?\\b", verdict.why)


def test_a_naive_all_reduce_is_no_ring():
    """Right sums by too many bytes are not accepted as a ring."""
    verdict = check_all_reduce(written(AVERAGING, "naive_all_reduce"), ring=True)
    assert not verdict.right
    assert "a ring sends" in verdict.why


@pytest.mark.parametrize("world", [2, 4, 6, 8])
def test_the_bytes_of_the_solutions_are_those_of_the_formulas(world):
    """Per rank the ring sends 2(n-1)/n of the tensor, the naive way n-1 times all of it."""
    import torch

    inputs = [torch.ones(840) for _ in range(world)]
    _, by_ring = run_ranks(written(AVERAGING, "ring_all_reduce"), inputs)
    _, naively = run_ranks(written(AVERAGING, "naive_all_reduce"), inputs)
    assert max(by_ring) == 2 * (world - 1) * 4 * 840 // world
    assert max(naively) == (world - 1) * 4 * 840


SPLITS = {
    "rows stacked": lambda x, w, n: cat(
        [a @ b for a, b in zip(x.tensor_split(n, 1), w.tensor_split(n, 0), strict=True)], dim=1
    ),
    "rows without all of them": lambda x, w, n: x.tensor_split(n, 1)[0] @ w.tensor_split(n, 0)[0],
    "columns added": lambda x, w, n: sum(x @ part for part in w.tensor_split(n, 1)),
    "columns stacked below": lambda x, w, n: cat([x @ p for p in w.tensor_split(n, 1)], dim=0),
    "the batch split": lambda x, w, n: x.tensor_split(n, 0)[0] @ w,
    "the wrong dimension": lambda x, w, n: cat([x @ p for p in w.tensor_split(n, 0)], dim=1),
}


@pytest.mark.parametrize("wrong", SPLITS.values(), ids=SPLITS)
def test_a_wrong_split_is_found(wrong):
    """Split or joined along the wrong dimension, the product is not x @ w."""
    assert not check_split_matmul(wrong, by="rows").right


def one_after_another(stages, batches):
    return [[(stage, batch)] for batch in range(batches) for stage in range(stages)]


def all_at_once(stages, batches):
    return [[(stage, batch) for stage in range(stages)] for batch in range(batches)]


def first_stage_only(_, batches):
    return [[(0, batch)] for batch in range(batches)]


def two_in_one_tick(stages, batches):
    return [[(stage, batch) for batch in range(batches)] for stage in range(stages)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (one_after_another, "ticks"),
        (all_at_once, "has not finished"),
        (first_stage_only, "missing"),
        (two_in_one_tick, "two micro-batches at once"),
        (lambda stages, batches: None, "TypeError"),
    ],
)
def test_a_wrong_schedule_is_found(wrong, said):
    """Ticks that waste time, come too early or miss work are told apart."""
    verdict = check_schedule(wrong)
    assert not verdict.right
    assert said in verdict.why


@pytest.mark.parametrize(("layer", "at_128"), [("rows_layer", 128_000), ("columns_layer", 160_000)])
def test_the_published_counts_are_counted(layer, at_128):
    """Two ranks that split the article's layer send what it says at batch 128."""
    elements = written(LAYERS, "elements_sent").__globals__ | {"run_ranks": run_ranks}
    import torch

    _, sent = elements["run_ranks"](elements[layer](128), [torch.ones(1000, 500)] * 2)
    assert max(sent) == 4 * at_128
