"""Twins: for every claim a world without the effect that its experiment is about.

A twin changes one named function, of the notebook or in the process that computes, and nothing
else: the notebook's own steps, series and check then say what they say. The effect is taken away,
not made many times as large: where a claim is true it must no longer be supported, and where it is
false the twin has what the claim asserts, which must then not be contradicted. `enter` is called by
a child that finds `VARIABLE` in its environment; `TWINS` has one entry a claim.
"""

from __future__ import annotations

import fcntl
import importlib
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.run.worker import TWIN as VARIABLE

Function = Callable[..., Any]
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Twin:
    """One changed world.

    Attributes:
        absent: what is taken away in it.
        target: the function that is changed: a notebook's own name, or "module:name".
        change: takes the function, returns the one that takes its place.
    """

    absent: str
    target: str
    change: Change

    @property
    def is_in_the_notebook(self) -> bool:
        """Whether a notebook defines what is changed."""
        return ":" not in self.target


def enter(key: str) -> None:
    """Change a function of labkit's in this process; in a child, before it gets its job."""
    twin = TWINS[key]
    module, _, name = twin.target.partition(":")
    room = importlib.import_module(module)
    setattr(room, name, twin.change(getattr(room, name)))


def environment(key: str) -> Mapping[str, str]:
    """The environment variables that make children enter a twin's world."""
    return {} if TWINS[key].is_in_the_notebook else {VARIABLE: f"{__name__}:{key}"}


def _repeat(work: Function, times: int) -> Function:
    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated


