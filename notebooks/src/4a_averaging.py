# %% [markdown]
# # 4a. Data parallelism: the same gradient on every rank
#
# **Afterwards you can decide** whether ranks that train together take the right step, and what it costs them to agree.
# You will be able to
#
# - combine gradients so that any number of ranks takes the same step, and name what hides a mistake there;
# - write an all-reduce, naive and as a ring, and count the bytes that a rank sends;
# - predict the time of an all-reduce from its start-up time α and its bandwidth β;
# - say what a second rank changes in a training's loss, and what in its time.
#
# "The article" below is Tim Dettmers,
# [How to Parallelize Deep Learning on GPUs Part 1/2: Data Parallelism](https://timdettmers.com/2014/10/09/deep-learning-data-parallelism/)
# (2014); every other source is named beside its figures.
#
# About 75 minutes; notebook 4b is the second half. The sections after the summary are optional.

# %% [markdown]
# A *rank* is one of several processes that train together.
# With several GPUs or slices each rank has its own.
# With one slice, or none, the ranks below are processes on **this container's CPU**,
# connected by loopback and not by a GPU interconnect: every plot says so.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
SEVERAL = place.is_several
DEVICES = len(place.devices) if SEVERAL else 2
where_ranks = f"{DEVICES} devices" if SEVERAL else "gloo processes on this container's CPU (scaled down)"
print(f"ranks: {where_ranks}")
labkit.card(place)

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
average_verdict = labkit.exercises.check_gradient_averaging(average)
print(average_verdict)

# %% [markdown]
# Now use real ranks, and a small transformer that reads Python's own source code (`labkit.exercises.small_model??`; it is trained
# in DP-13). For comparison, each rank also computes the gradient of the whole batch.

# %%
def gathered(tensor):
    """Every rank's tensor, in order; by an all-reduce, which every link here can do."""
    import torch
    import torch.distributed as dist

    everyone = torch.zeros(dist.get_world_size(), *tensor.shape, device=tensor.device)
    everyone[dist.get_rank()] = tensor
    dist.all_reduce(everyone)
    return list(everyone)


# %%
def reading_gradient(reader, read, follows):
    import torch

    reader.zero_grad()
    labkit.exercises.small_model.loss_of(reader, read, follows).backward()
    return torch.cat([p.grad.flatten() for p in reader.parameters()])


def differences():
    import torch.distributed as dist

    reader, device = labkit.exercises.small_model.model(0)
    read, follows = labkit.exercises.small_model.batch_of(0, 1, device)
    rank, world = dist.get_rank(), dist.get_world_size()
    full_gradient = reading_gradient(reader, read, follows)
    everyone = gathered(reading_gradient(reader, read[rank::world], follows[rank::world]))
    own_gradient = everyone[dist.get_rank()]
    ways = {"one rank's own": own_gradient, "added": sum(everyone), "yours": average(everyone)}
    return {
        name: {"difference": ((gradient - full_gradient).norm() / full_gradient.norm()).item()}
        for name, gradient in ways.items()
    }


# %% [markdown]
# **Predict:** how far is *one* rank's gradient, from half of the samples, from the whole batch's: ‖difference‖ /
# ‖whole‖, as a fraction (1 is 100 %)?

# %%
gradients = ("one rank's own", "added", "yours")


def difference(record):
    return max(1e-12, record.setting["difference"])


apart = labkit.steps.together(differences, gradients, value=difference, n=2)
averaging = labkit.experiment("DP-1", apart)

# %%
await averaging.report(needs=average_verdict)

# %% [markdown]
# **Explain:** added gradients point the right way and are twice as long.
# Which learning rate would hide that mistake, and why would it come back with four ranks?

# %% [markdown]
# ## DP-12: the mistake in a training, with two optimizers
#
# Two ranks train with your `average`, and with gradients that are only added: with SGD, and with Adam.
# The learning rates suit the mean: 0.4 for SGD, near the largest that converges, and 0.1 for Adam. (At a quarter of its
# rate, SGD would survive added gradients, too.) Only a single linear layer learns here, so the optimizer alone decides.

# %%
RATES = {"SGD": 0.4, "Adam": 0.1}
HOW = ("averaged", "added")


def optimizer_of(name, weights):
    import torch

    return getattr(torch.optim, name)(weights, lr=RATES[name])


def loss_curve(name, combine, steps):
    """The whole batch's loss before each step; every rank sees only its own samples."""
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer, inputs, truth = torch.nn.Linear(16, 1, bias=False), torch.randn(512, 16), torch.randn(16, 1)
    layer, x = layer.to(device), inputs[dist.get_rank() :: dist.get_world_size()].to(device)
    y = x @ truth.to(device) + 0.3 * torch.randn(len(x), 1, device=device)  # what no weights explain
    optimizer, losses = optimizer_of(name, layer.parameters()), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        layer.weight.grad = combine(gathered(layer.weight.grad))
        optimizer.step()
        losses.append(sum(gathered(loss.detach())).item() / dist.get_world_size())
    return losses


