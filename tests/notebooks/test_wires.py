"""Messages between ranks that are real processes."""

from tests.needs import needs

import labkit

needs("torch", "the ranks send tensors")


def swaps():
    """Both ranks send first and receive then, a matrix and a vector."""
    import torch
    import torch.distributed as dist

    from labkit.exercises.wires import Wires

    rank, wires = dist.get_rank(), Wires()
    sent = torch.full((3, 2), float(rank))
    wires.send(1 - rank, sent)
    sent += 100  # a copy was sent
    wires.send(1 - rank, torch.arange(4.0) + rank)
    first, second = wires.receive(1 - rank), wires.receive(1 - rank)
    wires.finish()
    return [first, second]


def test_tensors_arrive_whole_and_in_order():
    """Shape and values survive, and both may send before either receives."""
    zero, one = labkit.ranks(swaps, n=2).values
    assert zero == [[[1.0, 1.0]] * 3, [1.0, 2.0, 3.0, 4.0]]
    assert one == [[[0.0, 0.0]] * 3, [0.0, 1.0, 2.0, 3.0]]
