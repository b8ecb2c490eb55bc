# %% [markdown]
# # 2. MIG trade-offs
#
# **Afterwards you can decide:** one big slice or seven small ones; slices or another way to share a GPU.
# You will be able to
#
# - say how rate and bandwidth follow the SMs of a part;
# - tell which of your programs would lose by moving to half the slice, and which would not notice;
# - say what neighbours cost a program, and how much several copies of it gain together, for each way of sharing;
# - say which slices fit on one GPU, and what is stranded.
#
# You measure parts of what you hold against the whole of it, beside the figures that
# NVIDIA, CERN and a Habr author have published, some of which are wrong (the articles are named below).
# About 60 minutes; the sections after the summary are optional.

# %% [markdown]
# ## Parts of what you hold
#
# To see what size does, we need two sizes. You cannot partition your own slice, but you can confine a
# program to some of its SMs (a *green context*). On a CPU, threads stand in for SMs:
# everything is then scaled down, and shows the method but nothing about a GPU.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
parts = labkit.parts.parts_of(place)
HELD = place.devices[0]
ON_GPU = place.is_gpu
SIZE = 4096 if ON_GPU else 384
COPY_MIB = (256 if HELD.memory_mib < 20_000 or HELD.emulated else 1024) if ON_GPU else 16
scaled = "" if ON_GPU else " (scaled down: threads of a CPU)"
print(f"the whole: {parts.whole} {parts.unit}; parts: {', '.join(map(str, parts.sizes)) or 'none'}{scaled}")
labkit.card(place)

# %% [markdown]
# ## MIG-1: does the rate follow the SMs?
#
# The first work is all arithmetic: an fp32 product of two matrices.
# It runs on a part and on the whole, in turns, in one child process.

# %%
def matmul(size=SIZE, dtype="float32"):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    return lambda: a @ b


# %% [markdown]
# On the x axis: how many times fewer SMs. On the y axis: how many times longer.
# **Predict** how many times longer it takes on the smallest part.
# CERN's ratios (7g over 3g, 3g over 2g, 2g over 1g of an A100) are drawn beside your points.

# %%
def part_step(function, size, lowest, highest):
    """A step that compares the function on a part and on all SMs; the claim is a range over proportion."""
    fewer = parts.whole / size
    on_part, on_all = (labkit.parts.on_part(function, cut) for cut in (size, None))
    return labkit.steps.compared_step(
        parts.named(size), fewer, on_part, on_all, band=(lowest * fewer, highest * fewer), seconds=8
    )


# %%
on_parts = [part_step(matmul, size, 0.9, 1.1) for size in parts.sizes]
compute = labkit.experiment("MIG-1", on_parts, unit=parts.unit)

# %%
await compute.report()

# %% [markdown]
# ## Exercise 1: per SM
#
# Absolute rates of a big and a small part cannot be compared; their rates *per SM* can, if GPU, tool, size and type
# are the same. Write `per_sm_ratio`: from the rates and SMs of a big and a small part, it returns the big part's rate
# per SM, divided by the small one's. 1 means that they differ in size only.

# %%
def per_sm_ratio(big_rate, big_sms, small_rate, small_sms):
    # <solution>
    return (big_rate / big_sms) / (small_rate / small_sms)
    # </solution>
    # <student>
    # return None  # your line here
    # </student>


# %%
per_sm_verdict = labkit.exercises.check_per_sm_ratio(per_sm_ratio)
print(per_sm_verdict)

# %% [markdown]
# ## What the published figures say, and where they stop
#
# CERN found that fp32 scales as expected and that tensor cores do not: "the scaling diverges a lot from the expected one
# ... might need further investigation". Your function says it more exactly.

# %%
def against_1g(kind):
    small = labkit.published.figure(f"cern5.flops.{kind}.1g")
    for name in ("full", "7g", "3g", "2g"):
        big = labkit.published.figure(f"cern5.flops.{kind}.{name}")
        print(f"{kind:12} {name:4} over 1g, per SM: {per_sm_ratio(big.value, big.sms, small.value, small.sms):.2f}")


if per_sm_verdict.right:
    against_1g("fp32")
    against_1g("fp16-tensor")
else:
    print("write per_sm_ratio first")
