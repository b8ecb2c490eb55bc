"""`send` and `receive` between ranks that are processes, as the code checks' mailboxes have them.

Messages go through host memory over gloo on every tier (gloo cannot send CUDA tensors, and NCCL
wants sends and receives in matching order). Runs in the child.
"""

from __future__ import annotations

from typing import Any

HEADER = 5  # the number of dimensions, and up to four of them


class Wires:
    """Point-to-point messages of fp32 tensors; `finish` waits until all that was sent has left."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist = torch, dist
        self._group = dist.new_group(backend="gloo")
        self._pending: list[tuple[Any, Any]] = []

    def send(self, to: int, tensor: Any) -> None:
        """Send a copy and go on at once."""
        data = tensor.detach().to("cpu", self._torch.float32, copy=True).contiguous()
        shape = list(data.shape)
        head = self._torch.tensor([len(shape), *shape, *[0] * (HEADER - 1 - len(shape))])
        for part in (head, data):
            self._pending.append((self._dist.isend(part, to, group=self._group), part))

    def receive(self, source: int) -> Any:
        """Wait for the next tensor from another rank; it lies in host memory."""
        head = self._torch.zeros(HEADER, dtype=self._torch.int64)
        self._dist.recv(head, source, group=self._group)
        count, *shape = head.tolist()
        data = self._torch.empty(shape[:count])
        self._dist.recv(data, source, group=self._group)
        return data

    def finish(self) -> None:
        """Wait for every message that is still on its way."""
        for work, _ in self._pending:
            work.wait()
        self._pending.clear()
