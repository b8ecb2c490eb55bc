"""Judges the student's code exactly, and lets its ranks talk: threads by mail, processes by wires.

No check times anything, so all can be run again anywhere.  Bytes are counted exactly, and a wrong
algorithm ends in a sentence instead of hanging.  torch is imported when called.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.run.source import describe_error, error_sentence

PATIENCE_S = 20.0  # until a rank that has not returned is taken for an endless loop
HEADER = 5  # of a message by wire: the number of dimensions, and up to four of them


@dataclass(frozen=True)
class CodeVerdict:
    """Whether code is exactly right; `reason` is a sentence."""

    right: bool
    reason: str

    def __str__(self) -> str:
        return f"{'right' if self.right else 'not yet right'}: {self.reason}"


class NoValue(Exception):
    """Code that runs elsewhere, as when it is marked, gave no value; the message is a sentence.

    Attributes:
        kind: the name of what the code raised; empty where it raised nothing.
    """

    def __init__(self, sentence: str, kind: str = "") -> None:
        super().__init__(sentence)
        self.kind = kind


class RankFailed(RuntimeError):
    """A rank raised an error or never ended; the message is a sentence."""


def verdict_of(right: str, *cases: tuple[str, Callable[[], str]]) -> CodeVerdict:
    """The verdict of several checks: the first fault with its case's label, or that it is right.

    Args:
        right: the text of the verdict if no check finds a fault.
        cases: labels, empty where they do not matter, with checks that return a fault or "".
    """
    for case_label, check in cases:
        try:
            fault = check()
        except RankFailed as error:
            fault = str(error)
        except Exception as error:  # outermost frame around the student's code
            return CodeVerdict(False, _error_in_words(error))
        if fault:
            return CodeVerdict(False, f"{case_label}: {fault}" if case_label else fault)
    return CodeVerdict(True, right)


def _error_in_words(error: BaseException) -> str:
    if isinstance(error, NoValue):
        return str(error)
    return error_sentence(describe_error(error), "in your code")


def for_ranks(check: Callable[[int], str], *worlds: int) -> list[tuple[str, Callable[[], str]]]:
    """The same check for several numbers of ranks, as cases of `verdict_of`."""
    return [(with_ranks(world), partial(check, world)) for world in worlds]


def with_ranks(count: int) -> str:
    """The label of a case: with how many ranks it ran."""
    return f"with {count} rank{'' if count == 1 else 's'}"


def random_tensors(*shapes: Any) -> list[Any]:
    """Tensors of doubles, drawn anew each time: an answer cannot be written down beforehand."""
    import torch

    luck = torch.Generator()
    luck.seed()
    return [torch.randn(shape, generator=luck, dtype=torch.float64) for shape in shapes]


def is_same(answer: Any, right: Any) -> bool:
    """Whether an answer is a tensor of the right shape with the right numbers."""
    import torch

    is_alike = isinstance(answer, torch.Tensor) and answer.shape == right.shape
    return is_alike and bool(torch.allclose(answer, right, rtol=1e-9, atol=1e-9))


def require_same_shape(tensors: Sequence[Any], subject: str) -> None:
    """Refuse tensors that torch would widen to a common shape, however large that is.

    Args:
        tensors: that are about to be added.
        subject: the beginning of the sentence.

    Raises:
        ValueError: their shapes differ.
    """
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len(shapes) > 1:
        raise ValueError(f"{subject} tensors of the shapes {', '.join(map(str, shapes))}")


def mistake_in(answer: Any, known_mistakes: Iterable[tuple[str, Any]], otherwise: str = "") -> str:
    """Describe the known mistake that gives this answer; `otherwise` where none does."""
    return next(
        (description for description, wrong in known_mistakes if is_same(answer, wrong)), otherwise
    )


class _Mailboxes:
    """What is on its way between ranks; it sees when every rank waits for another one."""

    def __init__(self, world: int) -> None:
        pairs = [(a, b) for a in range(world) for b in range(world) if a != b]
        self.boxes: dict[tuple[int, int], deque[Any]] = {pair: deque() for pair in pairs}
        self._changed = threading.Condition()
        self._running = world
        self._awaited: list[tuple[int, int]] = []

    def put(self, pair: tuple[int, int], message: Any) -> None:
        with self._changed:
            self.boxes[pair].append(message)
            self._changed.notify_all()

    def take(self, pair: tuple[int, int]) -> Any:
        """Wait for the next message; None where none can come any more."""
        with self._changed:
            self._awaited.append(pair)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.boxes[pair] or self._is_stuck())
            self._awaited.remove(pair)
            return self.boxes[pair].popleft() if self.boxes[pair] else None

    def leave(self) -> None:
        """A rank has returned, and sends nothing more."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _is_stuck(self) -> bool:
        has_message = any(self.boxes[pair] for pair in self._awaited)
        return len(self._awaited) >= self._running and not has_message