labkit.cite("cern5", "habr")

# %% [markdown]
# Two sources agree that the *big* configurations (the whole GPU and 7g) are slow in tensor work and that the smaller
# slices are fine; neither explains it. The L2 cache of an A100 has two halves, each for its own half of the SMs, and
# a slice of up to 3g fits into one of them (NVIDIA's A100 white paper). The clock under load is the other suspect.
# You can look for yourself in the optional section MIG-2.
#
# ## MIG-3: does the bandwidth follow the SMs?
#
# The second work only moves memory. A part of a GPU has its own SMs and shares L2 and memory;
# a *slice* has its own share of all three. So this is where you see what MIG adds.

# %%
def copy(mib=COPY_MIB):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.ones(mib << 18, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


# %% [markdown]
# The parts are the same as in MIG-1. **Predict** how many times longer the copy takes on the smallest.
# (CERN's row is not a measurement but the data sheet of each slice, which is why its ratios are exact: E15.)

# %%
copies_on_parts = [part_step(copy, size, 0.0, 1 / 1.5) for size in parts.sizes]
bandwidth = labkit.experiment("MIG-3", copies_on_parts, unit=parts.unit)

# %%
def copy_rate(points):
    """GB/s of the copy on the whole of what you hold."""
    device = points[0].records[1].devices[0]
    if device.name != HELD.name:
        return  # a recorded run: its copies were of another size
    rate = 2 * (COPY_MIB << 20) / points[0].records[1].median_s / 1e9
    print(f"the whole copies {rate:.4g} GB/s")
    if device.is_slice and not device.emulated and "A100" in device.name:
        plate = labkit.published.figure("cern5.bandwidth.7g").value
        print(f"{rate / plate:.0%} of an A100's data sheet ({plate:g} GB/s), with {device.sms} of 98 SMs")


await bandwidth.report(copy_rate)

# %% [markdown]
# **Explain:** a neighbour on the same GPU *without* MIG copies memory all day. What does it cost you?
# And with MIG? If you have no GPU, or only one slice, look at a recorded run.

# %%
print(labkit.recorded_note("MIG-1", "MIG-3", "MIG-5", "MIG-6", "MIG-7"))

# %% [markdown]
# ## MIG-5: fewer SMs, how much longer?
#
# A real program is neither all arithmetic nor all copying. Take a training step of a small transformer. Read it with
# `labkit.exercises.networks.transformer_step??`: a loss, its gradients, a step of AdamW.

# %%
MODEL = {"width": 768, "layers": 6, "length": 128} if ON_GPU else {"width": 64, "layers": 1, "length": 32}
ROOMY = ON_GPU and HELD.memory_mib > 20_000 and not HELD.emulated
BATCHES = (1, 8, 128) if ROOMY else (1, 4, 32) if ON_GPU else (1, 4, 16)
BATCHES = BATCHES[1:2] if labkit.is_quick() else BATCHES


def train(batch, model=MODEL):
    return labkit.exercises.networks.transformer_step(batch, **model)


# %% [markdown]
# A small step is *launch-bound*: the GPU waits while Python queues the next kernel, and what you time is Python.
# So each step is measured twice: as Python launches it, and as a *CUDA graph*, which replays the same kernels
# without Python. (A CPU has no graphs.)
#
# **Predict** for the graph: as the batch grows, does the price of fewer SMs rise, stay flat, or fall?

# %%
KINDS = labkit.parts.launches(place)  # by name, whether it is a graph


def half_step(kind, batch):
    on_part, on_all = (labkit.parts.on_part(train, size, graph=KINDS[kind]) for size in (parts.half, None))
    highest = 1.1 * parts.whole / parts.half
    return labkit.steps.compared_step(
        f"batch {batch}", batch, on_part, on_all, band=(0.0, highest), seconds=8, series=kind, batch=batch
    )


halves = [half_step(kind, batch) for kind in KINDS for batch in BATCHES if parts.sizes]
half = labkit.experiment("MIG-5", halves, half=parts.half, whole=parts.whole, unit=parts.unit)

# %%
def times_of_steps(points):
    for point in points:
        part_record, full_record = point.records
        waits = ", launch-bound" if full_record.is_launch_bound else ""
        both = f"{full_record.median_s * 1e3:.2f} ms on the whole{waits}, {part_record.median_s * 1e3:.2f} on the part"
        print(f"{point.label}{', ' if point.series else ''}{point.series}: {both}")


await half.report(times_of_steps)

# %% [markdown]
# **Explain:** what limits the small batch, if it does not notice that half of the SMs are missing?
# CERN prints two identical rows here: never plot a figure before you have looked at its neighbours.

# %%
for name in ("E1", "E2"):
    error = labkit.published.known_errors()[name]
    print(f"Published: {error.says}. {error.exercise}")

# %% [markdown]
# ## MIG-6: neighbours
#
# What does a busy neighbour cost you? NVIDIA measured it with six of them on slices of their own. Here, copies of the
# training step share what you hold. For a while all copies work, then only the first, and so on in turns, so that the
# two can be compared. If you hold several slices, every copy has its own; otherwise the copies take turns on one
# (time-slicing). **Predict** how many times as long a step takes with busy neighbours. With a single slice, the
# copies share it, and you cannot see what MIG isolates; look at the recorded run instead.

# %%
Way = labkit.sharing.Way
SLICES = place.slices
COPIES = SLICES if SLICES > 1 else 7 if ROOMY else 2
WAY, CROWD = (Way.SLICES, SLICES) if SLICES > 1 else (Way.TIME, min(COPIES, 3))
CROWD_BATCH = 64 if ROOMY else 32 if ON_GPU else 4  # big enough to keep the device busy
print(f"{CROWD} copies, {WAY}" + ("" if ON_GPU else " of CPU cores (scaled down)"))

# %%
def crowd_work(batch, graph=ON_GPU):
    """The training step; as a graph on a GPU, so that the copies wait for the GPU and not for Python."""
    return labkit.parts.confined(train(batch), None, graph=graph)


crowded = labkit.steps.shared_step(
    f"{CROWD} copies", 1, crowd_work, WAY, shows="slowdown", copies=CROWD, batch=CROWD_BATCH
)
neighbours = labkit.experiment("MIG-6", crowded, copies=CROWD, way=WAY)

# %%
await neighbours.report()

# %% [markdown]
# NVIDIA saw 6.38 ms become 6.47 ms with six busy neighbours on slices. **Explain** the difference from yours.
#
# ## MIG-7: one big or seven small?
#
# NVIDIA fine-tuned seven BERTs: on seven slices at once, on one GPU at once, and one after another.
# Here you do the same with your copies, in every way that this machine offers; each way is first tried in a child process.

# %%
TRIED = (Way.SMS, Way.MPS) if ON_GPU and parts.sizes else ()
WHY_NOT = {way: labkit.sharing.why_not(way, sms=parts.sizes[0]) for way in TRIED}
WAYS = [Way.SLICES if SLICES > 1 else Way.TIME, *(way for way, reason in WHY_NOT.items() if not reason)]
for way, reason in WHY_NOT.items():
    print(f"{way}: {'not here: ' + reason.splitlines()[0] if reason else 'works'}")
print("ways to compare:", ", ".join(WAYS) + ("" if ON_GPU else " of CPU cores (scaled down)"))

# %% [markdown]
# A small step launched by Python leaves the GPU idle much of the time, and seven Pythons fill the gaps: that gain only
# makes up for Python. As a CUDA graph (drawn first), one copy keeps the GPU as busy as it can; what is gained then comes
# from sharing.
#
# **Predict** for the first way named above (with graphs): the work of all copies together, divided by the work of one
# alone. 1 means that sharing gains nothing; the number of copies would be perfect. (MPS, NVIDIA's Multi-Process
# Service, lets kernels of several processes run at once. With slices and SM partitions, one copy "alone" has only its
# own part. SM partitions of different *processes* still take turns, because a green context divides the GPU within
# one process only.)

# %%
PLACES = {Way.TIME: 1, Way.SMS: 2, Way.MPS: 3, Way.SLICES: 4}


def way_step(kind, way):
    sms = parts.sizes[0] if way is Way.SMS else None
    options = {"copies": COPIES, "sms_per_copy": sms, "series": kind, "batch": 4, "graph": KINDS[kind]}
    return labkit.steps.shared_step(str(way), PLACES[way], crowd_work, way, **options)


by_python = {kind: WAYS if KINDS[kind] or not ON_GPU else WAYS[:1] for kind in KINDS}
gains = [way_step(kind, way) for kind, ways in by_python.items() for way in ways]
seven = labkit.experiment("MIG-7", gains, copies=COPIES, way=WAYS[0])

# %%
def totals(points):
    """The work done, and the CPU each copy used: when that is used up, the GPU cannot be blamed."""
    for point in points:
        alone, together = point.records
        cpu = f"{together.cpu_per_copy:.2f} CPU cores per copy{', CPU-bound' if together.is_cpu_bound else ''}"
        kind = f", {point.series}" if point.series else ""
        print(f"{point.label}{kind}: {4 / together.median_s:.3g} sequences/s in all, {4 / alone.median_s:.3g} alone, {cpu}")


await seven.report(totals)

# %% [markdown]
# NVIDIA's two pairs say what "better" means: training 1.48 and 1.87 times, inference 4.17 times the
# throughput at 1.73 times the latency. **Explain:** for whom is the second pair bad news?

# %%
NVIDIA = (
    ("training: 7 slices over 7 copies sharing by time", "finetune.mig7.rate", "finetune.shared7.rate"),
    ("training: 7 slices over one after another", "finetune.mig7.rate", "finetune.full.rate"),
    ("inference: throughput of 7 slices over the whole GPU", "infer.mig7.rate", "infer.full.rate"),
    ("inference: latency of 7 slices over the whole GPU", "infer.mig7.latency", "infer.full.latency"),
)
for statement, above, below in NVIDIA:
    ratio = labkit.published.figure(f"nvidia.{above}").value / labkit.published.figure(f"nvidia.{below}").value
    print(f"{statement}: {ratio:.2f}")
labkit.cite("nvidia")

# %% [markdown]
# ## Exercise 2: the packing puzzle (MIG-12)
#
# An A100 has 7 compute slices and 8 memory slices. A profile takes some of both:

# %%
A100 = labkit.exercises.packing.A100

for profile in A100.values():
    print(f"{profile.name}: {profile.compute} compute, {profile.memory} memory, {profile.sms} SMs, {profile.gib} GiB")
labkit.picture("geometry")

# %% [markdown]
# Partition one by hand: give each slice the memory slice at which it begins. Change the line and run it again.
# Can you place a fourth 1g.5gb beside this 3g.20gb? What if the 3g.20gb begins elsewhere?

# %%
labkit.partition(("3g.20gb", 0), ("1g.5gb", 4), ("1g.5gb", 5), ("1g.5gb", 6))

# %% [markdown]
# Write `fits`: does a choice such as `{"1g.5gb": 2, "3g.20gb": 1}` fit on one A100?
# The check tries every choice of up to seven slices, with every placement.

# %%
def fits(packing):
    # <solution>
    compute = sum(A100[name].compute * count for name, count in packing.items())
    memory = sum(A100[name].memory * count for name, count in packing.items())
    return compute <= 7 and memory <= 8
    # </solution>
    # <student>
    # return None  # your lines here: about three
    # </student>


fits_verdict = labkit.exercises.check_fits(fits)
print(fits_verdict)

# %% [markdown]
# **Predict:** how many SMs does the best packing use, of the 108 an A100 has?

# %%
def sms_of(packing):
    if not fits_verdict.right:
        raise labkit.errors.NotMeasured("Write fits first.")
    return labkit.exercises.packing.used_sms(packing)


def best():
    return max(sms_of(packing) for packing in labkit.exercises.packing.packings() if fits(packing))


SHAPES = ({"2g.10gb": 3}, {"3g.20gb": 2}, {"3g.20gb": 1, "1g.5gb": 4}, {"1g.5gb": 7})
packing_steps = [labkit.steps.computed_step(labkit.exercises.packing.in_words(p), x, sms_of, p) for x, p in enumerate(SHAPES)]
puzzle = labkit.experiment("MIG-12", packing_steps, labkit.steps.computed_step("the best", len(SHAPES), best))

# %%
await puzzle.report(needs=fits_verdict)

# %% [markdown]
# Not only SMs are left over. And one of CERN's sentences gets the percentages wrong.

# %%
for packing in SHAPES:
    sms, gib = labkit.exercises.packing.used_sms(packing), labkit.exercises.packing.used_gib(packing)
    stranded = f"{98 - sms} SMs and {39.5 - gib:.1f} GiB stranded"
    print(f"{labkit.exercises.packing.in_words(packing)}: {sms} SMs and {gib:.1f} GiB in use, {stranded}")
mistake = labkit.published.known_errors()["E3"]
print(f"\nPublished: “{mistake.says}”. {mistake.exercise}")
labkit.cite("cern6")

# %% [markdown]
# ## Summary
#
# These are your numbers. With them, answer three students who each ask for a slice:
# Ada trains one large network for a week; Ben tries 30 small ones this afternoon;
# Cem serves queries and promises an answer within 5 ms. Who gets what, and which row says so?

# %%
print(f"per_sm_ratio: {per_sm_verdict}\nfits: {fits_verdict}")
labkit.summary("MIG-1", "MIG-3", "MIG-5", "MIG-6", "MIG-7", "MIG-12")

# %% [markdown]
# ## Exercise 3 (optional): beside what is in use
#
# Sums say what fits on an *empty* GPU. The pool that gave you your slice rarely has one: slices in use stay where
# they are, and a profile may begin at certain memory slices only: `A100[name].starts`.
#
# Write `place_slices`: the memory slice at which each slice of `wanted` begins, as a list in the same order, so that none
# overlaps another or a memory slice in `taken`; `None` if there is no way. Place the first, and let `place_slices` itself
# place the rest. If the rest does not fit, the first must begin elsewhere.

# %%
def place_slices(wanted, taken):
    """The starts of the slices in `wanted`, such as ["1g.5gb", "3g.20gb"], or None."""
    # <solution>
    if not wanted:
        return []
    first = A100[wanted[0]]
    for start in first.starts:
        span = list(range(start, start + first.memory))
        if set(span) & set(taken):
            continue
        later_starts = place_slices(wanted[1:], taken + span)
        if later_starts is not None:
            return [start, *later_starts]
    return None
    # </solution>
    # <student>
    # return None  # your lines here: about ten
    # </student>


# %%
place_verdict = labkit.exercises.check_place(place_slices)
print(place_verdict)

# %% [markdown]
# Two slices are in use (their places are drawn for you), and three students ask for slices. A pool that always takes
# the first free start would have to send somebody away. Yours:

# %%
IN_USE, TAKEN = labkit.drawn("2", held=(
    ((("1g.5gb", 2), ("2g.10gb", 4)), [2, 4, 5]), ((("1g.5gb", 0), ("2g.10gb", 4)), [0, 4, 5]), ((("2g.10gb", 0), ("1g.5gb", 4)), [0, 1, 4]),
))["held"]
QUEUE = ["1g.5gb", "2g.10gb", "1g.5gb"]
starts = place_slices(QUEUE, TAKEN) if place_verdict.right else []
labkit.partition(*IN_USE, *zip(QUEUE, starts))

# %% [markdown]
# **Explain:** who would have been sent away, and what could the pool do about it if it knew only the first request?

# %% [markdown]
# ## Optional: MIG-2, the open question of the tensor cores
#
# If big parts are slow because the last wave of tiles leaves SMs idle, the gap closes as the matrix grows.
# If the reason is power or clock, the gap stays. On an H200, too, small parts came out ahead.
# **Predict:** as the matrices grow, does the ratio rise to its ideal, stay flat or fall?

# %%
TENSOR_SIZES = (1024, 4096, 8192) if ON_GPU else (128, 256)
TYPE = "bfloat16" if ON_GPU else "float32"


def tensor_step(size):
    on_part, on_all = (labkit.parts.on_part(matmul, cut) for cut in (parts.half, None))
    return labkit.steps.compared_step(f"n = {size}", size, on_part, on_all, seconds=6, size=size, dtype=TYPE)


cut = {"half": parts.half, "whole": parts.whole, "unit": parts.unit}
ideal = f"{parts.whole / parts.half:.2f}"
products = [tensor_step(size) for size in TENSOR_SIZES if parts.sizes]
tensor = labkit.experiment("MIG-2", products, type=TYPE, ideal=ideal, **cut)

# %%
await tensor.report()

# %% [markdown]
# ## Optional: MIG-15, the same step on every shape
#
# A part of a GPU is not a slice: it has no memory of its own. If your course lends slices, you can run the step
# on every shape that it lends: each is borrowed for the seconds of its measurement.
# **Predict** how long the step takes on the last of them (on a GPU: as a CUDA graph).

# %%
LENT = place.lends
STEP_BATCH = BATCHES[-1]


def shape_step(kind, number, shape):
    options = {"on": shape, "seconds": 6, "series": kind, "batch": STEP_BATCH, "graph": KINDS[kind]}
    return labkit.steps.timed_step(shape, number, crowd_work, **options)


on_each = [shape_step(kind, number, shape) for kind in reversed(KINDS) for number, shape in enumerate(LENT)]
on_shapes = labkit.experiment("MIG-15", on_each, batch=STEP_BATCH, last=LENT[-1] if LENT else "none is lent here")

# %%
def by_shape(points):
    """Each shape's time over the first one's; of a CPU nothing is said about shapes."""
    first = {point.series: point for point in reversed(points)}
    for point in points:
        base, kind = first[point.series], f", {point.series}" if point.series else ""
        print(f"{point.label}{kind}: {point.value:.3g} ms, {point.value / base.value:.2f} times the {base.label}'s")
    if any(point.records[0].devices[0].backend == "cpu" for point in points):
        print("All of it is a CPU run: these slices are simulated, so the figures say nothing about a shape.")


await on_shapes.report(by_shape)

# %% [markdown]
# ## Optional: MIG-4, the tax of turning MIG on
#
# With MIG on, an A100 keeps 98 of 108 SMs: a loss of 9.3 % for pure arithmetic, 3 to 4 % for CERN's
# training. Here the same fraction of *your* SMs is taken away, as far as your GPU can be divided so finely.

# %%
step = 8 if float(HELD.capability or 8) >= 9 else 2
taxed = max(step, round(parts.whole * 98 / 108 / step) * step)
if not ON_GPU or taxed >= parts.whole:
    print("not here: this needs a GPU that can be divided into about ten parts")
elif not labkit.is_measured_here():
    print("optional: LAB_OPTIONAL=1 measures it as well")
else:
    for kind, graph in KINDS.items():
        for work, arguments in ((matmul, {}), (train, {"batch": 4})):
            on_part, on_all = (labkit.parts.on_part(work, size, graph=graph) for size in (taxed, None))
            tax = labkit.compare(on_part, on_all, band=(1.0, 1.2), **arguments)
            print(f"{work.__name__}, {kind}: {taxed} of {parts.whole} SMs take {tax.ratio:.3f} times as long")

# %% [markdown]
# ## Optional: MIG-14, how long a request waits
#
# People who query a model remember the slow answers: a promise such as "5 ms" is about
# percentiles. Percentile p is the smallest sample that is at least as large as p percent of all samples.
# Write the function (two or three lines).

# %%
import math


def percentile(samples, percent):
    # <solution>
    ordered = sorted(samples)
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1]
    # </solution>
    # <student>
    # return None  # your lines here
    # </student>