def four_curves(steps, every):
    combine = {"averaged": average, "added": sum}
    curves = {f"{name}, {combination}": loss_curve(name, combine[combination], steps) for name in RATES for combination in HOW}
    return {f"{way}, step {i}": {"loss": curve[i - 1]} for way, curve in curves.items() for i in range(every, steps + 1, every)}


# %% [markdown]
# **Predict** for Adam: after 24 steps, how many times as large is the loss of the run that adds as that of the run that averages?

# %%
EVERY_3 = range(3, 25, 3)
curve_spots = {f"{name}, {combination}, step {i}": i for name in RATES for combination in HOW for i in EVERY_3}
curve_of_spot = {label: label.rsplit(", step", 1)[0] for label in curve_spots}
curves = labkit.steps.together(four_curves, curve_spots, value="loss", series=curve_of_spot, n=2, steps=24, every=3)
hidden = labkit.experiment("DP-12", curves)

# %%
await hidden.report(needs=average_verdict)

# %% [markdown]
# **Explain:** what does Adam divide its step by, and what becomes of a factor of two in every gradient?
# Name something in a real training loop with Adam that the mistake would harm after all.

# %% [markdown]
# ## DP-13: a real model, on one rank and on two
#
# A small transformer learns to read Python's own source code, byte by byte (`labkit.exercises.small_model??`; in notebook 3 it was
# trained in bf16). One rank takes every batch whole; two ranks take half of the *same* batch each, and average with your
# `average`. Its loss, in bits per byte, is taken on modules that it never trains on. Each is trained with three seeds.

# %%
def rate_of(arm):
    """The learning rate; the same for all."""
    return 3e-3


def one_training(arm, seed, steps, every):
    """By step, bits per byte on held-out modules and seconds of training; and how far apart the ranks' weights end."""
    import time

    import torch
    import torch.distributed as dist

    reader, device = labkit.exercises.small_model.model(seed)
    rank, world = (dist.get_rank(), dist.get_world_size()) if arm == "two ranks" else (0, 1)
    optimizer, seconds, bits_by_step = torch.optim.AdamW(reader.parameters(), lr=rate_of(arm)), 0.0, {}
    for step in range(1, steps + 1):
        dist.barrier() if world > 1 else None
        started = time.perf_counter()
        read, follows = labkit.exercises.small_model.batch_of(seed, step, device)
        loss = labkit.exercises.small_model.loss_of(reader, read[rank::world], follows[rank::world])
        optimizer.zero_grad()
        loss.backward()
        if world > 1:
            share_gradients(list(reader.parameters()))
        optimizer.step()
        loss.item()  # it waits for the device
        seconds += time.perf_counter() - started
        if step % every == 0:
            bits_by_step[step] = (labkit.exercises.small_model.held_out_bits(reader, device), seconds)
    return bits_by_step, weights_apart(reader) if world > 1 else 0.0


def weights_apart(reader):
    """The largest distance of another rank's weights from one's own, over the length of one's own."""
    import torch

    own_weights = torch.cat([parameter.detach().flatten() for parameter in reader.parameters()])
    return max(((weights - own_weights).norm() / own_weights.norm()).item() for weights in gathered(own_weights))


def share_gradients(parameters):
    """Everybody's mean gradients, by your `average` and one message."""
    import torch

    mean = average(gathered(torch.cat([parameter.grad.flatten() for parameter in parameters])))
    for parameter, part in zip(parameters, mean.split([parameter.numel() for parameter in parameters])):
        parameter.grad.copy_(part.view(parameter.shape))


# %%
def trainings(arms, seeds, steps, every):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # on a CPU: a core for each rank
    runs = {}
    for arm in arms:
        dist.barrier()
        is_idle = arm == "one rank" and dist.get_rank() > 0
        runs[arm] = [({}, 0.0) if is_idle else one_training(arm, seed, steps, every) for seed in seeds]
    dist.barrier()
    facts = labkit.exercises.small_model.facts_of_seeds
    marks = range(every, steps + 1, every)
    at = lambda arm_runs, step: facts([run.get(step, (0.0, 0.0)) for run, _ in arm_runs]) | {"apart": max(apart for _, apart in arm_runs)}
    return {f"{arm}, step {step}": at(arm_runs, step) for arm, arm_runs in runs.items() for step in marks}


# %% [markdown]
# **Predict** the bits per byte that two ranks end with after 80 steps. (8 is guessing.)

