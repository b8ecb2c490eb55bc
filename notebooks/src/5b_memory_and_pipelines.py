# %% [markdown]
# # 5b. Model parallelism: memory and pipelines
#
# **Afterwards you can decide** how to train a model that does not fit into one slice:
# what fills its memory, what shrinks that, and in how many micro-batches its layers follow one another.
# You will be able to
#
# - predict a training step's memory, kind by kind, with checkpointing, micro-batches and ZeRO-1;
# - write ZeRO-1's step, in which no two ranks keep the same optimizer state;
# - schedule a pipeline without wasting a tick;
# - explain why both too few and too many micro-batches are slow.
#
# "The article" below is Tim Dettmers,
# [How to Parallelize Deep Learning on GPUs Part 2/2: Model Parallelism](https://timdettmers.com/2014/11/09/model-parallelism-deep-learning/)
# (2014).
# You need notebook 1, and what Adam keeps for a parameter (two moments). Notebook 5a helps, but you can begin here.
#
# About 60 minutes; the sections after the summary are optional: the first tells GPipe, 1F1B, interleaved and
# zero-bubble schedules apart, by what they wait for and what they keep.

# %% [markdown]
# With several GPUs or slices each rank has its own.
# With one GPU or slice, the ranks are processes on **this container's CPU**.
# Without a GPU, they are always on the CPU. Every plot says which.
# Slices of one GPU have no direct connection: every byte goes through the host's memory.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
SEVERAL, ON_GPU = place.is_several, place.is_gpu
WIDTH, BATCH = labkit.exercises.networks.sizes_for_two(place)
labkit.card(place)

# %% [markdown]
# ## Exercise 1: a memory ledger
#
# Before you split a model, know what fills the memory. The network is `depth` blocks, each of two matrices without bias:
# `width` × 4 `width`, ReLU, and back. All numbers are fp32, the optimizer is Adam, and a step takes `rows` rows.
# (Read both with `labkit.exercises.networks.blocks??` and `labkit.exercises.networks.gradients_of??`.)
#
# `ledger` returns a dict with the bytes of four kinds, each at its own peak:
#
# - `parameters` and `gradients`: each the size of all the matrices;
# - `optimiser` (spelled with an s): Adam keeps two moments for each parameter. With *ZeRO-1* each rank keeps only its
#   share of them, and everything else as before;
# - `activations`: what the backward pass needs. A matrix product needs its input, ReLU its own result,
#   and the mean square at the end needs the last output. A tensor that two of them need is counted once.
#
# *Gradient accumulation* runs `micro_batches` one after another and adds their gradients. *Activation checkpointing*
# keeps only the input of each block; the backward pass recomputes one block's inside at a time.

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU


def ledger(width, depth, rows, micro_batches=1, checkpoint=False, ranks=1):
    # <solution>
    numbers = depth * 2 * width * 4 * width
    batch = rows // micro_batches * width  # one block's input
    inside = 4 * batch  # the result of its ReLU
    saved_numbers = depth * batch + inside if checkpoint else depth * (batch + inside)
    return {
        "parameters": 4 * numbers,
        "gradients": 4 * numbers,
        "optimiser": 2 * 4 * numbers // ranks,
        "activations": 4 * (saved_numbers + batch),
    }
    # </solution>
    # <student>
    # return None  # write the four kinds here, in bytes
    # </student>


# %%
ledger_verdict = labkit.exercises.check_ledger(ledger)
print(ledger_verdict)

# %% [markdown]
# And now ZeRO-1 itself: data parallelism in which no two ranks keep the same optimizer state. Weight number i belongs to rank i % world.
# You have `adam(number, weight, gradient)`, which returns the new weight and *makes that weight's two moments on
# this rank*; `all_reduce(tensor)`, which returns the sum over all ranks; and `broadcast(tensor, source)`, which
# returns the source's tensor on every rank. All ranks must make the same all-reduces and broadcasts.

