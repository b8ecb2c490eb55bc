"""The memory ledger and ZeRO-1: counted by tensors, and typical mistakes get their sentence."""

import pytest
from tests.needs import needs

from labkit.exercises import code_checks
from labkit.exercises.memory_checks import check_ledger, check_zero_step
from labkit.machine.tensor_memory import count_step

needs("torch", "tensors are counted")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a slow machine a message may come late; none is waited for in vain here."""
    monkeypatch.setattr(code_checks, "PATIENCE_S", 60.0)


def ledger(width, depth, rows, micro_batches, checkpoint, ranks, **wrong):
    """The right one, each part open to one mistake."""
    numbers, batch = depth * 8 * width * width, rows // wrong.get("cut", micro_batches) * width
    inside = wrong.get("inside", 4) * batch
    whole_again = wrong.get("again", 1)
    kept = (
        depth * batch + inside * whole_again
        if checkpoint and wrong.get("drop", True)
        else depth * (batch + inside)
    )
    bytes_each = wrong.get("bytes", 4)
    return {
        "parameters": bytes_each * numbers // wrong.get("split", lambda ranks: 1)(ranks),
        "gradients": bytes_each * numbers,
        "optimiser": wrong.get("moments", 2) * bytes_each * numbers // wrong.get("sharers", ranks),
        "activations": bytes_each * (kept + batch * wrong.get("output", 1)),
    }


MISTAKES = {
    "numbers": ({"bytes": 1}, "each number has 4 bytes"),
    "one moment": ({"moments": 1}, "two numbers for a parameter"),
    "ReLU's input": ({"inside": 8}, "ReLU keeps its result"),
    "no output": ({"output": 0}, "the output is kept as well"),
    "all micro-batches at once": ({"cut": 1}, "only one micro-batch is alive"),
    "no recomputed block": ({"again": 0}, "its inner activations are there again"),
    "no checkpointing": ({"drop": False}, "a block's inner activations are not kept"),
    "every rank all of the state": ({"sharers": 1}, "each rank holds only its part"),
    "ZeRO-3": ({"split": lambda ranks: ranks}, "leaves parameters and gradients whole"),
}


def test_the_ledger_behind_the_mistakes_is_right():
    """Without a mistake it is what is counted, so that it is the mistake that fails."""
    assert check_ledger(ledger).right


@pytest.mark.parametrize(("mistake", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_typical_mistake_of_the_ledger_is_named(mistake, said):
    """The number that it gives says which it is."""
    verdict = check_ledger(lambda *case: ledger(*case, **mistake))
    assert not verdict.right
    assert said in verdict.why


@pytest.mark.parametrize(
    ("answer", "said"), [(None, "first"), ({"parameters": 1}, "dict"), ({}, "dict"), (7, "dict")]
)
def test_what_is_no_ledger_is_a_sentence(answer, said):
    """An unwritten one, and what has another shape."""
    assert said in check_ledger(lambda *_: answer).why


def zero(mean=True, owners=1, sends=True):
    def zero_step(weights, gradients, adam, rank, world, all_reduce, broadcast):
        new = []
        for number, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            reduced = all_reduce(gradient) / (world if mean else 1)
            is_mine = number % world == rank or owners > 1
            updated = adam(number, weight, reduced) if is_mine and owners else weight
            new.append(broadcast(updated, number % world) if sends else updated)
        return new

    return zero_step


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mean": False}, "the sum of the gradients"),
        ({"owners": 2}, "several ranks call adam"),
        ({"owners": 0}, "never called"),
        ({"sends": False}, "does not hold every new weight"),
    ],
)
def test_a_wrong_zero_step_is_named(wrong, said):
    """No mean, state on every rank, no step, no broadcast."""
    assert check_zero_step(zero()).right
    verdict = check_zero_step(zero(**wrong))
    assert not verdict.right
    assert said in verdict.why


def test_a_step_is_counted_by_kind():
    """A temporary is none of the others, and the peak is less than all maxima together."""
    import torch

    network = torch.nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.SGD(network.parameters(), momentum=0.9)

    def step():
        network(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = {kind: mib * 2**20 for kind, mib in count_step(step, network, optimizer).items()}
    assert (found["parameters"], found["gradients"], found["optimiser"]) == (128, 128, 128)
    assert found["activations"] == 4 * (2 * 8 + 2 * 4)
    assert found["peak"] <= sum(
        found[kind]
        for kind in ("parameters", "gradients", "optimiser", "activations", "temporaries")
    )
    assert found["peak"] == sum(
        size for name, size in found.items() if name.startswith("at the peak")
    )
