# %% [markdown]
# # 6. Choose your slice
#
# **Afterwards you can decide** which shape to ask for, before you ask. You will be able to
#
# - divide a step's time into what shrinks with the SMs, what shrinks with the memory, and what does not shrink;
# - predict a job's time, memory and *price* on every shape from a few measured steps;
# - choose a shape, and say how sensitive the choice is;
# - defend it against a row that speaks against it.
#
# What a shape takes away from your classmates is counted as on the lab's Usage page: in *slice-hours*, hours times
# memory slices, of which an A100 has eight. A 1g.5gb takes one, a 3g.20gb four. But your own time has a price, too:
# you wait in the queue, longer for a big shape than for a small one, and then for the job.
# About 65 minutes; the sections after the summary are optional.

# %% [markdown]
# ## The job
#
# A small transformer is to be trained. How many hours a whole A100 (a 7g.40gb) would need for it, the deadline, what an
# hour of yours is worth, and how long the queue is for each shape: all of it is drawn for you, and decides which shape
# you should ask for. Change the numbers to those of a job of your own afterwards; read the step with
# `labkit.exercises.networks.transformer_step??`.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
parts = labkit.parts.parts_of(place)
HELD = place.devices[0]
ON_GPU = place.is_gpu
JOB = labkit.drawn("6", **labkit.exercises.capstone.CHOICES)
FULL_H, DUE_H = JOB["full_h"], JOB["full_h"] * JOB["times_due"]
AN_HOUR = JOB["an_hour"]  # slice-hours: what an hour earlier is worth to you
WAIT_H = labkit.exercises.capstone.waits_h(JOB["queue"])
MODEL = {"width": 768, "layers": 6, "length": 128} if ON_GPU else {"width": 128, "layers": 2, "length": 64}
ROOMY = ON_GPU and HELD.memory_mib > 20_000 and not HELD.emulated
BATCH, BATCHES = (64, (16, 64, 256)) if ROOMY else (16, (4, 16, 32)) if ON_GPU else (16, (4, 16, 64))
print(f"steps of {BATCH}{'' if ON_GPU else ' (scaled down for a CPU)'}, as many as a 7g.40gb does in {FULL_H:g} h; due {DUE_H:g} h after the start")
print(f"an hour of yours is worth {AN_HOUR:g} slice-hours")
print(f"the queue: {JOB['queue']}: " + ", ".join(f"{name} {wait_h:g} h" for name, wait_h in WAIT_H.items()))
labkit.card(place)


# %%
def train(batch, model=MODEL):
    return labkit.exercises.networks.transformer_step(batch, **model)


# %% [markdown]
# ## CH-1: the step, on parts of what you hold
#
# One child process runs the step on every part in turns: parts of your SMs, or threads on a CPU.
# On a GPU the step is measured as a CUDA graph, which is the GPU's time alone, and once as Python launches it.
#
# **Predict** how long a step takes on all of your SMs, as the GPU's own time.

# %%
def ridge_of(points):
    """Operations per byte at which T-4's roof of the memory meets that of the format used here."""
    of = lambda name: (point for point in points if point.label.startswith(f"limit of {name}"))
    widest = max(point.value / point.x for point in of("memory"))
    return max(point.value for point in of("bf16" if ON_GPU else "fp32")) / widest


def ridge_here():
    """Yours from notebook 1, a recorded one, or at last the data sheet's of an A100."""
    evidence = labkit.evidence_of("T-4")
    run = labkit.recorded_run("T-4") if isinstance(evidence, str) and ON_GPU else evidence
    if run is None or isinstance(run, str) or run.stopped:
        return (312e12 / 1555e9, "an A100's data sheet") if ON_GPU else (20.0, "a guess: measure T-4 in notebook 1")
    return ridge_of(run.points), run.place.split(", tier")[0]


RIDGE, ridge_from = ridge_here()
print(f"the SMs limit what does more than {RIDGE:.3g} operations a byte; the memory, all else ({ridge_from})")

