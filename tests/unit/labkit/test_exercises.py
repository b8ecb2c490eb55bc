"""Every exercise: the notebook's solution is right, what the student finds is not, and each
typical mistake, made in the solution, has its sentence.
"""

import functools
from collections import Counter
from pathlib import Path

import pytest
from tests.maximal_layouts import maximal_layouts
from tests.needs import needs

from labkit.exercises import packing, run_ranks, schedule
from labkit_grading import grade_code
from make_notebooks import build_text
from miglab_pool.gpu.simulated.geometry import model_geometry

needs("torch", "the exercises are written with torch")

SOURCES = Path(__file__).parents[3] / "notebooks" / "src"
VERDICTS = [
    pytest.param(source.stem, verdict, id=f"{source.stem}-{verdict}")
    for source in sorted(SOURCES.glob("*.py"))
    for verdict in grade_code.answer_key(source).verdicts
]


@functools.cache
def key_of(notebook):
    return grade_code.answer_key(SOURCES / f"{notebook}.py")


def names_of(notebook, name, own):
    """What a verdict's statements define here, as in a notebook, with these for the exercises."""
    key, names = key_of(notebook), {}
    exercises = {exercise: own[exercise] for exercise in key.exercises if exercise in own}
    exec("\n".join(grade_code.needed_statements([name], key.defined | exercises)), names)
    return names


@pytest.mark.parametrize(("notebook", "verdict"), VERDICTS)
def test_the_solution_is_right_and_what_the_student_finds_is_not_yet(notebook, verdict):
    """Both are judged in words."""
    solved = names_of(notebook, verdict, key_of(notebook).defined)[verdict]
    assert solved.right, solved.reason
    text = (SOURCES / f"{notebook}.py").read_text(encoding="utf-8")
    found = grade_code.definitions([build_text(text, solutions=False)])
    unwritten = names_of(notebook, verdict, found)[verdict]
    assert not unwritten.right
    assert unwritten.reason


TIMER = ("1_your_slice", "timer_verdict", "my_timer")
FITS = ("2_mig_trade_offs", "fits_verdict", "fits")
PLACE = ("2_mig_trade_offs", "place_verdict", "place_slices")
SCALER = ("3_mixed_precision", "scaler_verdict", "LossScaler")
STEP = ("3_mixed_precision", "step_verdict", "scaled_step")
SOFTMAX = ("3b_kernels", "softmax_verdict", "softmax_by_blocks")
AVERAGE = ("4a_averaging", "average_verdict", "average")
NAIVE = ("4a_averaging", "naive_verdict", "naive_all_reduce")
RING = ("4a_averaging", "ring_verdict", "ring_all_reduce")
TENSORS = ("4b_sending", "per_tensor_verdict", "per_tensor")
FLAT = ("4b_sending", "flat_verdict", "flat")
BUCKETS = ("4b_sending", "buckets_verdict", "Buckets")
BANDWIDTHS = ("4b_sending", "bandwidths_verdict", "bandwidths")
ROWS = ("5a_splitting_layers", "rows_verdict", "split_rows")
COLUMNS = ("5a_splitting_layers", "columns_verdict", "split_columns")
FORWARD = ("5a_splitting_layers", "pair_verdict", "pair_forward")
BACKWARD = ("5a_splitting_layers", "pair_verdict", "pair_backward")
OWN_HEADS = ("5a_splitting_layers", "attention_verdict", "own_heads")
CONJUGATES = ("5a_splitting_layers", "attention_verdict", "conjugates")
SPLIT_ATTENTION = ("5a_splitting_layers", "attention_verdict", "split_attention")
ATTENTION_STEP = ("5a_splitting_layers", "attention_verdict", "attention_step")
LEDGER = ("5b_memory_and_pipelines", "ledger_verdict", "ledger")
ZERO = ("5b_memory_and_pipelines", "zero_verdict", "zero_step")
SCHEDULE = ("5b_memory_and_pipelines", "schedule_verdict", "schedule")
ORDER = ("5b_memory_and_pipelines", "order_verdict", "order")
ZERO_BUBBLE = ("5b_memory_and_pipelines", "zero_bubble_verdict", "zero_bubble")
ZERO_1 = ("4c_sharding", "zero1_verdict", "zero1_step")
ZERO_2 = ("4c_sharding", "zero2_verdict", "Zero2")
FORWARD_3 = ("4c_sharding", "zero3_verdict", "zero3_forward")
BACKWARD_3 = ("4c_sharding", "zero3_verdict", "zero3_backward")
OUTLIER = ("7_which_worker_lies", "outlier_verdict", "stands_out")
DISAGREEING = ("7_which_worker_lies", "disagreeing_verdict", "disagreeing")
SPLIT = "x.tensor_split(ranks, dim=1), weights.tensor_split(ranks, dim=0)"
KEPT = "depth * batch + inside if checkpoint else depth * (batch + inside)"