def _enlarge_every_second(product: Function) -> Function:
    """Every second product is followed by another one with a quarter of its operations."""
    calls = [0]  # of this process: the function itself is rebuilt for each
    usual = inspect.signature(product).parameters["size"].default

    def matmul(size: int = usual, **options: Any) -> Function:
        calls[0] += 1
        work, extra_work = product(size, **options), product(size * 5 // 8, **options)
        return work if calls[0] % 2 else lambda: (work(), extra_work())

    return matmul


def _wait_for_device(function: Function) -> Function:
    """A call that returns only when the device is done."""

    def prepared(*args: Any, **kwargs: Any) -> Any:
        import torch

        work = function(*args, **kwargs)

        def waited() -> None:
            work()
            torch.cuda.synchronize()

        return waited

    return prepared


def _timer_of_two(_: Function) -> Function:
    def my_timer(work: Function, wait: Function, clock: Function, rounds: int = 20) -> list[float]:
        seconds = []
        for _ in range(rounds):
            started_s = clock()
            work()
            work()
            wait()
            seconds.append(clock() - started_s)
        return seconds

    return my_timer


def _without_arithmetic(product: Function) -> Function:
    """A product that only moves memory: no roof but the memory's.

    On a GPU it reads its matrices and writes the result. On a CPU a call of torch's alone takes as
    long as the bytes of a small matrix, which would be a roof again: Python moves a quarter of one.
    """
    usual = inspect.signature(product).parameters["size"].default

    def matmul(size: int = usual, dtype: str = "float32") -> Function:
        import torch

        kind = getattr(torch, dtype)
        if not torch.cuda.is_available():
            torch.set_num_threads(1)  # as the product does, for what is timed beside it
            source = bytes(size * size * kind.itemsize // 4)
            target = memoryview(bytearray(source))
            return lambda: target.__setitem__(slice(None), source)
        a, b, result = (torch.ones(size, size, device="cuda", dtype=kind) for _ in range(3))
        return lambda: torch.add(a, b, out=result)

    return matmul


def _same_busy_share(my_step: Function) -> Function:
    """On a GPU both batches are big; on a CPU Python waits in the small one's step."""

    def step_of(batch: int) -> Function:
        import torch

        if torch.cuda.is_available():
            return my_step(16384)  # type: ignore[no-any-return]
        work = my_step(batch)

        def waiting() -> None:
            started_s = time.perf_counter()
            work()
            ends = time.perf_counter() + 6 * (time.perf_counter() - started_s)
            while time.perf_counter() < ends:
                pass
            torch.ones(1).add(1)  # the step ends with its last operator

        return waiting if batch < 100 else work

    return step_of


def _sms() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)


WHOLE, PROPORTION = "as the whole", "in proportion"


def _on_parts(of_slice: str, of_gpu: str) -> Change:
    """What a part of the SMs does, of a slice and of a whole GPU.

    Either "as the whole" does, or "in proportion": as much longer as its SMs are fewer.
    """

    def change(confined: Function) -> Function:
        def changed(work: Function, size: int | None, **options: Any) -> Function:
            inside: Function = confined(work, None, **options)
            if size is None or (of_slice if _sms() < SMS_OF_A_SLICE else of_gpu) == WHOLE:
                return inside
            return _repeat(inside, round(_sms() / size))

        return changed

    return change


def _slow_down_part(confined: Function) -> Function:
    """On a part the work is done twice, as if a tenant had half of the part."""

    def slowed(work: Function, size: int | None, **options: Any) -> Function:
        inside: Function = confined(work, size, **options)
        return inside if size is None else _repeat(inside, 2)

    return slowed


def _idle_neighbours(count: Function) -> Function:
    """The other copies rest also while "all" work."""

    def count_in_windows(work: Function, copies: int, pairs: int) -> Any:
        import torch.distributed as dist

        is_first = copies == 1 or not dist.get_rank()
        return count(work if is_first else lambda: time.sleep(0.05), copies, pairs)

    return count_in_windows


def _one_after_another(count: Function) -> Function:
    """A copy works only while no other one does: nothing is gained by sharing."""

    def calls_per_s(work: Function, settle: Function, ends: float) -> Any:
        with Path(__file__).open() as shared:

            def in_turn() -> None:
                fcntl.flock(shared, fcntl.LOCK_EX)
                try:
                    work()
                    settle()
                finally:
                    fcntl.flock(shared, fcntl.LOCK_UN)

            return count(in_turn, settle, ends)

    return calls_per_s


def _all_at_once(_: Function) -> Function:
    """Nobody waits for others to come: every request is there from the beginning."""

    def arrivals(requests: int, __: float) -> list[float]:
        return [0.0] * requests

    return arrivals


def _one_format(product: Function) -> Function:
    def in_fp32(size: int, dtype: Any) -> Any:
        import torch

        return product(size, torch.float32)

    return in_fp32


def _small_helps(function: Function) -> Function:
    """Fewer gradients vanish, the smaller the number is that the loss is multiplied by."""

    def gradients(network: Any, x: Any, y: Any, dtype: Any, scale: float) -> Any:
        return function(network, x, y, dtype, 1 / scale)

    return gradients


def _amp_in_bf16(training: Function) -> Function:
    """AMP keeps no second copy of a weight."""

    def pure(width: int, kind: str) -> Any:
        return training(width, "bf16" if kind == "AMP" else kind)

    return pure


def _without_denominator(optimizer_of: Function) -> Function:
    """Adam without its denominator: momentum."""

    def without(name: str, weights: Any) -> Any:
        import torch

        weight_list = list(weights)
        momentum = torch.optim.SGD(weight_list, lr=0.02, momentum=0.9)
        return momentum if name == "Adam" else optimizer_of(name, weight_list)

    return without


def _no_rate(idle: str) -> Change:
    """One of the ways to train does not learn."""

    def change(rate_of: Function) -> Function:
        return lambda arm: 0.0 if arm == idle else rate_of(arm)

    return change


def _without_start_up(reduces: Function) -> Function:
    """Messages take what their bytes say, at 50 MB/s."""

    def payload(megabytes: float) -> Any:
        def take_time() -> None:
            ends = time.perf_counter() + megabytes / 50
            while time.perf_counter() < ends:
                pass

        return take_time

    return payload


def _whole_batch(shared: Function) -> Function:
    """Every rank takes the whole batch: nothing is shared out."""

    def whole(width: int, depth: int, batch: int) -> Function:
        import torch.distributed as dist

        return shared(width, depth, batch * dist.get_world_size())  # type: ignore[no-any-return]

    return whole


def _without_bytes(send: Function) -> Function:
    """The gradient has one number."""

    def send_whole(gradient: Any) -> None:
        send(gradient[:1])

    return send_whole


def _blocks(kind: Any) -> Any:
    """A network on which every message is waited for at once."""

    class SimulatedNetwork(kind):  # type: ignore[misc]
        def __call__(self, tensor: Any) -> Function:
            super().__call__(tensor)()
            return lambda: tensor

    return SimulatedNetwork


def _slow_exchange(reducer: Function) -> Function:
    """An exchange takes longer than all of the arithmetic."""

    def slow(log: Any) -> Function:
        exchange = reducer(log)

        def all_reduce(tensor: Any) -> Any:
            time.sleep(0.05)
            return exchange(tensor)

        return all_reduce

    return slow


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


def _always_small_batch(train: Function) -> Function:
    """A step's memory does not depend on its batch."""

    def always(_: int, *args: Any, **kwargs: Any) -> Any:
        return train(4, *args, **kwargs)

    return always


def _in_batches_of_four(train: Function) -> Function:
    """A batch is gone through in fours, so that a sample takes as long in any."""

    def small(batch: int, *args: Any, **kwargs: Any) -> Any:
        return _repeat(train(4, *args, **kwargs), max(1, batch // 4))

    return small


SMS_OF_A_SLICE = 40  # fewer than the smallest GPU, at least as many as an emulated slice
CONFINED, SHARING = "labkit.machine.parts:confined", "labkit.measuring.sharing"

TWINS: Mapping[str, Twin] = {
    "T-1": Twin("that both are the same", "matmul", _enlarge_every_second),
    "T-2": Twin("that a call returns early", "matmul", _wait_for_device),
    "T-3": Twin("that the timer times one call", "my_timer", _timer_of_two),
    "T-4": Twin("the roof", "matmul", _without_arithmetic),
    "T-6": Twin("what differs between the batches", "my_step", _same_busy_share),
    "T-7": Twin("memory of one's own", CONFINED, _on_parts(PROPORTION, PROPORTION)),
    "MIG-1": Twin("a part of one's own", CONFINED, _slow_down_part),
    "MIG-3": Twin("how a part shares the memory", CONFINED, _on_parts(WHOLE, PROPORTION)),
    "MIG-5": Twin("that fewer SMs take longer", CONFINED, _on_parts(WHOLE, WHOLE)),
    "MIG-6": Twin("the neighbours' work", f"{SHARING}:count_in_windows", _idle_neighbours),
    "MIG-7": Twin("working at the same time", f"{SHARING}:calls_per_s", _one_after_another),
    "MIG-14": Twin("the time between requests", "arrivals", _all_at_once),
    "MX-2": Twin("the other format", "product", _one_format),
    "MX-5": Twin("the direction of the scale", "gradients", _small_helps),
    "MX-9": Twin("AMP's copies of the weights", "training", _amp_in_bf16),
    "MX-12": Twin("learning in bf16", "rate_of", _no_rate("bf16")),
    "DP-13": Twin("learning on two ranks", "rate_of", _no_rate("two ranks")),
    "DP-12": Twin("Adam's denominator", "optimizer_of", _without_denominator),
    "DP-2": Twin("the start-up time", "reduces", _without_start_up),
    "DP-3": Twin("sharing the batch out", "shared", _whole_batch),
    "DP-4": Twin("the gradient's bytes", "send_whole", _without_bytes),
    "DP-6": Twin("sending while something computes", "SimulatedNetwork", _blocks),
    "MP-3": Twin("an exchange worth its time", "reducer", _slow_exchange),
    "MP-6": Twin("working at the same time", "labkit.exercises.networks:mlp", _one_processor),
    "CH-1": Twin("what differs with the SMs", CONFINED, _on_parts(WHOLE, PROPORTION)),
    "CH-2": Twin("memory that follows the batch", "train", _always_small_batch),
    "CH-3": Twin("what a bigger batch gains", "train", _in_batches_of_four),
}