# %%
SPOTS = {parts.named(size): size for size in (*parts.sizes, parts.whole)}
BY_PYTHON = "launched by Python"


def sweep(ridge, batch=BATCH):
    """Seconds on every part, in turns, and the profile: how much of a step the SMs limit, how much the memory."""
    cuts = {label: None if size == parts.whole else size for label, size in SPOTS.items()}
    works = {label: labkit.parts.confined(train(batch), cut, graph=True) for label, cut in cuts.items()}
    step = train(batch)
    times = labkit.in_turns(works | ({BY_PYTHON: step} if ON_GPU else {}), labkit.rounds())
    return times | {"facts": labkit.profile_of(step, ridge) | {"ridge": ridge}}


# %%
ALL_SPOTS = SPOTS | ({BY_PYTHON: parts.whole} if ON_GPU else {})
on_sizes_steps = labkit.steps.together(sweep, ALL_SPOTS, seconds=12, series={BY_PYTHON: BY_PYTHON}, ridge=RIDGE)
times = labkit.experiment("CH-1", on_sizes_steps, batch=BATCH, unit=parts.unit, whole=parts.whole)

# %%
await times.report()

# %% [markdown]
# Think ahead: with more SMs, does SMs × time rise or fall? What would that say about big shapes?

# %% [markdown]
# ## Exercise 1: what shrinks and what does not
#
# Amdahl's law in one line: T(s) = a + b / s. The part b is divided by the SMs, the part a never shrinks. Here s is
# the number of SMs. Write `split_time`: from the times on two sizes, return `a, b`.

# %%
def split_time(small, time_small, big, time_big):
    # <solution>
    b = (time_small - time_big) / (1 / small - 1 / big)
    return time_big - b / big, b
    # </solution>
    # <student>
    # return None  # your two lines here: work out b, then a; return a, b
    # </student>


# %%
split_verdict = labkit.exercises.check_split_time(split_time)
print(split_verdict)

# %% [markdown]
# The law is only worth something if it predicts a point it has not seen:
# fitted to the smallest part and the whole, what does it say about the sizes between?

# %%
WHY_NOT = "measure CH-1 first (a recorded run is not yours), and write split_time"


def measured_points(panel):
    """The points measured here; none while a recorded run is shown."""
    return () if panel.evidence.replayed_from else panel.evidence.points


def on_sizes(points):
    """The points on the GPU's own time, smallest part first."""
    return [point for point in points if not point.series]


def fitted():
    """a and b in milliseconds from the smallest part and the whole, or why there are none yet."""
    points = on_sizes(measured_points(times))
    if not split_verdict.right or len(points) < len(SPOTS):
        return WHY_NOT
    first, last = points[0], points[-1]
    if first.value <= last.value:
        return f"all of it is no faster than a part: this job or this machine gains nothing from {parts.unit}"
    a, b = split_time(first.x, first.value, last.x, last.value)
    return max(a, 0.0), b


def print_law(_):
    law, points = fitted(), on_sizes(measured_points(times))
    if isinstance(law, str):
        print(law)
        return
    a, b = law
    print(f"T(s) = {a:.3g} ms + {b:.3g} ms / s, fitted to {points[0].label} and {points[-1].label}")
    for point in points[1:-1]:
        predicted_ms = a + b / point.x
        print(f"{point.label}: predicted {predicted_ms:.3g} ms, measured {point.value:.3g} ms ({predicted_ms / point.value - 1:+.0%})")
    if len(points) == 2:
        print("two sizes only: nothing is left to test the law with, so treat it as a guess")


await times.report(print_law, needs=split_verdict)

# %% [markdown]
# **Explain:** what would it mean if a were below zero, or nearly the whole time?
#
# ## CH-2: what the job needs in memory
#
# A shape with too little memory is not slow but impossible.
# Each batch is tried in a process of its own, because a process that has held more before keeps some of it.
# On a GPU, the least memory in which a step runs lies between the tensors' peak and what PyTorch's allocator took,
# which differs from run to run. The middle is drawn (on an H200 it was within 7 % of the least found by bisection).
# **Predict** how many MiB the largest batch needs. (On a CPU it is the process's memory, torch included.)

