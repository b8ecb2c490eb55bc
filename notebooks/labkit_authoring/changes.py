"""What a broken world changes: each makes another function of a named one, and says what is broken.

The function that is made runs where the named one would: in the child that measures. It changes
what is run, never a figure.
"""

from __future__ import annotations

import fcntl
import inspect
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Function = Callable[..., Any]
Change = Callable[[Any], Any]
SMS_OF_A_SLICE = 40  # fewer than the smallest GPU, at least as many as an emulated slice
SMALL_BATCH = 100
CALLS = itertools.count()  # of this process, by all copies of a changed function


def repeat(work: Function, times: int) -> Function:
    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated


def double_every_second(first_doubled: int) -> Change:
    """Of two functions that are prepared in turn, one does its work twice."""

    def change(product: Function) -> Function:
        def matmul(**options: Any) -> Function:
            from labkit_authoring import changes

            work = product(**options)
            return repeat(work, 2) if next(changes.CALLS) % 2 == first_doubled else work

        return matmul

    return change


def wait_for_device(function: Function) -> Function:
    """A call that returns only when the device is done."""

    def prepared(*args: Any, **kwargs: Any) -> Any:
        import torch

        work = function(*args, **kwargs)

        def waited() -> None:
            work()
            torch.cuda.synchronize()

        return waited

    return prepared


def block_longer_unwaited(product: Function) -> Function:
    """Calls wait for the device, and every second one, from the first on, for two products."""

    def matmul(*args: Any, **options: Any) -> Function:
        import torch

        work, calls = product(*args, **options), itertools.count()

        def blocking() -> None:
            for _ in range(1 if next(calls) % 2 == 0 else 2):  # the first call only warms up
                work()
            torch.cuda.synchronize()

        return blocking

    return matmul


def timer_of_two(_: Function) -> Function:
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


def timer_that_starts_late(_: Function) -> Function:
    def my_timer(work: Function, wait: Function, clock: Function, rounds: int = 20) -> list[float]:
        seconds = []
        for _ in range(rounds):
            work()
            wait()
            started_s = clock()
            wait()
            seconds.append(clock() - started_s)
        return seconds

    return my_timer


def repeat_fp32_product(product: Function) -> Function:
    """A product in fp32 is computed a hundred times or more, so that its rate falls."""
    usual = inspect.signature(product).parameters["size"].default

    def matmul(size: int = usual, dtype: str = "float32") -> Function:
        import torch

        work = product(size, dtype)
        times = 200 if torch.cuda.is_available() else 100
        return repeat(work, times) if dtype == "float32" else work

    return matmul


def without_arithmetic(product: Function) -> Function:
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


def same_busy_share(my_step: Function) -> Function:
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

        return waiting if batch < SMALL_BATCH else work

    return step_of


def waiting_big_batch(my_step: Function) -> Function:
    """In the big batch's step Python waits for three times as long as anything computes."""

    def step_of(batch: int) -> Function:
        import torch

        work, is_gpu = my_step(batch), torch.cuda.is_available()

        def waiting() -> None:
            started_s = time.perf_counter()
            work()
            torch.cuda.synchronize() if is_gpu else None
            ends = time.perf_counter() + 3 * (time.perf_counter() - started_s)
            while time.perf_counter() < ends:
                pass
            torch.ones(1, device="cuda" if is_gpu else "cpu").add(1)  # the step ends with it

        return work if batch < SMALL_BATCH else waiting

    return step_of


def _sms() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)


WHOLE, PROPORTION, TWICE = 0.0, 1.0, 2.0


def on_parts(of_slice: float, of_gpu: float) -> Change:
    """What a part of the SMs does, of a slice and of a whole GPU.

    Either as much as the whole does, or as much longer as its SMs are fewer, or twice as long as
    that.
    """

    def change(confined: Function) -> Function:
        def changed(work: Function, size: int | None, **options: Any) -> Function:
            inside: Function = confined(work, None, **options)
            longer = of_slice if _sms() < SMS_OF_A_SLICE else of_gpu
            times = 1 if size is None or longer == WHOLE else round(longer * _sms() / size)
            return inside if times == 1 else repeat(inside, times)

        return changed

    return change


