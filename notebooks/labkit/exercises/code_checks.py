"""Exact checks of the student's code: all-reduce, loss scaler, gradient averaging, split matmul.

These are re-run anywhere, without timing. The ranks of an all-reduce are threads with mailboxes
here, so that bytes can be counted exactly and a wrong algorithm ends in a sentence instead of
hanging. torch is imported when called.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.machine.dispatch import watching
from labkit.run.source import describe_error, error_sentence

PATIENCE_S = 2.0
ROWS = 7  # of a product that is split: no size of its matrices
AllReduce = Callable[..., Any]


@dataclass(frozen=True)
class CodeVerdict:
    """Whether code is exactly right; `why` is a sentence."""

    right: bool
    why: str

    def __str__(self) -> str:
        return f"{'right' if self.right else 'not yet right'}: {self.why}"


class RankFailed(RuntimeError):
    """What one of the ranks raised, or that it never ended, in a sentence."""


def judged(right: str, *cases: tuple[str, Callable[[], str]]) -> CodeVerdict:
    """The first fault that is found, after the words that say where; else that it is right.

    Args:
        right: what to say then.
        cases: where, if it matters, and what looks for a fault there; an empty text is none.
    """
    for where, check in cases:
        try:
            fault = check()
        except RankFailed as error:
            fault = str(error)
        except Exception as error:  # outermost frame around the student's code
            said = error_sentence(describe_error(error), "in your code")
            return CodeVerdict(False, said)
        if fault:
            return CodeVerdict(False, f"{where}: {fault}" if where else fault)
    return CodeVerdict(True, right)


def for_ranks(check: Callable[[int], str], *worlds: int) -> list[tuple[str, Callable[[], str]]]:
    """The same check for several numbers of ranks, as cases of `judged`."""
    return [(_ranks(world), partial(check, world)) for world in worlds]


def all_reducer(rank: int, world: int, send: Any, receive: Any) -> Callable[[Any], Any]:
    """An all-reduce over mailboxes: what each rank sends, added."""
    others = [other for other in range(world) if other != rank]

    def all_reduce(tensor: Any) -> Any:
        for other in others:
            send(other, tensor)
        return tensor + sum(receive(other) for other in others)

    return all_reduce


class Mail:
    """The messages between one rank and the others, counted."""

    def __init__(self, rank: int, boxes: dict[tuple[int, int], queue.Queue[Any]]) -> None:
        self._rank, self._boxes = rank, boxes
        self.sent_bytes = 0

    def send(self, to: int, tensor: Any) -> None:
        """Send a copy of a tensor to another rank."""
        if (self._rank, to) not in self._boxes:
            raise ValueError(f"rank {self._rank} cannot send to rank {to}")
        self.sent_bytes += tensor.numel() * tensor.element_size()
        self._boxes[self._rank, to].put(tensor.clone())

    def receive(self, source: int) -> Any:
        """Wait for the next tensor from another rank."""
        try:
            return self._boxes[source, self._rank].get(timeout=PATIENCE_S)
        except queue.Empty:
            raise TimeoutError(
                f"rank {self._rank} waits for rank {source}, which sends nothing more"
            ) from None
        except KeyError:
            raise ValueError(f"rank {self._rank} cannot receive from rank {source}") from None


def run_ranks(function: AllReduce, inputs: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Run `function(tensor, rank, world, send, receive)` in as many threads as there are inputs.

    Returns:
        What each rank returned, and the bytes each sent.

    Raises:
        RankFailed: with the first failing rank's own error.
    """
    world = len(inputs)
    boxes: dict[tuple[int, int], queue.Queue[Any]] = {
        (a, b): queue.Queue() for a in range(world) for b in range(world) if a != b
    }
    mails = [Mail(rank, boxes) for rank in range(world)]
    results: list[Any] = [None] * world
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        mail = mails[rank]
        try:
            results[rank] = function(inputs[rank].clone(), rank, world, mail.send, mail.receive)
        except (
            Exception
        ) as error:  # outermost frame of the thread: the student's code may raise anything
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S * world + PATIENCE_S)
    if failures:
        real = [error for error in failures if not isinstance(error, TimeoutError)]
        raise RankFailed(
            error_sentence(describe_error((real or failures)[0]), "in your code")
        ) from failures[0]
    if any(thread.is_alive() for thread in threads):
        raise RankFailed("a rank never returned: is there an endless loop?")
    return results, [mail.sent_bytes for mail in mails]


