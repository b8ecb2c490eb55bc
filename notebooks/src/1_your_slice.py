# %% [markdown]
# # 1. Your slice
#
# In this lab a GPU is shared, and yet nobody else uses your part of it: the pool cuts out a *slice* with
# processors (SMs) and memory of its own by MIG (Multi-Instance GPU), and lends it to one server alone.
# The identity card below says whether this server holds a slice, borrows one for each measurement, or measures on
# its CPU. All three teach you how to measure; only a slice shows what a GPU does.
#
# **Afterwards you can decide** whether to believe a number measured here. You will be able to
#
# - write a timer that waits for the device, and say what a timer that does not wait really measures;
# - say how small a difference this machine can show today;
# - compute how near a program comes to what its device can do, and what limits it;
# - say what a training step spends its time on.
#
# Each experiment asks for a prediction first, then measures, then asks you to explain. A wrong prediction costs
# nothing: that you made one before you measured is what counts. Many panels then state a claim, and you decide what
# your data say about it. About a third of the claims are false. About 75 minutes; the sections after the summary are
# optional.

# %% [markdown]
# ## Identity card
#
# **Predict:** how many SMs will PyTorch find, and how much memory? On a CPU: how many of its cores may this server
# use? Then run the cell.
#
# If you hold a slice, the card also says what the pool gave you: a *lease* of a *shape*, which you chose before the
# server started, and each slice's *UUID*, its name.
# One process sees one slice and calls it `cuda:0`, as if it were a whole GPU.
# Everything is measured in a *child process* that ends afterwards and takes its memory with it;
# this notebook itself never touches the GPU.
# If PyTorch cannot open a slice that you hold, the notebook stops here, because the CPU would give you figures that are not your slice's.

#
# How large the experiments are depends on what you hold.
# On a CPU they are scaled down, and every plot says that it does not show a GPU.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
ON_GPU = place.is_gpu
SIZE = 4096 if ON_GPU else 256
DTYPE = "bfloat16" if ON_GPU else "float32"
ELEMENTS = 1 << (26 if ON_GPU else 21)
print(f"matrices of {SIZE} x {SIZE}, {DTYPE}{'' if ON_GPU else ' (scaled down for a CPU)'}")
if place.lease.simulated:
    print("Simulated GPUs: measured on this server's CPU. It says nothing about an A100.")
labkit.card(place)

# %% [markdown]
# ## What is timed
#
# A function that *returns a function*: the outer one prepares, only the inner one is timed.
# Multiplying two n × n matrices takes 2 n³ operations, so time becomes a rate.

# %%
def matmul(size=SIZE, dtype=DTYPE):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)  # on a CPU: with two, one waits for the other whenever a neighbour takes its core
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    return lambda: a @ b


record = labkit.measure(matmul, flops=2 * SIZE**3)
print(record)
print(f"{record.tflops * 1e3:.0f} GFLOP/s")

# %% [markdown]
# ## T-2: two timers
#
# The naive timer reads the clock before and after the call; the honest one waits for the device before it reads the
# clock again.

# %%
def naive_and_honest(size=SIZE, rounds=20):
    import time

    import torch

    work, seconds = matmul(size), {"unwaited": [], "waited": []}
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    work()
    for _ in range(rounds):
        for name, finish in (("unwaited", lambda: None), ("waited", wait)):
            wait()
            started = time.perf_counter()
            work()
            finish()
            seconds[name].append(time.perf_counter() - started)
    return seconds


# %% [markdown]
# **Predict:** from the naive to the honest timer, does the time rise, stay flat, or fall?

# %%
lies = labkit.experiment("T-2", labkit.steps.together(naive_and_honest, ("unwaited", "waited"), seconds=8))

# %%
await lies.report()

# %% [markdown]
# **Explain** in the panel: what did the naive timer measure, if not the product?
# On a CPU a call returns when it is done, so the two agree: only a GPU shows the lie.

# %%
print("measured on a GPU" if ON_GPU else labkit.recorded_note("T-2"))

# %% [markdown]
# ## Exercise 1: your own timer
#
# Write `my_timer`. It returns the time, in seconds, of each of `rounds` calls of `work`, up to the
# moment when the device is really done.
# `wait()` waits for the device; `clock()` reads the time.
# Mind two more traps: the first call is slow (it wakes the device),
# and earlier work may still be in the queue when you start the clock.

