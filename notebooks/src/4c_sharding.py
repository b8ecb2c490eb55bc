# %% [markdown]
# # 4c. Sharding: from averaged gradients to ZeRO-3
#
# **Afterwards you can decide** which of ZeRO's three stages a model needs, and into how many units to cut it,
# from its parameters, your ranks, and what a message costs.
# You will be able to
#
# - write ZeRO-1, 2 and 3 with two collectives, reduce-scatter and all-gather;
# - say how many bytes each rank holds and sends, by formula, and count both;
# - say when sharding saves less memory than the formula says, and why;
# - tell what a backend really sends from what a formula says.
#
# You need the all-reduce of notebook 4a and the buckets of 4b, and what Adam keeps for a parameter (two moments).
# Every source is named beside its figures.
#
# About 75 minutes; the section after the summary is optional.

# %% [markdown]
# A *rank* is one of several processes that train together. Here there are always two, and they are processes on
# **this container's CPU**, connected by loopback, whatever GPU or slice you hold: what is counted below does not depend
# on the device, and nothing here is a claim about a GPU.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
LINK = "gloo over loopback, host memory"
WAYS = ("plain", "ZeRO-1", "ZeRO-2", "ZeRO-3")
OF_TORCH = ("DDP", "fully_shard")
labkit.card(place)

# %% [markdown]
# ## What is held twice
#
# In data parallelism every rank holds everything. For Ψ parameters in mixed precision these are 2Ψ bytes of weights, 2Ψ of
# gradients and KΨ of optimizer state; with Adam K is 12 (weights in fp32 and two moments):
# 16 bytes a parameter. ZeRO divides them among N ranks, one kind after another:
#
# | | each rank holds | each rank sends a step |
# |---|---|---|
# | plain | 2Ψ + 2Ψ + KΨ | 2Ψ numbers |
# | ZeRO-1 | 2Ψ + 2Ψ + KΨ/N | 2Ψ |
# | ZeRO-2 | 2Ψ + (2Ψ + KΨ)/N | 2Ψ |
# | ZeRO-3 | (2Ψ + 2Ψ + KΨ)/N | 3Ψ |
#
# (Rajbhandari et al., [ZeRO](https://arxiv.org/abs/1910.02054), 2019, sections 5 and 7, for large N: a ring's factor (N-1)/N is
# left out.) Everything here is fp32: 4 + 4 + 8, which is 16 bytes as well.
#
# Two collectives are all you need. Every tensor is flat, and N divides its length:
#
# - `reduce_scatter(tensor)` returns *this rank's part* of the ranks' sum;
# - `all_gather(part)` returns the ranks' parts, joined in their order.
#
# An all-reduce is the one followed by the other, which is the ring of 4a. Layers are grouped in *units*; the weights of a
# unit are one flat tensor, and rank r's part of it is `tensor.chunk(world)[rank]`.

# %% [markdown]
# ## Exercise 1: ZeRO-1
#
# The gradients are there, whole. Each rank steps only its own part of every unit, and so holds only that part's
# moments: `adam(number, part, gradient)` returns the new part of unit `number`, and makes its moments on this rank.
# Then everybody needs all new weights.

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU


def zero1_step(weights, gradients, adam, rank, world, reduce_scatter, all_gather):
    """The new weights of all units, in a list; weights and gradients are lists of flat tensors."""
    # <solution>
    new = []
    for number, gradient in enumerate(gradients):
        mean = reduce_scatter(gradient) / world
        new.append(all_gather(adam(number, weights[number].chunk(world)[rank], mean)))
    return new
    # </solution>
    # <student>
    # return None  # about five lines
    # </student>


# %%
zero1_verdict = labkit.exercises.check_zero1(zero1_step)
print(zero1_verdict)

# %% [markdown]
# ## Exercise 2: ZeRO-2
#
# The backward pass makes the *last* unit's gradient first, and calls `ready(number, gradient)` for each. Scatter it at once
# and keep only your part: nobody then holds a whole gradient of the model. `step` is called after the backward pass.

