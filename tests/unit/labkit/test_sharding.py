"""What a sharded step is trained with: layers without autograd, Adam by parts, and the counters."""

import socket
from pathlib import Path

import pytest
from tests.needs import needs

from labkit.exercises import sharding
from labkit.exercises.sharding import PartAdam, UnitLayers, peak_growth, sent_bytes

needs("torch", "layers and Adam are compared with torch's")

WIDTH, DEPTH, ROWS = 8, 6, 5
DESCRIPTORS = Path("/proc/self/fd")


@pytest.mark.parametrize("units", [1, 2, 6])
def test_the_layers_have_the_gradients_of_autograd(units):
    """However they are divided into units, and the last unit's comes first."""
    import torch

    layers = UnitLayers(WIDTH, DEPTH, units)
    weights = [layers.first_weights(number) for number in range(units)]
    x = torch.randn(ROWS, WIDTH)
    leaves = [unit.clone().requires_grad_() for unit in weights]
    result = x
    for unit in leaves:
        for matrix in unit.view(-1, WIDTH, WIDTH):
            result = (result @ matrix).relu()
    (result.square().mean() / 2).backward()
    ready = []
    layers.gradients_of(x, weights, lambda number, gradient: ready.append((number, gradient)))
    assert [number for number, _ in ready] == list(reversed(range(units)))
    for number, gradient in ready:
        assert torch.allclose(gradient, leaves[number].grad, atol=1e-7), number


def test_two_parts_step_as_torchs_adam_steps_the_whole():
    """Three steps; each part has its own moments."""
    import torch

    luck = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(12, generator=luck) for _ in range(4))
    leaf, own_weights, adam = start.clone().requires_grad_(), start.clone(), PartAdam()
    of_torch = torch.optim.Adam([leaf], lr=sharding.RATE)
    for gradient in gradients:
        leaf.grad = gradient.clone()
        of_torch.step()
        for number, part in enumerate(own_weights.chunk(2)):
            adam.step(number, part, gradient.chunk(2)[number].clone())
    assert torch.allclose(own_weights, leaf.detach(), atol=1e-6)


def test_linux_counts_what_a_connection_sends():
    """Exactly, and without leaving a descriptor open."""
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            before, descriptors = sent_bytes(), len(list(DESCRIPTORS.iterdir()))
            sender.sendall(b"x" * 1000)
            assert len(receiver.recv(1000, socket.MSG_WAITALL)) == 1000
            assert sent_bytes() - before == 1000
            assert len(list(DESCRIPTORS.iterdir())) == descriptors


@pytest.mark.parametrize(
    ("changes", "growth"),
    [
        ([(1, 4, 4), (2, 8, 12), (3, -4, 8), (4, 2, 10)], 12),
        ([(4, 2, 10), (1, 4, 4), (3, -4, 8), (2, 8, 12)], 12),
        ([(1, 4, 104), (2, -4, 100)], 4),
        ([(1, 4, 4), (2, 6, 6)], 6),
    ],
)
def test_the_peak_is_what_was_added_to_what_was_there(changes, growth):
    """In order of time; a release by another thread shows in the next total only."""
    assert peak_growth(changes) == growth


def test_the_peak_holds_what_was_alive_together():
    """Two tensors of 1 MiB one after the other are 1 MiB, and together 2."""
    import torch

    def after_one_another():
        for _ in range(2):
            torch.empty(2**18)

    def together():
        return [torch.empty(2**18) for _ in range(2)]

    assert sharding.peak_mib(after_one_another) == pytest.approx(1, abs=0.01)
    assert sharding.peak_mib(together) == pytest.approx(2, abs=0.01)
