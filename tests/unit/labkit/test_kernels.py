"""Notebook 3b's parts: a kernel judged by whole matrices, programs, bottlenecks, held memory."""

import pytest
from tests.needs import needs

from labkit.errors import NotMeasured, WrongArgument
from labkit.evidence.evidence import Point
from labkit.exercises import kernel_checks, kernels, traces
from labkit.notebook.catalogue import kernels as catalogue

needs("torch", "kernels are compared with torch's")

SHAPE = {"batch": 32, "width": 16, "word_count": 8, "letters": 3, "rows": 4}


def plain_softmax(x, block):
    import torch

    return torch.softmax(x, dim=1)


def without_the_last_block(x, block):
    return plain_softmax(x[:, : x.shape[1] // block * block], block).new_full(x.shape, float("nan"))


def of_each_block(x, block):
    import torch

    return torch.cat([torch.softmax(part, 1) for part in x.split(block, 1)], dim=1)


def overflowing(x, block):
    return x.exp() / x.exp().sum(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("softmax", "fault"),
    [
        (plain_softmax, ""),
        (without_the_last_block, "never written"),
        (of_each_block, "with three blocks: a number is off by"),
        (overflowing, "with numbers of about 1000, the largest last: there are nan or inf"),
    ],
)
def test_a_kernel_is_judged_on_the_matrices_of_the_exercise(softmax, fault):
    """The first case that fails is named."""
    found_fault = kernel_checks.fault_of_kernel(softmax, "cpu")
    assert fault in found_fault
    assert bool(found_fault) == bool(fault)


def test_all_programs_end_with_the_same_numbers():
    """Whatever is wrong with them costs time only."""
    import torch

    plain, *slowed_results = (traces.program(letter, **SHAPE)() for letter in traces.PROGRAMS)
    assert plain.shape == (32, 16)
    assert plain.abs().sum() > 0
    for result in slowed_results:
        torch.testing.assert_close(result, plain)


def test_bottlenecks_are_named_one_by_one():
    """A wrong answer is told the sign that it would have; a question mark is no answer."""
    right = dict(traces.BOTTLENECKS)
    assert traces.check_bottlenecks(right).right
    swapped = right | {"B": right["C"], "C": right["B"]}
    assert traces.check_bottlenecks(swapped).reason.startswith("look at B again: with input")
    assert "first" in traces.check_bottlenecks(right | {"A": "?"}).reason
    for answers in (right | {"A": "slow"}, {"A": "input"}):
        with pytest.raises(WrongArgument, match="input, launches, synchronisation"):
            traces.check_bottlenecks(answers)


def test_what_is_held_is_the_peak_and_not_the_sum():
    """Two tensors of a MiB that live one after the other are one; at the same time, two."""
    import torch

    def one_after_the_other():
        for _ in range(2):
            torch.empty(2**18).fill_(1.0)

    def at_the_same_time():
        return torch.empty(2**18), torch.empty(2**18)

    assert kernels.held_mib(one_after_the_other) == pytest.approx(1, abs=0.01)
    assert kernels.held_mib(at_the_same_time) == pytest.approx(2, abs=0.01)


def test_without_a_compiler_nothing_is_compiled_and_it_says_so(monkeypatch):
    """As in the student image, which has nothing to build with."""
    monkeypatch.setattr(kernels.shutil, "which", lambda _: None)
    assert not kernels.has_compiler(on_gpu=False)
    assert not kernels.has_compiler(on_gpu=True)
    with pytest.raises(NotMeasured, match="needs a compiler"):
        kernels.compile_anew(lambda: None)


def test_the_roof_bends_where_both_limits_meet():
    """Left of it the memory's slant, right of it the products' height."""
    points = [
        point("block, eager", 1.0, 5.0),
        point("limit of memory", 1.0, 10.0),
        point("limit of products", 100.0, 200.0),
    ]
    assert catalogue.roof(points) == {"the roof": [(1.0, 10.0), (20.0, 200.0), (100.0, 200.0)]}
    assert catalogue.roof(points[:2]) == {}


def point(label, x, value):
    return Point(x, label, value)
