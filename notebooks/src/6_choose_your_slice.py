# %% [markdown]
# # 6. Choose your slice
#
# **Afterwards you can decide** which shape to ask for, before you ask: from a few measured steps you
# predict a job's time, memory and *slice-hours* on every shape, choose, and defend the choice.
#
# A slice-hour is one seventh of a GPU for one hour. It is what you take away from your classmates.
# About 70 minutes; the sections after the summary are optional.

# %%
import labkit
from labkit.notebook.card import card
from labkit.machine.parts import confined, parts_of

place = labkit.where()
parts = parts_of(place)
card(place)

# %% [markdown]
# ## The job
#
# A small transformer shall be trained for so many steps, and the result is due.
# Change the numbers to those of a job of your own; read the step with `transformer_step??`.

# %%
from labkit.exercises.networks import transformer_step

HELD = place.devices[0]
ON_GPU = HELD.backend == "cuda"
STEPS, DUE_H = 400_000, 3.0
MODEL = {"width": 768, "layers": 6, "length": 128} if ON_GPU else {"width": 64, "layers": 1, "length": 32}
ROOMY = ON_GPU and HELD.memory_mib > 20_000 and not HELD.emulated
BATCH, BATCHES = (64, (16, 64, 256)) if ROOMY else (16, (4, 16, 32)) if ON_GPU else (8, (2, 8, 32))
print(f"{STEPS:,} steps of {BATCH}, due in {DUE_H:g} h{'' if ON_GPU else ' (scaled down for a CPU)'}")


# %%
def train(batch, model=MODEL):
    return transformer_step(batch, **model)


# %% [markdown]
# ## CH-1: the step, on parts of what you hold
#
# One child runs the step on every part in turns: parts of your SMs, or threads on a CPU.
# Predict: with more SMs, will SMs × time rise, stay flat, or fall? (The plot shows the time.)

# %%
SPOTS = {f"{size} {parts.unit}": size for size in (*parts.sizes, parts.whole)}


def sweep(batch=BATCH):
    from labkit.notebook.steps import in_turns, rounds

    whole = parts.whole
    works = {label: confined(train(batch), None if size == whole else size) for label, size in SPOTS.items()}
    return in_turns(works, rounds())


# %%
from labkit.panel.experiment import Experiment
from labkit.panel.panel import Panel
from labkit.notebook.steps import together


def by_sms(points):
    """SMs (or threads) times seconds, on all and on the smallest part, where there is one."""
    costs = [[point.x * seconds for seconds in point.records[0].samples_s] for point in points]
    return {"all: SMs x time": costs[-1] if len(costs) > 1 else (), "a part: SMs x time": costs[0]}


times = Panel(
    Experiment(
        key="CH-1",
        title=f"A step of {BATCH}, by {parts.unit}",
        question=f"How long does a step take on all {parts.whole} {parts.unit}?",
        steps=together(sweep, SPOTS, value=lambda record: record.median_s * 1e3, seconds=12),
        x_label=parts.unit,
        gpu_x_label="SMs",  # also of a recorded run shown on a CPU
        y_label="ms",
        unit="ms",
        check="CH-1",
        data=by_sms,
    )
)
times

# %%
evidence = await times.settle()
print(times.runner.message)

# %% [markdown]
# ## Exercise 1: what shrinks and what does not
#
# Amdahl's law in one line: T(s) = a + b / s. The part b is divided by the SMs, the part a never shrinks.
# Write `split_time`: from the times on two sizes, find a and b.

# %%
def split_time(small, time_small, big, time_big):
    # <solution>
    b = (time_small - time_big) / (1 / small - 1 / big)
    return time_big - b / big, b
    # </solution>
    # <student>
    # return None  # your two lines here: b first, then a
    # </student>


def check_split(cases=((1, 12.0, 4, 6.0, 4.0, 8.0), (14, 3.0, 98, 3.0, 3.0, 0.0), (2, 5.0, 10, 1.0, 0.0, 10.0))):
    for *given, a, b in cases:
        said = split_time(*given)
        if said is None:
            return "write split_time first"
        if not (abs(said[0] - a) <= 1e-9 and abs(said[1] - b) <= 1e-9):
            return f"not yet right: split_time{tuple(given)} is ({a:g}, {b:g}), you say {tuple(said)}"
    return "right"


split_verdict = check_split()
print(split_verdict)

# %% [markdown]
# The law is only worth something if it predicts a point it has not seen:
# fitted on the smallest and the whole, what does it say of the sizes between?

# %%
WHY_NOT = "measure CH-1 first (a recorded run is not yours), and write split_time"


def own(panel):
    """What was measured here; nothing while a recorded run is shown."""
    return () if panel.evidence.replayed_from else panel.evidence.points


def fitted():
    """a and b in milliseconds from the smallest part and the whole, or why there are none yet."""
    points = own(times)
    if split_verdict != "right" or len(points) < len(SPOTS):
        return WHY_NOT
    first, last = points[0], points[-1]
    if first.value <= last.value:
        return f"all of it is no faster than a part: this job or this machine gains nothing from {parts.unit}"
    a, b = split_time(first.x, first.value, last.x, last.value)
    return max(a, 0.0), b