# %%
def my_timer(work, wait, clock, rounds=20):
    seconds = []
    # <solution>
    work()
    for _ in range(rounds):
        wait()
        started = clock()
        work()
        wait()
        seconds.append(clock() - started)
    # </solution>
    # <student>
    # # Your lines here: about six.
    # </student>
    return seconds


# %% [markdown]
# The check runs it on a simulated device whose clock we know, so the answer is exact.

# %%
timer_verdict = labkit.exercises.check_timer(my_timer)
print(timer_verdict)

# %% [markdown]
# Now your timer and labkit's take turns on the real device, with the same work.
# The claim has two sides: a timer that is too fast is as wrong as one that is too slow.
# **Predict** the ratio of your timer's time to labkit's: which costs do both include, and which does only one of them?

# %%
def both_timers(size=SIZE, rounds=80):
    import time

    import torch

    work, seconds = matmul(size), {"own": [], "labkit": []}
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    clock = labkit.timing.make_clock(torch, cold=False)
    for _ in range(rounds):
        seconds["own"] += my_timer(work, wait, time.perf_counter, 1)
        for turns in labkit.timing.timing_loop({"work": work}, range(1), clock):
            seconds["labkit"] += [turn.seconds for turn in turns]
    if len(seconds["own"]) < rounds:
        raise labkit.errors.NotMeasured("Write my_timer first.")
    return seconds | {"clocks": {"own": "host", "labkit": clock.name}}


# %%
own_timer = labkit.experiment("T-3", labkit.steps.together(both_timers, ("own", "labkit"), seconds=8))

# %%
await own_timer.report()

# %% [markdown]
# Read labkit's own loop (`labkit.timing.timing_loop`, 30 lines). What does it do that yours does not? On a GPU it
# lets the GPU itself note the time, and keeps the queue filled: if a call takes less than 50 µs, your timer measures
# Python, not the GPU.

# %%
import inspect

print(inspect.getsource(labkit.timing.timing_loop))

# %% [markdown]
# ## T-1: how small a difference can this machine show?
#
# The same function against itself: the true ratio is 1.
# If even that is uncertain by more than 5 %, nothing subtler can be measured here now:
# what you see then is the neighbours, the clock or the CPU quota.
# **Predict** the upper end of the interval around 1 that the panel will show.

# %%
itself = labkit.steps.compared_step("itself", 1.0, matmul, matmul, band=(0.95, 1.05), seconds=8)
noise = labkit.experiment("T-1", itself)

# %%
def noise_floor(points):
    """How small a difference shows here today."""
    low, high = points[0].low, points[0].high
    if low is None:
        print("the interval needs 20 rounds")
    else:
        print(f"interval {low:.3f} to {high:.3f}: differences below {max(high - 1, 1 - low) * 100:.1f} % do not show here")


await noise.report(noise_floor)

# %% [markdown]
# The result is the interval, not the dot. **Explain:** your neighbour claims a speed-up of 3 %. How far from 1 may
# either end of your interval lie, if you are to confirm it?

# %% [markdown]
# ## Exercise 2: the roof
#
# Work is limited by arithmetic (the flat *roof*) or by memory (the *slant* before it); its *intensity* (operations
# per byte) says by which. They meet at the *ridge*. Given the device's two limits (`flops_per_s`, `bytes_per_s`), how
# many operations per second can work of a given intensity reach at most?

# %%
def attainable(intensity, flops_per_s, bytes_per_s):
    # <solution>
    return min(flops_per_s, intensity * bytes_per_s)
    # </solution>
    # <student>
    # return None  # your line here
    # </student>


# %% [markdown]
# The check tries three kinds of work: left of the ridge, on it, and right of it.

# %%
roof_verdict = labkit.exercises.check_attainable(attainable)
print(roof_verdict)

# %% [markdown]
# ## T-4: the roofs over everything you run
#
# Arithmetic has a limit for each format: fp32, bf16, and on a GPU TF32, which multiplies fp32 numbers
# with a short mantissa on tensor cores. So there are several roofs over one slant. A limit is the best of several tries:
# of the memory, a copy, a triad and a sum; of a format, products of five sizes other than the one that is judged.
# FLOPs and bytes are counted from the algorithm, not read from the hardware's counters, which slices share.
#
# `dot` and `axpy` (y = 2x + y) read two vectors, and `axpy` writes one; `layer_norm` reads and writes a matrix;
# `matvec` multiplies a matrix with a vector, `thin` with 16 of them, `matmul` with another matrix.