# %%
def memory(batch):
    import torch

    step = train(batch)
    for _ in range(2):
        step()
    if not torch.cuda.is_available():
        return {f"batch {batch}": {"mib": labkit.peak_rss_mib(), "context": 0.0}}
    free, total = torch.cuda.mem_get_info()
    tensors, reserved = torch.cuda.max_memory_allocated() / 2**20, torch.cuda.max_memory_reserved() / 2**20
    context = (total - free - torch.cuda.memory_reserved()) / 2**20
    facts = {"mib": (tensors + reserved) / 2, "tensors": tensors, "taken": reserved, "context": context}
    return {f"batch {batch}": facts}


# %%
alone = [labkit.steps.together(memory, {f"batch {batch}": batch}, value="mib", batch=batch) for batch in BATCHES]
peaks = labkit.experiment("CH-2", alone, largest=BATCHES[-1])

# %%
await peaks.report()

# %% [markdown]
# ## Exercise 2: a job on a shape
#
# Your a and b come from parts that all share one memory. A slice has only its own share of it, so a law for slices
# has a third term: T = a + b / SMs + c / memory slices. CH-1's trace of a step finds it: every operation's bytes and
# FLOPs are counted, and the ridge of your own roofs says which operations the memory limits. Their time on what you
# hold is the memory's part. The SMs' part is b over the SMs you hold; the rest, never below zero, is *fixed*.
#
# Write `job_hours`: it returns the hours that `steps` steps take. `profile` (the shape asked about) and `held` (what
# you measured on) have `.sms` and `.memory` (memory slices). `law` is a dict with the three parts of a step on what
# you hold, in milliseconds: `fixed`, `sm` and `memory`; and `python`, the time that launching a step takes. On
# another shape, the first part stays, the second grows as the SMs become fewer, the third as the memory slices do. No
# step is shorter than `python`.

# %%
def job_hours(profile, held, law, steps):
    # <solution>
    by_sms, by_memory = held.sms / profile.sms, held.memory / profile.memory
    step_ms = law["fixed"] + law["sm"] * by_sms + law["memory"] * by_memory
    return max(step_ms, law["python"]) * steps / 3.6e6
    # </solution>
    # <student>
    # return None  # your lines here: about three
    # </student>


# %%
hours_verdict = labkit.exercises.check_job_hours(job_hours)
print(hours_verdict)

# %% [markdown]
# ### What it costs
#
# The price has two parts: the slice-hours that the class cannot use, and your own time, from now until the job is done.
# You say what an hour earlier is worth to you, in slice-hours. Write `price`: of `hours` on a shape of `slices` memory
# slices, after `wait_h` hours in the queue, if an hour of yours is worth `an_hour` slice-hours.

# %%
def price(hours, slices, wait_h, an_hour):
    # <solution>
    return hours * slices + an_hour * (wait_h + hours)
    # </solution>
    # <student>
    # return None  # one line
    # </student>


# %%
price_verdict = labkit.exercises.check_price(price)
print(price_verdict)

# %% [markdown]
# ### A price that decides nothing
#
# Before you use a price, see whether it can choose at all. Say that your time is worth nothing. Then only the slices
# count, and there are two ways to count them: memory slices, or *sevenths* (seven times the share of the GPU that a
# shape takes, of its 98 SMs or of its 8 memory slices, whichever is larger). Write `step_price`: the milliseconds of
# a step, `fixed + sms_ms / SMs + memory_ms / memory slices`, times what the shape takes in that `unit`, which is
# `"memory slices"` or `"sevenths"`. The cell below then lets 2,000 random jobs choose.

