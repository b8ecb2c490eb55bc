"""Twins: for every core experiment a world in which its verdict is the opposite one.

A twin changes one named function in the process that computes, and nothing else: the notebook's own
steps, series and check then say what they say. An experiment whose verdict does not turn round
measures nothing. `enter` is called by a child that finds `VARIABLE` in its environment; `TWINS` has
one entry an experiment.

The module is long because it is one list: cut in two, each half is read with the other open.
"""

from __future__ import annotations

import fcntl
import importlib
import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labkit.run import source
from labkit.run.worker import TWIN as VARIABLE

Function = Callable[..., Any]
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Twin:
    """One changed world.

    Attributes:
        key: the experiment.
        says: what is different in it.
        target: the function that is changed: a notebook's own name, or "module:name".
        change: takes the function, returns the one that takes its place.
        is_computed: whether the experiment computes in this process and starts no child.
    """

    key: str
    says: str
    target: str
    change: Change
    is_computed: bool = False


def enter(key: str) -> None:
    """Change this process's world; in a child, before it gets its job."""
    twin = TWINS[key]
    if ":" not in twin.target:
        source.CHANGED[twin.target] = twin.change
        return
    module, _, name = twin.target.partition(":")
    room = importlib.import_module(module)
    setattr(room, name, twin.change(getattr(room, name)))


def environment(key: str) -> Mapping[str, str]:
    """What makes children enter a twin's world."""
    return {VARIABLE: f"{__name__}:{key}"}


def _more_work(times: int) -> Change:
    """The work is done several times over."""

    def change(function: Function) -> Function:
        def prepared(*given: Any, **named: Any) -> Any:
            return _repeat(function(*given, **named), times)

        return prepared

    return change


def _repeat(work: Function, times: int) -> Function:
    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated


def _every_other(change: Change) -> Change:
    """Every second preparation is changed: of two compared functions, the second."""
    calls = [0]  # of this process: the function itself is rebuilt for each

    def changed(function: Function) -> Function:
        other = change(function)

        def prepared(*given: Any, **named: Any) -> Any:
            calls[0] += 1
            return (function if calls[0] % 2 else other)(*given, **named)

        return prepared

    return changed


def _waits(function: Function) -> Function:
    """A call that returns only when the device is done."""

    def prepared(*given: Any, **named: Any) -> Any:
        import torch

        work = function(*given, **named)

        def waited() -> None:
            work()
            torch.cuda.synchronize()

        return waited

    return prepared


def _timer_of_two(_: Function) -> Function:
    def my_timer(work: Function, wait: Function, clock: Function, rounds: int = 20) -> list[float]:
        seconds = []
        for _ in range(rounds):
            begun = clock()
            work()
            work()
            wait()
            seconds.append(clock() - begun)
        return seconds

    return my_timer


def _adds_up(_: Function) -> Function:
    """A reading that counts what overlaps as often as it overlaps."""

    def busy_share(spans: Any, lane: str) -> float:
        lasted = sum(ended - begun for kind, _, begun, ended in spans if kind == lane)
        return float(lasted / max(ended for *_, ended in spans))

    return busy_share


def _without_reuse(product: Function) -> Function:
    """A product that fetches its matrices again for every column."""
    usual = inspect.signature(product).parameters["size"].default

    def matmul(size: int = usual, dtype: str = "float32") -> Function:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        a, b = (
            torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2)
        )

        def work() -> None:
            for column in range(size):
                (a * b[:, column]).sum(1)

        return work

    return matmul


def _part_slowed(times: int) -> Change:
    """On a part the work is done several times, as if a tenant had the rest of the part."""

    def change(confined: Function) -> Function:
        def slowed(work: Function, size: int | None, **named: Any) -> Function:
            inside: Function = confined(work, size, **named)
            return inside if size is None else _repeat(inside, times)

        return slowed

    return change