# %%
LEARN = {"steps": 40, "every": 20} if labkit.is_quick() else {"steps": 80, "every": 20}
SEEDS = (0,) if labkit.is_quick() else (0, 1, 2)
ARMS = ("one rank", "two ranks")
training_spots = {f"{arm}, step {step}": step for arm in ARMS for step in range(LEARN["every"], LEARN["steps"] + 1, LEARN["every"])}
by_arm = {label: label.partition(",")[0] for label in training_spots}
reading = labkit.steps.together(trainings, training_spots, value="bits", series=by_arm, n=2, seconds=60, arms=ARMS, seeds=SEEDS, **LEARN)
learns = labkit.experiment("DP-13", reading)

# %%
await learns.report(labkit.exercises.small_model.seeds_apart, needs=average_verdict)

# %% [markdown]
# ## DP-14: time to a loss
#
# **Predict** how many times as long two ranks take as one rank to reach the lowest loss that every run reaches.
# (It is read from the training above, so it is drawn hollow.)

# %%
SECONDS = labkit.exercises.small_model.seconds_to_loss
both = [labkit.steps.computed_step(arm, x, SECONDS, learns, arm) for x, arm in enumerate(ARMS)]
to_loss = labkit.experiment("DP-14", both)

# %%
await to_loss.report(needs=average_verdict)

# %% [markdown]
# **Explain:** what do two ranks change in the loss after a given step, and what in the time to reach it?

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

    def work():
        dist.all_reduce(payload)
        return payload.nbytes

    return work


def reduce_times(sizes, times):
    works = {f"{size:g} MB": reduces(size) for size in sizes}
    sent = {label: work() / 1e6 for label, work in works.items()}  # MB, by each message's own count
    return labkit.in_turns(works, times) | {"facts": {"sent": sent}}


# %% [markdown]
# The claim is about the two smallest sizes.
#
# **Predict** the time of 16 MB. The article's network card (40 Gbit/s) is drawn at 4 MB.

# %%
MEGABYTES = (0.008, 0.5, 4, 16, 64, 256) if SEVERAL else (0.008, 0.5, 4, 16)  # the first two are judged
size_spots = {f"{size:g} MB": size for size in MEGABYTES}
cost = labkit.experiment("DP-2", labkit.steps.together(reduce_times, size_spots, n=DEVICES, sizes=MEGABYTES, times=20))

# %% [markdown]
# The line through your points from 0.5 MB on gives α in ms and 1/β in ms/MB. The *bus bandwidth*, S/t · 2(n-1)/n,
# lets you compare runs with different n.

# %%
def alpha_and_beta(points):
    big = [point for point in points if point.x >= 0.5]
    if len(big) < 3:
        return
    alpha, slope, off = labkit.stats.line_fit([p.x for p in big], [p.value for p in big])
    ranks = big[0].records[0].ranks
    print(f"t = {alpha:.2f} ms + {slope:.3f} ms/MB · S (largest residual {off:.0%})")
    for p in big:
        print(f"{p.label}: bus bandwidth {p.x / p.value * 2 * (ranks - 1) / ranks:.2f} GB/s")


await cost.report(alpha_and_beta)
print("measured between devices" if SEVERAL else labkit.recorded_note("DP-2", "DP-3", "DP-4"))

# %% [markdown]
# **Explain** the flat part on the left: what does a rank wait for when there is almost nothing to send?

# %% [markdown]
# ## Exercise 2: all-reduce, naive and as a ring
#
# You are rank `rank` of `world`. `send(to, tensor)` returns at once; `receive(source)` waits for that rank's next
# tensor and returns it.
#
# **Naive:** send your tensor to every other rank; add what they send.
#
# **Ring:** split the tensor into `world` chunks. In world - 1 steps, pass a chunk to the next rank
# and add the one that the previous rank passes to you; then every rank holds one finished chunk.
# In world - 1 more steps, pass the finished chunks around.

# %%
labkit.picture("ring")

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU


def naive_all_reduce(tensor, rank, world, send, receive):
    # <solution>
    peers = [peer for peer in range(world) if peer != rank]
    for peer in peers:
        send(peer, tensor)
    total = tensor.clone()
    for peer in peers:
        total += receive(peer)
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
naive_verdict = labkit.exercises.check_all_reduce(naive_all_reduce)
ring_verdict = labkit.exercises.check_all_reduce(ring_all_reduce, ring=True)
both_right = "right" if naive_verdict.right and ring_verdict.right else "write both all-reduces first"
print("naive:", naive_verdict)
print("ring: ", ring_verdict)

# %% [markdown]
# ## DP-5: bytes per rank
#
# The article says that data parallelism "does not scale", because every rank must send
# its whole gradient to every other. Your naive version does just that. Your ring does not.
# **Predict:** in a ring of 8, how many times its gradient S does a rank send? (The naive way is drawn as a line.)