# %%
def step_price(fixed, sms_ms, memory_ms, profile, unit):
    # <solution>
    took = fixed + sms_ms / profile.sms + memory_ms / profile.memory
    return took * (profile.memory if unit == "memory slices" else 7 * max(profile.sms / 98, profile.memory / 8))
    # </solution>
    # <student>
    # return None  # two lines
    # </student>


step_price_verdict = labkit.exercises.check_step_price(step_price)
print(step_price_verdict)

# %%
import random


def never_beaten(unit, fixed_range, jobs=2000):
    """The shapes that no other beats by more than rounding, for every one of the jobs."""
    luck, shapes = random.Random(0), set(labkit.exercises.packing.A100)
    for _ in range(jobs):
        job = (luck.uniform(*fixed_range), luck.uniform(1, 500), luck.uniform(1, 50))
        costs = {name: step_price(*job, profile, unit) for name, profile in labkit.exercises.packing.A100.items()}
        shapes &= {name for name, cost in costs.items() if cost <= 1.000001 * min(costs.values())}
    return ", ".join(sorted(shapes)) or "none: it depends on the job"


if step_price_verdict.right:
    for unit in ("memory slices", "sevenths"):
        print(f"in {unit}: without a fixed part {never_beaten(unit, (0, 0))}; with one {never_beaten(unit, (1, 10))}")
else:
    print("write step_price first")

# %% [markdown]
# So a price of slices alone says more about the unit than about the job: in memory slices a 1g.5gb is never beaten;
# in sevenths, without a fixed part, a 7g.40gb never is, and only a fixed part makes it depend on the job. Multiply
# the law out to see why. What your own time is worth, and how long the queue is, make it a question. Yours are drawn at
# the top of this notebook.
#
# ## Every shape's time, memory and price
#
# Your functions make the table. Rows that you did not measure are extrapolated and have a range: it follows from the
# 95 % interval of the fixed part in the line through your times; what the fixed part gains, the SMs' part loses. The
# memory that a step needs is the same on every shape: it was measured, between the tensors' peak and what the
# allocator took. A whole GPU stands for a 7g.40gb here: the ratios carry over, and the hours are those of *your*
# device. A CPU says nothing about a GPU: there, the table is made from a recorded run, and says so.

# %%
A100 = labkit.exercises.packing.A100
CONTEXT_MIB = 620  # a process's own share of a GPU's memory, before its first tensor (an H100's)


def held_profile(device):
    """The A100 profile that plays what was measured: a slice its own, a whole GPU a 7g.40gb."""
    if not device.is_slice:
        return A100["7g.40gb"]
    return min(A100.values(), key=lambda profile: abs(profile.sms - device.sms))


def law_of(points):
    """The three parts of a step on what is held, the ends of the fixed part, and Python's time (ms)."""
    sizes, full_point = on_sizes(points), on_sizes(points)[-1]
    record, facts = full_point.records[0], full_point.records[0].setting
    scatter = record.iqr_s / record.median_s
    x, y = [1 / point.x for point in sizes], [point.value for point in sizes]
    intercept, slope, _ = labkit.stats.line_fit(x, y)
    lowest, highest = labkit.stats.line_interval(x, y, 0.0, noise=scatter)
    in_memory = full_point.value * facts["memory_ms"] / (facts["sm_ms"] + facts["memory_ms"])
    by_sms = min(max(slope / full_point.x, 0.0), full_point.value)
    memory = min(in_memory, full_point.value - by_sms)
    ends = [min(max(end - memory, 0.0), full_point.value - memory) for end in (lowest, highest)]
    launched = [point.value for point in points if point.series == BY_PYTHON]
    python = launched[0] if launched and launched[0] > 1.25 * full_point.value else 0.0
    return {
        "fixed": full_point.value - by_sms - memory, "sm": by_sms, "memory": memory, "python": python,
        "ends": ends, "scatter": scatter, "device": record.devices[0],
    }


# %%
def steps_of(law):
    """How many steps the job has: as many as a 7g.40gb does in FULL_H hours, by this law."""
    return round(FULL_H / job_hours(A100["7g.40gb"], held_profile(law["device"]), law, 1))