# %%
def zero_step(weights, gradients, adam, rank, world, all_reduce, broadcast):
    """The new weights, on every rank."""
    # <solution>
    new = []
    for number, (weight, gradient) in enumerate(zip(weights, gradients)):
        mean, owner = all_reduce(gradient) / world, number % world
        updated = adam(number, weight, mean) if owner == rank else weight
        new.append(broadcast(updated, owner))
    return new
    # </solution>
    # <student>
    # return None  # write the step here
    # </student>


# %%
zero_verdict = labkit.exercises.check_zero_step(zero_step)
both_written = "right" if ledger_verdict.right and zero_verdict.right else "write ledger and zero_step first"
print(zero_verdict)

# %% [markdown]
# ## MP-10: predicted and counted
#
# Whole steps are run, and every live tensor is counted by its purpose: exactly, on every device.
# A GPU's memory also holds its context and what the allocator keeps in reserve; both are printed on a GPU.

# %%
VARIANTS = {"plain": {}, "recompute": {"checkpoint": True}, "4 micro-batches": {"micro_batches": 4}}
SHARED = "ZeRO-1 on 2"
LAYERS_OF = {"width": 1024, "depth": 4, "rows": 4096} if ON_GPU else {"width": 256, "depth": 4, "rows": 1024}


def predicted(shape, **variant):
    return {kind: size / 2**20 for kind, size in ledger(**shape, **variant).items()} | {"temporaries": 0.0, "computed": True}


def counts(**shape):
    import torch

    facts_by_label = {}
    for name, variant in VARIANTS.items():
        network, _ = labkit.exercises.networks.blocks(shape["width"], shape["depth"])
        optimizer = torch.optim.Adam(network.parameters(), fused=True)

        def step():
            labkit.exercises.networks.gradients_of(network, shape["width"], shape["rows"], **variant)
            optimizer.step()
            optimizer.zero_grad()

        facts_by_label[f"{name} predicted"] = predicted(shape, **variant)
        facts_by_label[f"{name} counted"] = labkit.count_step(step, network, optimizer) | outside()
    return facts_by_label


# %%
def outside():
    """On a GPU, MiB that are no tensors: what the allocator keeps in reserve, and the context."""
    import torch

    if not torch.cuda.is_available():
        return {}
    (free, total), reserved = torch.cuda.mem_get_info(), torch.cuda.memory_reserved()
    reserve = reserved - torch.cuda.max_memory_allocated()
    return {"allocator's reserve": reserve / 2**20, "context": (total - free - reserved) / 2**20}


def zero_counts(**shape):
    import torch
    import torch.distributed as dist

    network, _ = labkit.exercises.networks.blocks(shape["width"], shape["depth"])
    rank, world, weights = dist.get_rank(), dist.get_world_size(), list(network.parameters())
    owners = [torch.optim.Adam([weight], fused=True) for weight in weights]  # no state before its first step

    def adam(number, weight, gradient):
        weight.grad = gradient
        owners[number].step()
        return weight.detach()

    def all_reduce(tensor):
        dist.all_reduce(tensor)
        return tensor

    def broadcast(tensor, source):
        dist.broadcast(tensor.detach(), source)
        return tensor

    def step():
        labkit.exercises.networks.gradients_of(network, shape["width"], shape["rows"])
        zero_step(weights, [weight.grad for weight in weights], adam, rank, world, all_reduce, broadcast)
        network.zero_grad()

    counted = labkit.count_step(step, network, *owners)
    return {f"{SHARED} predicted": predicted(shape, ranks=world), f"{SHARED} counted": counted | outside()}


# %% [markdown]
# **Predict:** if you add up all counted kinds, what percentage of the plain step's memory remains with checkpointing
# ("recompute")? A fifth kind is counted that your ledger leaves out: *temporaries*, such as the gradients of activations.

# %%
def stacks(*names):
    return [f"{name} {source}" for name in names for source in ("predicted", "counted")]


counted_here = labkit.steps.together(counts, stacks(*VARIANTS), value="parameters", **LAYERS_OF)
counted_on_two = labkit.steps.together(zero_counts, stacks(SHARED), value="parameters", n=2, **LAYERS_OF)
filled = labkit.experiment("MP-10", counted_here, counted_on_two)

