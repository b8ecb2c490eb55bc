"""What a training step holds in memory, counted tensor by tensor and sorted by what it is for.

Every tensor that an operation makes is noted with the bytes of its storage, and struck off when the
storage is freed; so the count is exact on every device, and on a GPU it is what the allocator was
asked for. Workspaces inside a library's kernels are no tensors and are not seen. Runs in the child.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from labkit.arguments import public
from labkit.errors import WrongArgument
from labkit.machine.dispatch import watching

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimiser"
ACTIVATIONS, TEMPORARIES = "activations", "temporaries"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARIES)
PEAK = "peak"
MIB = 2**20


class LiveTensors:
    """The storages that are alive, each with its bytes and its kind, and the most there were.

    Attributes:
        most: of each kind, the most bytes at any moment.
        at_peak: the bytes of each kind at the moment when all kinds together were the most.
    """

    def __init__(self) -> None:
        self._live: dict[int, tuple[weakref.ref[Any], int, str]] = {}
        self._now = dict.fromkeys(KINDS, 0)
        self.most, self.at_peak = dict(self._now), dict(self._now)

    def note(self, tensor: Any, kind: str = TEMPORARIES) -> None:
        """A tensor is there; a later note says what it is for, if it only was a temporary."""
        storage = tensor.untyped_storage()
        key = id(storage)  # one object for as long as the storage lives
        if key in self._live:
            self._sort(key, kind)
            return
        self._live[key] = (
            weakref.ref(storage, lambda _: self._forget(key)),
            storage.nbytes(),
            kind,
        )
        self._count(kind, storage.nbytes())

    def _sort(self, key: int, kind: str) -> None:
        reference, size, before = self._live[key]
        if before == TEMPORARIES and kind != TEMPORARIES:
            self._live[key] = (reference, size, kind)
            self._now[before] -= size
            self._count(kind, size)

    def _forget(self, key: int) -> None:
        _, size, kind = self._live.pop(key)
        self._now[kind] -= size

    def _count(self, kind: str, size: int) -> None:
        self._now[kind] += size
        self.most[kind] = max(self.most[kind], self._now[kind])
        if sum(self._now.values()) > sum(self.at_peak.values()):
            self.at_peak = dict(self._now)

    def begin(self) -> None:
        """Count the most anew, from what is alive now."""
        self.most, self.at_peak = dict(self._now), dict(self._now)


@public
def count_step(step: Callable[[], Any], network: Any, *optimizers: Any) -> dict[str, float]:
    """Run a training step twice and count the second: MiB by kind, and at the fullest moment.

    Args:
        step: forward, backward, optimizer and `zero_grad`.
        network: its parameters and gradients are told from the rest.
        optimizers: their state is, too; the first step makes it.

    Returns:
        Of each kind the most MiB at any moment; "peak", the most of all kinds together; and "at the
        peak: …", what that peak is made of. Not all kinds are at their most at one moment, so the
        peak is at most their sum.
    """
    if not hasattr(network, "parameters") or not all(hasattr(one, "state") for one in optimizers):
        raise WrongArgument(
            "count_step takes the step, then the network (a `torch.nn.Module`) and its optimizers, "
            f"not {network!r:.60}."
        )
    live = LiveTensors()
    for parameter in network.parameters():
        live.note(parameter, PARAMETERS)
    with _watching(live, network):
        step()
        _note_state(live, optimizers)
        live.begin()
        step()
    found = {kind: size / MIB for kind, size in live.most.items()}
    parts = {f"at the peak: {kind}": size / MIB for kind, size in live.at_peak.items()}
    return found | {PEAK: sum(live.at_peak.values()) / MIB} | parts


def _note_state(live: LiveTensors, optimizers: Iterable[Any]) -> None:
    states = (state for optimizer in optimizers for state in optimizer.state.values())
    for value in (value for state in states for value in state.values()):
        if hasattr(value, "untyped_storage"):
            live.note(value, OPTIMIZER)


@contextmanager
def _watching(live: LiveTensors, network: Any) -> Iterator[None]:
    """Note every tensor that is made, kept for the backward pass, or becomes a gradient."""
    import torch
    from torch.utils._pytree import tree_leaves

    def note(_: Any, __: Any, ___: Any, made: Any) -> None:
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                live.note(leaf)

    def keep(tensor: Any) -> Any:
        live.note(tensor, ACTIVATIONS)
        return tensor.detach()  # the tensor itself would keep its own graph alive

    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda one: live.note(one.grad, GRADIENTS))
        for parameter in network.parameters()
        if parameter.requires_grad
    ]
    try:
        with watching(note), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            yield
    finally:
        for hook in hooks:
            hook.remove()