can_rank = labkit.exercises.check_percentile(percentile)
print(can_rank)

# %% [markdown]
# The transformer of MIG-5 answers requests. They come at random moments (a *Poisson process*), on average at a third of
# the rate at which it could answer one by one, and at most 100 a second. A request that comes while it is busy
# waits in a queue and, with a bigger batch, also until the batch is full. A request's wait ends when its answer is on the host.
# **Predict:** at batch 1, how many times the median is the 99th percentile?

# %%
REQUESTS = 20 if labkit.is_quick() else 320
ASKED = (1, 8, 64) if ON_GPU else (1, 4, 16)
LOAD, LEAST_GAP_S = 1 / 3, 0.01


def answer(batch, model=MODEL, to_host=True):
    return labkit.exercises.networks.transformer_answer(batch, **model, to_host=to_host)


def arrivals(requests, mean_gap_s):
    """When the requests come, in seconds from now; the same gaps for every batch."""
    import random

    luck, moment, moments = random.Random(0), 0.0, []
    for _ in range(requests):
        moment += luck.expovariate(1 / mean_gap_s)
        moments.append(moment)
    return moments


def seconds_of(work):
    import time

    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def waits(batches, requests):
    import time

    import torch

    torch.set_num_threads(1)  # of a CPU
    waits_by_batch, mean_gap_s = {}, None
    for batch in batches:
        work = answer(batch)
        once = sorted(seconds_of(work) for _ in range(30))[15]  # the first ones wake the device
        mean_gap_s = mean_gap_s or max(LEAST_GAP_S, once / LOAD)
        moments, waited, started = arrivals(requests, mean_gap_s), [], time.perf_counter()
        for first in range(0, requests, batch):
            together = moments[first : first + batch]
            time.sleep(max(0.0, started + together[-1] - time.perf_counter()))  # until the batch is full
            work()
            waited += [time.perf_counter() - started - moment for moment in together]
        waits_by_batch[f"batch {batch}"] = waited
    return waits_by_batch


