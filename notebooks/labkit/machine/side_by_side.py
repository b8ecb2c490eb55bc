"""How many times as much several ranks get done side by side as one of them alone.

Ranks on a CPU are processes that want a core each. Where the second core is half of the first (a
hyperthread), belongs to somebody else or is not there, two ranks cannot be faster than one,
whatever they compute: that says something of the machine and nothing of data parallelism. So a
piece of work that needs no communication is timed in every round, on one rank and on all of them.
"""

from __future__ import annotations

import math
import time
from typing import Any

PIECE_S = 0.01  # long beside the barrier that ends it (0.2 ms), short beside what is measured
SIZE = 384  # of the products; they fit a core's own cache, so that memory is not asked about


class SideBySide:
    """Times one rank alone and all ranks together; every rank must make the same calls.

    Args:
        torch: the module, which only a child imports.
    """

    def __init__(self, torch: Any) -> None:
        self._ranks: Any = torch.distributed if _is_about_cores(torch) else None
        self._alone_s: list[float] = []
        self._together_s: list[float] = []
        self._core_share: list[float] = []
        if self._ranks is not None:
            self._first = self._ranks.get_rank() == 0
            self._factor, self._product = (torch.full((SIZE, SIZE), 1.0 / SIZE) for _ in range(2))
            self._torch, self._calls = torch, 1
            self._calls = self._planned()

    def _planned(self) -> int:
        """As many products as take the first rank 10 ms, agreed among all."""
        once = min(self._timed(works=True) for _ in range(5))
        calls = self._torch.tensor([math.ceil(PIECE_S / max(once, 1e-6))])
        self._ranks.broadcast(calls, 0)
        return int(calls[0])

    def measure(self) -> None:
        """One round: the first rank while the others wait, then all of them."""
        if self._ranks is not None:
            self._alone_s.append(self._timed(works=self._first))
            self._together_s.append(self._timed(works=True))
            self._core_share.append(self._share)

    def _timed(self, *, works: bool) -> float:
        """Seconds until the last rank is done."""
        self._ranks.barrier()
        begun, used = time.perf_counter(), time.thread_time()
        for _ in range(self._calls if works else 0):
            self._torch.mm(self._factor, self._factor, out=self._product)
        self._share = (time.thread_time() - used) / (time.perf_counter() - begun)
        self._ranks.barrier()
        return time.perf_counter() - begun

    def summary(self) -> dict[str, list[float]]:
        """Seconds of every round, and the share of a core that the first rank had while all worked.

        Empty where the ranks have devices of their own.
        """
        if not self._alone_s:
            return {}
        seconds = {"alone_s": self._alone_s, "together_s": self._together_s}
        return {**seconds, "core_share": self._core_share}


def _is_about_cores(torch: Any) -> bool:
    """Whether these are several ranks on the cores of one CPU."""
    ranks = torch.distributed
    return bool(ranks.is_available() and ranks.is_initialized() and not torch.cuda.is_available())