found = fitted()
if isinstance(found, str):
    print(found)
else:
    a, b = found
    print(f"T(s) = {a:.3g} ms + {b:.3g} ms / s")
    for point in times.evidence.points[1:-1]:
        said = a + b / point.x
        print(f"{point.label}: predicted {said:.3g} ms, measured {point.value:.3g} ms ({said / point.value - 1:+.0%})")
    if len(times.evidence.points) == 2:
        print("two sizes only: nothing is left to test the law with, so treat it as a guess")

# %% [markdown]
# **Explain:** an a below zero, or one near the whole time: what would either mean?
#
# ## CH-2: what the job needs in memory
#
# A shape that is too small in memory is not slow, it is impossible.
# Predict the peak at the largest batch, in MiB. (On a CPU it is the process's memory, torch included.)

# %%
def memory(batches=BATCHES):
    import torch
    from labkit.run.tasks import peak_rss_mib

    found = {}
    for batch in batches:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        step = train(batch)
        for _ in range(2):
            step()
        on_gpu = torch.cuda.is_available()
        mib = torch.cuda.max_memory_reserved() / 2**20 if on_gpu else peak_rss_mib()
        found[f"batch {batch}"] = {"mib": mib}
    return found


# %%
def growth(points):
    more = points[-1].value / points[0].value
    batches = points[-1].x / points[0].x
    names = ("memory, biggest over smallest batch", "memory a sample, biggest over smallest batch")
    return dict(zip(names, ([more], [more / batches])))


peaks = Panel(
    Experiment(
        key="CH-2",
        title="Peak memory by batch",
        question=f"How much at batch {BATCHES[-1]}?",
        steps=together(
            memory, {f"batch {batch}": batch for batch in BATCHES}, value=lambda record: record.setting["mib"], seconds=8
        ),
        x_label="batch",
        y_label="MiB",
        unit="MiB",
        check="CH-2",
        data=growth,
    )
)
peaks

# %%
evidence = await peaks.settle()
print(peaks.runner.message)

# %% [markdown]
# ## Every shape's time, memory and slice-hours
#
# Your law is carried over to the slices of an A100 by their SMs.
# If you hold an A100's slice, s counts the same SMs. Otherwise the whole of what you hold plays a
# 7g.40gb: the ratios carry over, the hours are those of *your* device. Both are predictions.

# %%
from labkit.exercises.packing import A100

CONTEXT_MIB = 500  # a process's own share of the GPU's memory, before its first tensor
IS_A100 = "A100" in HELD.name


def shape_row(profile, a, b, need_mib):
    size = profile.sms if IS_A100 else profile.sms / 98 * parts.whole
    hours = (a + b / size) * STEPS / 3.6e6
    fits = need_mib + CONTEXT_MIB <= profile.gib * 1024
    return {"shape": profile.name, "hours": hours, "slice_hours": hours * profile.compute, "fits": fits}


def table():
    law, points = fitted(), own(peaks)
    need = next((point.value for point in points if point.x == BATCH), None)
    if isinstance(law, str) or need is None:
        return []
    return [shape_row(profile, *law, need) for profile in A100.values()]


rows = table()
for row in rows:
    room = "fits" if row["fits"] else "TOO SMALL in memory"
    print(f"{row['shape']:8} {row['hours']:7.2f} h {row['slice_hours']:7.2f} slice-hours, {room}")
if not rows:
    print(found if isinstance(found, str) else "measure CH-2 first (a recorded run is not yours)")

# %% [markdown]
# ## Exercise 2: choose
#
# Write `choose`: of the rows that fit and are ready in time, the name of the one with the fewest
# slice-hours; the word `"none"` if there is none.

# %%
def choose(rows, due_h):
    # <solution>
    able = [row for row in rows if row["fits"] and row["hours"] <= due_h]
    return min(able, key=lambda row: row["slice_hours"])["shape"] if able else "none"
    # </solution>
    # <student>
    # return None  # your lines here: about two
    # </student>


def made_up(*columns):
    names = ("shape", "hours", "slice_hours", "fits")
    return [dict(zip(names, column, strict=True)) for column in columns]


CASES = (
    (made_up(("small", 9, 9, True), ("big", 2, 14, True)), 10, "small"),
    (made_up(("small", 9, 9, True), ("big", 2, 14, True)), 8, "big"),
    (made_up(("small", 1, 1, False), ("middle", 3, 6, True), ("big", 2, 14, True)), 8, "middle"),
    (made_up(("small", 9, 9, True)), 8, "none"),
)


def check_choose():
    for given, due_h, truth in CASES:
        said = choose(given, due_h)
        if said is None:
            return "write choose first"
        if said != truth:
            return f"not yet right: due in {due_h} h, of {given} you choose {said!r}; right is {truth!r}"
    return "right"


choose_verdict = check_choose()
print(choose_verdict)

