"""A timeline: which operation is in which lane, how busy a lane is, and what it looks like."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from tests.needs import needs

from labkit.machine import profiling
from labkit.machine.profiling import KERNELS, MESSAGES, OPERATORS
from labkit.notebook.drawings import timeline

STEP = [
    (OPERATORS, "aten::mm", 0.0, 4.0),
    (OPERATORS, "aten::add", 5.0, 6.0),
    (MESSAGES, "gloo:all_reduce", 3.0, 8.0),
    (MESSAGES, "gloo:all_reduce", 4.0, 7.0),
]


def test_what_overlaps_counts_once():
    """Two messages at a time are one busy link; hidden is what travels while something runs.

    `linear` calls `addmm`: only the outer one is a box; a message is never inside one.
    """
    assert profiling.busy_ms(STEP, OPERATORS) == 5
    assert profiling.busy_ms(STEP, MESSAGES) == 5
    assert profiling.hidden_ms(STEP) == 2
    assert profiling.hidden_ms([*STEP, (KERNELS, "gemm", 7.5, 9.0)]) == 0.5
    inner = [*STEP, (OPERATORS, "aten::addmm", 1.0, 2.0)]
    assert list(profiling.outermost(inner)) == sorted(STEP, key=lambda span: span[2])


def test_a_picture_has_a_lane_each_and_says_what_is_hidden():
    """A box for each operation, which says how long it took; a lane says how busy it is."""
    drawing = timeline(STEP, "One step")
    bars = drawing.spec["layer"][0]
    boxes = [(row["lane"], row["begin"], row["end"], row["kind"]) for row in bars["data"]["values"]]
    assert boxes[0] == (OPERATORS, 0.0, 4.0, "products of matrices")
    assert len(boxes) == len(STEP)
    assert bars["data"]["values"][0]["tooltip"] == "aten::mm: 4 ms"
    assert '"62% busy"' in bars["encoding"]["y"]["axis"]["labelExpr"]
    assert "Of 5 ms of messages, 2 ms pass while it computes" in repr(drawing)


RELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "launch_clamp_scalar(at::TensorIteratorBase&)::{lambda()#1}>(int, ...)"
)


@pytest.mark.parametrize(
    ("name", "annotated", "lane"),
    [
        (RELU, False, KERNELS),
        ("nvjet_tst_128x64", False, KERNELS),
        ("Memcpy HtoD (Pageable -> Device)", False, KERNELS),
        ("Optimizer.step#Adam.step", False, None),
        ("ProfilerStep#1", False, None),
        ("a student's own record_function", True, None),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)", False, MESSAGES),
    ],
)
def test_what_the_gpu_ran_is_a_kernel(name, annotated, lane):
    """A kernel that is a C++ lambda has a "#" in its name, as annotations of optimizers have."""
    event = SimpleNamespace(name=name, is_user_annotation=annotated)
    assert profiling.lane_of(event, on_gpu=True) == lane


def test_the_profiler_sees_a_step():
    """Operators in order, the first at 0, and none inside another."""
    needs("torch", "PyTorch's profiler")
    import torch

    layer = torch.nn.Linear(8, 8)
    spans = profiling.spans_of(lambda: layer(torch.ones(2, 8)).sum().backward())
    assert spans[0][2] == 0
    assert {lane for lane, *_ in spans} == {OPERATORS}
    assert any(name == "aten::linear" for _, name, *_ in spans)
    assert all(span[3] <= following[2] for span, following in pairwise(spans))
    nested = profiling.spans_of(lambda: layer(torch.ones(2, 8)), inner=True)
    assert {"aten::linear", "aten::addmm"} <= {name for _, name, *_ in nested}
    timeline(nested, "drawn without what is inside")