# %%
class Zero2:
    def __init__(self, rank, world, reduce_scatter, all_gather):
        self.rank, self.world = rank, world
        self.reduce_scatter, self.all_gather = reduce_scatter, all_gather
        self.means = {}

    def ready(self, number, gradient):
        """Take one unit's gradient; only this rank's part of the mean stays."""
        # <solution>
        self.means[number] = self.reduce_scatter(gradient) / self.world
        # </solution>
        # <student>
        # pass  # one line
        # </student>

    def step(self, weights, adam):
        """The new weights of all units, in a list."""
        # <solution>
        own_parts = [unit.chunk(self.world)[self.rank] for unit in weights]
        return [self.all_gather(adam(number, part, self.means.pop(number))) for number, part in enumerate(own_parts)]
        # </solution>
        # <student>
        # return None  # about two lines
        # </student>


# %%
zero2_verdict = labkit.exercises.check_zero2(Zero2)
print(zero2_verdict)

# %% [markdown]
# ## Exercise 3: ZeRO-3
#
# Now a rank holds only its `parts` of the weights. A unit's weights are gathered when they are needed, and let go
# when they are not: twice a step, because the backward pass needs them again. After it, each rank steps its
# own parts, and nothing more is sent.
#
# `layer(number, x, weights)` returns a unit's result. `layer_backward(number, delta, weights)` returns the gradient of the
# unit's input, which is the `delta` of the unit before it, and the gradient of its weights, which is flat.

# %%
def zero3_forward(x, parts, layer, all_gather):
    """The last unit's result."""
    # <solution>
    for number, part in enumerate(parts):
        x = layer(number, x, all_gather(part))
    return x
    # </solution>
    # <student>
    # return None  # about three lines
    # </student>


def zero3_backward(delta, parts, layer_backward, world, reduce_scatter, all_gather):
    """This rank's parts of the mean gradients, in the order of the units."""
    # <solution>
    means = [None] * len(parts)
    for number in reversed(range(len(parts))):
        delta, gradient = layer_backward(number, delta, all_gather(parts[number]))
        means[number] = reduce_scatter(gradient) / world
    return means
    # </solution>
    # <student>
    # return None  # about five lines
    # </student>


# %%
zero3_verdict = labkit.exercises.check_zero3(zero3_forward, zero3_backward)
written = all(verdict.right for verdict in (zero1_verdict, zero2_verdict, zero3_verdict))
all_written = "right" if written else "write zero1_step, Zero2, zero3_forward and zero3_backward first"
print(zero3_verdict)

# %% [markdown]
# ## SH-1: memory by rank
#
# The same 16 layers are trained in four ways, with your functions, and by torch's own `DDP` and `fully_shard` (its ZeRO-3).
# The units are yours to choose: 16 units of one layer, or all layers in one unit. PyTorch's profiler notes every
# allocation; drawn is the most that was alive at one moment. The batch is small, so that activations hardly count.
# (The classes are in `labkit.exercises.sharding??`.)

# %%
def own_step(way, layers, x, ring):
    """A step of one of your ways, to be called again and again; and this rank's weights."""
    adam, world = labkit.exercises.sharding.PartAdam().step, ring.world
    collectives = (ring.reduce_scatter, ring.all_gather)
    weights = [layers.first_weights(number) for number in range(layers.units)]
    if way == "ZeRO-3":
        weights = [unit.chunk(world)[ring.rank].clone() for unit in weights]

    def step():
        gradients = [None] * layers.units
        if way == "ZeRO-3":
            result = zero3_forward(x, weights, layers.forward, ring.all_gather)
            means = zero3_backward(result / result.numel(), weights, layers.backward, world, *collectives)
            for number, mean in enumerate(means):
                adam(number, weights[number], mean)
        elif way == "ZeRO-2":
            zero2 = Zero2(ring.rank, world, *collectives)
            layers.gradients_of(x, weights, zero2.ready)
            weights[:] = zero2.step(weights, adam)
        else:
            layers.gradients_of(x, weights, gradients.__setitem__)
            if way == "ZeRO-1":
                weights[:] = zero1_step(weights, gradients, adam, ring.rank, world, *collectives)
            for number, gradient in enumerate(gradients if way == "plain" else ()):
                adam(number, weights[number], ring.all_reduce(gradient).div_(world))

    return step, weights