def hours_between(profile, measured_profile, law):
    """The ends of the range, with the fixed part at each of its ends and the SMs' part as the remainder."""
    hours = []
    for fixed_ms in law["ends"]:
        sms = law["fixed"] + law["sm"] - fixed_ms
        hours.append(job_hours(profile, measured_profile, law | {"fixed": fixed_ms, "sm": sms}, steps_of(law)))
    likely = job_hours(profile, measured_profile, law, steps_of(law))
    return min(likely, *hours) / (1 + law["scatter"]), max(likely, *hours) * (1 + law["scatter"])


def shape_row(profile, law, needs_mib, context_mib):
    measured_profile = held_profile(law["device"])
    likely, fits_least_need, fits_most_need = (mib + context_mib <= profile.gib * 1024 for mib in needs_mib)
    hours, (low, high) = job_hours(profile, measured_profile, law, steps_of(law)), hours_between(profile, measured_profile, law)
    row = {"shape": profile.name, "slices": profile.memory, "wait_h": WAIT_H[profile.name], "hours": hours, "low": low, "high": high}
    return priced(row | {"fits": likely, "perhaps": fits_least_need != fits_most_need, "measured": profile == measured_profile})


def priced(row):
    """The row with its price, by its hours."""
    return row | {"price": price(row["hours"], row["slices"], row["wait_h"], AN_HOUR), "slice_hours": row["hours"] * row["slices"]}


def memory_words(row):
    return f"{'fits' if row['fits'] else 'TOO SMALL in memory'}{', but only just' if row['perhaps'] else ''}"


def sources():
    """The points the table is made from, and where they are from."""
    if ON_GPU:
        return measured_points(times), measured_points(peaks), "yours"
    recorded = [run for key in ("CH-1", "CH-2") if (run := labkit.recorded_run(key)) is not None]
    points = [recorded_run.points for recorded_run in recorded] if len(recorded) == 2 else [(), ()]
    return *points, f"RECORDED on {recorded[0].place.split(',')[0]}, not yours" if recorded else "nobody's"


# %%
def table(of_memory=1.0):
    """The rows; with less memory, where a way to save some is used."""
    by_size, by_batch, origin = sources()
    is_whole = by_size and by_batch and "sm_ms" in by_size[0].records[0].setting
    if not (hours_verdict.right and price_verdict.right) or not is_whole or fitted() == WHY_NOT:
        return [], origin
    batch = BATCH if ON_GPU else 64  # the recorded run's
    need = next((point for point in by_batch if point.x >= batch), by_batch[-1])
    facts = need.records[0].setting
    context = facts["context"] if 0 < facts["context"] < 2000 else CONTEXT_MIB  # more is somebody else's memory
    needs = [mib * of_memory for mib in (need.value, facts["tensors"], facts["taken"])]
    return [shape_row(profile, law_of(by_size), needs, context) for profile in A100.values()], origin


rows, times_origin = table()
print(f"from times that are {times_origin}")
for row in rows:
    method = "measured" if row["measured"] else "extrapolated"
    span = f"{row['hours']:6.2f} h ({row['low']:.2f} to {row['high']:.2f}, {method})"
    print(f"{row['shape']:8} {span}  {row['slice_hours']:6.2f} slice-hours, price {row['price']:6.2f}, {memory_words(row)}")
if HELD.emulated:
    print("emulated: this slice has the whole GPU's bandwidth, so the table shows the method and no slice")
if not rows:
    missing = "measure CH-1 and CH-2 first, and write job_hours and price"
    print(WHY_NOT if fitted() == WHY_NOT else missing)

# %% [markdown]
# ## Exercise 3: choose
#
# Write `choose`: of the rows whose `fits` is true and whose `hours` (without the queue) are at most `due_h`, return
# the `shape` with the lowest `price`, or the word `"none"` if there is none.

