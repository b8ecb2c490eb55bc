# %% [markdown]
# # 4. Data parallelism
#
# Afterwards you can decide whether a second slice would make your training faster:
# from the bytes of your gradients, the link between the slices, and your batch.
#
# You write the two things every data-parallel training does, averaging and all-reduce,
# and you find out which of CERN's published rows a simple model explains.
#
# About 75 minutes for the core; the sections after the summary are optional.

# %%
import labkit
from labkit.notebook.card import card
from labkit.run.jobs import is_quick

place = labkit.where()
card(place)

# %% [markdown]
# A *rank* is one of several processes that train together.
# With several GPUs or slices each rank has its own.
# With one slice, or none, the ranks below are processes on **this container's CPU**,
# and what connects them is loopback, not a GPU interconnect: every plot says so.

# %%
SEVERAL = place.tier in (labkit.Tier.SEVERAL_GPUS, labkit.Tier.SEVERAL_SLICES)
DEVICES = len(place.devices) if SEVERAL else 2
WIDTH, DEPTH = (1024, 4) if SEVERAL else (256, 3)
MORE = 1 if SEVERAL else max(1, int(place.cpu.cores // 2))  # each rank has that many threads
BATCH = 8192 if SEVERAL else 4096 * MORE
where_ranks = f"{DEVICES} devices" if SEVERAL else "gloo processes on this container's CPU (scaled down)"
print(f"ranks: {where_ranks}; {DEPTH} layers, {WIDTH} wide")

# %% [markdown]
# ## DP-1: the same gradient, from halves
#
# Two ranks hold the same network. Each takes half of the batch and gets a gradient of its own.
# What must they do with the two gradients to take the same step as one rank with the whole batch?
# The loss is a *mean* over samples.
#
# ## Exercise 1: combine the gradients

# %%
def average(gradients):
    """Combine the ranks' gradients (a list of tensors) into the whole batch's."""
    # <solution>
    return sum(gradients) / len(gradients)
    # </solution>
    # <student>
    # return sum(gradients)  # is this the whole batch's gradient?
    # </student>


# %%
from labkit.exercises.code_checks import check_gradient_averaging

average_verdict = check_gradient_averaging(average)
print(average_verdict)

# %% [markdown]
# Now with real ranks. Each computes the whole batch's gradient, too, to compare with.

# %%
from labkit.exercises.networks import mlp  # read it with `mlp??`


def flat_gradient(network, x):
    import torch

    network.zero_grad()
    network(x).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in network.parameters()])


# %%
def differences(width, depth, batch):
    import torch
    import torch.distributed as dist

    network, device = mlp(width, depth)
    x = torch.randn(batch, width, device=device)
    whole = flat_gradient(network, x)
    own = flat_gradient(network, x[dist.get_rank() :: dist.get_world_size()])
    everyone = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, own)
    ways = {"one rank's own": own, "added": sum(everyone), "yours": average(everyone)}
    return {
        name: {"difference": ((got - whole).norm() / whole.norm()).item()}
        for name, got in ways.items()
    }


# %% [markdown]
# **Predict:** how far off (relative) is the gradient of *one* rank, which saw half of the samples?

# %%
from labkit.panel.experiment import Experiment, PublishedRow, compared_step, timed_step
from labkit.panel.panel import Panel
from labkit.notebook.steps import (
    computed_step,
    copies_step,
    in_turns,
    rounds,
    settle_optional,
    together,
    wants_optional,
)

# %%
same = Panel(
    Experiment(
        key="DP-1",
        title="Distance to the whole batch's gradient",
        question="How far off is one rank's own gradient?",
        steps=together(
            differences,
            {"one rank's own": 1, "added": 2, "yours": 3},
            value=lambda m: max(1e-12, m.setting["difference"]),
            n=2,
            width=64,
            depth=2,
            batch=256,
        ),
        x_label="one rank's own, added, yours",
        y_label="relative difference",
        unit="relative",
        check="DP-1",
        data=lambda points: {"relative difference": [points[2].value]},
        log_y=True,
    )
)
same

# %%
evidence = await same.settle() if average_verdict.right else same.evidence
print(same.runner.message if average_verdict.right else "write average first")

# %% [markdown]
# **Explain:** added gradients point the right way and are twice as long.
# Which learning rate would hide that mistake, and why would it come back with four ranks?

