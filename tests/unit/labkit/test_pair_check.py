"""A tensor-parallel pair of layers: exact in both directions, and its typical mistakes by name."""

import pytest
from tests.needs import needs

from labkit.exercises import code_checks
from labkit.exercises.pair_check import check_pair

needs("torch", "the check compares tensors")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Every message here comes; on a slow machine it may come late."""
    monkeypatch.setattr(code_checks, "PATIENCE_S", 60.0)


def forward(x, first, second, all_reduce, *, inside=lambda hidden, _: hidden.relu()):
    hidden = inside(x @ first, all_reduce)
    return all_reduce(hidden @ second), (x, hidden)


def backward(delta, kept, first, second, all_reduce, *, masked=True, reduce_weights=False):
    x, hidden = kept
    of_hidden = delta @ second.T
    of_hidden = of_hidden * (hidden > 0) if masked else of_hidden
    of_first = x.T @ of_hidden
    of_first = all_reduce(of_first) / 2 if reduce_weights else of_first
    return all_reduce(of_hidden @ first.T), of_first, hidden.T @ delta


def alone(tensor):
    return tensor


def late(x, first, second, all_reduce):
    return all_reduce(x @ first @ second).relu(), (x, (x @ first).relu())


def wide(hidden, all_reduce):
    all_reduce(hidden)
    return hidden.relu()


def test_the_right_pair_passes():
    """So that it is the mistake that fails below."""
    assert check_pair(forward, backward).right


@pytest.mark.parametrize(
    ("forth", "back", "said"),
    [
        (lambda x, a, b, _: forward(x, a, b, alone), backward, "the output is one rank's part"),
        (lambda *g: forward(*g, inside=lambda hidden, _: hidden), backward, "there is a ReLU"),
        (late, backward, "before the parts are added"),
        (
            forward,
            lambda d, k, a, b, _: backward(d, k, a, b, alone),
            "gradient of x is wrong: it is",
        ),
        (forward, lambda *given: backward(*given, masked=False), "gradient of x is wrong"),
        (forward, lambda *given: backward(*given, reduce_weights=True), "gradient of first"),
        (lambda *given: forward(*given, inside=wide), backward, "the hidden layer is sent"),
        (lambda *_: None, backward, "first"),
        (forward, lambda *_: None, "first"),
        (forward, lambda *_: (1, 2), "three gradients"),
    ],
)
def test_a_typical_mistake_is_named(forth, back, said):
    """No sum, no ReLU, ReLU too late, a sum too many, the hidden layer sent."""
    verdict = check_pair(forth, back)
    assert not verdict.right
    assert said in verdict.why