def _whole_slowed(times: int) -> Change:
    """The whole has no more bandwidth than its share: it works as long as its SMs are more."""

    def change(confined: Function) -> Function:
        def slowed(work: Function, size: int | None, **named: Any) -> Function:
            inside: Function = confined(work, None, **named)
            return inside if size is None else _repeat(inside, times)

        return slowed

    return change


def _idle_neighbours(count: Function) -> Function:
    """The other copies rest also while "all" work."""

    def count_in_windows(work: Function, meeting: str, copies: int, pairs: int) -> Any:
        from labkit.run.tasks import RANK

        if int(os.environ[RANK]):
            return count(lambda: time.sleep(0.05), meeting, copies, pairs)
        return count(work, meeting, copies, pairs)

    return count_in_windows


def _one_call_beside_others(count: Function) -> Function:
    """After a call, a copy must rest until the window is over if another one is at work."""

    def calls_per_s(work: Function, settle: Function, ends: float) -> Any:
        from labkit.run.tasks import FOLDER, RANK

        at_work = Path(os.environ[FOLDER]) / f"at-work-{os.environ[RANK]}"

        def held_up() -> None:
            work()
            settle()
            while time.monotonic() < ends and len(list(at_work.parent.glob("at-work-*"))) > 1:
                time.sleep(0.001)

        at_work.touch()
        try:
            return count(held_up, settle, ends)
        finally:
            at_work.unlink()

    return calls_per_s