MISTAKES = [
    (TIMER, "        wait()\n        seconds", "        seconds", "wait for the device"),
    (TIMER, "    work()\n    for", "    for", "call once before you count"),
    (TIMER, "    return seconds", "    return [sum(seconds)]", "list of that many"),
    (TIMER, "        work()\n", "        work(), work()\n", "time one call for each sample"),
    (PLACE, "if later_starts is not None:\n            return [start, *later_starts]",
     "return None if later_starts is None else [start, *later_starts]",
     "try the next start of the first"),
    (PLACE, "taken + span", "taken.extend(span) or taken", "changed `taken`"),
    (PLACE, "first.starts", "range(8)", "a 2g.10gb cannot begin at 1, only at 0, 2, 4"),
    (PLACE, "taken + span", "taken", "overlaps the 1g.5gb at 0"),
    (PLACE, "None", "[]", "one start for each slice"),
    (PLACE, "return [start", "return [str(start)", "cannot begin at 0"),
    (PLACE, "wanted, taken", "wanted", "TypeError"),
    (SCALER, "start=2.0**16", "start=2.0**-10", "a small scale loses gradients"),
    (SCALER, "return False", "return True", "must be skipped"),
    (SCALER, "self.scale / 2", "self.scale / 1", "must be halved"),
    (SCALER, "self.scale * 2, 0", "self.scale, 0", "must double the scale"),
    (SCALER, "self.scale * 2, 0", "self.scale * 2, self.good", "the count of good steps anew"),
    (SCALER, "self.scale / 2, 0", "self.scale / 2, self.good", "an inf must start the count"),
    (SCALER, "class LossScaler:", "class LossScaler(list):\n  pass\nclass Other:", "no attribute"),
    (STEP, "any(not gradient.isfinite().all() for gradient in gradients)", "False", "look for inf"),
    (STEP, "scaler.update(found_inf)", "True", "called once for each step"),
    (STEP, "    if is_taken:", "    if True:", "must be skipped"),
    (STEP, " / scale", "", "still scaled"),
    (STEP, " / scale", " / 1000", "the step got"),
    (STEP, ".float() / scale", " / scale", "in fp32, not in fp16"),
    (STEP, "gradients_at(scale)", "gradients_at(1.0)", "the scaler's scale"),
    (STEP, "    scale = scaler.scale\n", "    return None\n", "write scaled_step first"),
    (STEP, "return is_taken", "return None", "what update returned"),
    (SOFTMAX, "(read(block) - largest).exp()", "read(block).exp()", "subtracts the last one"),
    (SOFTMAX, " * (largest - above).exp()", "", "multiplied by exp(old largest - new largest)"),
    (SOFTMAX, "range(blocks)", "range(blocks - 1)", "block 2 was never written"),
    (SOFTMAX, "/ total)", "/ total), read(block)", "read 3 times"),
    (AVERAGE, " / len(gradients)", "", "it is the sum, and the loss is a mean"),
    (AVERAGE, "sum(gradients) / len(gradients)", "gradients[-1]", "one rank's own"),
    (AVERAGE, "len(gradients)", "2", "with 3 ranks: the combined gradient is off by"),
    (AVERAGE, "sum(gradients) / len(gradients)", "'a mean'", "return one tensor"),
    (NAIVE, "total = tensor.clone()", "return tensor", "rank 0 does not hold the sum: it still"),
    (NAIVE, "return total", "return None", "with 1 rank: rank 0 does not hold the sum: it ret"),
    (NAIVE, "return total", "return total / world", "the mean"),
    (NAIVE, "        send(peer, tensor)", "        pass", "sends nothing more"),
    (NAIVE, "send(peer, tensor)", "send(rank, tensor)", "cannot send to rank"),
    (NAIVE, "return total", "return total.nonsense", "no attribute"),
    (RING, "range(world - 1):\n        send(after, chunks[(rank - step + 1)",
     "range(0):\n        send(after, chunks[(rank - step + 1)", "4 of its 8 numbers are finished"),
    (RING, "    after,", "    chunks = list(chunks[0].chunk(world))\n    after,", "with 2 ranks"),
    (RING, "    return", "    world > 1 and (send(after, tensor), receive(before))\n    return",
     "a ring sends"),
    (TENSORS, " / world", "", "sum, not their mean"),
    (TENSORS, "all_reduce(gradient)() / world", "gradient", "nothing was sent"),
    (FLAT, "all_reduce(together)()", "torch.cat([all_reduce(one)() for one in together.chunk(2)])",
     "where 1 should be made"),
    (FLAT, "part.view(gradient.shape)", "part", "must have the shape"),
    (FLAT, "for gradient in gradients])\n    parts", "for gradient in gradients[::-1]])\n    parts",
     "not the mean"),
    (BUCKETS, "self.filling.append((number, gradient))", "pass", "write Buckets first"),
    (BUCKETS, "            self.leave()\n\n", "            pass\n\n", "nothing was sent before"),
    (BUCKETS, "        self.sent.append((", "        self.all_reduce(together)()\n"
     "        self.sent.append((", "ready waits"),
    (BUCKETS, "            self.leave()\n        means", "            pass\n        means",
     "they must be"),
    (BUCKETS, "(wait() / self.world)", "wait()", "sum, not their mean"),
    (BUCKETS, ">= self.most", ">= 2 * self.most", "they must be"),
    (BANDWIDTHS, "input_bytes * ranks if", "input_bytes if", "that of its result"),
    (BANDWIDTHS, "2 * share", "share", "each number travels twice"),
    (BANDWIDTHS, '"broadcast": 1', '"broadcast": share', "must leave that rank"),
    (BANDWIDTHS, "return size / seconds / 1e9, ", "return ", "return 2 values"),
    (BANDWIDTHS, "return size", "size *= 8\n    return size", "gigabits"),
    (ROWS, "sum(products)", "2 * sum(products)", "is not x @ w"),
    (COLUMNS, "torch.cat(", "None and torch.cat(", "write the split by columns first"),
    (COLUMNS, "products, dim=1)", "products, dim=0)", "is not x @ w"),
    (FORWARD, "all_reduce(hidden @ second)", "hidden @ second", "the output is one rank's part"),
    (FORWARD, ".relu()", "", "there is a ReLU"),
    (FORWARD, "all_reduce(hidden @ second)", "all_reduce(x @ first @ second).relu()",
     "not relu(x @ W1) @ W2"),
    (FORWARD, "(x @ first).relu()", "(x @ first + 0 * all_reduce(x @ first)).relu()",
     "the hidden layer is sent"),
    (BACKWARD, "all_reduce(of_hidden @ first.T)", "of_hidden @ first.T", "of x is wrong: it is"),
    (BACKWARD, " * (hidden > 0)", "", "of x is wrong: ReLU lets"),
    (BACKWARD, "x.T @ of_hidden,", "all_reduce(x.T @ of_hidden),", "gradient of first is wrong"),
    (BACKWARD, ", hidden.T @ delta", "", "three gradients"),
    (OWN_HEADS, "torch.cat(columns, dim=1)", "qkv.chunk(world, dim=1)[rank]",
     "not of the same heads"),
    (OWN_HEADS, "out.chunk(world, dim=0)", "out.chunk(world, dim=1)", "columns of out, where"),
    (OWN_HEADS, ", out.chunk(world, dim=0)[rank]", "", "returns two matrices"),
    (CONJUGATES, "return all_reduce(delta)", "return delta", "of x is one rank's part: f adds"),
    (CONJUGATES, "return all_reduce(partial_sum)", "return partial_sum.clone()", "g adds up the"),
    (CONJUGATES, "            return delta\n", "            return all_reduce(delta)\n",
     "g adds what"),
    (CONJUGATES, "return all_reduce(delta)", "return (all_reduce(delta) + all_reduce(delta)) / 2",
     "3 all-reduces in a step"),
    (SPLIT_ATTENTION, "heads) @", "1) @", "the result is not that of all heads"),
    (LEDGER, "4 * numbers", "1 * numbers", "each number has 4 bytes"),
    (LEDGER, "2 * 4 * numbers", "4 * numbers", "two numbers for a parameter"),
    (LEDGER, "inside = 4", "inside = 8", "activations of ledger(16, 2, 8, 1, False, 1) is"),
    (LEDGER, "rows // micro_batches", "rows", "only one micro-batch is alive"),
    (LEDGER, "batch + inside if", "batch if", "activations of ledger(16, 3, 32, 1, True, 1) is"),
    (LEDGER, " // ranks", "", "each rank holds only its part"),
    (LEDGER, '"parameters": 4 *', '"parameters": 4 // ranks *', "parameters of ledger("),
    (ZERO, "all_reduce(gradient) / world", "all_reduce(gradient)", "the sum of the gradients"),
    (ZERO, "if owner == rank", "if False", "never called"),
    (ZERO, "if owner == rank", "if True", "exactly one rank"),
    (ZERO, "if owner == rank", "if owner == rank and number", "weights [1, 2, 3, 4]"),
    (ZERO, "adam(number, weight, mean)", "adam(number, weight.reshape(-1, 1), mean.reshape(1, -1))",
     "adam was given tensors of the shapes (1, 4), (4, 1)"),
    (ZERO, "all_reduce(gradient)", "all_reduce(gradient[None] if rank else gradient)",
     "ranks gave one all-reduce tensors of the shapes (1, 4), (4,)"),
    (ZERO, "broadcast(updated, owner)", "updated", "does not hold every new weight"),
    (ZERO_1, " / world", "", "the sum over the ranks, not their mean"),
    (ZERO_1, "weights[number].chunk(world)[rank]", "weights[number]", "was given tensors of the"),
    (ZERO_1, "all_gather(adam(", "(adam(", "every rank gathers the parts"),
    (ZERO_1, "enumerate(gradients)", "enumerate(gradients[:-1])", "called adam for the units [0, "),
    (ZERO_1, "[rank], mean", "[0], mean", "the rank's own part of the weights (rank 1"),
    (ZERO_1, "reduce_scatter(gradient)", "reduce_scatter(gradient.view(2, -1))", "a flat tensor"),
    (ZERO_2, "self.reduce_scatter(gradient) / self.world", "gradient", "not scattered in ready"),
    (ZERO_2, " / self.world", "", "the sum over the ranks"),
    (FORWARD_3, "all_gather(part)", "part", "this rank's part of them, where all are needed"),
    (FORWARD_3, "return x", "return 2 * x", "does not return the last unit's result"),
    (BACKWARD_3, "reversed(range(len(parts)))", "range(len(parts))", "it must be [3, 2, 1, 0]"),
    (BACKWARD_3, " / world", "", "the mean gradient of unit 0 is the sum"),
    (SCHEDULE, "for tick in range", "for _ in stages for tick in range", "TypeError"),
    (ORDER, "min(micro_batches, stages - stage)", "micro_batches", "1F1B keeps 1"),
    (ORDER, "min(micro_batches, stages - stage)", "1", "are enough"),
    (ORDER, ' + "B" * warm', "", "forward and backward once"),
    (ZERO_BUBBLE, "number >= stage", "number % 3 == 2", "F, B and W once for"),
    (ZERO_BUBBLE, "number >= stage else", "number >= stage - 1 else", "F, B and W once for"),
    (ZERO_BUBBLE, '"BW" if', '"WB" if', "a W before its B"),
    (ZERO_BUBBLE, ' + "W" * stage', "", "F, B and W once for each micro-batch"),
    (OUTLIER, "abs(number - middle)", "number - middle", "one is far too low"),
    (OUTLIER, " and worst > 0.5 * abs(middle)", "", "a hair away from very even ones"),
    (DISAGREEING, " and len(set(rows[layer])) == 2", "", "alone beside two pairs"),
    (DISAGREEING, "sums.count(digits) == 1", "digits != sums[0]", "the first one differs"),
]  # fmt: skip
WHOLE = [
    (FITS, "lambda packing: sum(packing.values()) <= 7", "you say True"),
    (FITS, "lambda packing: sum(A100[n].compute * c for n, c in packing.items()) <= 7", "3g.20gb"),
    (FITS, "lambda packing: packing['7g.40gb'] == 1", "KeyError"),
    (FITS, "lambda packing: None", "write fits first"),
    (TIMER, "lambda *_: []", "write my_timer first"),
    (PLACE, "lambda wanted, taken: None", "write place_slices first"),
    (PLACE, "lambda wanted, taken: 3", "return a list"),
    (ROWS, "lambda x, w, n: ([x @ w] * n, x @ w)", "the whole product"),
    (COLUMNS, "lambda x, w, n: ([x @ w] * n, x @ w)", "the whole product"),
    (ROWS, "lambda x, w, n: x @ w", "it returns the ranks' products, and the whole"),
    (COLUMNS, "lambda x, w, n: ([], x @ w)", "one product for each of 2 ranks; there are 0"),
    (FORWARD, "lambda *_: None", "write pair_forward"),
    (BACKWARD, "lambda *_: None", "write pair_forward"),
    (OWN_HEADS, "lambda *_: None", "write own_heads first"),
    (ATTENTION_STEP, "lambda *_: None", "write conjugates, split_attention and attention_step"),
    (LEDGER, "lambda *_: {'parameters': 1}", "return a dict"),
    (LEDGER, "lambda *_: 7", "return a dict"),
    (SOFTMAX, "lambda *_: None", "write softmax_by_blocks first"),
    (SOFTMAX, "lambda r, w, n: w(n, r(0))", "there is no block 3"),
    (SOFTMAX, "lambda r, w, n: [w(b, r(b).softmax(1)) for b in range(n)]", "read only once"),
    (
        SOFTMAX,
        "lambda r, w, n: [(r(b), w(b, r(b).softmax(1))) for b in range(n)]",
        "every block sums to 1",
    ),
    (ZERO_1, "lambda *_: None", "write zero1_step first"),
    (FORWARD_3, "lambda *_: None", "write zero3_forward and zero3_backward first"),
    (BACKWARD_3, "lambda *_: None", "write zero3_forward and zero3_backward first"),
    (OUTLIER, "lambda numbers: None", "write stands_out first"),
    (OUTLIER, "lambda numbers: 9", "the rule says"),
    (DISAGREEING, "lambda rows: None", "write disagreeing first"),
    (SCHEDULE, "lambda p, m: [[(s, b)] for b in range(m) for s in range(p)]", "are enough"),
    (SCHEDULE, "lambda p, m: [[(s, b) for s in range(p)] for b in range(m)]", "has not finished"),
    (SCHEDULE, "lambda p, m: [[(0, b)] for b in range(m)]", "missing"),
    (SCHEDULE, "lambda p, m: [[(0, b) for b in range(m)]]", "two micro-batches at once"),
    (SCHEDULE, "lambda p, m: [[(0, 0)], [(0, 0)]]", "works twice"),
    (ORDER, "lambda s, p, m: 'B' * m + 'F' * m", "runs backward before"),
    (ORDER, "lambda s, p, m: None", "returns a string"),
]