# %% [markdown]
# ## DP-2: what an all-reduce costs
#
# *All-reduce*: every rank gives a tensor, every rank gets the sum.
# Its time is a start-up time plus the bytes over a bandwidth: t = α + S/β.

# %%
def reduces(megabytes):
    import torch
    import torch.distributed as dist

    device = "cuda" if torch.cuda.is_available() else "cpu"
    payload = torch.ones(int(megabytes * 250_000), device=device)
    return lambda: dist.all_reduce(payload)


def reduce_times(sizes, times):
    return in_turns({f"{size:g} MB": reduces(size) for size in sizes}, times)


# %% [markdown]
# On a slow link the start-up is over by 1 MB; NVLink is so fast that 16 MB still mostly start up.
# So the check compares the two biggest sizes: 64 and 256 MB between GPUs or slices, 4 and 16 MB on a CPU.
#
# **Predict** the time of 16 MB. The article's network card (40 Gbit/s) is drawn at 4 MB.

# %%
MEGABYTES = (0.008, 0.5, 4, 16, 64, 256) if SEVERAL else (0.008, 0.5, 4, 16)  # the last two are judged
cost = Panel(
    Experiment(
        key="DP-2",
        title="Time of an all-reduce",
        question="How many ms do 16 MB take?",
        steps=together(
            reduce_times,
            {f"{size:g} MB": size for size in MEGABYTES},
            value=lambda m: m.median_s * 1e3,
            n=DEVICES,
            sizes=MEGABYTES,
            times=20,
        ),
        x_label="megabytes",
        y_label="ms",
        unit="ms",
        published=PublishedRow("Dettmers, one transfer", {"dettmers.dp.six.step": 4}),
        check="DP-2",
        data=lambda points: {
            "four times": points[-1].records[0].samples_s,
            "bytes": points[-2].records[0].samples_s,
        },
        log_x=True,
        log_y=True,
    )
)
cost

# %%
from labkit.notebook.summary import recorded_note

evidence = await cost.settle()
print(cost.runner.message)
print("measured between devices" if SEVERAL else recorded_note("DP-2", "DP-3", "DP-4"))

# %% [markdown]
# α and β from your points above 1 MB; *bus bandwidth* is S/t · 2(n-1)/n, which does not depend on n.

# %%
from labkit import stats

big = [point for point in evidence.points if point.x >= 0.5]
if len(big) > 2:
    alpha, slope, off = stats.line_fit([p.x for p in big], [p.value for p in big])
    share = 2 * (DEVICES - 1) / DEVICES
    print(f"t = {alpha:.2f} ms + {slope:.3f} ms/MB · S (largest residual {off:.0%})")
    for p in big:
        print(f"{p.label}: bus bandwidth {p.x / p.value * share:.2f} GB/s")
else:
    print("measure first")

# %% [markdown]
# **Explain** the flat part on the left: what does a rank wait for when there is almost nothing to send?

# %% [markdown]
# ## Exercise 2: all-reduce, naive and as a ring
#
# You have `send(to, tensor)`, which returns at once, and `receive(source)`, which waits.
#
# **Naive:** send your tensor to every other rank; add what they send.
#
# **Ring:** cut the tensor into `world` chunks. In world - 1 steps, pass a chunk to the next rank
# and add what the previous one passes; then every rank holds one finished chunk.
# In world - 1 more steps, pass the finished chunks around.

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU


def naive_all_reduce(tensor, rank, world, send, receive):
    # <solution>
    others = [other for other in range(world) if other != rank]
    for other in others:
        send(other, tensor)
    total = tensor.clone()
    for other in others:
        total += receive(other)
    return total
    # </solution>
    # <student>
    # return tensor  # write the naive one here
    # </student>


# %%
def ring_all_reduce(tensor, rank, world, send, receive):
    chunks = list(tensor.clone().tensor_split(world))
    after, before = (rank + 1) % world, (rank - 1) % world
    # <solution>
    for step in range(world - 1):
        send(after, chunks[(rank - step) % world])
        chunks[(rank - step - 1) % world] += receive(before)
    for step in range(world - 1):
        send(after, chunks[(rank - step + 1) % world])
        chunks[(rank - step) % world] = receive(before)
    # </solution>
    # <student>
    # # write the two loops here
    # </student>
    return torch.cat(chunks)