def narrow_memory(confined: Function) -> Function:
    """On a part a copy takes four times as long as its SMs explain."""

    def narrow(work: Function, size: int | None, **options: Any) -> Function:
        is_copy = "copy_" in getattr(work, "__code__", narrow.__code__).co_names
        if size is None or not is_copy:
            return confined(work, size, **options)  # type: ignore[no-any-return]
        return repeat(confined(work, None, **options), 4 * round(_sms() / size))

    return narrow


def slow_down(*, the_part: bool, times: int) -> Change:
    """The work is done several times, on a part or on the whole, as if a tenant had the others."""

    def change(confined: Function) -> Function:
        def slowed(work: Function, size: int | None, **options: Any) -> Function:
            inside: Function = confined(work, size, **options)
            return repeat(inside, times) if (size is not None) == the_part else inside

        return slowed

    return change


def idle_neighbours(count: Function) -> Function:
    """The other copies rest also while "all" work."""

    def count_in_windows(work: Function, copies: int, pairs: int) -> Any:
        import torch.distributed as dist

        is_first = copies == 1 or not dist.get_rank()
        return count(work if is_first else lambda: time.sleep(0.05), copies, pairs)

    return count_in_windows


def more_work_in(window: str) -> Change:
    """In one kind of window every call does its work twice for each copy."""

    def change(count: Function) -> Function:
        windows = itertools.count()

        def calls_per_s(work: Function, settle: Function, ends: float) -> Any:
            import torch.distributed as dist

            from labkit.measuring.sharing import ORDER

            copies = dist.get_world_size() if dist.is_initialized() else 1
            is_first = not dist.is_initialized() or not dist.get_rank()
            name = ORDER[next(windows) % len(ORDER)] if is_first else "together"
            return count(repeat(work, 2 * copies) if name == window else work, settle, ends)

        return calls_per_s

    return change


def one_after_another(count: Function) -> Function:
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


def all_at_once(_: Function) -> Function:
    """Nobody waits for others to come: every request is there from the beginning."""

    def arrivals(requests: int, __: float) -> list[float]:
        return [0.0] * requests

    return arrivals


def always_one_by_one(waits: Function) -> Function:
    """Requests are answered one by one, whatever batch is named."""

    def one_by_one(batches: Any, requests: int) -> Any:
        return {f"batch {batch}": waits((1,), requests)["batch 1"] for batch in batches}

    return one_by_one


def exchanged_formats(product: Function) -> Function:
    def exchanged(size: int, dtype: Any) -> Any:
        import torch

        other = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}
        return product(size, other[dtype])

    return exchanged


def one_format(product: Function) -> Function:
    def in_fp32(size: int, dtype: Any) -> Any:
        import torch

        return product(size, torch.float32)

    return in_fp32


def scale_ignored(function: Function) -> Function:
    """The loss is not multiplied by anything before backpropagation."""

    def gradients(network: Any, x: Any, y: Any, dtype: Any, scale: float) -> Any:
        return function(network, x, y, dtype, 1.0)

    return gradients


def small_helps(function: Function) -> Function:
    """Fewer gradients vanish, the smaller the number is that the loss is multiplied by."""

    def gradients(network: Any, x: Any, y: Any, dtype: Any, scale: float) -> Any:
        return function(network, x, y, dtype, 1 / scale)

    return gradients


def amp_in_bf16(training: Function) -> Function:
    """AMP keeps no second copy of a weight."""

    def pure(width: int, kind: str) -> Any:
        return training(width, "bf16" if kind == "AMP" else kind)

    return pure


def without_autocast(autocast: Any) -> Any:
    """Autocast that is asked for and does nothing."""

    class Disabled(autocast):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"enabled": False})

    return Disabled


def exchanged_kinds(training: Function) -> Function:
    """What is called AMP is fp32, and the other way round."""

    def exchanged(width: int, kind: str) -> Any:
        return training(width, {"AMP": "fp32", "fp32": "AMP"}.get(kind, kind))

    return exchanged