# %%
def choose(rows, due_h):
    # <solution>
    able = [row for row in rows if row["fits"] and row["hours"] <= due_h]
    return min(able, key=lambda row: row["price"])["shape"] if able else "none"
    # </solution>
    # <student>
    # return None  # your lines here: about two
    # </student>


# %%
choose_verdict = labkit.exercises.check_choose(choose)
print(choose_verdict)

# %%
def describe_choice(choice, among):
    """The choice, and the shapes whose price is less than a tenth higher: about equal."""
    best = next((row["price"] for row in among if row["shape"] == choice), None)
    near = [row["shape"] for row in among if best and row["fits"] and row["shape"] != choice and row["price"] < 1.1 * best]
    return f"{choice}{', about equal: ' + ', '.join(near) if near else ''}"


if rows and choose_verdict.right:
    print(f"due in {DUE_H:g} h: {describe_choice(choose(rows, DUE_H), rows)}")
    for due_h in (DUE_H / 8, DUE_H * 8):
        print(f"if it were due in {due_h:g} h: {describe_choice(choose(rows, due_h), rows)}")
else:
    print("no table to choose from yet" if not rows else "write choose first")

# %% [markdown]
# ## Exercise 4: what notebooks 3 to 5 found
#
# Your evidence is read here: what bf16 gains (MX-2, MX-9), what recomputing saves (MP-10), what a second rank
# gains (DP-3). Each number says whose it is; where you have none yet, you see that of a recorded run, or that there is none.

# %%
def finding(key, read, notebook):
    """A number from an experiment's evidence, and where it is from; None where there is none."""
    evidence, shipped = labkit.evidence_of(key), labkit.recorded_run(key)
    own_run = None if isinstance(evidence, str) else evidence
    is_cpus = own_run is not None and own_run.tier == labkit.Tier.CPU.value
    tried = [(own_run, f"yours{', on a CPU' if is_cpus else ''}"), (shipped, "RECORDED, not yours")]
    for run, origin in reversed(tried) if is_cpus and shipped else tried:
        value = read(run.points) if run and run.points else None
        if value is not None:
            return value, f"{key}, {origin}: {run.place.split(', tier')[0]}"
    return None, f"{key} is missing: measure it in notebook {notebook}"


def value_at(label):
    return lambda points: next((point.value for point in points if point.label == label), None)


def share(part_label, full_label, read):
    def of(points):
        a, b = (next((read(point) for point in points if point.label == label), None) for label in (part_label, full_label))
        return a / b if a and b else None

    return of


# %%
READ = {
    "fp32 time over bf16 time of a product": ("MX-2", lambda points: points[-1].value, 3),
    "AMP memory over fp32 memory": ("MX-9", share("AMP", "fp32", lambda point: point.value), 3),
    "memory with recomputing over plain": (
        "MP-10", share("recompute counted", "plain counted", lambda point: point.records[0].setting["peak"]), 5,
    ),
    "time of two ranks over one": ("DP-3", value_at("2 ranks"), 4),
}
FOUND = {name: finding(key, read, notebook) for name, (key, read, notebook) in READ.items()}
for name, (value, whose_it_is) in FOUND.items():
    print(f"{name}: {'?' if value is None else format(value, '.2f')}  ({whose_it_is})")

# %% [markdown]
# On a GPU, the step above already computes in bf16; in fp32, its times and memory would be worse, at most by about
# the first two numbers: they come from a bare product and from a small MLP. The other two make new rows. Recomputing
# saves memory and costs one more forward pass, a third of the step. Two ranks need two slices. Write `on_ranks`: the
# hours and slice-hours of a row's job on a number of slices of its shape, if together they are `speed_up` times as
# fast as one.

# %%
def on_ranks(row, ranks, speed_up):
    # <solution>
    hours = row["hours"] / speed_up
    return hours, row["slice_hours"] * ranks / speed_up
    # </solution>
    # <student>
    # return None  # hours, slice-hours
    # </student>


# %%
ranks_verdict = labkit.exercises.check_on_ranks(on_ranks)
print(ranks_verdict)