# %%
by_batch = {f"batch {batch}": batch for batch in ASKED}
served = labkit.experiment("MIG-14", labkit.steps.together(waits, by_batch, batches=ASKED, requests=REQUESTS))

# %%
def promised(points):
    for point in points:
        samples = point.records[0].samples_s
        p50, p90, p99 = (1e3 * percentile(samples, percent) for percent in (50, 90, 99))
        print(f"{point.label}: p50 {p50:.2f} ms, p90 {p90:.2f} ms, p99 {p99:.2f} ms")


await served.report(promised, needs=can_rank)
for key, machine in (("full", "a whole A100"), ("mig1", "a 1g.5gb"), ("mig7", "seven 1g.5gb at once")):
    rate, wait = (labkit.published.figure(f"nvidia.infer.{key}.{kind}").value for kind in ("rate", "latency"))
    print(f"NVIDIA, {machine}: {rate} sentences/s, {wait} ms a request (another model: BERT Large)")
labkit.cite("nvidia")

# %% [markdown]
# **Explain:** with which batch would you promise 5 ms, and which percentile is the promise about?

# %% [markdown]
# ## Optional: MIG-8 and MIG-9, seven small slices beside the whole
#
# Five published rows say what seven 1g.5gb do together and what the whole A100 does: NVIDIA's figures 7 and 8, CERN's
# products on ordinary and on tensor cores, and gpu-burn by the author on Habr.
# **Predict** how many times the whole GPU's rate the seven have in NVIDIA's inference. (Computed, so drawn hollow.)