def without_exchange(_: Function) -> Function:
    """An all-reduce that leaves every rank with what it had."""

    def all_reduce(*_: Any, **__: Any) -> None:
        return None

    return all_reduce


def two_all_reduces(call_of: Function) -> Function:
    """An all-reduce is made twice, and every other collective once."""

    def changed(collective: str, *arguments: Any) -> Any:
        call, result, mean = call_of(collective, *arguments)
        return (repeat(call, 2) if collective == "all-reduce" else call), result, mean

    return changed


def few_numbers(arrays: Function) -> Function:
    """Every message has a kilobyte."""

    def kilobyte(_: float, device: str) -> Any:
        return arrays(0.001, device)

    return kilobyte


def exchanged_optimizers(optimizer_of: Function) -> Function:
    def exchanged(name: str, weights: Any) -> Any:
        import torch

        other = {"SGD": (torch.optim.Adam, 0.1), "Adam": (torch.optim.SGD, 0.4)}
        kind, rate = other[name]
        return kind(weights, lr=rate)

    return exchanged


def without_denominator(optimizer_of: Function) -> Function:
    """Adam without its denominator: momentum."""

    def without(name: str, weights: Any) -> Any:
        import torch

        weight_list = list(weights)
        momentum = torch.optim.SGD(weight_list, lr=0.02, momentum=0.9)
        return momentum if name == "Adam" else optimizer_of(name, weight_list)

    return without


def no_rate(*idle: str) -> Change:
    """Some of the ways to train do not learn."""

    def change(rate_of: Function) -> Function:
        return lambda arm: 0.0 if arm in idle else rate_of(arm)

    return change


def without_start_up(reduces: Function) -> Function:
    """Messages take what their bytes say, at 50 MB/s."""

    def payload(megabytes: float) -> Any:
        def take_time() -> float:
            ends = time.perf_counter() + megabytes / 50
            while time.perf_counter() < ends:
                pass
            return megabytes * 1e6

        return take_time

    return payload


def one_number(reduces: Function) -> Function:
    """Every message has one number."""

    def payload(_: float) -> Any:
        return reduces(4e-6)

    return payload


def big_for_small(reduces: Function) -> Function:
    """The smallest message has the bytes of the biggest, and so on."""

    def payload(megabytes: float) -> Any:
        return reduces(0.128 / megabytes)

    return payload


def whole_batch(shared: Function) -> Function:
    """Every rank takes the whole batch: nothing is shared out."""

    def whole(width: int, depth: int, batch: int) -> Function:
        import torch.distributed as dist

        return shared(width, depth, batch * dist.get_world_size())  # type: ignore[no-any-return]

    return whole


def three_times_the_batch(shared: Function) -> Function:
    """Every rank takes the whole batch, three times."""

    def more(width: int, depth: int, batch: int) -> Function:
        import torch.distributed as dist

        return repeat(shared(width, depth, batch * dist.get_world_size()), 3)

    return more


def on_one_core(make_clock: Function) -> Function:
    """All ranks share the first core of this machine."""

    def pinned(*args: Any, **options: Any) -> Any:
        core = {min(os.sched_getaffinity(0))}
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), core)
        return make_clock(*args, **options)

    return pinned


def heavy_number(send_one: Function) -> Function:
    """What is called one number is the whole gradient, eight times."""

    def send(gradient: Any) -> int:
        import torch.distributed as dist

        for _ in range(8):
            dist.all_reduce(gradient)
        return int(send_one(gradient)) + 8 * len(gradient)

    return send


def without_bytes(send: Function) -> Function:
    """The gradient has one number."""

    def send_whole(gradient: Any) -> int:
        return int(send(gradient[:1]))

    return send_whole


def blocks(kind: Any) -> Any:
    """A network on which every message is waited for at once."""

    class SimulatedNetwork(kind):  # type: ignore[misc]
        def __call__(self, tensor: Any) -> Function:
            super().__call__(tensor)()
            return lambda: tensor

    return SimulatedNetwork