# %%
ROWS = ELEMENTS // SIZE
WIDER = SIZE * 5 // 4  # a limit is measured by other work than what is judged by it
SIDES = [SIZE * eighths // 8 for eighths in (4, 6, 7, 9, 10)]  # cuBLAS is faster at one size than at another
STREAM = max(ELEMENTS, int((place.devices[0].l2_mib or 0) * 2**20))  # an array takes at least four L2 caches
KINDS = {
    "axpy": labkit.exercises.roofline.axpy(ELEMENTS),
    "dot": labkit.exercises.roofline.dot(ELEMENTS),
    "layer norm": labkit.exercises.roofline.layer_norm(ROWS, SIZE),
    "matvec": labkit.exercises.roofline.matvec(ROWS, SIZE),
    "thin": labkit.exercises.roofline.matmul(ROWS, 16, SIZE),
    "matmul, bf16": labkit.exercises.roofline.matmul(SIZE, SIZE, SIZE, "bfloat16"),
}
LIMITS = {
    "limit of fp32": labkit.exercises.roofline.matmul(WIDER, WIDER, WIDER),
    "limit of bf16": labkit.exercises.roofline.matmul(WIDER, WIDER, WIDER, "bfloat16"),
}
if ON_GPU:
    KINDS["matmul, TF32"] = labkit.exercises.roofline.matmul(SIZE, SIZE, SIZE, "tf32")
    LIMITS["limit of TF32"] = labkit.exercises.roofline.matmul(WIDER, WIDER, WIDER, "tf32")
KINDS["matmul"] = labkit.exercises.roofline.matmul(SIZE, SIZE, SIZE)


# %%
def axpy(elements=ELEMENTS):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.randn(elements, device=device) for _ in range(2))
    return lambda: torch.add(y, x, alpha=2.0, out=y)


def light_work(elements=ELEMENTS, rows=ROWS, size=SIZE):
    """Everything left of the products: few operations for each byte."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.randn(elements, device=device) for _ in range(2))
    matrix, vectors = torch.randn(rows, size, device=device), torch.randn(size, 16, device=device)
    column = vectors[:, 0].contiguous()
    return {
        "dot": lambda: torch.dot(x, y),
        "layer norm": lambda: torch.nn.functional.layer_norm(matrix, (size,)),
        "matvec": lambda: matrix @ column,
        "thin": lambda: matrix @ vectors,
    }


# %%
def copied(elements=ELEMENTS):
    import torch

    source = torch.ones(elements, device="cuda" if torch.cuda.is_available() else "cpu")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def wider_product(dtype, size=WIDER):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    return lambda: a @ b


def in_tf32(work):
    """The same work, with TF32 allowed while it runs."""
    import torch

    def allowed():
        torch.set_float32_matmul_precision("high")
        work()
        torch.set_float32_matmul_precision("highest")

    return allowed


# %%
def streams():
    """Three ways to move memory: a copy, a triad and a sum, each as GB/s of what it must move."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b, c = (torch.ones(STREAM, device=device) for _ in range(3))
    return {
        "limit of memory, copy": lambda: c.copy_(a),
        "limit of memory, triad": lambda: torch.add(a, b, alpha=2.0, out=c),
        "limit of memory, sum": lambda: a.sum(),
    }


def products():
    """Products of five other sizes, in every format."""
    works = {}
    for n in SIDES:
        works[f"limit of fp32, n = {n}"] = wider_product("float32", n)
        works[f"limit of bf16, n = {n}"] = wider_product("bfloat16", n)
        if ON_GPU:
            works[f"limit of TF32, n = {n}"] = in_tf32(works[f"limit of fp32, n = {n}"])
    return works


def limits():
    works = {"limit of memory": copied()}
    works |= {"limit of fp32": wider_product("float32"), "limit of bf16": wider_product("bfloat16")}
    return works | ({"limit of TF32": in_tf32(wider_product("float32"))} if ON_GPU else {})