# %%
def sent(function, world, size=840):
    """Elements that the busiest rank sends, over the tensor's own."""
    inputs = [torch.ones(size) for _ in range(world)]
    _, counted = labkit.exercises.run_ranks(function, inputs)
    return max(counted) / (4 * size)


def sent_in_a_ring(world):
    return sent(ring_all_reduce, world)


WORLDS = (2, 4, 6, 8)
counts = [labkit.steps.computed_step(f"n={n}", n, sent_in_a_ring, n) for n in WORLDS]
ring_bytes = labkit.experiment("DP-5", counts)

# %%
def counted(points):
    for point in points:
        print(f"{point.label}: ring {point.value:.2f} S, naive {sent(naive_all_reduce, int(point.x)):.0f} S")


await ring_bytes.report(counted, needs=both_right)

# %% [markdown]
# With the article's own arithmetic (4 MB at 40 Gbit/s), six ranks and twelve:

# %%
for name, world in (("dettmers.dp.six", 6), ("dettmers.dp.four-nodes", 12)):
    figure = labkit.published.figure(name)
    ring_ms = 2 * (world - 1) / world * 4e6 * 8 / 40e9 * 1e3
    print(f"n={world}: the article says {figure.value} ms, a ring needs {ring_ms:.2f} ms ({figure.error})")
labkit.cite("dettmers")

# %% [markdown]
# ## What the published figures say, and where they are wrong

# %%
print(labkit.published.corrections("E10"))
labkit.cite("dettmers")

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("DP-1", "DP-12", "DP-13", "DP-14", "DP-2", "DP-5")

# %%
my_numbers = labkit.drawn("4a", megabytes=(25, 50, 100, 200), ranks=(3, 4, 6, 8))
print(f"your model has {my_numbers['megabytes']} MB of gradients, and you may have {my_numbers['ranks']} ranks")

# %% [markdown]
# **Decide** with the two numbers above, which are your own: how long does your ring take with them, by your β and an
# α for each of its 2(n-1) messages, and how long the naive way? Above which share of a step's time would you rather
# train on one rank?

# %% [markdown]
# # Optional sections
#
# There are no exercises that later notebooks need here; run what interests you.

# %% [markdown]
# ## DP-5-time: your all-reduces by the clock
#
# How long do they take? Your two and the library's take turns, all three over gloo in host memory.
# If there are more ranks than cores, they wait for one another; the label then says "oversubscribed".
# **Predict** how many ms your ring takes.

# %%
def three_ways(megabytes, times):
    import torch.distributed as dist

    rank, world, wires = dist.get_rank(), dist.get_world_size(), labkit.exercises.Wires()
    payload, group = torch.ones(int(megabytes * 250_000)), dist.new_group(backend="gloo")

    def own(function):
        def work():
            function(payload, rank, world, wires.send, wires.receive)
            wires.finish()

        return work

    library = lambda: dist.all_reduce(payload.clone(), group=group)
    works = {"naive": own(naive_all_reduce), "ring": own(ring_all_reduce), "library": library}
    return labkit.in_turns(works, times)


# %%
RANKS = 2 if labkit.is_quick() else 4
crowd = ", oversubscribed" if RANKS > place.cpu.cores else ""
LINK = f"gloo over loopback, host memory{crowd}"
ways = labkit.steps.together(three_ways, ("naive", "ring", "library"), n=RANKS, link=LINK, megabytes=4, times=labkit.rounds())
clocked = labkit.experiment("DP-5-time", ways, ranks=RANKS, crowd=crowd)

# %%
await clocked.report(needs=both_right)

# %% [markdown]
# **Explain:** over loopback all ranks share one memory bus, so the ring gains less than its bytes promise.
# Where would it gain all of it?

# %% [markdown]
# ## DP-11: within a run, and between runs
#
# CERN saw 120 to 160 s for the *same* 16 GPUs, while epochs of one job lay close together.
# Three runs, each a process of its own. **Predict** whether their medians rise, stay flat, or fall.

# %%
def reading_step():
    reader, device = labkit.exercises.small_model.model(0)
    batch = labkit.exercises.small_model.batch_of(0, 1, device)
    return lambda: reading_gradient(reader, *batch)


def run_number(number):
    return labkit.steps.timed_step(f"run {number}", number, reading_step, seconds=4)


runs = labkit.experiment("DP-11", *map(run_number, (1, 2, 3)))

# %%
import statistics

def spreads(points):
    if len(points) == 3:
        within = statistics.mean(point.records[0].iqr_s * 1e3 for point in points)
        between = statistics.stdev(point.value for point in points)
        print(f"spread within a run {within:.3g} ms, between runs {between:.3g} ms")


await runs.report(spreads)

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("4a_averaging")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