class Mail:
    """The messages between one rank and the others, counted.

    Attributes:
        sent_bytes: of all that this rank sent.
        origins: the ranks whose tensors may be in what this rank holds, itself among them.
    """

    def __init__(self, rank: int, post: _Mailboxes) -> None:
        self._rank, self._post = rank, post
        self.sent_bytes, self.origins = 0, {rank}

    def send(self, to: int, tensor: Any) -> None:
        """Send a copy of a tensor to another rank."""
        if (self._rank, to) not in self._post.boxes:
            raise ValueError(f"rank {self._rank} cannot send to rank {to}")
        self.sent_bytes += tensor.numel() * tensor.element_size()
        self._post.put((self._rank, to), (tensor.clone(), set(self.origins)))

    def receive(self, source: int) -> Any:
        """Wait for the next tensor from another rank."""
        if (source, self._rank) not in self._post.boxes:
            raise ValueError(f"rank {self._rank} cannot receive from rank {source}")
        message = self._post.take((source, self._rank))
        if message is None:
            raise TimeoutError(
                f"rank {self._rank} waits for rank {source}, which sends nothing more"
            )
        tensor, origins = message
        self.origins |= origins
        return tensor


def run_ranks(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Run `function(tensor, rank, world, send, receive)` in as many threads as there are inputs.

    Returns:
        What each rank returned, and the bytes each sent.

    Raises:
        RankFailed: with the first failing rank's own error.
    """
    results, mails = run_mailing(function, inputs)
    return results, [mail.sent_bytes for mail in mails]


def run_mailing(
    function: Callable[..., Any], inputs: Sequence[Any]
) -> tuple[list[Any], list[Mail]]:
    """Run ranks as `run_ranks` does; return what each returned, and its mail."""
    world = len(inputs)
    post = _Mailboxes(world)
    mails = [Mail(rank, post) for rank in range(world)]
    results: list[Any] = [None] * world
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        mail = mails[rank]
        try:
            results[rank] = function(inputs[rank].clone(), rank, world, mail.send, mail.receive)
        except Exception as error:  # outermost frame of the thread, around the student's code
            failures.append(error)
        finally:
            post.leave()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    if failures:
        first = next((failure for failure in failures if not _waited(failure)), failures[0])
        raise RankFailed(_error_in_words(first)) from first
    if any(thread.is_alive() for thread in threads):
        raise RankFailed("a rank never returned: is there an endless loop?")
    return results, mails


def _waited(failure: BaseException) -> bool:
    """Whether a rank failed by waiting for another one, whose own failure says more."""
    return isinstance(failure, TimeoutError) or getattr(failure, "kind", "") == "TimeoutError"


class Exchanges:
    """One rank's exchanges with all others, with a record of what it sent and when.

    Attributes:
        shapes: of what was given to an all-reduce, in order.
        is_over: set by the check at the end of what may go on while messages travel.
        before_end: how many all-reduces started before that.
        waited_before_end: whether one was waited for before that.
    """

    def __init__(self, rank: int, world: int, send: Any, receive: Any) -> None:
        self.rank, self._send, self._receive = rank, send, receive
        self._others = [other for other in range(world) if other != rank]
        self._started: list[Any] = []
        self._added: list[Any] = []
        self.shapes: list[tuple[int, ...]] = []
        self.before_end, self.waited_before_end, self.is_over = 0, False, False

    def start(self, tensor: Any) -> Callable[[], Any]:
        """Begin an all-reduce; what is returned waits for it and returns the sum."""
        self.shapes.append(tuple(tensor.shape))
        self.before_end += not self.is_over
        number = len(self._started)
        self._started.append(tensor.clone())
        for other in self._others:
            self._send(other, tensor)

        def wait() -> Any:
            self.waited_before_end = self.waited_before_end or not self.is_over
            while len(self._added) <= number:  # messages come in the order in which they were sent
                tensors = [self._started[len(self._added)]]
                tensors += [self._receive(other) for other in self._others]
                require_same_shape(tensors, "ranks gave one all-reduce")
                self._added.append(sum(tensors))
            return self._added[number].clone()

        return wait

    def all_reduce(self, tensor: Any) -> Any:
        """Return the sum of all ranks' tensors."""
        return self.start(tensor)()

    def broadcast(self, tensor: Any, source: int) -> Any:
        """Return the source rank's tensor on every rank."""
        if source != self.rank:
            return self._receive(source)
        for other in self._others:
            self._send(other, tensor)
        return tensor


def run_exchanging(
    one_rank: Callable[[Exchanges], Any], world: int
) -> tuple[list[Any], list[Exchanges]]:
    """Run ranks on recorded exchanges; return results and exchanges. Raises as `run_ranks`."""
    exchanges_of: dict[int, Exchanges] = {}

    def run(_: Any, rank: int, world: int, send: Any, receive: Any) -> Any:
        exchanges_of[rank] = Exchanges(rank, world, send, receive)
        return one_rank(exchanges_of[rank])

    results, _ = run_ranks(run, random_tensors(*[1] * world))
    return results, [exchanges_of[rank] for rank in range(world)]


class Wires:
    """`send` and `receive` of fp32 tensors between ranks that are processes; in a child only.

    Messages go through host memory over gloo on every tier (gloo cannot send CUDA tensors, and NCCL
    wants sends and receives in matching order).
    """

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