def roof_times():
    """All in one child and in turns."""
    works = {"axpy": axpy(), **light_work(), "matmul": matmul(dtype="float32")}
    works["matmul, bf16"] = matmul(dtype="bfloat16")
    if ON_GPU:
        works["matmul, TF32"] = in_tf32(matmul(dtype="float32"))
    return labkit.in_turns(works | streams() | products(), min(20, labkit.rounds()))


MOVED = {"copy": 8 * STREAM, "triad": 12 * STREAM, "sum": 4 * STREAM}
FORMATS = {"fp32": "float32", "bf16": "bfloat16"} | ({"TF32": "tf32"} if ON_GPU else {})
SQUARE = {f"limit of {name}, n = {n}": labkit.exercises.roofline.matmul(n, n, n, dtype) for name, dtype in FORMATS.items() for n in SIDES}
INTENSITY = {label: work.intensity for label, work in (KINDS | SQUARE).items()}
COUNTED = {label: work.flops for label, work in (KINDS | SQUARE).items()}
for way, moved in MOVED.items():
    INTENSITY[f"limit of memory, {way}"] = KINDS["axpy"].intensity
    COUNTED[f"limit of memory, {way}"] = moved * KINDS["axpy"].intensity


def giga_per_s(record):
    return COUNTED[record.setting["label"]] / record.median_s / 1e9


# %% [markdown]
# **Predict:** from the first point (axpy) to the last (matmul), that is from left to right on the axis of intensity,
# will the rate rise, stay flat, or fall overall?

# %%
beside = {label: "the limits, from other work" for label in COUNTED if label.startswith("limit of ")}
roof_steps = labkit.steps.together(roof_times, INTENSITY, value=giga_per_s, seconds=12, series=beside)
roof = labkit.experiment("T-4", roof_steps)

# %% [markdown]
# With your `attainable` you see how near each kind of work came to what is possible here in its own format.
# The *ridge* is where the slant meets a roof: work to its left waits for memory.

# %%
def against_the_roof(points):
    values = {point.label: point.value for point in points}
    if len(values) < len(COUNTED) or not roof_verdict.right:
        print("measure all of T-4 first, and write attainable")
        return
    best = lambda of: max(rate for label, rate in values.items() if label.startswith(f"limit of {of}"))
    widest = best("memory") / INTENSITY["axpy"]
    for name in FORMATS:
        print(f"limit of {name}: {best(name):.0f} GFLOP/s; with {widest:.1f} GB/s the ridge is at {best(name) / widest:.1f} FLOP/byte")
    for label, work in KINDS.items():
        share = values[label] / attainable(INTENSITY[label], best(label.partition(", ")[2] or "fp32"), widest)
        cached = work.moved_bytes < 2**20 * (place.devices[0].l2_mib or 0)
        beyond = ": it fits the L2 cache, so the memory is no limit of it" if cached else ", above your roof" if share > 1.05 else ""
        print(f"{label}: {share:.0%} of what is possible here{beyond}")


await roof.report(against_the_roof)

# %% [markdown]
# A published figure of the test tool gpu-burn, 81.5 TFLOP/s with "-tc" (tensor cores), looks like an A100's 16-bit
# peak. Your ratios show whether it can be one.

# %%
def formats(points):
    rate = {point.label: point.value for point in points}
    for name in ("bf16", "TF32"):
        if f"matmul, {name}" in rate:
            print(f"{name} over fp32, n = {SIZE}: {rate[f'matmul, {name}'] / rate['matmul']:.2f} times the rate")
    print("" if ON_GPU else "TF32 is a format of GPUs: not applicable here. A CPU without bf16 units is slower in bf16.")


formats(roof.evidence.points)
print(labkit.published.corrections("E7"))
labkit.cite("habr")

# %% [markdown]
# **Explain:** which of these would a slice with twice the SMs and the same memory speed up?

# %% [markdown]
# ## Exercise 3: where the time goes
#
# PyTorch's profiler notes when each operation of a step began and ended. A *span* is `(lane, name, begun, ended)`, in
# ms from the start of the step; the step ends with its last span. A lane holds things that can go on at the same time
# as those of other lanes: `"operators"` that Python calls, `"launches"` of kernels, and `"GPU kernels"`. Operators
# call other operators, so spans of one lane may lie inside one another or overlap, and they come in any order.
#
# Write `busy_share`: for what share of the whole step, from 0 to 1, did at least one operation of a lane run?