# %%
SEVEN = {
    "gpu-burn -tc": ("habr.burn-tc.1g", "habr.burn-tc.full"),
    "fp32 products": ("cern5.flops.fp32.1g", "cern5.flops.fp32.full"),
    "tensor products": ("cern5.flops.fp16-tensor.1g", "cern5.flops.fp16-tensor.full"),
    "BERT, training": ("nvidia.finetune.mig1.rate", "nvidia.finetune.full.rate"),
    "BERT, inference": ("nvidia.infer.mig1.rate", "nvidia.infer.full.rate"),
}


def seven_over_whole(one_slice, full_gpu):
    return 7 * labkit.published.figure(one_slice).value / labkit.published.figure(full_gpu).value


bars = [labkit.steps.computed_step(name, x, seven_over_whole, *pair) for x, (name, pair) in enumerate(SEVEN.items())]
published_seven = labkit.experiment("MIG-8", bars)

# %%
await published_seven.report()

# %% [markdown]
# **Explain:** seven slices have 98 of the 108 SMs. In which rows is the whole GPU slow, rather than the slices fast?
#
# ## Optional: MIG-10, one process, one slice
#
# NVIDIA writes that a process enumerates a single slice. Here one process is given the UUIDs of *all*
# your slices, and counts the slices that it finds.

# %%
if SLICES > 1:
    print(f"a process that was given {SLICES} slices sees {labkit.count_visible(place.lease.real_slices)}")
else:
    print("not here: ask for a shape with two slices, 2x1g.5gb")

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("2_mig_trade_offs")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