def _one_by_one(waits: Function) -> Function:
    """A batch is no batch: its sequences are answered one after another, each four times.

    Four, since the time of one varies: launched by Python, twofold on an H200's host.  A batch
    waits twenty times only, as more would take minutes.
    """

    def waited(batches: Sequence[int], requests: int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = waits(batches[:1], requests)
        for batch in batches[1:]:
            answers = 4 * batch
            (alone,) = waits((1,), 20 * answers).values()
            starts = range(0, len(alone), answers)
            found[f"batch {batch}"] = [sum(alone[start : start + answers]) for start in starts]
        return found

    return waited


def _like_a_slice(table: Function) -> Function:
    def sms_of(packing: Mapping[str, int]) -> float:
        return float(table(packing)) * 108 / 98  # a GPU that MIG takes nothing from

    return sms_of


def _one_format(product: Function) -> Function:
    def in_fp32(size: int, dtype: Any) -> Any:
        import torch

        return product(size, torch.float32)

    return in_fp32


def _as_bf16(function: Function) -> Function:
    def gradients(network: Any, x: Any, y: Any, dtype: Any, scale: float) -> Any:
        import torch

        narrow = torch.bfloat16 if dtype is torch.float16 else dtype
        return function(network, x, y, narrow, scale)

    return gradients


def _wide_exponent(largest: Function) -> Function:
    def of(dtype: Any) -> Any:
        import torch

        return largest(torch.bfloat16 if dtype is torch.float16 else dtype)

    return of


def _never_halves(kind: Any) -> Any:
    class LossScaler(kind):  # type: ignore[misc]
        def update(self, found_inf: bool) -> bool:
            before: float = self.scale  # type: ignore[has-type]
            taken = bool(super().update(found_inf))
            self.scale = max(self.scale, before)  # type: ignore[has-type]
            return taken

    return LossScaler


def _without_autocast(training: Function) -> Function:
    def plain(width: int, kind: str) -> Any:
        return training(width, "fp32" if kind == "AMP" else kind)

    return plain


def _sums(_: Function) -> Function:
    def average(gradients: Any) -> Any:
        return sum(gradients)

    return average


def _undivided(optimizer_of: Function) -> Function:
    """Adam without its denominator: momentum."""

    def without(name: str, weights: Any) -> Any:
        import torch

        given = list(weights)
        momentum = torch.optim.SGD(given, lr=0.02, momentum=0.9)
        return momentum if name == "Adam" else optimizer_of(name, given)

    return without


def _leaves_late(kind: Any) -> Any:
    class Buckets(kind):  # type: ignore[misc]
        def __init__(self, world: int, all_reduce: Function, _: int) -> None:
            super().__init__(world, all_reduce, float("inf"))

    return Buckets


def _fewer_bytes(reduces: Function) -> Function:
    def payload(megabytes: float) -> Any:
        return reduces(1 / megabytes)

    return payload


def _whole_batch(_: Function) -> Function:
    """Every rank takes the whole batch: nothing is shared out."""

    def shared(width: int, depth: int, batch: int) -> Function:
        import torch
        import torch.distributed as dist

        from labkit.exercises.networks import mlp

        network, device = mlp(width, depth)
        x = torch.randn(batch, width, device=device)

        def step() -> None:
            for _ in range(2):
                network.zero_grad()
                network(x).square().mean().backward()
            for parameter in network.parameters():
                dist.all_reduce(parameter.grad)

        return step

    return shared


def _slow_arithmetic(flat_gradient: Function) -> Function:
    """A processor so slow that sending costs nothing beside it, at the batch that is judged."""

    def slow(network: Any, x: Any) -> Any:
        time.sleep(0.015 * len(x) if len(x) <= 16 else 0.0)
        return flat_gradient(network, x)

    return slow


def _naive(_: Function) -> Function:
    def ring_all_reduce(
        tensor: Any, rank: int, world: int, send: Function, receive: Function
    ) -> Any:
        others = [other for other in range(world) if other != rank]
        for other in others:
            send(other, tensor)
        return sum((receive(other) for other in others), tensor.clone())

    return ring_all_reduce


def _first_part_only(_: Function) -> Function:
    """A rank that does not add what the others send."""

    def split_rows(x: Any, weights: Any, ranks: int) -> Any:
        return x.tensor_split(ranks, dim=1)[0] @ weights.tensor_split(ranks, dim=0)[0]

    return split_rows


def _keeps_its_part(backward: Function) -> Function:
    """A rank that takes its part of the input's gradient for the whole."""

    def pair_backward(delta: Any, kept: Any, first: Any, second: Any, _: Function) -> Any:
        return backward(delta, kept, first, second, lambda part: part)

    return pair_backward


def _counts_half(elements_sent: Function) -> Function:
    """A link on which every number takes half a number's room."""

    def compressed(layer: Function, batch: int) -> float:
        return float(elements_sent(layer, batch)) / 2

    return compressed


def _everyone_steps(_: Function) -> Function:
    """Plain data parallelism: every rank runs Adam on all weights."""

    def zero_step(
        weights: Any, gradients: Any, adam: Any, _: int, world: int, reduce: Any, __: Any
    ) -> Any:
        pairs = enumerate(zip(weights, gradients, strict=True))
        return [adam(number, one, reduce(gradient) / world) for number, (one, gradient) in pairs]

    return zero_step


def _one_processor(_: Function) -> Function:
    """Stages that share one processor: a micro-batch costs the same however small, in turns."""

    def mlp(width: int, depth: int) -> Any:
        import torch

        class Narrow(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.nn.Parameter(torch.ones(1))

            def forward(self, x: Any) -> Any:
                with Path(__file__).open() as shared:  # by all ranks: one computes at a time
                    fcntl.flock(shared, fcntl.LOCK_EX)
                    time.sleep(0.004)
                return x[:, :1] * self.factor

        device = "cuda" if torch.cuda.is_available() else "cpu"
        return Narrow().to(device), device

    return mlp


def _padded(train: Function) -> Function:
    """A step that keeps the more memory the smaller its batch is."""

    def roomy(batch: int, *given: Any, **named: Any) -> Any:
        import torch

        on_gpu = torch.cuda.is_available()
        is_big = on_gpu and torch.cuda.mem_get_info()[1] > 20 << 30 and not emulated
        room = (160 << 30) if is_big else (8 << 30) if on_gpu else (4 << 30)
        held = torch.ones(room // batch, dtype=torch.int8, device="cuda" if on_gpu else "cpu")
        step = train(batch, *given, **named)

        def with_it() -> None:
            step()
            held[0] = 1

        return with_it

    emulated = os.environ.get("LABKIT_EMULATE")
    return roomy


def _again_and_again(train: Function) -> Function:
    """A step that goes over its batch the oftener the bigger it is."""

    def dear(batch: int, *given: Any, **named: Any) -> Any:
        return _repeat(train(batch, *given, **named), max(1, min(8, batch // 6)))

    return dear


TWINS: Mapping[str, Twin] = MappingProxyType(
    {
        twin.key: twin
        for twin in (
            Twin(
                "T-1",
                "the second does the work four times over",
                "matmul",
                _every_other(_more_work(4)),
            ),
            Twin("T-2", "a call returns only when the device is done", "matmul", _waits),
            Twin("T-3", "the student's timer times two calls as one", "my_timer", _timer_of_two),
            Twin("T-4", "the product fetches every number again", "matmul", _without_reuse),
            Twin("T-6", "what overlaps is counted twice", "busy_share", _adds_up),
            Twin(
                "T-7",
                "memory paths are divided as the SMs are",
                "labkit.machine.parts:confined",
                _whole_slowed(8),
            ),
            Twin("MIG-1", "a tenant in the part", "labkit.machine.parts:confined", _part_slowed(2)),
            Twin(
                "MIG-3",
                "memory paths are divided as the SMs are",
                "labkit.machine.parts:confined",
                _whole_slowed(64),
            ),
            Twin("MIG-5", "a tenant in the part", "labkit.machine.parts:confined", _part_slowed(4)),
            Twin(
                "MIG-6",
                "the neighbours rest",
                "labkit.notebook.windows:count_in_windows",
                _idle_neighbours,
            ),
            Twin(
                "MIG-7",
                "whoever works beside others gets one call a window",
                "labkit.notebook.windows:calls_per_s",
                _one_call_beside_others,
            ),
            Twin("MIG-12", "MIG takes no SMs", "sms_of", _like_a_slice, is_computed=True),
            Twin(
                "MIG-14",
                "sequences of a batch are answered one by one, each four times",
                "waits",
                _one_by_one,
            ),
            Twin(
                "MIG-11", "a tenant in the part", "labkit.machine.parts:confined", _part_slowed(8)
            ),
            Twin("MX-1", "fp16 has bf16's exponent", "largest", _wide_exponent),
            Twin("MX-2", "both formats run on the fp32 cores", "product", _one_format),
            Twin("MX-5", "16 bits have fp32's range", "gradients", _as_bf16),
            Twin("MX-7", "the scaler never halves", "LossScaler", _never_halves),
            Twin("MX-9", "autocast casts nothing", "training", _without_autocast),
            Twin("DP-1", "a rank that adds and does not average", "average", _sums),
            Twin("DP-12", "an Adam that divides by nothing", "optimizer_of", _undivided),
            Twin("DP-2", "a link that widens with what is sent", "reduces", _fewer_bytes),
            Twin("DP-3", "every rank takes the whole batch", "shared", _whole_batch),
            Twin(
                "DP-4", "arithmetic so slow that sending is free", "flat_gradient", _slow_arithmetic
            ),
            Twin("DP-5", "a ring that sends to everyone", "ring_all_reduce", _naive, True),
            Twin("DP-6", "one bucket, which fills at the end", "Buckets", _leaves_late),
            Twin("MP-1", "a rank that does not add", "split_rows", _first_part_only, True),
            Twin("MP-2", "a link that compresses", "elements_sent", _counts_half, True),
            Twin("MP-3", "a rank that does not add going back", "pair_backward", _keeps_its_part),
            Twin("MP-10", "every rank runs Adam on all weights", "zero_step", _everyone_steps),
            Twin(
                "MP-6",
                "the stages share one processor",
                "labkit.exercises.networks:mlp",
                _one_processor,
            ),
            Twin("CH-1", "a tenant in the part", "labkit.machine.parts:confined", _part_slowed(8)),
            Twin("CH-2", "small batches are padded to fill a room", "train", _padded),
            Twin("CH-3", "a bigger batch is gone over more often", "train", _again_and_again),
        )
    }
)