# %%
def torch_step(way, width, depth, units, x, group):
    """The same step with torch's modules, wrapped unit by unit, and its Adam."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    layer = lambda: torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.ReLU())
    unit = lambda: torch.nn.Sequential(*(layer() for _ in range(depth // units)))
    network = torch.nn.Sequential(*(unit() for _ in range(units)))
    if way == "DDP":
        network = DistributedDataParallel(network, process_group=group, gradient_as_bucket_view=True)
    else:
        for module in (*network, network):
            fully_shard(module, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step():
        network(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# %%
def step_of(way, width, depth, units, batch, ring):
    """A step of any of the ways; and this rank's weights, where they are yours."""
    torch.manual_seed(ring.rank)  # every rank has samples of its own
    x = torch.randn(batch, width)
    if way in OF_TORCH:
        return torch_step(way, width, depth, units, x, ring.group), None
    return own_step(way, labkit.exercises.sharding.UnitLayers(width, depth, units), x, ring)


def peaks(ways, steps, **shape):
    """The most MiB that each way holds, when it is built and does a few steps."""
    torch.set_num_threads(1)
    ring = labkit.exercises.sharding.Ring()

    def train(way):
        step, _ = step_of(way, ring=ring, **shape)
        for _ in range(steps):
            step()

    return {way: {"MiB": labkit.exercises.sharding.peak_mib(lambda way=way: train(way))} for way in ways}


def formula(ways, width, depth, ranks):
    """The table above in fp32: K is 8, and weights and gradients have 4 bytes."""
    numbers = width * width * depth
    held = {"plain": (1, 1, 1), "ZeRO-1": (1, 1, ranks), "ZeRO-2": (1, ranks, ranks), "ZeRO-3": (ranks, ranks, ranks)}
    return {way: {"MiB": sum(size * numbers / n for size, n in zip((4, 4, 8), held[way])) / 2**20, "computed": True} for way in ways}


# %% [markdown]
# **Predict:** in 16 units, what percentage of plain's peak does your ZeRO-3 need?

# %%
SHAPE = {"width": 128, "depth": 16, "batch": 4}


def memory_steps(units):
    kinds = dict.fromkeys((*WAYS, *OF_TORCH), f"{units} units" if units > 1 else "one unit")
    return labkit.steps.together(peaks, list(kinds), value="MiB", n=2, series=kinds, link=LINK, on="cpu", ways=list(kinds), steps=2, units=units, **SHAPE)


by_formula = {"ways": WAYS, "width": SHAPE["width"], "depth": SHAPE["depth"], "ranks": 2}
formulas = labkit.steps.together(formula, WAYS, value="MiB", series=dict.fromkeys(WAYS, "formula"), **by_formula)
memory = labkit.experiment("SH-1", formulas, memory_steps(16), memory_steps(1))

# %%
def over_formula(points):
    of_formula = {point.label: point.value for point in points if point.series == "formula"}
    for point in points:
        if point.series == "16 units" and point.label in of_formula:
            print(f"{point.label}: {point.value:.2f} MiB, {point.value / of_formula[point.label]:.2f} times the formula")


await memory.report(over_formula, needs=all_written)

# %% [markdown]
# **Explain** why ZeRO-2 saves nothing in one unit. Which numbers are alive, and how often each, when the unit's gradient
# is ready? And what, in your ZeRO-3 with 16 units, is there beside the formula's? (`fully_shard`'s peak differs from run
# to run here; compare yours with a neighbour's.)