def check_all_reduce(function: AllReduce, *, ring: bool = False) -> CodeVerdict:
    """Whether an all-reduce gives every rank the sum, for 1 to 5 ranks and any size.

    Args:
        function: `all_reduce(tensor, rank, world, send, receive)` returning the sum over all ranks.
        ring: also require that no rank sends more than a ring does, 2(n-1)/n of the bytes (and
            padding).
    """
    import torch

    sizes = {1: 4, 2: 8, 3: 12, 4: 7, 5: 23}

    def check(world: int) -> str:
        luck = torch.Generator().manual_seed(world)
        inputs = [
            torch.randn(sizes[world], generator=luck, dtype=torch.float64) for _ in range(world)
        ]
        want = torch.stack(inputs).sum(0)
        results, sent = run_ranks(function, inputs)
        for rank, found in enumerate(results):
            if not _is_close(torch, found, want):
                return f"rank {rank} does not hold the sum{_no_sum(found, inputs, rank)}"
        allowed = 2 * (world - 1) * -(-sizes[world] // world) * inputs[0].element_size()
        if ring and max(sent) > allowed:
            return f"one sends {max(sent)} bytes; a ring sends {allowed}"
        return ""

    return judged("every rank holds the sum, for 1 to 5 ranks", *for_ranks(check, *sizes))


def _ranks(count: int) -> str:
    return f"with {count} rank{'' if count == 1 else 's'}"


def _no_sum(found: Any, inputs: Sequence[Any], rank: int) -> str:
    """What a rank holds in place of the sum; empty where nobody knows."""
    import torch

    total, own = torch.stack(list(inputs)).sum(0), inputs[rank]
    known = {
        "it returned nothing": found is None,
        "it still holds only its own tensor": _is_close(torch, found, own),
        "its own tensor is missing from it": _is_close(torch, found, total - own),
        "its own tensor is in it twice": _is_close(torch, found, total + own),
        "it is the mean: an all-reduce only adds": _is_close(torch, found, total / len(inputs)),
    }
    said = next((words for words, is_so in known.items() if is_so), "")
    if not said and isinstance(found, torch.Tensor) and found.shape == total.shape:
        done = int(torch.isclose(found, total).sum())
        said = (
            f"{done} of its {len(total)} numbers are finished, the others are not" if done else ""
        )
    return f": {said}" if said else ""


def _is_close(torch: Any, found: Any, want: Any) -> bool:
    if not isinstance(found, torch.Tensor) or found.shape != want.shape:
        return False
    return bool(torch.allclose(found, want, rtol=1e-9, atol=1e-9))


def check_gradient_averaging(function: Callable[[Sequence[Any]], Any]) -> CodeVerdict:
    """Whether gradients of equal shares of a batch are combined into the whole batch's gradient.

    Args:
        function: takes the list of the ranks' gradients, returns the combined one.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(24, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(3, 3, generator=generator, dtype=torch.float64)

    def gradient(rows: slice) -> Any:
        own = weight.clone().requires_grad_()
        ((x[rows] @ own - y[rows]) ** 2).mean().backward()
        return own.grad

    whole = gradient(slice(0, 24))

    def check(ranks: int) -> str:
        share = 24 // ranks
        parts = [gradient(slice(rank * share, (rank + 1) * share)) for rank in range(ranks)]
        found = function(parts)
        if not isinstance(found, torch.Tensor) or found.shape != whole.shape:
            return "return one tensor of the same shape as each gradient"
        difference = float((found - whole).norm() / whole.norm())
        if difference <= 1e-9:
            return ""
        off = f"the combined gradient is off by {difference:.2g} (relative)"
        return f"{off}{_no_mean(found, parts)}"

    right = "the combined gradient is that of the whole batch, for 2, 3 and 4 ranks"
    return judged(right, *for_ranks(check, 2, 3, 4))


def _no_mean(found: Any, parts: Sequence[Any]) -> str:
    """What was done with the gradients in place of their mean; empty where nobody knows."""
    import torch

    total = sum(parts)
    known = {
        "it is the sum, and the loss is a mean over samples": _is_close(torch, found, total),
        "it is one rank's own, which saw only a part of the batch": any(
            _is_close(torch, found, part) for part in parts
        ),
        "divide by the number of ranks, which is not always 2": _is_close(torch, found, total / 2),
    }
    said = next((words for words, is_so in known.items() if is_so), "")
    return f": {said}" if said else ""


def check_split_matmul(function: Callable[..., Any], *, by: str) -> CodeVerdict:
    """Whether a split product equals the whole one.

    Args:
        function: `split_matmul(x, weights, ranks)` returning x @ weights from `ranks` partial
            products.
        by: "rows" or "columns", named in the verdict.
    """
    import torch

    products: list[tuple[int, ...]] = []

    def note(called: Any, args: Any, _: Any, __: Any) -> None:
        if called._schema.name in ("aten::mm", "aten::addmm"):
            left, right = (tuple(one.shape) for one in args[-2:])
            # a @ b may be made as the transpose of b' @ a'
            products.append(right if left[0] == ROWS else left[::-1])

    def check(ranks: int, inner: int, outer: int) -> str:
        luck = torch.Generator().manual_seed(2)
        x = torch.randn(ROWS, inner, generator=luck, dtype=torch.float64)
        weights = torch.randn(inner, outer, generator=luck, dtype=torch.float64)
        products.clear()
        with watching(note):
            found = function(x, weights, ranks)
        if found is None:
            return f"write the split by {by} first: it returned nothing"
        if not _is_close(torch, found, x @ weights):
            return f"the result {tuple(getattr(found, 'shape', ()))} is not x @ w"
        part = (inner // ranks, outer) if by == "rows" else (inner, outer // ranks)
        if products != [part] * ranks:
            made = ", ".join(f"{a}×{b}" for a, b in products) or "nothing"
            return (
                f"they must each multiply by a part of the {by}, {part[0]}×{part[1]}; "
                f"yours multiplied {made}"
            )
        return ""

    sizes = ((2, 10, 6), (4, 8, 12), (5, 10, 10))
    right = f"split by {by}, the product is exact for 2, 4 and 5 ranks"
    return judged(right, *((_ranks(size[0]), partial(check, *size)) for size in sizes))


def check_loss_scaler(make: Callable[[], Any]) -> CodeVerdict:
    """Whether a dynamic loss scaler backs off at infinities, skips those steps, and grows again.

    Args:
        make: returns a scaler with `scale` (a number) and `update(found_inf) -> bool`, which is
            told whether the step's gradients held an inf or nan, and answers whether the step may
            be taken.
    """
    return judged(
        "it halves at an inf, skips that step, and doubles after so many good ones in a row",
        ("at an inf", lambda: _fault_at_inf(make())),
        ("after good steps", lambda: _fault_of_growth(make)),
    )


def _fault_at_inf(scaler: Any) -> str:
    start = float(scaler.scale)
    if start < 2**8:
        return f"it starts at {start:g}; a small scale loses gradients to zero (E9)"
    if scaler.update(True) is not False:
        return "a step with inf gradients must be skipped: update(True) must be False"
    after = float(scaler.scale)
    if after != start / 2:
        must = "be halved" if 0 < after < start else "shrink"
        return f"the scale must {must}; it went from {start:g} to {after:g}"
    if not all(scaler.update(False) is True for _ in range(5000)):
        return "a step with finite gradients must be taken: update(False) must be True"
    if float(scaler.scale) <= after:
        return "after thousands of good steps the scale must grow again"
    return ""


def _fault_of_growth(make: Callable[[], Any]) -> str:
    """Whether the scale doubles, and only after so many good steps in a row."""
    scaler = make()
    start, steps = float(scaler.scale), 0
    while float(scaler.scale) == start:
        scaler.update(False)
        steps += 1
    grown, asked = float(scaler.scale), getattr(scaler, "growth_every", steps)
    if grown != 2 * start or steps != asked:
        return (
            f"{asked} of them in a row must double the scale; after {steps} it went from "
            f"{start:g} to {grown:g}"
        )
    for _ in range(steps):
        scaler.update(False)
    if float(scaler.scale) != 4 * start:
        return (
            "doubling must start the count of good steps anew: "
            f"{steps} more left the scale at {float(scaler.scale):g}"
        )
    scaler = make()
    for found_inf in [False] * (steps - 1) + [True] + [False] * (steps - 1):
        scaler.update(found_inf)
    return (
        "" if float(scaler.scale) == start / 2 else "an inf must start the count of good steps anew"
    )