# %%
def at_the_peak(points):
    for point in points:
        facts = point.records[0].setting
        if "peak" in facts:
            untracked = "".join(f", {name} {facts[name]:.0f}" for name in ("allocator's reserve", "context") if name in facts)
            print(f"{point.label}: at most {facts['peak']:.1f} MiB of tensors at one moment{untracked}")


await filled.report(at_the_peak, needs=both_written)

# %% [markdown]
# **Explain:** which bar would you shorten first, and by which of the three ways? But for the four micro-batches, the
# kinds do not all peak at the same moment, so the true peak is lower than the bar: what has been freed when the last
# gradient arrives? And what does each way cost: time, or bytes that are sent?
# (CERN's GAN, with 9 GB a worker, runs on a 2g.10gb and not on a 1g.5gb.)

# %% [markdown]
# ## Exercise 2: schedule a pipeline
#
# Now the *layers* are split: stage 0 has the first half, stage 1 the second.
# With one batch, one stage always waits. So the batch is cut into *micro-batches*
# that follow one another: while stage 1 works on micro-batch 0, stage 0 works on 1.
#
# `schedule(stages, micro_batches)` returns the ticks of the forward pass:
# for each tick the list of (stage, micro-batch) pairs worked on. Waste no tick.

# %%
def schedule(stages, micro_batches):
    # <solution>
    return [
        [(stage, tick - stage) for stage in range(stages) if 0 <= tick - stage < micro_batches]
        for tick in range(micro_batches + stages - 1)
    ]
    # </solution>
    # <student>
    # return []  # write the ticks here
    # </student>


# %%
schedule_verdict = labkit.exercises.check_schedule(schedule)
print(schedule_verdict)
print(f"three stages, five micro-batches: waiting {labkit.exercises.bubble(3, 5):.0%} of the time, (p - 1) / (m + p - 1)")
labkit.pipeline(schedule(3, 5), 3)

# %% [markdown]
# ## MP-6: how many micro-batches?
#
# Two ranks run *your* schedule, forward and then backward. With m micro-batches and p stages, the ideal is m + p - 1
# times what the slowest stage takes for one micro-batch. That time is measured as well: each stage works alone, and
# its copies to and from the host's memory count. So the ideal already includes the slowness of small matrices. Any
# time beyond it is spent waiting, for the other stage or for data on its way through the host's memory.

# %%
def first_stage(network, parts, order, wires):
    outputs = {}
    for number in order:
        outputs[number] = network(parts[number])
        wires.send(1, outputs[number])
    for number in order:
        outputs[number].backward(wires.receive(1).to(parts[0].device))


def last_stage(network, order, wires, device):
    pending = {}
    for number in order:
        received = wires.receive(0).to(device).requires_grad_()
        pending[number] = (received, network(received).square().mean() / len(order))
    for number in order:
        received, loss = pending.pop(number)
        loss.backward()
        wires.send(0, received.grad)


def one_micro_batch(network, part, device):
    """What a stage does for one micro-batch: in from the host, forward, backward, and out again."""
    received = part.to(device).requires_grad_()
    output = network(received)
    output.cpu()
    output.square().mean().backward()
    return received.grad.cpu()