# %% [markdown]
# Now choose again among all rows. Did notebooks 3 to 5 change your choice?

# %%
def recomputed(share_of_memory):
    """Rows that fit only because a step keeps less; a third more arithmetic."""
    pairs = zip(rows, table(share_of_memory)[0], strict=True)
    saved = [after for before, after in pairs if after["fits"] and not before["fits"]]
    longer = ("hours", "low", "high")
    return [priced(row | {name: row[name] * 4 / 3 for name in longer} | {"shape": f"{row['shape']}, recompute"}) for row in saved]


def rows_on_two_slices(two_over_one):
    """Two slices of a shape, where two of them fit a GPU."""
    pairs = []
    for row in rows:
        if 2 * labkit.exercises.packing.share_of(A100[row["shape"]]) <= 1:
            hours, _ = on_ranks(row, 2, 1 / two_over_one)
            pairs.append(priced(row | {"shape": f"2x{row['shape']}", "hours": hours, "slices": 2 * row["slices"]}))
    return pairs


def candidates():
    saves, two = FOUND["memory with recomputing over plain"][0], FOUND["time of two ranks over one"][0]
    return rows + (recomputed(saves) if saves else []) + (rows_on_two_slices(two) if two else [])


if rows and choose_verdict.right and ranks_verdict.right:
    for candidate in candidates()[len(rows):]:
        print(f"{candidate['shape']:20} {candidate['hours']:6.2f} h  {candidate['slice_hours']:6.2f} slice-hours, price {candidate['price']:6.2f}, {memory_words(candidate)}")
    print(f"due in {DUE_H:g} h: {describe_choice(choose(candidates(), DUE_H), candidates())}; without notebooks 3 to 5: {choose(rows, DUE_H)}")
else:
    print("no table to choose from yet" if not rows else "write choose and on_ranks first")

# %% [markdown]
# **Explain:** when do two slices cost less than one of twice the size, and how small must DP-3's fraction be for
# that?
#
# ## CH-3: a bigger batch
#
# Before you settle: would another batch use the shape better?
# **Predict:** as the batch grows, will the time *per sample* on everything you hold rise, stay flat, or fall?

# %%
def batches(sizes=BATCHES):
    works = {f"batch {batch}": labkit.parts.confined(train(batch), None, graph=True) for batch in sizes}
    return labkit.in_turns(works, labkit.rounds())


def ms_a_sample(record):
    return record.median_s * 1e3 / int(record.setting["label"].split()[1])


spots = {f"batch {batch}": batch for batch in BATCHES}
per_sample = labkit.experiment("CH-3", labkit.steps.together(batches, spots, value=ms_a_sample, seconds=12))

# %%
await per_sample.report()

# %% [markdown]
# ## Is the choice sensitive?
#
# If a choice changes within the range of your figures, you have not really chosen yet. Here each row is moved to either
# end of its range, one by one and all together, and the choice is made again.

# %%
def choice_at_end(end, shape=None):
    """The choice when one row, or every row, lies at an end of its range."""
    moved_rows = [
        priced(row | {"hours": row[end]})
        if shape in (None, row["shape"]) else row
        for row in rows
    ]
    return choose(moved_rows, DUE_H)


if rows and choose_verdict.right:
    answers = {choose(rows, DUE_H)} | {choice_at_end(end) for end in ("low", "high")}
    answers |= {choice_at_end(end, row["shape"]) for row in rows for end in ("low", "high")}
    print("the choice stands" if len(answers) == 1 else f"within the ranges it may be any of {', '.join(sorted(answers))}: say so")
else:
    print("no choice to move yet: measure first")

# %% [markdown]
# ## CH-4: your prediction judged
#
# If your course lends slices, measure every shape that it lends: each is borrowed for the seconds of
# a measurement. The table above predicted the times; here are the measured ones beside their ranges.
# **Predict:** from the smallest shape to the largest, does the time of a step rise, stay flat, or fall?