# %% [markdown]
# ## SH-2: bytes by step
#
# What does a rank send in a step? Linux counts the bytes of every TCP connection, and gloo uses nothing else: so this
# is what really left the process, with whatever the backend does. S is the gradient's size. Your ways use rings that are
# written with sends and receives; torch's use its own collectives over gloo.
#
# With two ranks, by the formulas (2Ψ and 3Ψ, times (N-1)/N), plain sends 1 S and ZeRO-3 1.5 S.
# **Predict** how many S torch's `fully_shard` sends.

# %%
def numbers_of(weights, size, ring):
    """All weights in one tensor, on every rank."""
    return torch.cat([unit if unit.numel() == size else ring.all_gather(unit) for unit in weights])


def bytes_by_step(ways, width, depth, units, batch):
    """What a rank sends in the second step, over S; and how far its weights end from plain's."""
    import torch.distributed as dist

    ring, facts, of_plain = labkit.exercises.sharding.Ring(), {}, None
    count, numbers = labkit.exercises.sharding.sent_bytes, width * width * depth
    for way in ways:
        step, weights = step_of(way, width, depth, units, batch, ring)
        step()
        dist.barrier(ring.group)
        before = count()
        step()
        dist.barrier(ring.group)  # the other rank has all of it
        facts[way] = {"S": (count() - before) / (4 * numbers)}
        if weights is not None:
            ended = numbers_of(weights, numbers // units, ring)
            of_plain = ended if of_plain is None else of_plain
            facts[way]["apart"] = ((ended - of_plain).norm() / of_plain.norm()).item()
    return facts


# %%
sending = (*WAYS, *OF_TORCH)
sent = labkit.steps.together(bytes_by_step, sending, value="S", n=2, link=LINK, on="cpu", ways=sending, units=16, **SHAPE)
traffic = labkit.experiment("SH-2", sent)

# %%
def beside_plain(points):
    sent_by = {point.label: point.value for point in points}
    for way in ("ZeRO-3", "fully_shard"):
        base = "plain" if way == "ZeRO-3" else "DDP"
        if way in sent_by:
            print(f"{way} sends {sent_by[way] / sent_by[base]:.2f} times what {base} does")


await traffic.report(beside_plain, needs=all_written)

# %% [markdown]
# **Explain** what ZeRO-3 sends beside plain's bytes. In torch 2.13, gloo's reduce-scatter is an all-reduce of which each
# rank keeps its part: does that account for all of `fully_shard`'s bytes? (NCCL has a reduce-scatter of its own.)

# %% [markdown]
# ## SH-3: time by units
#
# More units need less memory (SH-1), and the bytes are the same. What do they cost? 64 layers are trained with your ZeRO-3
# in 1, 4, 16 and 64 units, and plainly in one, in turns. Each unit is gathered twice and scattered once.
#
# **Predict** how many ms a step takes in 64 units.

# %%
def unit_count(units):
    """Into how many units the layers are cut."""
    return units


def named(units):
    return f"{units} units" if units > 1 else "one unit"


def times_by_units(counts, width, depth, batch, times):
    import torch.distributed as dist

    torch.set_num_threads(1)
    ring, works = labkit.exercises.sharding.Ring(), {}
    for units in counts:
        works[named(units)], _ = step_of("ZeRO-3", width, depth, unit_count(units), batch, ring)
    works["plain"], _ = step_of("plain", width, depth, 1, batch, ring)
    messages, sent = {}, {}
    for label, work in works.items():
        dist.barrier(ring.group)
        before = (ring.messages, labkit.exercises.sharding.sent_bytes())
        work()
        dist.barrier(ring.group)
        messages[label] = ring.messages - before[0]
        sent[label] = (labkit.exercises.sharding.sent_bytes() - before[1]) / 1e6
    return labkit.in_turns(works, times) | {"facts": {"messages": messages, "sent": sent}}


# %%
UNITS = (1, 4, 16, 64)
unit_spots = {**{named(units): units for units in UNITS}, "plain": 1}
unit_kinds = {label: "plain, one all-reduce" if label == "plain" else "ZeRO-3" for label in unit_spots}
by_units = {"counts": UNITS, "width": 64, "depth": 64, "batch": 4, "times": labkit.rounds()}
timed = labkit.steps.together(times_by_units, unit_spots, n=2, seconds=15, series=unit_kinds, link=LINK, on="cpu", **by_units)
unit_times = labkit.experiment("SH-3", timed)

# %%
def sent_by_units(points):
    for point in points:
        facts = point.records[0].setting
        print(f"{point.label}: {point.value:.3g} ms, {facts['messages'][point.label]} messages, {facts['sent'][point.label]:.2f} MB")


await unit_times.report(sent_by_units, needs=all_written)

# %% [markdown]
# **Explain** the right end with α and S/β of notebook 4a: how many messages are there in a step? What could an
# implementation do about them *without* larger units? (`fully_shard` asks for the next unit while one computes.)

# %% [markdown]
# ## What the published figures say
#
# The ZeRO paper's first figure has a model of 7.5 billion parameters on 64 GPUs: 120 GB a GPU, then 31.4, 16.6 and 1.9 GB.

# %%
def gigabytes(billions, ranks):
    """By way, what a rank holds in mixed precision: 2Ψ + 2Ψ + 12Ψ, divided as in the table."""
    held = {"plain": 16, "ZeRO-1": 4 + 12 / ranks, "ZeRO-2": 2 + 14 / ranks, "ZeRO-3": 16 / ranks}
    return {way: billions * size for way, size in held.items()}


print({way: round(size, 1) for way, size in gigabytes(7.5, 64).items()})

# %% [markdown]
# The formula gives the paper's figures. It has no activations, no unit that is gathered, and no copies on the way to a
# collective: SH-1 shows how much that can be.

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("SH-1", "SH-2", "SH-3")

# %%
my_numbers = labkit.drawn("4c", millions=(300, 600, 900, 1200), ranks=(2, 4, 8))
print(f"your model has {my_numbers['millions']} million parameters, and you may have {my_numbers['ranks']} slices of 10 GB")

# %% [markdown]
# **Decide** with the two numbers above, which are your own: which stage do you take, and in how many units? Name what a
# rank holds, the figure of SH-1 that the formula leaves out, and what the next stage would cost you.

# %% [markdown]
# # Optional section
#
# There are no exercises that later notebooks need here; run it if it interests you.

# %% [markdown]
# ## Accumulation: when are gradients sent?
#
# With *gradient accumulation* a step adds the gradients of several micro-batches. DDP sends during every backward pass,
# except under `no_sync`: if all passes but the last run under it, only the last one sends. Below are four micro-batches of one rank under
# PyTorch's profiler, without and with `no_sync`; buckets have the size of four layers.

# %%
def accumulating(width, depth, batch, micro_batches):
    import contextlib

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    network = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(depth)))
    ddp = DistributedDataParallel(network, process_group=dist.new_group(backend="gloo"), bucket_cap_mb=4 * width * width * 4 / 2**20)
    x = torch.randn(batch, width)

    def step(is_quiet):
        for number in range(micro_batches):
            with ddp.no_sync() if is_quiet and number < micro_batches - 1 else contextlib.nullcontext():
                ddp(x).square().mean().backward()
        ddp.zero_grad()

    return {kind: labkit.spans_of(lambda: step(kind == "with no_sync")) for kind in ("without no_sync", "with no_sync")}


def timeline_of(kind):
    if not labkit.is_measured_here():
        return "optional: `timeline_of(\"with no_sync\")` and `timeline_of(\"without no_sync\")` show it"
    spans = labkit.ranks(accumulating, n=2, on="cpu", width=256, depth=12, batch=256, micro_batches=4).values[0][kind]
    return labkit.timeline(spans, f"Four micro-batches {kind}, on rank 0")


timeline_of("without no_sync")

# %%
timeline_of("with no_sync")

# %% [markdown]
# Count the messages in each. What does `no_sync` cost where gradients are sharded (ZeRO-2 and 3)? Nothing is scattered until
# the last micro-batch, so until then each rank holds a whole gradient.

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("4c_sharding")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