# %%
def busy_share(spans, lane):
    # <solution>
    busy = covered = 0.0
    for kind, _, begin, end in sorted(spans, key=lambda span: span[2]):
        if kind == lane:
            busy += max(0.0, end - max(begin, covered))
            covered = max(covered, end)
    return busy / max(end for *_, end in spans)
    # </solution>
    # <student>
    # return None  # your lines here: about six
    # </student>


busy_verdict = labkit.exercises.check_busy_share(busy_share)
print(busy_verdict)

# %% [markdown]
# ## T-6: a step of yours, on a timeline
#
# A training step of four layers, with a small batch and with a big one. It is a stand-in: put a step of your own here.

# %%
LAYER = 1024 if ON_GPU else 128


def my_step(batch):
    import torch

    torch.set_num_threads(1)
    network, device = labkit.exercises.networks.mlp(LAYER, 4)
    optimizer, x = torch.optim.Adam(network.parameters()), torch.randn(batch, LAYER, device=device)

    def step():
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()

    return step


# %% [markdown]
# The GPU's kernels do the computing (on a CPU: the operators). For the rest of the step, nothing computes: kernels
# are being launched, or Python and the profiler itself are at work. (In notebook 4, messages between ranks get a lane.)
#
# **Predict:** with the small batch, during what percentage of the step does anything compute?

# %%
COMPUTES = "GPU kernels" if ON_GPU else "operators"
STEPS = {"small batch": 8, "big batch": 16384 if ON_GPU else 4096}


def merge_launches(spans):
    """The same spans, with launches in the lane of what computes."""
    return [(COMPUTES if lane == "launches" else lane, *name_and_times) for lane, *name_and_times in spans]


