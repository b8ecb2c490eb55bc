# %% [markdown]
# # 7. Which worker lies?
#
# **Afterwards you can decide** what to measure first when a cluster trains and something is wrong with it, and say
# which worker it is, what is wrong with it, and what would have misled you.
# You will be able to
#
# - tell which of a worker's clocks its own work shows in, and which the others' work;
# - write the two rules by which a table of workers is read: who stands out, and who disagrees;
# - tell eight faults from one another by what they change and what they leave alone;
# - find one of them, which is yours alone, within an hour of an operator's time.
#
# You need data parallelism, the all-reduce and buckets (4a, 4b), gradient accumulation (4c or 5b), momentum, and bf16
# (3). Every source is named beside its figures.
#
# About 75 minutes; the section after the summary is optional.

# %% [markdown]
# A *worker* is one of eight processes that train together on **this container's CPU**, whatever GPU or slice you
# hold. They are small, and they are real: each computes, sends and waits, and what is wrong with one of them
# really happens in it. Nothing here is a claim about a GPU.

# %% jupyter={"source_hidden": true}
import statistics

import labkit

place = labkit.where()
LINK = "gloo over loopback, host memory"
WORKERS = range(8)
labkit.card(place)

# %% [markdown]
# ## The cluster
#
# Eight workers train one model that guesses the next byte of Python modules from the eight bytes before. In each step a worker
#
# 1. reads four micro-batches from its *shard*, an eighth of the text;
# 2. adds up their gradients, with dropout: the run's seed switches **the same** hidden units off on all workers;
# 3. divides by four, and all-reduces each layer's gradient as a bucket of its own, in a ring (worker 0 sends to 1, 7 to 0), so that each waits for the one *before* it;
# 4. takes a step of SGD with momentum, on its own copy of the parameters.
#
# At step 30 the cluster was restarted from its last checkpoint, and goes on to step 60. Since the restart one worker
# does one thing differently. Nothing crashes.
#
# A worker sits at a *place*, which has the shard and the link to the next place. (The cluster is in
# `labkit.exercises.cluster??`.)

# %% [markdown]
# ## WL-1: which clock betrays a slow worker?
#
# A cluster whose culprit is known: **worker 5** is throttled, and computes for three to four times as long. Drawn for each worker are a
# whole step by the clock on the wall, its own computing (the CPU time of its thread: eight workers share this
# machine's cores), and how long it waits for a step's first message. On a GPU, CUDA events would time the computing.
#
# **Predict** how many times as long as worker 0's the step of worker 5 is.

# %%
def clocks(fault, at):
    """By worker, medians over the steps after the restart."""
    readings = labkit.exercises.run_cluster(fault, at)["readings"]
    rows = {
        "step": readings["times"]["whole step, ms"],
        "own computing": readings["times"]["own computing, ms"],
        "waiting for the first message": readings["waits"]["waiting for the first message, ms"],
    }
    return {f"worker {worker}": {name: row[worker] for name, row in rows.items()} for worker in WORKERS}


spots = {f"worker {worker}": worker for worker in WORKERS}
timed = labkit.steps.together(clocks, spots, value="step", n=8, seconds=15, link=LINK, on="cpu", fault="throttled card", at=5)
slow_worker = labkit.experiment("WL-1", timed)

# %%
def clocks_of(points):
    for point in points:
        facts = point.records[0].setting
        print(f"{point.label}: step {facts['step']:.1f} ms, own computing {facts['own computing']:.1f} ms, waiting {facts['waiting for the first message']:.1f} ms for the first message")


await slow_worker.report(clocks_of)

# %% [markdown]
# **Explain** why the eight steps are as long as they are, and which two of the three clocks name the slow worker. What would a
# dashboard show that has only the step's time?

# %% [markdown]
# ## Exercise 1: who stands out
#
# You will read tables with a number for each worker. Write down once when a number *stands out*: it is further from the median than
# eight times the median distance, **and** than half of the median (workers differ a little: so do their samples). Return that worker,
# or None. (A mean and a standard deviation would not do: the outlier moves both.)