# %%
if rows and choose_verdict == "right":
    print(f"due in {DUE_H:g} h: {choose(rows, DUE_H)}")
    for due_h in (DUE_H / 8, DUE_H * 8):
        print(f"if it were due in {due_h:g} h: {choose(rows, due_h)}")
else:
    print("no table to choose from yet" if not rows else "write choose first")

# %% [markdown]
# ## CH-3: is the choice sensitive?
#
# A choice that flips when a measured time is 10 % off is no choice.
# Predict: with growing batch, will the time *per sample* on the whole rise, stay flat, or fall?

# %%
def batches(sizes=BATCHES):
    from labkit.notebook.steps import in_turns, rounds

    return in_turns({f"batch {batch}": train(batch) for batch in sizes}, rounds())


def samples_of(point):
    return [seconds / point.x for seconds in point.records[0].samples_s]


per_sample = Panel(
    Experiment(
        key="CH-3",
        title="Time per sample, by batch",
        question="With growing batch: does the time per sample rise, stay flat, or fall?",
        steps=together(
            batches,
            {f"batch {batch}": batch for batch in BATCHES},
            value=lambda record: record.median_s * 1e3 / int(record.setting["label"].split()[1]),
            seconds=12,
        ),
        x_label="batch",
        y_label="ms per sample",
        check="CH-3",
        data=lambda points: {
            "biggest batch, a sample": samples_of(points[-1]),
            "smallest batch, a sample": samples_of(points[0]),
        },
        log_x=True,
    )
)
per_sample

# %%
evidence = await per_sample.settle()
print(per_sample.runner.message)

# %%
def shifted(factor):
    return choose([row | {"hours": row["hours"] * factor, "slice_hours": row["slice_hours"] * factor} for row in rows], DUE_H)


if rows and choose_verdict == "right":
    answers = {factor: shifted(factor) for factor in (0.9, 1.0, 1.1)}
    same = len(set(answers.values())) == 1
    print(f"{answers}: {'the choice stands' if same else 'the choice hangs on the noise: say so'}")
else:
    print("no choice to shift yet: measure first")

# %% [markdown]
# ## What the published figures say
#
# CERN trained the same model on pairs of slices. In hours the big one wins; in slice-hours?
# The rows marked E1 and E2 are known to be wrong, so they are left out here. What tells you that they are?

# %%
from labkit.evidence import published

for big, small in (("7g", "3g"), ("4g", "2g"), ("2g", "1g")):
    pair = [published.figure(f"cern5.train.{big}-{small}.10k.{name}") for name in (big, small)]
    costs = [figure.value * int(name[0]) / 3600 for figure, name in zip(pair, (big, small), strict=True)]
    print(f"{big}: {pair[0].value:6.0f} s = {costs[0]:.2f} slice-hours   {small}: {pair[1].value:6.0f} s = {costs[1]:.2f}")

# %% [markdown]
# The smaller slice is cheaper in every pair. So is "always ask for 1g.5gb" the right rule?
# Think of memory, of the deadline, of what is queued behind you, and of a job that fills every SM:
# then slice-hours are equal and the big slice is simply sooner.

# %% [markdown]
# ## Summary: your choice and its defence
#
# Write the defence into the explanation of CH-1: the shape, the three numbers, the row that speaks
# against it, and what you would measure if you had an hour more.

# %%
from labkit.notebook.summary import recorded_note, summary

print(f"split_time: {split_verdict}\nchoose: {choose_verdict}")
print(f"due in {DUE_H:g} h: {choose(rows, DUE_H) if rows and choose_verdict == 'right' else 'not chosen yet'}")
print("" if ON_GPU else recorded_note("CH-1", "CH-2", "CH-3"))
summary("CH-1", "CH-2", "CH-3")

# %% [markdown]
# ## Optional: two slices instead of one big one
#
# Data parallelism over two slices: what did you find in notebook 4? Its evidence is read here.

# %%
from labkit.panel.panel import evidence_or_hint

dp = evidence_or_hint("DP-3")
if isinstance(dp, str):
    print(f"{dp} (notebook 4)")
else:
    for point in dp.points:
        print(f"{point.label}: {point.value:.3g} {dp.unit} on {dp.place}")

# %% [markdown]
# ## Optional: when the job does not fit
#
# What runs out first on a small slice is memory. This runs until it does, in a child that is then gone.
# On a MIG slice the error is not torch's own; labkit says in both forms what it means.

# %%
from labkit.errors import OutOfMemory


def too_much(batch):
    import torch

    if not torch.cuda.is_available():
        return "a CPU swaps or kills instead: not tried"
    train(batch)()
    return f"batch {batch} fits"


from labkit.panel.runner import nobody_is_there
from labkit.notebook.steps import wants_optional

for batch in () if nobody_is_there() and not wants_optional() else (64, 1 << 16):
    try:
        print(labkit.ranks(too_much, n=1, batch=batch).values[0])
    except OutOfMemory as full:
        print(f"batch {batch}: {full}")

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# with a link to download it, and says what would not count as yours.
#
# To start this notebook over, run `labkit.fresh_copy("6_choose_your_slice")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