def where_it_goes(batches, traces):
    """For every batch its median trace, and the busy share of every trace."""
    facts_by_batch = {}
    for name, batch in batches.items():
        step = my_step(batch)
        runs = [labkit.spans_of(step, inner=True) for _ in range(traces)]
        spans = sorted(runs, key=computes_in)[len(runs) // 2]
        busy, computes = (100 * busy_share(run, COMPUTES) for run in (merge_launches(spans), spans))
        parts = {"computes": computes, "only launches": busy - computes, "neither": 100 - busy}
        facts_by_batch[name] = parts | {"spans": spans, "shares": [computes_in(run) for run in runs]}
    return facts_by_batch


def computes_in(spans):
    return busy_share(spans, COMPUTES)


traces = labkit.steps.together(where_it_goes, tuple(STEPS), value="computes", batches=STEPS, traces=20)
goes = labkit.experiment("T-6", traces)

# %%
await goes.report(needs=busy_verdict)

# %% [markdown]
# The same two steps as timelines. Run the two cells again once you have measured; point at a box to see its operation and time.

# %%
def timeline_of(name):
    spans_by_label = {point.label: point.records[0].setting["spans"] for point in goes.evidence.points if point.records}
    return labkit.timeline(spans_by_label[name], f"One step, {name}") if name in spans_by_label else "measure T-6 first"


timeline_of("small batch")

# %%
timeline_of("big batch")

# %% [markdown]
# **Explain:** would a slice with twice the SMs make the small batch's step faster? What would?
#
# ## What the published figures say
#
# CERN prints the memory bandwidth of an A100's slices; the sources are named below.
# A 1g.5gb has a seventh of the SMs of 7g.40gb and an eighth of its bandwidth.
# Does an SM of a small slice get more bandwidth, or less?

# %%
for part in ("7g", "3g", "2g", "1g"):
    published_gbs = labkit.published.figure(f"cern5.bandwidth.{part}")
    print(f"{part}: {published_gbs.value:6.1f} GB/s, {published_gbs.per_sm:.1f} GB/s per SM  ({published_gbs.label})")

# %% [markdown]
# And a trap: three sources give three numbers for "the" 16-bit rate of a whole A100. They do not contradict each
# other; they measured different work with different tools. (Known mistakes in published articles have a number in
# this lab, such as E7.) That is why this lab compares ratios and rates per SM, and names tool, size and type.

# %%
trap = labkit.published.known_errors()["E8"]
print(trap.says, trap.correct, f"Ask yourself: {trap.exercise}", sep="\n\n")
labkit.cite("cern5", "habr")

# %% [markdown]
# ## Summary
#
# The summary is filled in from your own evidence and says what is missing. Which of these numbers would you show to
# somebody else, and what would you say about them? And could you check the colleague's claim that the cell prints?
# (Each student gets a different claim.)

# %%
print(f"my_timer: {timer_verdict}\nattainable: {roof_verdict}\nbusy_share: {busy_verdict}")
my_numbers = labkit.drawn("1", percent=(1, 2, 4, 8, 15), runs=(3, 5, 20))
print(f"A colleague: “My change makes the step {my_numbers['percent']} % faster: the mean of {my_numbers['runs']} runs.”")
labkit.summary("T-1", "T-2", "T-3", "T-4", "T-6")

# %% [markdown]
# ## Optional: small work on a big device
#
# **Predict** whether the rate rises, stays flat or falls with the size.

# %%
SIZES = (512, 1024, 4096, 8192) if ON_GPU else (32, 64, 128, 256, 512)


def rate(record):
    return record.tflops * 1e3


def sized(n):
    return labkit.steps.timed_step(str(n), n, matmul, value=rate, seconds=4, flops=2 * n**3, size=n)


small = labkit.experiment("T-5", *map(sized, SIZES))

# %%
await small.report()

# %% [markdown]
# ## Optional: T-7, the roofs of a part beside the whole's
#
# This is the smallest part of what you hold: some of its SMs, in a green context (on a CPU: some of its threads).
# It is not a slice: it has SMs of its own but shares the memory. In a slice, the slant falls together with the roof,
# so in CERN's figures the ridge stays near 10 FLOP/byte; their bandwidth is that of the data sheet, not a measured one.
# **Predict:** at how many FLOP/byte is the part's ridge in fp32?

# %%
PARTS = labkit.parts.parts_of(place)
CUTS = {f"{cut} of {PARTS.whole} {PARTS.unit}": cut for cut in PARTS.sizes[:1]} | {f"all {PARTS.whole} {PARTS.unit}": None}


def roofs_of_parts():
    return labkit.in_turns(
        {f"{name}, {part_name}": labkit.parts.confined(work, cut) for part_name, cut in CUTS.items() for name, work in limits().items()},
        labkit.rounds(),
    )


AT = {name: work.intensity for name, work in LIMITS.items()} | {"limit of memory": KINDS["axpy"].intensity}
FLOPS = {name: work.flops for name, work in LIMITS.items()} | {"limit of memory": 8 * ELEMENTS * AT["limit of memory"]}


def limit_rate(record):
    return FLOPS[record.setting["label"].rpartition(", ")[0]] / record.median_s / 1e9


# %%
both = {f"{name}, {part_name}": AT[name] for part_name in CUTS for name in ("limit of memory", *LIMITS)}
held_by = {label: label.rpartition(", ")[2] for label in both}
roofs = labkit.experiment("T-7", labkit.steps.together(roofs_of_parts, both, value=limit_rate, series=held_by))

# %%
await roofs.report()
for cut in ("7g", "3g", "2g", "1g"):
    tflops, gb_s = (labkit.published.figure(f"cern5.{kind}.{cut}").value for kind in ("flops.fp32", "bandwidth"))
    print(f"CERN, a slice of {cut}: {tflops} TFLOP/s in fp32, {gb_s} GB/s, ridge at {1e3 * tflops / gb_s:.1f} FLOP/byte")

# %% [markdown]
# ## Optional: a warm cache
#
# labkit empties the L2 cache before each call on a GPU. Without that, small data is found in the cache
# and looks faster than it is in a real program. (On a CPU nothing is emptied and both agree.)

# %%
if not labkit.is_measured_here():
    print("optional: LAB_OPTIONAL=1 measures it as well")
else:
    elements = int((place.devices[0].l2_mib or 16) * 2**16)  # two vectors then take half of the L2 cache
    for cold in (True, False):
        axpy_time = labkit.measure(axpy, elements=elements, cold=cold, moved_bytes=12 * elements)
        print(f"{'cold' if axpy_time.cold else 'warm'} cache: {axpy_time.gbytes_per_s:.0f} GB/s")

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("1_your_slice")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