# %%
from labkit.exercises.code_checks import check_all_reduce, run_ranks

naive_verdict = check_all_reduce(naive_all_reduce)
ring_verdict = check_all_reduce(ring_all_reduce, ring=True)
both_right = naive_verdict.right and ring_verdict.right
print("naive:", naive_verdict)
print("ring: ", ring_verdict)

# %% [markdown]
# ## DP-5: bytes per rank
#
# The article says that data parallelism "does not scale", because every rank must send
# its whole gradient to every other. Your naive version does just that. Your ring does not.
# **Predict:** in a ring of 8, how many times its gradient S does a rank send?

# %%
def sent(function, world, size=840):
    """Elements that the busiest rank sends, over the tensor's own."""
    inputs = [torch.ones(size) for _ in range(world)]
    _, counted = run_ranks(function, inputs)
    return max(counted) / (4 * size)


WORLDS = (2, 4, 6, 8)
ring_bytes = Panel(
    Experiment(
        key="DP-5",
        title="What a rank sends in your ring",
        question="In a ring of 8, how many times S does a rank send?",
        steps=tuple(computed_step(f"n={n}", n, sent, ring_all_reduce, n) for n in WORLDS),
        x_label="ranks",
        y_label="sent, in units of S (counted)",
        unit="S",
        check="DP-5",
        data=lambda points: {
            "bytes over 2(n-1)/n S": [p.value / (2 * (p.x - 1) / p.x) for p in points]
        },
    )
)
ring_bytes

# %%
evidence = await ring_bytes.settle() if both_right else ring_bytes.evidence
print(ring_bytes.runner.message if both_right else "write both all-reduces first")
for point in evidence.points if both_right else ():
    print(f"{point.label}: ring {point.value:.2f} S, naive {sent(naive_all_reduce, int(point.x)):.0f} S")

# %% [markdown]
# With the article's own arithmetic (4 MB at 40 Gbit/s), six ranks and twelve (E10):

# %%
from labkit.evidence import published

for name, world in (("dettmers.dp.six", 6), ("dettmers.dp.four-nodes", 12)):
    figure = published.figure(name)
    ring_ms = 2 * (world - 1) / world * 4e6 * 8 / 40e9 * 1e3
    print(f"n={world}: the article says {figure.value} ms, a ring needs {ring_ms:.2f} ms ({figure.error})")

# %% [markdown]
# And the clock? Yours and the library's, all three over gloo in host memory, in turns.
# With more ranks than cores they wait for one another: then the label says "oversubscribed".

# %%
def three_ways(megabytes, times):
    import torch.distributed as dist
    from labkit.exercises.wires import Wires

    rank, world, wires = dist.get_rank(), dist.get_world_size(), Wires()
    payload, group = torch.ones(int(megabytes * 250_000)), dist.new_group(backend="gloo")

    def own(function):
        def work():
            function(payload, rank, world, wires.send, wires.receive)
            wires.finish()

        return work

    library = lambda: dist.all_reduce(payload.clone(), group=group)
    works = {"naive": own(naive_all_reduce), "ring": own(ring_all_reduce), "library": library}
    return in_turns(works, times)


# %%
RANKS = 2 if is_quick() else 4
crowd = ", oversubscribed" if RANKS > place.cpu.cores else ""
clocked = Panel(
    Experiment(
        key="DP-5-time",
        title=f"4 MB reduced by {RANKS} ranks{crowd}",
        question="How many ms will your ring take?",
        steps=together(
            three_ways,
            {"naive": 1, "ring": 2, "library": 3},
            value=lambda m: m.median_s * 1e3,
            n=RANKS,
            link=f"gloo over loopback, host memory{crowd}",
            megabytes=4,
            times=rounds(),
        ),
        x_label="naive, ring, library",
        y_label="ms",
        unit="ms",
    )
)
clocked

# %%
evidence = await clocked.settle() if both_right else clocked.evidence
print(clocked.runner.message if both_right else "write both all-reduces first")

# %% [markdown]
# **Explain:** over loopback all ranks share one memory bus, so the ring gains less than its bytes promise.
# Where would it gain all of it?

# %% [markdown]
# ## DP-3: more ranks, the same batch
#
# *Strong scaling*: the batch stays, the ranks share it. T = a + b/n, where b is the work that is shared
# and a what is not: sending the gradient, starting the step.
# One rank alone and all ranks together take turns in the same processes.