# %%
def own_time(batch):
    """A step as the GPU's own time, as in CH-1."""
    return labkit.parts.confined(train(batch), None, graph=ON_GPU)


def lent_step(profile):
    options = {"on": profile.name, "seconds": 8, "batch": BATCH}
    return labkit.steps.timed_step(profile.name, profile.sms, own_time, **options)


LENT = sorted((A100[shape] for shape in place.lends if shape in A100), key=lambda profile: profile.sms)
on_lent = labkit.experiment("CH-4", [lent_step(profile) for profile in LENT], batch=BATCH, unit="SMs")

# %%
def print_ranges(points):
    """Whether each measured step lies in the range that the table gave its shape."""
    if any(point.records[0].devices[0].backend == "cpu" for point in points):
        print("All of it is a CPU run: these slices are simulated, so no prediction is judged by it.")
        return
    predicted_rows, steps = {row["shape"]: row for row in rows}, steps_of(law_of(sources()[0])) if rows else 1
    for point in (point for point in points if point.label in predicted_rows):
        low, step, high = (predicted_rows[point.label][name] * 3.6e6 / steps for name in ("low", "hours", "high"))
        position = "inside" if low <= point.value <= high else "OUTSIDE"
        print(f"{point.label}: predicted {step:.3g} ms ({low:.3g} to {high:.3g}), measured {point.value:.3g} ms, {position} the range")


await on_lent.report(print_ranges)

# %% [markdown]
# ## What the published figures say
#
# CERN trained the same model on pairs of slices. In hours the big one wins; in slice-hours? Two of CERN's rows, E1
# and E2 of notebook 2, are known to be wrong and left out here. Which rule of thumb showed you that?

# %%
for big, small in (("7g", "3g"), ("4g", "2g"), ("2g", "1g")):
    pair = [labkit.published.figure(f"cern5.train.{big}-{small}.10k.{name}") for name in (big, small)]
    profiles = {profile.name[:2]: profile for profile in A100.values()}
    costs = [figure.value * profiles[name].memory / 3600 for figure, name in zip(pair, (big, small), strict=True)]
    print(f"{big}: {pair[0].value:6.0f} s = {costs[0]:.2f} slice-hours   {small}: {pair[1].value:6.0f} s = {costs[1]:.2f}")
labkit.cite("cern5")

# %% [markdown]
# In slice-hours, which row is cheaper in each pair? And is "always ask for 1g.5gb" the right rule?
# Think of memory, of the deadline, of the students in the queue behind you, and of what your own hour is worth.

# %% [markdown]
# ## Summary: your choice and its defence
#
# Write the defence into the explanation of CH-1: the shape, its hours, memory and price, the row that speaks against
# it, and what you would measure if you had an hour more.

# %%
print(f"split_time: {split_verdict}\njob_hours: {hours_verdict}\nprice: {price_verdict}\nchoose: {choose_verdict}\non_ranks: {ranks_verdict}")
print(f"due in {DUE_H:g} h: {choose(rows, DUE_H) if rows and choose_verdict.right else 'not chosen yet'}")
print("" if ON_GPU else labkit.recorded_note("CH-1", "CH-2", "CH-3"))
labkit.summary("CH-1", "CH-2", "CH-3")

# %% [markdown]
# ## Optional: when the job does not fit
#
# On a small slice, memory runs out first. This cell runs until it does, in a child process that then ends.
# On a MIG slice the error is not PyTorch's own; labkit explains both forms.

# %%
def too_much(batch):
    import torch

    if not torch.cuda.is_available():
        return "a CPU swaps or kills instead: not tried"
    train(batch)()
    return f"batch {batch} fits"


for batch in (64, 1 << 16) if labkit.is_measured_here() else ():
    try:
        print(labkit.ranks(too_much, n=1, batch=batch).values[0])
    except labkit.errors.OutOfMemory as full:
        print(f"batch {batch}: {full}")

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("6_choose_your_slice")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