def blocks_a_message(kind: Any) -> Any:
    """A network on which every message, however short, takes what flat's one takes, at once."""

    class SimulatedNetwork(kind):  # type: ignore[misc]
        def __init__(self, start_up_s: float, bytes_per_s: float) -> None:
            super().__init__(100 * start_up_s, 1e15)

        def __call__(self, tensor: Any) -> Function:
            super().__call__(tensor)()
            return lambda: tensor

    return SimulatedNetwork


def exchange_by_size(reducer: Function) -> Function:
    """An exchange takes half a microsecond a number: the more tokens, the worse."""

    def slow(log: Any) -> Function:
        exchange = reducer(log)

        def all_reduce(tensor: Any) -> Any:
            time.sleep(5e-7 * tensor.numel())
            return exchange(tensor)

        return all_reduce

    return slow


def slow_exchange(reducer: Function) -> Function:
    """An exchange takes longer than all of the arithmetic."""

    def slow(log: Any) -> Function:
        exchange = reducer(log)

        def all_reduce(tensor: Any) -> Any:
            time.sleep(0.05)
            return exchange(tensor)

        return all_reduce

    return slow


class HeldWires:
    """Wires that have everything at the beginning, and send nothing before the end."""

    def __init__(self, wires: Any, order: Sequence[int]) -> None:
        self._wires = wires
        self._received = [wires.receive(0) for _ in order]
        self._held: list[Any] = []

    def receive(self, _: int) -> Any:
        """The next tensor, in the order in which they came."""
        return self._received.pop(0)

    def send(self, _: int, tensor: Any) -> None:
        """Keep a tensor until the end."""
        self._held.append(tensor)

    def release(self) -> None:
        """Send all that was kept."""
        for tensor in self._held:
            self._wires.send(0, tensor)


def waits_for_everything(last_stage: Function) -> Function:
    """The last stage begins when all micro-batches have come, and answers when it is done."""

    def whole(network: Any, order: Any, wires: Any, device: Any) -> None:
        numbers = list(order)
        held_wires = HeldWires(wires, numbers)
        last_stage(network, numbers, held_wires, device)
        held_wires.release()

    return whole


def rests_between(last_stage: Function) -> Function:
    """With several micro-batches the last stage rests for twice as long as it works."""

    def resting(network: Any, order: Any, wires: Any, device: Any) -> None:
        started_s, numbers = time.monotonic(), list(order)
        last_stage(network, numbers, wires, device)
        if len(numbers) > 1:
            time.sleep(2 * (time.monotonic() - started_s))

    return resting


def all_forward_first(_: Function) -> Function:
    """A stage's order is GPipe's."""

    def order(_: int, __: int, micro_batches: int) -> str:
        return "F" * micro_batches + "B" * micro_batches

    return order


def without_last_weights(zero_bubble: Function) -> Function:
    """An order in which the last micro-batch's weights get no gradient."""

    def order(*sizes: int) -> str:
        return str(zero_bubble(*sizes)).removesuffix("W")

    return order


def rests_after_gpipe(pipeline_step: Any) -> Any:
    """A step in which the first stage runs all forward first takes twice as long."""

    class Resting(pipeline_step):  # type: ignore[misc]
        def run(self) -> None:
            started_s = time.monotonic()
            super().run()
            actions = "".join(action for action, _ in self.orders[0])
            if "FB" in actions and actions.rindex("F") < actions.index("B"):
                time.sleep(time.monotonic() - started_s)

    return Resting


