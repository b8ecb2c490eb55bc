"""A pipeline that really runs: its gradients, its orders, what it keeps, and how long it waits."""

import threading

import pytest
from tests.needs import needs

from labkit.exercises import stages
from labkit.exercises.stages import ActionSpan, PipelineStep, StageLayers, actions_of, interleaved
from labkit.notebook.drawings import pipeline_run

needs("torch", "stages are layers of torch")

WIDTH, DEPTH, ROWS, MICRO_BATCHES = 8, 8, 5, 4
ONE_F_ONE_B = ["FFBFBFBB", "FBFBFBFB"]
ZERO_BUBBLE = ["FFBWFBWFBWBW", "FBFBWFBWFBWW"]


class QueueWires:
    """Wires between ranks that are threads; the messages of a pair come in the order sent."""

    def __init__(self, rank, boxes):
        self.rank, self.boxes = rank, boxes

    def send(self, to, tensor):
        self.boxes[self.rank, to].put(tensor.clone())

    def receive(self, source):
        return self.boxes[source, self.rank].get(timeout=20)

    def finish(self):
        """Nothing is on its way: `send` has copied."""


def run_pipeline(orders, chunks):
    """One step of two ranks; return each rank's step."""
    import queue

    import torch

    luck = torch.Generator().manual_seed(0)
    inputs = [torch.randn(ROWS, WIDTH, generator=luck) for _ in range(MICRO_BATCHES)]
    boxes = {(0, 1): queue.Queue(), (1, 0): queue.Queue()}
    size = DEPTH // (2 * chunks)
    steps = []
    for rank in range(2):
        begins = [size * (chunk * 2 + rank) for chunk in range(chunks)]
        layers = [StageLayers(WIDTH, range(begin, begin + size), "cpu") for begin in begins]
        steps.append(PipelineStep(layers, inputs, orders, rank, QueueWires(rank, boxes)))
    threads = [threading.Thread(target=step.run, daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    return steps


def orders_by_name():
    return {
        "GPipe": ([actions_of("FFFFBBBB")] * 2, 1),
        "1F1B": ([actions_of(order) for order in ONE_F_ONE_B], 1),
        "zero bubble": ([actions_of(order) for order in ZERO_BUBBLE], 1),
        "interleaved": ([interleaved(rank, 2, MICRO_BATCHES, 2) for rank in range(2)], 2),
    }


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "zero bubble", "interleaved"])
def test_every_schedule_has_the_gradients_of_autograd(name):
    """Of the mean square over two, summed over the micro-batches, layer by layer."""
    import torch

    orders, chunks = orders_by_name()[name]
    steps = run_pipeline(orders, chunks)
    (whole,) = [StageLayers(WIDTH, range(DEPTH), "cpu")]
    leaves = [matrix.clone().requires_grad_() for matrix in whole.weights]
    for x in steps[0].inputs:
        for matrix in leaves:
            x = (x @ matrix).relu()
        (x.square().mean() / 2).backward()
    gradients = {
        number: gradient
        for step in steps
        for layers in step.chunks
        for number, gradient in zip(layers.numbers, layers.gradients, strict=True)
    }
    assert sorted(gradients) == list(range(DEPTH))
    for number, leaf in enumerate(leaves):
        assert torch.allclose(gradients[number], leaf.grad, atol=1e-6), number


def test_what_the_ranks_keep_is_counted_until_its_w():
    """Of four layers a rank: inputs and results are five tensors, the halves between four more."""
    tensor = 4 * ROWS * WIDTH
    most = {
        name: [step.most_bytes // tensor for step in run_pipeline(*orders_by_name()[name])]
        for name in ("GPipe", "1F1B", "zero bubble")
    }
    assert most == {"GPipe": [24, 24], "1F1B": [14, 9], "zero bubble": [14, 18]}


def test_the_interleaved_order_does_everything_once_and_passes_each_chunk():
    """For several sizes, every stage goes forward before backward, and nobody waits forever."""
    for ranks, micro_batches, chunks in ((2, 4, 2), (3, 6, 2), (4, 4, 3)):
        for rank in range(ranks):
            order = interleaved(rank, ranks, micro_batches, chunks)
            assert len(order) == len(set(order)) * micro_batches == 2 * chunks * micro_batches
    steps = run_pipeline(*orders_by_name()["interleaved"])
    assert {span.stage for step in steps for span in step.spans} == {0, 1, 2, 3}


def ideal_run(orders, chunks):
    """The waiting share of orders whose halves take one tick each and messages none."""
    ranks, clocks, done = len(orders), [0] * len(orders), {}
    last_stage = ranks * chunks - 1
    places, counts = [0] * ranks, [{} for _ in orders]
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        rank = next(r for r in range(ranks) if can_go(orders, places, counts, done, last_stage, r))
        action, chunk = orders[rank][places[rank]]
        number = counts[rank].get((action, chunk), 0)
        counts[rank][action, chunk], places[rank] = number + 1, places[rank] + 1
        stage = chunk * ranks + rank
        ready = done.get(needed_by(action, stage, number, last_stage), 0)
        clocks[rank] = max(clocks[rank], ready) + len(action)
        done[action[0], stage, number] = clocks[rank]
    ticks = sum(len(action) for order in orders for action, _ in order)
    return 1 - ticks / (ranks * max(clocks))


def needed_by(action, stage, number, last_stage):
    """What must have ended before; None where nothing must."""
    if action == "F":
        return ("F", stage - 1, number) if stage else None
    if action == "W":
        return ("B", stage, number)
    return ("B", stage + 1, number) if stage < last_stage else ("F", stage, number)


def can_go(orders, places, counts, done, last_stage, rank):
    """Whether a rank's next action has what it needs."""
    if places[rank] == len(orders[rank]):
        return False
    action, chunk = orders[rank][places[rank]]
    number = counts[rank].get((action, chunk), 0)
    needed = needed_by(action, chunk * len(orders) + rank, number, last_stage)
    return needed is None or needed in done


@pytest.mark.parametrize("name", ["GPipe", "1F1B", "zero bubble", "interleaved"])
def test_the_ideal_waiting_is_that_of_the_orders_that_run(name):
    """F, B and W take equally long; a gradient leaves after W where both halves are one."""
    orders, chunks = orders_by_name()[name]
    waiting = stages.ideal_waiting(name, 2, MICRO_BATCHES)
    assert ideal_run(orders, chunks) == pytest.approx(waiting)


def test_a_gradient_leaves_after_both_halves_where_they_are_one():
    """In 1F1B no stage begins its B before the next stage has ended that micro-batch's W."""
    steps = run_pipeline(*orders_by_name()["1F1B"])
    ends = {span.micro_batch: span.end_s for span in steps[1].spans if span.action == "W"}
    begins = {span.micro_batch: span.begin_s for span in steps[0].spans if span.action == "B"}
    assert all(begins[number] >= ends[number] for number in range(MICRO_BATCHES))


SPANS = [ActionSpan(0, "F", 0, 10.0, 11.0), ActionSpan(1, "F", 0, 11.0, 12.0)]


def test_a_run_is_drawn_with_what_it_waits():
    """Two ranks, each busy half of the time; the drawing says so, and in ms."""
    assert stages.waiting_share(SPANS, 2) == pytest.approx(0.5)
    drawing = repr(pipeline_run(SPANS, 2, "One step"))
    assert "2e+03 ms" in drawing
    assert "50% of the time" in drawing