def said_of(exercise, statement):
    notebook, verdict, name = exercise
    own = {**key_of(notebook).defined, name: statement}
    return names_of(notebook, verdict, own)[verdict]


@pytest.mark.parametrize(("exercise", "old", "new", "said"), MISTAKES)
def test_a_typical_mistake_is_named(exercise, old, new, said):
    """The solution without it is right, so that it is the mistake that fails."""
    notebook, _, name = exercise
    solved = key_of(notebook).defined[name]
    assert old in solved
    found = said_of(exercise, solved.replace(old, new))
    assert not found.right
    assert said in found.reason


@pytest.mark.parametrize(("exercise", "answer", "said"), WHOLE)
def test_another_answer_is_told_what_it_is(exercise, answer, said):
    """Nothing of the kind that was asked for, or another way to do it."""
    found = said_of(exercise, f"{exercise[2]} = {answer}")
    assert not found.right
    assert said in found.reason


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        (PLACE, "lambda w, t: labkit.exercises.packing.find_starts(w, t)"),
    ],
)
def test_any_way_is_right(exercise, answer):
    """A check asks for what is right, not for its own way."""
    assert said_of(exercise, f"{exercise[2]} = {answer}").right


def test_what_fits_is_what_the_pool_can_place():
    """Every choice of up to seven slices: it fits if it is part of a layout of the pool's A100."""
    layouts = maximal_layouts(model_geometry("A100-40GB"), packing.A100)
    whole = [Counter(placed.profile.name for placed in layout) for layout in layouts]
    for chosen in packing.packings():
        fits = any(Counter(chosen) <= one for one in whole)
        assert packing.truly_fits(chosen) == fits, chosen