def smaller_for_bigger(train: Function) -> Function:
    """The bigger the batch is said to be, the smaller it is."""

    def inverse(batch: int, *args: Any, **kwargs: Any) -> Any:
        return train(max(1, 256 // batch), *args, **kwargs)

    return inverse


def always_small_batch(train: Function) -> Function:
    """A step's memory does not depend on its batch."""

    def always(_: int, *args: Any, **kwargs: Any) -> Any:
        return train(4, *args, **kwargs)

    return always


def in_batches_of_four(train: Function) -> Function:
    """A batch is gone through in fours, so that a sample takes as long in any."""

    def small(batch: int, *args: Any, **kwargs: Any) -> Any:
        return repeat(train(4, *args, **kwargs), max(1, batch // 4))

    return small


def more_for_bigger(train: Function) -> Function:
    """A sample of a bigger batch is computed eight times."""

    def more(batch: int, *args: Any, **kwargs: Any) -> Any:
        work = train(batch, *args, **kwargs)
        return work if batch <= 16 else repeat(work, 8)

    return more


def units_are(count: int) -> Change:
    """The layers are divided into so many units, whatever is asked for."""

    def change(layers: Any) -> Any:
        class Divided(layers):  # type: ignore[misc]
            def __init__(self, width: int, depth: int, _: int) -> None:
                super().__init__(width, depth, count)

        return Divided

    return change


def keeps_what_is_gathered(ring: Any) -> Any:
    """An all-gather whose results are never let go."""

    class Keeping(ring):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.gathered: list[Any] = []

        def all_gather(self, part: Any) -> Any:
            self.gathered.append(super().all_gather(part))
            return self.gathered[-1]

    return Keeping


def scatters_by_all_reduce(ring: Any) -> Any:
    """A reduce-scatter that sends all of the sum to everybody; plain's all-reduce is as it was."""

    class Reducing(ring):  # type: ignore[misc]
        def reduce_scatter(self, tensor: Any) -> Any:
            whole = self.all_gather(super().reduce_scatter(tensor).clone())
            return whole.chunk(self.world)[self.rank].clone()

        def all_reduce(self, tensor: Any) -> Any:
            slot = tensor.chunk(self.world)[self.rank]
            return self.all_gather(slot.copy_(super().reduce_scatter(tensor)))

    return Reducing


def without_scatter(ring: Any) -> Any:
    """A reduce-scatter in which each rank keeps its own numbers."""

    class Silent(ring):  # type: ignore[misc]
        def reduce_scatter(self, tensor: Any) -> Any:
            return tensor.chunk(self.world)[self.rank] * self.world

    return Silent


def without_collectives(kind: Any) -> Any:
    """Collectives in which each rank takes the others' numbers to be its own."""

    class AloneCollectives(kind):  # type: ignore[misc]
        def all_reduce(self, tensor: Any) -> Any:
            return tensor * self.world

        def all_gather(self, part: Any) -> Any:
            return part.repeat(self.world, 1)

        def reduce_scatter(self, tensor: Any) -> Any:
            return tensor.chunk(self.world)[self.rank] * self.world

    return AloneCollectives


def gathers_rows_twice(conjugates_by_rows: Function) -> Function:
    """Every all-gather of rows is made twice, and every reduce-scatter once."""

    class Twice:
        def __init__(self, collectives: Any) -> None:
            self.reduce_scatter, self._once = collectives.reduce_scatter, collectives.all_gather

        def all_gather(self, part: Any) -> Any:
            self._once(part)
            return self._once(part)

    return lambda collectives: conjugates_by_rows(Twice(collectives))


def adds_both_ways(conjugates: Function) -> Function:
    """A g that adds the ranks' gradients on its way back: g's result goes through f, too."""

    def changed(all_reduce: Function) -> tuple[Function, Function]:
        f, g = conjugates(all_reduce)
        return f, lambda partial_sum: f(g(partial_sum))

    return changed


def blocks_are(way: str) -> Change:
    """Where the sequence should be divided, a block goes this way."""
    return lambda block_step: (
        lambda asked, *arguments: block_step(way if "sequence" in asked else asked, *arguments)
    )


def exchanged_blocks(block_step: Function) -> Function:
    """Tensor and sequence parallelism are exchanged."""
    exchanged = {"tensor": "sequence", "sequence": "tensor"}
    return lambda way, *arguments: block_step(exchanged.get(way, way), *arguments)


def gathers_twice(ring: Any) -> Any:
    """An all-gather that sends everything twice."""

    class Repeating(ring):  # type: ignore[misc]
        def all_gather(self, part: Any) -> Any:
            super().all_gather(part)
            return super().all_gather(part)

    return Repeating


def always_one_unit(_: Function) -> Function:
    def unit_count(_: int) -> int:
        return 1

    return unit_count


def long_messages_wait(ring: Any) -> Any:
    """A link on which a message's time grows with the square of its bytes."""

    class Slow(ring):  # type: ignore[misc]
        def _pass_on(self, outgoing: Any, incoming: Any = None) -> Any:
            time.sleep(0.2 * (outgoing.nbytes / 2**19) ** 2)
            return super()._pass_on(outgoing, incoming)

    return Slow


def ways_are(way: str) -> Change:
    """Attention goes one way, whatever is asked for."""
    return lambda attention: lambda _: attention(way)


def always_the_first_tokens(attention: Function) -> Function:
    """The fused way is given the first 64 tokens, however many there are."""

    def of_way(way: str) -> Function:
        work = attention(way)
        if way == "naive":
            return work  # type: ignore[no-any-return]
        return lambda q, k, v: work(q[:, :, :64], k[:, :, :64], v[:, :, :64])

    return of_way


def fused_repeatedly(attention: Function) -> Function:
    """What is fused is computed eight times."""

    def of_way(way: str) -> Function:
        work = attention(way)
        times = 1 if way == "naive" else 8
        return lambda *qkv: [work(*qkv) for _ in range(times)][-1]

    return of_way


def fused_causally(attention: Function) -> Function:
    """What is fused leaves out what comes later in the sequence."""

    def of_way(way: str) -> Function:
        import torch

        causal = torch.nn.functional.scaled_dot_product_attention
        is_fused = way != "naive"
        return (lambda *qkv: causal(*qkv, is_causal=True)) if is_fused else attention(way)

    return of_way


def always_plain(program: Function) -> Function:
    """No program has a bottleneck."""
    return lambda _, **shape: program("plain", **shape)


def plain_reads(program: Function) -> Function:
    """The plain program reads its input as the slowest does, and the others do not."""
    return lambda letter, **shape: program("C" if letter == "plain" else "plain", **shape)


def computes_less(program: Function) -> Function:
    """One of the programs has a quarter of the samples."""

    def of_letter(letter: str, *, batch: int, word_count: int, **shape: Any) -> Function:
        part = 4 if letter == "A" else 1
        work = program(letter, batch=batch // part, word_count=word_count // part, **shape)
        return lambda: work().repeat(part, 1)

    return of_letter


def without_compiling(_: Function) -> Function:
    """What is called compiled is the function itself."""
    return lambda function, **__: function


def slow_uncompiled(block: Function) -> Function:
    """Without compiling, the block takes a quarter of a second longer."""

    def slow(*inputs: Any) -> Any:
        import torch

        if not torch.compiler.is_compiling():
            time.sleep(0.25)
        return block(*inputs)

    return slow


def without_all_reduce(ring: Any) -> Any:
    """Every worker keeps its own gradients, and waits for nobody."""

    class Alone(ring):  # type: ignore[misc]
        def all_reduce(self, tensor: Any) -> Any:
            self.sending_s.append(0.0)
            self.waiting_s.append(0.0)
            return tensor * self.world

    return Alone


def without_fault(kind_at: Function) -> Function:
    """No worker has a fault, whichever was asked for."""

    def healthy_kind(_: str, at: int, place: int, seats: Sequence[int]) -> Any:
        return kind_at("", at, place, seats)

    return healthy_kind


def fault_everywhere(kind_at: Function) -> Function:
    """Every worker has the fault."""

    def faulty_kind(fault: str, _: int, place: int, seats: Sequence[int]) -> Any:
        return kind_at(fault, seats[place], place, seats)

    return faulty_kind


def without_update(worker: Any) -> Any:
    """No worker takes a step, and every one keeps its first parameters."""
    worker.update = lambda *_: None
    return worker


def faulty_do_not_learn(kind_at: Function) -> Function:
    """Where one worker has a fault, no worker takes a step after the restart."""

    def resting_kind(fault: str, at: int, place: int, seats: Sequence[int]) -> Any:
        kind = kind_at(fault, at, place, seats)
        return type("Resting", (kind,), {"update": lambda *_: None}) if fault else kind

    return resting_kind