# %%
def pipeline_times(width, depth, batch, counts, times):
    import torch
    import torch.distributed as dist

    network, device = labkit.exercises.networks.mlp(width, depth)
    rank, wires, x = dist.get_rank(), labkit.exercises.Wires(), torch.randn(batch, width, device=device)

    def step(count, network=network):
        order, parts = labkit.exercises.order_of(schedule(2, count), rank), x.chunk(count)

        def run():
            if rank == 0:
                first_stage(network, parts, order, wires)
            else:
                last_stage(network, order, wires, device)
            wires.finish()

        return run

    def alone(count, stage):
        part = torch.randn(batch // count, width)
        return lambda: one_micro_batch(network, part, device) if rank == stage else None

    works = {f"m={count}": step(count) for count in counts}
    works |= {f"stage {stage}, m={count}": alone(count, stage) for stage in (0, 1) for count in counts}
    seconds, seconds_by_rank = labkit.in_turns(works, times), [None, None]
    dist.all_gather_object(seconds_by_rank, seconds)
    alone_seconds = lambda stage, count: seconds_by_rank[stage][f"stage {stage}, m={count}"]
    slowest = {f"m={count}": list(map(max, alone_seconds(0, count), alone_seconds(1, count))) for count in counts}
    return seconds | {"facts": {"stages": slowest, "side by side": work_side_by_side(network, step)}}


def work_side_by_side(network, step, count=8):
    """The share of the last stage's forward passes during which the first stage is at one, too, in one step."""
    import time

    import torch.distributed as dist

    spans, everyone = [], [None, None]

    def noted(part):
        started = time.monotonic()
        output = network(part)
        torch.cuda.synchronize() if output.is_cuda else None
        spans.append((started, time.monotonic()))
        return output

    step(count, noted)()
    dist.all_gather_object(everyone, spans)
    overlaps = [min(end, other_end) - max(start, other_start) for start, end in everyone[1] for other_start, other_end in everyone[0]]
    return sum(max(0.0, overlap) for overlap in overlaps) / sum(end - start for start, end in everyone[1])


# %% [markdown]
# **Predict:** at the best m, what fraction of the time with one micro-batch remains? The ideal is drawn as a line.

# %%
COUNTS = (1, 4, 32) if labkit.is_quick() else (1, 2, 4, 8, 16, 32)


def in_seconds(record):
    return record.median_s


spots = {f"m={count}": count for count in COUNTS}
# On GPUs a batch small and layers wide, so that a stage computes for longer than the host's memory carries.
sizes = {"width": 4096, "depth": 16, "batch": 1024} if SEVERAL else {"width": WIDTH, "depth": 4, "batch": BATCH}
shape = sizes | {"counts": COUNTS, "times": min(20, labkit.rounds())}
host = {"n": 2, "link": "host memory, gloo", "value": in_seconds, "relative": True}
pipeline = labkit.experiment("MP-6", labkit.steps.together(pipeline_times, spots, **host, **shape))

# %%
def beside_the_ideal(points):
    for point in points:
        m, stages = int(point.x), points[0].records[0].setting["stages"]
        ideal = (m + 1) * labkit.stats.median(stages[point.label])
        took = point.records[0].median_s
        print(f"{point.label}: {1e3 * took:.3g} ms, ideal {1e3 * ideal:.3g} ms, so {took / ideal:.2f} times as long")


await pipeline.report(beside_the_ideal, needs=schedule_verdict)
print("measured between devices" if SEVERAL else labkit.recorded_note("MP-10", "MP-6"))

# %% [markdown]
# **Explain** both arms of the U. None of the articles publishes such a row; on two CPU cores we once measured
# 83.7, 51.9, 48.9, 46.9 and 57.5 ms for 1 to 16 micro-batches. Where is your best m, and why is it there?

# %% [markdown]
# ## What the published figures say, and where they are wrong

# %%
print(labkit.published.corrections("E13", "E14"))
labkit.cite("dettmers", "habr", "nvidia")

# %% [markdown]
# "There are no tricks you can use to hide the communication" of model parallelism, the article also says.
# Is a pipeline with micro-batches such a trick? And see MP-4 in notebook 5a.

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("MP-10", "MP-6")

# %%
my_numbers = labkit.drawn("5b", millions=(200, 300, 400, 500), batch=(128, 256, 512))
print(f"your model has {my_numbers['millions']} million parameters, and your batch is {my_numbers['batch']}")

# %% [markdown]
# **Decide** for the model above, whose numbers are your own, in fp32 with Adam: you may have up to three 2g.10gb slices.
# Split the matrices, the layers or the batch? Name the figures that decide.

# %% [markdown]
# # Optional sections
#
# There are no exercises that later notebooks need here; run what interests you.

# %% [markdown]
# ## Exercise 3: schedules by stage
#
# Write a stage's order as a string: F is the next micro-batch forward, B the oldest one backward. *GPipe* runs all forward
# before the first goes backward, and so keeps the activations of all. *1F1B* goes backward as soon as it can: first
# enough F for the last stage to begin, then one B and one F in turn, and the B that remain.
#
# A backward pass computes two things. The stage before waits for the gradient of the *input*; nobody waits for that of
# the *weights*. *Zero bubble* (its variant H1) splits them: B is the oldest micro-batch's input, W the oldest one's weights,
# each as long as an F. Stage s begins as in 1F1B; after a B it does a W before the next F, but only from its B number s on
# (the first has number 0); what W remain come last. So no stage keeps more *micro-batches* than 1F1B's
# first one; of those that wait for their W it keeps the halves between, too, and MP-11 counts the bytes.

# %%
def gpipe(stage, stages, micro_batches):
    return "F" * micro_batches + "B" * micro_batches


def order(stage, stages, micro_batches):
    """1F1B."""
    # <solution>
    warm = min(micro_batches, stages - stage)
    return "F" * warm + "BF" * (micro_batches - warm) + "B" * warm
    # </solution>
    # <student>
    # return ""  # two lines
    # </student>


def zero_bubble(stage, stages, micro_batches):
    """At least as many micro-batches as stages."""
    # <solution>
    actions, forward = "F" * (stages - stage), stages - stage
    for number in range(micro_batches):
        actions += "BW" if number >= stage else "B"
        actions += "F" if forward < micro_batches else ""
        forward += 1
    return actions + "W" * stage
    # </solution>
    # <student>
    # return ""  # about six lines
    # </student>


# %%
order_verdict = labkit.exercises.check_order(order)
zero_bubble_verdict = labkit.exercises.check_zero_bubble(zero_bubble)
both_orders = "right" if order_verdict.right and zero_bubble_verdict.right else "write order and zero_bubble first"
print("1F1B:       ", order_verdict)
print("zero bubble:", zero_bubble_verdict)

# %% [markdown]
# Count in a row how many micro-batches have gone forward and not yet backward: GPipe, then 1F1B. (There a B is both
# halves, and twice as long as it is drawn.)

# %%
labkit.pipeline([gpipe(stage, 3, 6) for stage in range(3)], 3)

# %%
labkit.pipeline([order(stage, 3, 6) for stage in range(3)], 3)

# %%
labkit.pipeline([zero_bubble(stage, 3, 6) for stage in range(3)], 3)

# %% [markdown]
# ## MP-11: four schedules by the clock
#
# The same layers, whose F, B and W are one product each (where a schedule has no W of its own, B and W are one, and the
# gradient leaves after both), run with four micro-batches on two ranks: by GPipe, 1F1B, zero
# bubble, and *interleaved*: 1F1B in which each rank has two chunks of the layers, so that a micro-batch passes twice.
# Each rank notes when it begins and ends what; the rest of its time it waits, for the other or for a message.
# With p ranks, m micro-batches, F, B and W of the same length, and messages that take no time, they wait for
#
# | | of the time |
# |---|---|
# | GPipe, 1F1B | (p - 1) / (m + p - 1) |
# | interleaved, v chunks a rank | (p - 1) / (v m + p - 1) |
# | zero bubble H1 | (p - 1) / (3 m + p - 1) |
#
# (Narayanan et al., [Megatron-LM](https://arxiv.org/abs/2104.04473), 2021, section 2.2; Qi et al.,
# [Zero Bubble](https://arxiv.org/abs/2401.10241), 2023. The classes are in `labkit.exercises.stages??`.)

# %%
SCHEDULES = ("GPipe", "1F1B", "interleaved", "zero bubble")


def orders_of(name, ranks, micro_batches):
    """Every rank's actions."""
    if name == "interleaved":
        return [labkit.exercises.stages.interleaved(rank, ranks, micro_batches, 2) for rank in range(ranks)]
    order_of = {"GPipe": gpipe, "1F1B": order, "zero bubble": zero_bubble}[name]
    orders = [order_of(rank, ranks, micro_batches) for rank in range(ranks)]
    if not all(orders) or labkit.exercises.schedule.ticks_of_orders(orders) is None:
        raise labkit.errors.NotMeasured(f"Write {order_of.__name__} first: its check says when it is right.")
    return [labkit.exercises.stages.actions_of(text) for text in orders]


def layers_of(width, depth, chunks, rank, ranks, device):
    """The rank's stages: chunk c is stage c * ranks + rank, and has as many layers as any other."""
    size = depth // (ranks * chunks)
    begins = [size * (chunk * ranks + rank) for chunk in range(chunks)]
    return [labkit.exercises.stages.StageLayers(width, range(begin, begin + size), device) for begin in begins]


def everyones(value):
    """What every rank has, in their order."""
    import torch.distributed as dist

    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


# %%
def schedule_times(width, depth, rows, micro_batches, times):
    import torch.distributed as dist

    rank, ranks, wires = dist.get_rank(), dist.get_world_size(), labkit.exercises.Wires()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = [torch.randn(rows, width, device=device) for _ in range(micro_batches)]
    layers = {chunks: layers_of(width, depth, chunks, rank, ranks, device) for chunks in (1, 2)}
    runs, works, facts = {}, {}, {"kept": {}, "apart": {}, "waiting": {}, "spans": {}}
    for name in SCHEDULES:
        chunks, orders = layers[2 if name == "interleaved" else 1], orders_of(name, ranks, micro_batches)
        step = labkit.exercises.stages.PipelineStep(chunks, inputs, orders, rank, wires)
        runs[name] = []
        works[name] = lambda step=step, name=name: step.run() or runs[name].append(step.spans)
        works[name]()
        norms = {number: norm for rank_norms in everyones([c.gradient_norms() for c in chunks]) for c in rank_norms for number, norm in c.items()}
        of_gpipe = norms if name == "GPipe" else of_gpipe
        facts["apart"][name] = max(abs(norms[number] / norm - 1) for number, norm in of_gpipe.items())
        facts["kept"][name] = [most / 2**20 for most in everyones(step.most_bytes)]
    seconds = labkit.in_turns(works, times)
    for name in SCHEDULES:
        spans_by_run = [sum(spans, []) for spans in zip(*everyones(runs[name][-times:]))]
        waiting = lambda spans: labkit.exercises.stages.waiting_share(spans, ranks)
        facts["spans"][name] = sorted(spans_by_run, key=waiting)[times // 2]  # the run in the middle
        facts["waiting"][name] = 100 * waiting(facts["spans"][name])
    return seconds | {"facts": facts}


# %% [markdown]
# **Predict** what percentage of their time the ranks wait with your zero bubble. The formulas are drawn beside it.

# %%
def waiting_pct(record):
    return record.setting["waiting"][record.setting["label"]]


def by_formula(names, ranks, micro_batches):
    """The table above, with two chunks a rank where they are interleaved."""
    ideal = labkit.exercises.stages.ideal_waiting
    return {name: {"waiting": 100 * ideal(name, ranks, micro_batches), "computed": True} for name in names}


MICRO_BATCHES = 4
# On GPUs so many layers that a stage computes for longer than the host's memory carries.
stage_sizes = {"width": 4096, "depth": 64, "rows": 256} if place.tier == "several-gpus" else {"width": WIDTH, "depth": 8, "rows": 128}
lines = {"n": 2, "link": "host memory, gloo"}
of_formula = {"value": "waiting", "series": dict.fromkeys(SCHEDULES, "formula"), "names": SCHEDULES, "ranks": 2}
formulas = labkit.steps.together(by_formula, SCHEDULES, micro_batches=MICRO_BATCHES, **of_formula, **lines)
of_clock = {"value": waiting_pct, "series": dict.fromkeys(SCHEDULES, "measured"), "seconds": 20, "times": min(20, labkit.rounds())}
timed = labkit.steps.together(schedule_times, SCHEDULES, micro_batches=MICRO_BATCHES, **stage_sizes, **of_clock, **lines)
schedules = labkit.experiment("MP-11", formulas, timed)

# %%
def beside_the_formula(points):
    of_formula = {point.label: point.value for point in points if point.series == "formula"}
    for point in points:
        if point.series == "measured":
            kept = ", ".join(f"{mib:.3g}" for mib in point.records[0].setting["kept"][point.label])
            waits = f"waits {point.value:.0f} %, formula {of_formula[point.label]:.0f} %"
            print(f"{point.label}: {waits}; a step takes {1e3 * point.records[0].median_s:.3g} ms; the ranks keep at most {kept} MiB")


await schedules.report(beside_the_formula, needs=both_orders)

# %% [markdown]
# Here is the run in the middle of each. Run the cells again once you have measured.

# %%
def run_of(name):
    points = [point for point in schedules.evidence.points if (point.series, point.label) == ("measured", name)]
    if not points:
        return "measure MP-11 first"
    return labkit.pipeline_run(points[-1].records[0].setting["spans"][name], 2, f"One step, {name}")


run_of("GPipe")

# %%
run_of("1F1B")

# %%
run_of("interleaved")

# %%
run_of("zero bubble")

# %% [markdown]
# **Explain:** what is 1F1B there for, if both wait as long? What does each of the other two pay for its shorter bubble, and
# where is your measured bar above its formula?

# %% [markdown]
# ## MP-7: what a pipeline keeps
#
# GPipe keeps the activations of all micro-batches until the first goes backward, and 1F1B as few as it can. Here the two
# of exercise 3 run with torch's autograd, and every tensor that it keeps is counted.

# %%
def follow(actions, network, wires, rank, rows, width):
    """One step of a stage of two, in this order; every tensor that it keeps is counted."""
    device, waiting = next(network.parameters()).device, []
    for action in actions:
        if action == "F":
            x = torch.randn(rows, width, device=device) if rank == 0 else wires.receive(0).to(device).requires_grad_()
            output = network(x)
            waiting.append((x, output))
            if rank == 0:
                wires.send(1, output)
            continue
        x, output = waiting.pop(0)
        if rank == 0:
            output.backward(wires.receive(1).to(device))
        else:
            output.square().mean().backward()
            wires.send(0, x.grad)
        del x, output
    wires.finish()
    network.zero_grad()


def stages_keep(width, depth, batch, count):
    import torch.distributed as dist

    network, _ = labkit.exercises.networks.mlp(width, depth)
    rank, wires, facts_by_schedule = dist.get_rank(), labkit.exercises.Wires(), {}
    for name, order_of in (("GPipe", gpipe), ("1F1B", order)):
        actions = order_of(rank, 2, count)
        step = lambda: follow(actions, network, wires, rank, batch // count, width)
        activations = [None, None]
        dist.all_gather_object(activations, labkit.count_step(step, network)["activations"])
        facts_by_schedule[name] = {"stage 0": activations[0], "stage 1": activations[1]}
    return facts_by_schedule


# %% [markdown]
# **Predict** how many times as much the first of two stages keeps with GPipe as with 1F1B, for 8 micro-batches.

# %%
whole_batch = {"width": WIDTH, "depth": 4, "batch": 1024, "count": 8}
stage_activations = labkit.experiment("MP-7", labkit.steps.together(stages_keep, ("1F1B", "GPipe"), value="stage 0", n=2, **whole_batch))

# %%
await stage_activations.report(needs=order_verdict)

# %% [markdown]
# ## MP-9: from one rank to the other
#
# Slices of one GPU reach one another only through the host: device to host, across, host to device.
# **Predict** how many times as long that takes as a copy on the device itself (or, without a GPU, in memory).

# %%
def copies(megabytes, times):
    import torch
    import torch.distributed as dist

    device, wires = "cuda" if torch.cuda.is_available() else "cpu", labkit.exercises.Wires()
    rank = dist.get_rank()
    source = torch.ones(megabytes * 250_000, device=device)
    target = torch.empty_like(source)

    def through_host():
        if rank == 0:
            wires.send(1, source)
        else:
            target.copy_(wires.receive(0))
        wires.finish()

    return labkit.in_turns({"on the device": lambda: target.copy_(source), "to the other": through_host}, times)


# %%
both_ways = labkit.steps.together(copies, ("on the device", "to the other"), **host, megabytes=16, times=20)
far = labkit.experiment("MP-9", both_ways)

# %%
await far.report()

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("5b_memory_and_pipelines")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