@pytest.mark.parametrize("world", [2, 4, 6, 8])
def test_the_bytes_of_the_solutions_are_those_of_the_formulas(world):
    """Per rank the ring sends 2(n-1)/n of the tensor, the naive way n-1 times all of it."""
    import torch

    names = names_of("4a_averaging", "ring_verdict", key_of("4a_averaging").defined)
    names |= names_of("4a_averaging", "naive_verdict", key_of("4a_averaging").defined)
    inputs = [torch.ones(840) for _ in range(world)]
    assert max(run_ranks(names["ring_all_reduce"], inputs)[1]) == 2 * (world - 1) * 4 * 840 // world
    assert max(run_ranks(names["naive_all_reduce"], inputs)[1]) == (world - 1) * 4 * 840


@pytest.mark.parametrize(("layer", "at_128"), [("rows_layer", 128_000), ("columns_layer", 160_000)])
def test_the_published_counts_are_counted(layer, at_128):
    """Two ranks that split the article's layer send what it says at batch 128."""
    import torch

    names = names_of("5a_splitting_layers", layer, key_of("5a_splitting_layers").defined)
    _, sent = run_ranks(names[layer](128), [torch.ones(1000, 500)] * 2)
    assert max(sent) == 4 * at_128


def test_a_schedule_is_read_by_stage_and_by_tick():
    """What a rank runs, how much waits, and stages that wait for one another."""
    ticks = [[(0, 0)], [(0, 1), (1, 0)], [(0, 2), (1, 1)], [(1, 2)]]
    assert schedule.order_of(ticks, 1) == [0, 1, 2]
    shares = {(1, 4): 0, (2, 1): 1 / 2, (4, 12): 1 / 5}
    assert {case: schedule.bubble(*case) for case in shares} == pytest.approx(shares)
    two = [[(0, "F", 0)], [(1, "F", 0)], [(1, "B", 0)], [(0, "B", 0)]]
    assert schedule.ticks_of_orders(["FB", "FB"]) == two
    assert len(schedule.ticks_of_orders(["FFBB", "FBFB"])) == 6
    assert schedule.ticks_of_orders(["BF", "FB"]) is schedule.ticks_of_orders(["B", "F"]) is None
    assert schedule.ticks_of_orders(["", ""]) == []