# %%
def stands_out(numbers):
    """The worker whose number stands out, or None; numbers[w] is worker w's."""
    # <solution>
    middle = statistics.median(numbers)
    distances = [abs(number - middle) for number in numbers]
    worst = max(distances)
    is_far = worst > 8 * statistics.median(distances) and worst > 0.5 * abs(middle)
    return distances.index(worst) if is_far else None
    # </solution>
    # <student>
    # return None  # about five lines
    # </student>


# %%
outlier_verdict = labkit.exercises.check_stands_out(stands_out)
print(outlier_verdict)

# %% [markdown]
# ## Exercise 2: who disagrees
#
# Checksums are equal or not; there is no distance. After a step all workers should have the same parameters, to the last bit. Return, by
# layer, the one worker whose checksum differs from the one on which **all others agree**; leave out every other layer.

# %%
def disagreeing(rows):
    """{layer: worker} of {layer: list of the workers' checksums}; empty where nobody disagrees alone."""
    # <solution>
    alone = {layer: [w for w, digits in enumerate(sums) if sums.count(digits) == 1] for layer, sums in rows.items()}
    return {layer: workers[0] for layer, workers in alone.items() if len(workers) == 1 and len(set(rows[layer])) == 2}
    # </solution>
    # <student>
    # return None  # about three lines
    # </student>


# %%
disagreeing_verdict = labkit.exercises.check_disagreeing(disagreeing)
print(disagreeing_verdict)

# %% [markdown]
# ## Eight faults
#
# | fault | what the worker does since the restart |
# |---|---|
# | throttled card | computes at a quarter of the speed |
# | slow link | the way out of its place is slow: whatever it sends is held up, answers to pings included |
# | duplicated shard | reads the shard of the next place, so that nobody reads its own |
# | dropped bucket | the mean of one layer never arrives: it goes on with its own gradient of that layer |
# | scaled gradients | does not divide by the number of micro-batches |
# | another dropout seed | switches other units off than all others |
# | bf16 accumulator | adds its micro-batches up in bf16 |
# | stale optimizer state | went on with the momentum of an older checkpoint |
#
# An all-reduce hides: its result is the same on all workers, whoever spoiled it. **Before you spend a minute**,
# go through the table and ask of each fault: does it change a time? what the worker sends? what the worker
# keeps? Only what is kept can make two workers differ for good.
#
# ## Your incident
#
# Worker and fault are drawn for you. You have 60 minutes; a measurement costs what the table says (not the seconds that it takes here), and
# may be looked at again for nothing. A wrong accusation costs 30 minutes; where 30 or fewer are left, it loses the incident. Eight workers and eight faults make 64 accusations.

# %%
cluster = labkit.exercises.Incident()
cluster

# %% [markdown]
# Measure in cells of your own below, one at a time, and write down after each which faults are left. Your two rules read
# the tables: `stands_out(reading["own computing, ms"])`, and `disagreeing(reading)` for whatever must be the same on all workers:
# checksums, and of the norms the rows *after*. A ping says little without a second one beside it.

# %%
# <solution>
# The shortest way, for tests: it accuses after one finding. You look for a second one first.
if (worker := stands_out(cluster.measure("times")["own computing, ms"])) is not None:
    print(cluster.accuse(worker, "throttled card"))
elif (worker := stands_out(cluster.measure("waits")["handing a message over, ms"])) is not None:
    print(cluster.accuse(worker, "slow link"))
elif layers := disagreeing(cluster.measure("checksums")):
    print(cluster.accuse(max(layers.values()), "dropped bucket" if len(layers) == 1 else "stale optimizer state"))
elif (worker := stands_out(cluster.measure("norms")["output, before"])) is not None:
    print(cluster.accuse(worker, "scaled gradients"))
elif units := disagreeing({"off": cluster.measure("numbers")["units without a gradient"]}):
    print(cluster.accuse(units["off"], "another dropout seed"))
elif (worker := stands_out(cluster.measure("numbers")["numbers that bf16 can hold, %"])) is not None:
    print(cluster.accuse(worker, "bf16 accumulator"))