# %%
def alone(width, depth, batch):
    import torch
    import torch.distributed as dist

    network, device = mlp(width, depth)
    x = torch.randn(batch, width, device=device)
    return lambda: flat_gradient(network, x) if dist.get_rank() == 0 else None


def shared(width, depth, batch):
    import torch
    import torch.distributed as dist

    network, device = mlp(width, depth)
    x = torch.randn(batch // dist.get_world_size(), width, device=device)

    def work():
        gradient = flat_gradient(network, x)
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()

    return work


# %% [markdown]
# **Predict** the time with two ranks over the time with one.
# CERN's epochs on 4, 8, 16 and 32 GPUs are drawn over it, normalised to their smallest number. Theirs is
# another experiment: every GPU keeps its batch of 64, so with more GPUs an epoch has fewer steps and fewer all-reduces.

# %%
COUNTS = [n for n in (2, 4, 8) if n <= DEVICES]
CERN = {f"cern6.epoch.full.{n}": n / 4 for n in (4, 8, 16, 32)}
scaling = Panel(
    Experiment(
        key="DP-3",
        title="Time of a step over the time with one rank",
        question="What part of the time do two ranks need?",
        steps=tuple(
            compared_step(
                f"{n} ranks", n, shared, alone, band=(1 / 2.05, 1.0),
                options={"ranks": n}, width=WIDTH, depth=DEPTH, batch=BATCH,
            )
            for n in COUNTS
        ),
        x_label="ranks over the fewest",
        y_label="time over the time with the fewest",
        unit="x",
        published=PublishedRow("CERN, an epoch at a fixed batch per GPU, MIG off", CERN, base="cern6.epoch.full.4"),
        check="DP-3",
        data=lambda points: {
            "one rank": points[0].records[1].samples_s,
            "two ranks": points[0].records[0].samples_s,
        },
    )
)
scaling

# %%
evidence = await scaling.settle()
print(scaling.runner.message)
for point in evidence.points:
    print(f"{point.label}: speed-up {1 / point.value:.2f}, efficiency {1 / point.value / point.x:.0%}")
for n in (4, 8):
    speedup = published.figure(f"dettmers.krizhevsky.{n}").value
    print(f"Krizhevsky, {n} GPUs: speed-up {speedup}, efficiency {speedup / n:.0%}")

# %% [markdown]
# ## Which of CERN's rows does T = a + b/n fit?
#
# CERN trained a GAN on 4 to 32 A100s: with MIG off, and cut into 3g.20gb and 2g.10gb slices.
# The model has two free numbers and must meet three or four points. How large a miss means anything? In the same
# post the same 16 GPUs took 120 to 160 s, depending on where they stood: 14 % either way of the middle.
# **Predict:** by how many percent will it miss the worst point of the MIG-off row?

# %%
def cern_row(part):
    found = [(n, published.figure(f"cern6.epoch.{part}.{n}").value) for n in (4, 8, 16, 32)]
    return [(n, seconds) for n, seconds in found if seconds is not None]


def worst_miss(part):
    row = cern_row(part)
    *_, residual = stats.line_fit([1 / n for n, _ in row], [seconds for _, seconds in row])
    return 100 * residual


cern_fit = Panel(
    Experiment(
        key="DP-3-cern",
        title="How far T = a + b/n misses CERN's rows",
        question="By how many percent does it miss the worst MIG-off point?",
        steps=tuple(computed_step(p, x, worst_miss, p) for x, p in enumerate(("full", "3g", "2g"))),
        x_label="MIG off, 3g.20gb, 2g.10gb",
        y_label="largest miss (%)",
        unit="%",
    )
)
cern_fit

# %%
evidence = await cern_fit.settle()
for part in ("full", "3g", "2g"):
    row = cern_row(part)
    a, b, _ = stats.line_fit([1 / n for n, _ in row], [seconds for _, seconds in row])
    fitted = ", ".join(f"{a + b / n:.0f}" for n, _ in row)
    print(f"{part:>4}: published {', '.join(f'{s:.0f}' for _, s in row)} s; a + b/n gives {fitted} s")

# %% [markdown]
# **Explain:** which misses are larger than CERN's own scatter between placements? From 16 to 32 whole GPUs the epoch
# shrinks by 1.54, more than from 8 to 16, and no constant a does that; but one point that is 14 % off would.
# What would you have to measure again before you called the model wrong? (The 2g row has three points only.)
# CERN's text says the difference between MIG off and MIG "alleviates" with more GPUs. The ratios:

# %%
for n in (4, 8, 16, 32):
    whole, slices = (published.figure(f"cern6.epoch.{part}.{n}").value for part in ("full", "3g"))
    print(f"{n:>2} GPUs: {slices:.0f} / {whole:.0f} s = {slices / whole:.2f}")

# %% [markdown]
# ## DP-4: when is a second rank worth it?
#
# The gradient's bytes do not depend on the batch; the arithmetic does.
# **Predict:** from a small to a big batch, does the speed-up of two ranks rise, stay flat, or fall?

# %%
WIDE = 2048 if SEVERAL else 512
BATCHES = (64, 1024, 8192) if SEVERAL else (16, 256 * MORE, 2048 * MORE)
if is_quick():
    BATCHES = BATCHES[:2]
worth = Panel(
    Experiment(
        key="DP-4",
        title="Speed-up of two ranks",
        question="From small to big batches: does it rise, stay flat, or fall?",
        steps=tuple(
            compared_step(
                f"batch {batch}", batch, alone, shared, band=(0.0, 1.0 if batch == BATCHES[0] else 99.0),
                options={"ranks": 2}, width=WIDE, depth=4, batch=batch,
            )
            for batch in BATCHES
        ),
        x_label="batch of both ranks together",
        y_label="one rank's time over two ranks'",
        check="DP-4",
        data=lambda points: {
            "one rank": points[0].records[0].samples_s,
            "two ranks": points[0].records[1].samples_s,
        },
        log_x=True,
    )
)
worth

# %%
evidence = await worth.settle()
print(worth.runner.message)
crossed = [point.label for point in evidence.points if (point.low or 0) > 1.05]
open_ones = [point.label for point in evidence.points if (point.low or 0) <= 1.05 <= (point.high or 99)]
print(f"two ranks are worth it from {crossed[0]}" if crossed else "surely worth it at no batch measured")
print(f"undecided at {', '.join(open_ones)}: the interval holds a gain of 5 %" if open_ones else "decided at every batch")

# %% [markdown]
# **Explain** with α and β from DP-2: how long does your gradient travel, and how long does a rank compute?

# %% [markdown]
# ## What the published figures say, and where they are wrong

# %%
for key in ("E10", "E3", "E4", "E5", "E13"):
    error = published.known_errors()[key]
    print(f"{key} says: {error.says}\n   but: {error.correct}\n")

# %% [markdown]
# ## Your summary
#
# Filled in from your own evidence; what is missing says so.

# %%
from labkit.notebook.summary import summary

summary("DP-1", "DP-2", "DP-5", "DP-5-time", "DP-3", "DP-3-cern", "DP-4")

# %% [markdown]
# **Decide:** your model has 25 million parameters, your batch is 64, and a second 1g.5gb slice is free.
# Do you take it? Name the two figures that decide.

# %% [markdown]
# # Optional sections
#
# No exercises here; run what interests you.
#
# ## DP-6: DDP, and hiding the communication
#
# PyTorch's DistributedDataParallel sends each bucket of gradients while the rest is still computed.
# overlap = (step without sync + all-reduce alone - step) / the shorter of the two: 1 hides everything.
# On a CPU gloo's threads take the core that computes, and the overlap may be **negative**.

# %%
def ddp_times(width, depth, batch, bucket_mb, times):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    network, device = mlp(width, depth)
    ddp = DistributedDataParallel(network, bucket_cap_mb=bucket_mb)
    x = torch.randn(batch, width, device=device)
    payload = torch.ones(sum(p.numel() for p in network.parameters()), device=device)

    def step():
        ddp(x).square().mean().backward()

    def no_sync():
        with ddp.no_sync():
            step()

    alone = lambda: dist.all_reduce(payload)
    return in_turns({"step": step, "no sync": no_sync, "all-reduce": alone}, times)


# %%
hidden = Panel(
    Experiment(
        key="DP-6",
        title="A DDP step and its parts",
        question="How many ms does the whole step take?",
        steps=together(
            ddp_times,
            {"step": 1, "no sync": 2, "all-reduce": 3},
            value=lambda m: m.median_s * 1e3,
            n=DEVICES, width=WIDE, depth=4, batch=BATCHES[-1] // 2, bucket_mb=1, times=20,
        ),
        x_label="step, without sync, all-reduce alone",
        y_label="ms",
        unit="ms",
    )
)
hidden

# %%
evidence = await settle_optional(hidden)
print(hidden.runner.message)
if len(evidence.points) == 3:
    step, quiet, reduce = (point.value for point in evidence.points)
    print(f"overlap {(quiet + reduce - step) / min(quiet, reduce):.2f} of the shorter part is hidden")
    print(f"speed-up by hiding {(quiet + reduce) / step - 1:.0%} (Dettmers: 0 to 20 %)")

# %% [markdown]
# ## DP-7: throughput against the batch of one rank
#
# The article: doubling the batch gains 13.6 %, and below 64 a GPU "loses speed".
# The knee lies further left on a slice, which has fewer SMs to fill.
# **Predict** whether samples per second rise, stay flat, or fall from 32 to 1024.

# %%
def one_step(width, depth, batch):
    network, device = mlp(width, depth)
    x = torch.randn(batch, width, device=device)
    return lambda: flat_gradient(network, x)


knee = Panel(
    Experiment(
        key="DP-7",
        title="Throughput against the batch",
        question="From small to big batches: do samples per second rise, stay flat, or fall?",
        steps=tuple(
            timed_step(
                f"{b}", b, one_step, value=lambda m, b=b: b / m.median_s, seconds=4,
                width=WIDTH, depth=DEPTH, batch=b,
            )
            for b in (32, 63, 64, 65, 256, 1024)
        ),
        x_label="batch",
        y_label="samples per second",
        log_x=True,
    )
)
knee

# %%
evidence = await settle_optional(knee)
print(knee.runner.message)

# %% [markdown]
# ## DP-8: the slowest rank decides
#
# The last rank does its work twice. **Predict** the time of everyone's step over the time of an even one.

# %%
def uneven(width, depth, batch, times):
    import torch.distributed as dist

    network, device = mlp(width, depth)
    x = torch.randn(batch, width, device=device)
    is_last = dist.get_rank() == dist.get_world_size() - 1

    def step(work):
        def run():
            for _ in range(work):
                gradient = flat_gradient(network, x)
            dist.all_reduce(gradient)

        return run

    return in_turns({"even": step(1), "one slow rank": step(2 if is_last else 1)}, times)


# %%
straggler = Panel(
    Experiment(
        key="DP-8",
        title="A step with one slow rank",
        question="How many ms does a step take when one rank has twice the work?",
        steps=together(
            uneven,
            {"even": 1, "one slow rank": 2},
            value=lambda m: m.median_s * 1e3,
            n=DEVICES, width=WIDTH, depth=DEPTH, batch=BATCH // 2, times=20,
        ),
        x_label="even, one slow rank",
        y_label="ms",
        unit="ms",
    )
)
straggler

# %%
evidence = await settle_optional(straggler)
print(straggler.runner.message)

# %% [markdown]
# ## DP-9: two ranks on one device
#
# Habr's author got an exception from NCCL when two ranks shared a card, and 5-10 % from two trainings side by side.
# The error below is real, from this machine's NCCL; 2.30 and later can be told to allow it.

# %%
import os


async def nccl_on_one_device():
    from labkit.errors import LabError
    from labkit.run.jobs import make_job, nobody_watches, run_job
    from labkit.machine.readings import Readings

    job = make_job("call", [reduces], {"megabytes": 1}, backend="nccl", looks=[3])
    slice_uuid = place.devices[0].uuid if place.devices[0].is_slice else None
    one = {"CUDA_VISIBLE_DEVICES": slice_uuid or os.environ.get("CUDA_VISIBLE_DEVICES", "0")[:1]}
    try:
        await run_job(job, [one, one], 60, nobody_watches, Readings(2))
    except LabError as error:
        return str(error)[:600]
    return "this NCCL let two ranks share one device"


if place.devices[0].backend == "cpu":
    print("DP-9 needs a GPU: NCCL does not run on a CPU.")
elif wants_optional():
    print(await nccl_on_one_device())
else:
    print("optional: `await nccl_on_one_device()` shows it")

# %% [markdown]
# Two trainings that know nothing of each other share a device by time (or, here, the CPU by core).

# %%
from labkit.measuring.sharing import Way

side_by_side = Panel(
    Experiment(
        key="DP-9",
        title="Independent trainings on one device",
        question="From one to two trainings: do steps per second, in all, rise, stay flat, or fall?",
        steps=tuple(
            copies_step(
                f"{copies}", copies, one_step, Way.TIME, copies=copies,
                width=WIDTH, depth=DEPTH, batch=64,
            )
            for copies in (1, 2)
        ),
        x_label="trainings",
        y_label="steps per second, in all",
    )
)
side_by_side

# %%
evidence = await settle_optional(side_by_side)
print(side_by_side.runner.message)

# %% [markdown]
# ## DP-10: does DDP's memory grow with the ranks?
#
# CERN suspected that 96 ranks ran out of memory "most likely" by gradient aggregation (E5).
# DDP keeps the gradients once more in its buckets, unless they *are* the buckets' views;
# how often does not depend on the number of ranks. What may grow with them lies outside of PyTorch's allocator:
# NCCL's own buffers, one more for each peer. So the memory that the *device* reports is printed beside it.
# **Predict** what the views save.

# %%
def ddp_memory(width, depth, views):
    import resource

    from torch.nn.parallel import DistributedDataParallel

    network, device = mlp(width, depth)
    ddp = DistributedDataParallel(network, gradient_as_bucket_view=views)
    for _ in range(3):
        ddp(torch.randn(8, width, device=device)).square().mean().backward()
    outside = 0.0
    if device == "cuda":
        mib, (free, total) = torch.cuda.max_memory_allocated() / 2**20, torch.cuda.mem_get_info()
        outside = (total - free - torch.cuda.memory_reserved()) / 2**20
    else:
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"views" if views else "copies": {"MiB": mib, "outside": outside}}


