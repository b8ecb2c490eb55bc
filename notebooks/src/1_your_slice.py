# %% [markdown]
# # 1. Your slice
#
# Afterwards you can decide whether a number measured on your slice is worth believing.
# You look at what you hold, write a timer that lies and one that does not,
# find out how small a difference this machine can show today,
# and draw the roof that no program of yours can rise above.
#
# Each experiment asks for your prediction first.
# Predicting, even wrongly, is what makes the result stay with you.

# %% [markdown]
# ## What you hold
#
# The card shows what the pool leased to you and, apart from it, the device that is really measured.
# Everything is measured in a *child process* that is gone afterwards, with its memory.
# This notebook itself never touches the GPU.

# %%
import labkit
from labkit.card import card

place = labkit.where()
card(place)

# %% [markdown]
# Sizes follow from what you hold.
# On a CPU they are scaled down, and every plot says that it is not a GPU.

# %%
on_gpu = place.devices[0].backend == "cuda"
SIZE = 4096 if on_gpu else 256
DTYPE = "bfloat16" if on_gpu else "float32"
ELEMENTS = 1 << (26 if on_gpu else 22)
print(f"matrices of {SIZE} x {SIZE}, {DTYPE}{'' if on_gpu else ' (scaled down for a CPU)'}")

# %% [markdown]
# ## What is timed
#
# A function that *returns a function*: the outer one prepares, only the inner one is timed.

# %%
def matmul(size=SIZE, dtype=DTYPE):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))

    def work():
        return a @ b

    return work


record = labkit.measure(matmul, flops=2 * SIZE**3)
print(record)

# %% [markdown]
# ## Exercise: your own timer
#
# A call on a GPU returns long before the GPU is done: it only puts work into a queue.
# An unsynchronised timer reads 9 to 110 times too fast on big matrices.
# Write `my_timer`: it runs `work` several times and returns the seconds of each call, truly waited for.
# `wait` waits for the device (on a CPU there is nothing to wait for).

# %%
import time


def my_timer(work, wait, rounds=20):
    seconds = []
    ### BEGIN SOLUTION
    for _ in range(5):
        work()
    for _ in range(rounds):
        wait()
        begun = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - begun)
    ### END SOLUTION
    return seconds

# %% [markdown]
# Both timers run in the same child, in turns, on the same work.
# The claim has two sides: a timer that is too fast is as wrong as one that is too slow.

# %%
def both_timers(size=SIZE):
    import torch
    from labkit.timing import make_clock, timing_loop

    work, own, labs = matmul(size), [], []
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    clock = make_clock(torch, l2_bytes=0, cold=False)
    for _ in range(20):
        own += my_timer(work, wait, 1)[-1:]
        for turns in timing_loop({"work": work}, range(1), clock):
            labs += [turn.seconds for turn in turns]
    return {"own": own, "labkit": labs}


# %%
from labkit.checks import CHECKS

times = labkit.ranks(both_timers, n=1).values[0]
judged = CHECKS["T-3"].judge(times, place.tier) if times["own"] else "write my_timer first"
print(judged)

# %% [markdown]
# ## How small a difference can this machine show?
#
# The same function against itself: the true ratio is 1.
# If even that is uncertain by more than 5 %, nothing subtler can be measured here now,
# and it is the neighbours, the clock or the CPU quota that speak.
# Predict the ratio, run, and look at the interval rather than at the dot.

# %%
from labkit.experiment import Experiment, compared_step, timed_step
from labkit.panel import Panel

noise = Panel(
    Experiment(
        key="T-1",
        title="The same function against itself",
        question="What ratio of times do you expect?",
        steps=(compared_step("itself", 1.0, matmul, matmul, band=(0.95, 1.05), seconds=6),),
        x_label="comparison",
        y_label="time over time",
        unit="x",
        check="T-1",
        data=lambda points: dict(
            zip(("first", "second"), (r.samples_s for r in points[0].records), strict=True)
        ),
    )
)
noise

# %%
evidence = await noise.settle()
print(noise.runner.message)

# %% [markdown]
# ## The roof over everything you run
#
# Work is limited by arithmetic or by memory.
# Its *intensity* (operations per byte) says by which.
# Four kinds of work, from left to right on the axis: will the rate rise, stay, or fall?
# FLOPs and bytes are counted from the algorithm, not read from a counter: slices share those.

# %%
def axpy(elements=ELEMENTS):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = (torch.randn(elements, device=device) for _ in range(2))
    return lambda: torch.add(y, x, alpha=2.0, out=y)


def matvec(size=SIZE):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix, vector = torch.randn(4 * size, size, device=device), torch.randn(size, device=device)
    return lambda: matrix @ vector


# %%
from labkit import roofline


def roof_step(label, function, work, **given):
    options = {"flops": work.flops, "moved_bytes": work.moved_bytes, "samples": 15}
    rate = lambda record: record.tflops * 1e3
    return timed_step(label, work.intensity, function, value=rate, seconds=4, options=options, **given)


steps = (
    roof_step("axpy", axpy, roofline.axpy(ELEMENTS), elements=ELEMENTS),
    roof_step("matvec", matvec, roofline.matvec(4 * SIZE, SIZE), size=SIZE),
    roof_step("matmul", matmul, roofline.matmul(SIZE, SIZE, SIZE, DTYPE), size=SIZE),
)

# %%
roof = Panel(
    Experiment(
        key="T-4",
        title="Rate against intensity",
        question="From left to right: does the rate rise, stay flat, or fall?",
        steps=steps,
        x_label="operations per byte",
        y_label="GFLOP/s",
        log_x=True,
        log_y=True,
    )
)
roof

# %%
evidence = await roof.settle()
print(roof.runner.message)

# %% [markdown]
# ## What the published figures say
#
# An A100's memory moves 1555 GB/s, a 1g.5gb slice an eighth of it.
# Its SMs are a seventh of 98, so a slice has *less bandwidth per SM* than you may expect, or more?
# Work it out from the figures, each with its source.

# %%
from labkit import published

for part in ("7g", "1g"):
    bandwidth = published.figure(f"cern5.bandwidth.{part}")
    print(f"{part}: {bandwidth.value} GB/s, {bandwidth.per_sm:.1f} GB/s per SM ({bandwidth.label})")

# %% [markdown]
# ## Your summary
#
# Filled in from your own evidence; what is missing says so.

# %%
from labkit.panel import evidence_or_hint

for key in ("T-1", "T-4"):
    found = evidence_or_hint(key)
    if isinstance(found, str):
        print(found)
        continue
    for point in found.points:
        print(f"{key} {point.label}: {point.value:.3g} {found.unit} on {found.place}")