else:
    pairs = zip(*cluster.measure("samples").values(), strict=True)
    print(cluster.accuse([read == listed for read, listed in pairs].index(False), "duplicated shard"))
# </solution>
# <student>
# # cluster.measure("times")
# # cluster.ping(0, 1)
# # cluster.swap(0, 1)
# </student>

# %% [markdown]
# When two independent findings name the same worker and fault, accuse: `cluster.accuse(3, "slow link")`. (A slow link is
# accused by the place that it leaves. That all other faults are ruled out counts as one finding.)

# %%
# <student>
# # cluster.accuse(worker, "fault")
# print("found" if cluster.is_found else "measure first, then accuse")
# </student>
# <solution>
print("found" if cluster.is_found else "not found")
# </solution>

# %% [markdown]
# ## WL-2: would the loss have told?
#
# The worker is known, and so it can be repaired. Your cluster is trained twice more: with its fault, and without it. Drawn is
# the loss on text that nobody trains on, as the mean over the workers.
#
# **Predict**, in percent of the repaired cluster's loss, the loss with your fault.

# %%
def end(incident, label):
    """The loss of the cluster as it is, or repaired; only once the worker has been named."""
    fault, at = incident.culprit()
    outcome = labkit.exercises.run_cluster(*(() if label == "repaired" else (fault, at)))
    return {label: {"bits": outcome["bits"], "at restart": outcome["at restart"], **incident.summary}}


both = {"with the fault": 0, "repaired": 1}
ended = [
    labkit.steps.together(end, {label: x}, value="bits", n=8, seconds=15, link=LINK, on="cpu", incident=cluster, label=label)
    for label, x in both.items()
]
told_by_loss = labkit.experiment("WL-2", ended)

# %%
def losses_of(points):
    for point in points:
        facts = point.records[0].setting
        print(f"{point.label}: {point.value:.4f} bits per byte, {facts['at restart']:.4f} at the restart")


await told_by_loss.report(losses_of, needs=outlier_verdict)

# %% [markdown]
# **Explain**: which worker it was, and what is wrong with it; the two findings that say so, independently of
# each other; one finding that would have misled you. End with **one sentence for the operator**: what to do now, and with
# which machine.

# %% [markdown]
# ## What the published figures say
#
# Meta counted 419 unexpected interruptions in 54 days on 16,384 GPUs (Llama team, [The Llama 3 Herd of Models](https://arxiv.org/abs/2407.21783),
# 2024, section 3.3.4). These are the faults that *stop* a job.

# %%
GPU_DAYS = 16384 * 54 / 419
print(f"one interruption in {GPU_DAYS:.0f} GPU-days: every {24 * GPU_DAYS / 16384:.1f} h there, and every {GPU_DAYS / 8:.0f} days with 8 GPUs")

# %% [markdown]
# The section also names what does not stop it: a single straggler may slow down thousands of GPUs, and looks like slow communication. Which
# table of yours would have shown the difference?

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("WL-1", "WL-2")

# %%
my_watch = labkit.drawn("7", workers=(64, 512, 4096), every=("step", "100 steps", "hour"))
print(f"your next cluster has {my_watch['workers']} workers, and you may measure something of all of them once every {my_watch['every']}")

# %% [markdown]
# **Decide** with the two facts above, which are your own: which two measurements do you leave switched on for good, and which do you
# keep for an incident? Name what each of the two would miss of the eight faults.

# %% [markdown]
# # Optional section
#
# There are no exercises that later notebooks need here; run it if it interests you.

# %% [markdown]
# ## The other seven
#
# Here nothing costs a minute: choose a fault, a worker and a measurement, and see what it shows, or does not.

# %%
def look_at(fault, worker, name):
    if not labkit.is_measured_here():
        return 'optional: `look_at("scaled gradients", 2, "norms")` shows it'
    readings = labkit.ranks(labkit.exercises.run_cluster, n=8, on="cpu", fault=fault, at=worker).values[0]["readings"]
    return labkit.exercises.ClusterReading(readings[name], f"{name}, with worker {worker}: {fault}")


look_at("scaled gradients", 2, "norms")

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("7_which_worker_lies")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