# %%
def memory_steps(n):
    shape = {"n": n, "value": lambda m: m.setting["MiB"], "width": 2048, "depth": 4}
    copies = together(ddp_memory, {"copies": n - 0.1}, views=False, **shape)
    return copies + together(ddp_memory, {"views": n + 0.1}, views=True, **shape)


buckets = Panel(
    Experiment(
        key="DP-10",
        title="Peak memory of a DDP step, copies and views",
        question="How many MiB do the views save? (the gradients are 64 MiB)",
        steps=tuple(
            step for n in (2, 4) if not SEVERAL or DEVICES >= n for step in memory_steps(n)
        ),
        x_label="ranks",
        y_label="peak MiB; on a CPU the process's RSS, allocator and torch included",
        unit="MiB",
    )
)
buckets

# %%
evidence = await settle_optional(buckets)
print(buckets.runner.message)
for point in evidence.points:
    facts = point.records[0].setting
    print(f"{point.label}, {point.records[0].ranks} ranks: {facts['outside']:.0f} MiB outside of PyTorch (context, NCCL)")
if SEVERAL and DEVICES < 4:
    print("two devices show one number of ranks only: whether anything grows (E5) needs four")

# %% [markdown]
# ## DP-11: within a run, and between runs
#
# CERN saw 120 to 160 s for the *same* 16 GPUs, while epochs of one job lay close together.
# Three runs, each a process of its own. **Predict** whether their medians rise, stay flat, or fall.

# %%
runs = Panel(
    Experiment(
        key="DP-11",
        title="The same training, three runs",
        question="From run to run: do the medians rise, stay flat, or fall?",
        steps=tuple(
            timed_step(
                f"run {number}", number, one_step, value=lambda m: m.median_s * 1e3, seconds=4,
                width=WIDTH, depth=DEPTH, batch=256,
            )
            for number in (1, 2, 3)
        ),
        x_label="run",
        y_label="ms per step",
    )
)
runs

# %%
import statistics

evidence = await settle_optional(runs)
print(runs.runner.message)
if len(evidence.points) == 3:
    within = statistics.mean(point.records[0].iqr_s * 1e3 for point in evidence.points)
    between = statistics.stdev(point.value for point in evidence.points)
    print(f"spread within a run {within:.3g} ms, between runs {between:.3g} ms")

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# with a link to download it, and says what would not count as yours.
#
# To start this notebook over, run `labkit.fresh_copy("4_data_parallelism")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
