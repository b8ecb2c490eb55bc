# %% [markdown]
# # 4b. Data parallelism: what sending costs
#
# **Afterwards you can decide** whether a second slice would make your training faster,
# from the bytes of your gradients, the link between the slices, and your batch.
# You will be able to
#
# - write what PyTorch's DistributedDataParallel does: one message, or buckets that are sent early;
# - read from a timeline which messages are hidden behind the backward pass, and which cannot be;
# - divide what a second rank costs into bytes, start-up and waiting;
# - test a simple model of scaling against CERN's published rows.
#
# You need the all-reduce of notebook 4a, and its α and β. Every source is named beside its figures.
#
# About 70 minutes; the sections after the summary are optional: the first says in the terms of nccl-tests how well
# a collective uses a link.

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
WIDTH, DEPTH = (1024, 4) if SEVERAL else (256, 3)
MORE = 1 if SEVERAL else max(1, int(place.cpu.cores // 2))  # each rank has that many threads
BATCH = 8192 if SEVERAL else 4096 * MORE
where_ranks = f"{DEVICES} devices" if SEVERAL else "gloo processes on this container's CPU (scaled down)"
print(f"ranks: {where_ranks}; {DEPTH} layers, {WIDTH} wide")
labkit.card(place)

# %% [markdown]
# ## Exercise 1: data parallelism by hand
#
# In three versions you write what PyTorch's DistributedDataParallel (DDP) does. Each removes one cost of the version
# before; DP-6 shows whether that pays here.
# `all_reduce(tensor)` starts at once and returns a function; *calling that function* waits and returns the ranks' sum.
#
# 1. `per_tensor`: each gradient by itself, one after another. Every message pays the start-up time α of DP-2 (notebook 4a).
# 2. `flat`: all gradients in one long tensor, one message, and cut up again in the parameters' shapes.
#    α is paid once, but nothing is sent until the last gradient is there.
# 3. `Buckets`: the backward pass makes the *last* layer's gradients first, and calls `ready(number, gradient)` for
#    each; `number` is the parameter's index. As soon as a bucket holds at least `most` elements, it is sent, while
#    earlier layers are still being computed. `finish` sends what is left, waits for everything, and returns the mean
#    gradients by number.

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU


def per_tensor(gradients, world, all_reduce):
    """The ranks' mean gradients, in the same order."""
    # <solution>
    return [all_reduce(gradient)() / world for gradient in gradients]
    # </solution>
    # <student>
    # return None  # one line
    # </student>


def flat(gradients, world, all_reduce):
    # <solution>
    together = torch.cat([gradient.flatten() for gradient in gradients])
    parts = (all_reduce(together)() / world).split([gradient.numel() for gradient in gradients])
    return [part.view(gradient.shape) for part, gradient in zip(parts, gradients)]
    # </solution>
    # <student>
    # return None  # about three lines
    # </student>


# %%
class Buckets:
    def __init__(self, world, all_reduce, most):
        self.world, self.all_reduce, self.most = world, all_reduce, most
        # <solution>
        self.filling, self.sent = [], []
        # </solution>
        # <student>
        # # keep here what you need between the calls
        # </student>

    def ready(self, number, gradient):
        """Take one gradient; a full bucket leaves."""
        # <solution>
        self.filling.append((number, gradient))
        if sum(member.numel() for _, member in self.filling) >= self.most:
            self.leave()
        # </solution>
        # <student>
        # pass  # write it, and finish below; add a method if you like
        # </student>

    # <solution>
    def leave(self):
        together = torch.cat([gradient.flatten() for _, gradient in self.filling])
        self.sent.append((self.all_reduce(together), self.filling))
        self.filling = []
    # </solution>

    def finish(self):
        """Send what is left, wait for all, and return {number: mean gradient}."""
        # <solution>
        if self.filling:
            self.leave()
        means = {}
        for wait, bucket in self.sent:
            parts = (wait() / self.world).split([gradient.numel() for _, gradient in bucket])
            means.update({number: part.view(member.shape) for part, (number, member) in zip(parts, bucket)})
        self.sent = []
        return means
        # </solution>
        # <student>
        # return {}
        # </student>


# %%
per_tensor_verdict = labkit.exercises.check_sync(per_tensor)
flat_verdict = labkit.exercises.check_sync(flat, flat=True)
buckets_verdict = labkit.exercises.check_buckets(Buckets)
by_hand = (per_tensor_verdict, flat_verdict, buckets_verdict)
all_three = "right" if all(verdict.right for verdict in by_hand) else "write per_tensor, flat and Buckets first"
print("per tensor:", per_tensor_verdict)
print("flat:      ", flat_verdict)
print("buckets:   ", buckets_verdict)

# %% [markdown]
# ## DP-6: does it pay to send early?
#
# Whether it pays depends on the network. Over loopback, sending needs the cores that compute; over NVLink, there is too
# little to hide. So the step first runs on a **simulated network**: a message takes a start-up time plus its bytes over
# a bandwidth, and costs no core anything, because a thread of its own only sleeps. (Nothing is really sent there.)
# The bandwidth is set before the run so that sending takes about 40 % of *this* machine's step with `flat`.
# Beside it, the same step runs on the real network, by your functions and by DDP with buckets of the same size.
# Each of yours is also counted: how many all-reduces it makes, and how many start before the backward pass is over.
# PyTorch's own hooks call `ready`.

# %%
def backward(network, x):
    network.zero_grad()
    network(x).square().mean().backward()


def synced(network, x, sync, all_reduce, world):
    """A step that averages after the backward pass."""
    parameters = list(network.parameters())

    def step():
        backward(network, x)
        means = sync([parameter.grad for parameter in parameters], world, all_reduce)
        for parameter, mean in zip(parameters, means):
            parameter.grad = mean

    return step


def overlapped(network, x, bucket_size, all_reduce, world):
    """A step whose buckets leave during the backward pass."""
    parameters = list(network.parameters())

    def step():
        buckets = Buckets(world, all_reduce, bucket_size)
        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda parameter, number=number: buckets.ready(number, parameter.grad))
            for number, parameter in enumerate(parameters)
        ]
        backward(network, x)
        for hook in hooks:
            hook.remove()
        for number, mean in buckets.finish().items():
            parameters[number].grad = mean

    return step


# %%
class Sender:
    """Starts all-reduces, and counts them; `early` are those of a backward pass that is not over."""

    def __init__(self, last, group=None):
        self.last, self.group = last, group
        self.all_reduces = self.early = 0

    def __call__(self, tensor):
        import torch.distributed as dist

        self.all_reduces += 1
        self.early += self.last.grad is None  # the first parameter's gradient comes last
        work = dist.all_reduce(tensor, group=self.group, async_op=True)

        def wait():
            work.wait()
            return tensor

        return wait


def flat_of(network):
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


# %%
class SimulatedNetwork:
    """Takes the time of an all-reduce on a network of its own, one message after another."""

    def __init__(self, start_up_s, bytes_per_s):
        from concurrent.futures import ThreadPoolExecutor

        self.start_up_s, self.bytes_per_s, self.link = start_up_s, bytes_per_s, ThreadPoolExecutor(1)

    def __call__(self, tensor):
        import torch

        ready = torch.cuda.current_stream().record_event() if tensor.is_cuda else None
        message = self.link.submit(self.take_time, ready, 4 * tensor.numel())

        def wait():
            message.result()
            return tensor

        return wait

    def take_time(self, ready, size):
        import time

        if ready is not None:
            ready.synchronize()  # the GPU computes it first
        time.sleep(self.start_up_s + size / self.bytes_per_s)


def network_for(step, size, share=0.4):
    """A simulated network on which one message of this size takes such a share of flat's step."""
    import time

    import torch
    import torch.distributed as dist

    seconds = []
    for _ in range(15):
        dist.barrier()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize() if torch.cuda.is_available() else None
        seconds.append(time.perf_counter() - started)
    step_s = torch.tensor([sorted(seconds)[7]])
    step_s = step_s.to("cuda" if torch.cuda.is_available() else "cpu")
    dist.broadcast(step_s, 0)
    step_s = step_s.item()
    return SimulatedNetwork(step_s / 200, size / (step_s * (share / (1 - share) - 1 / 200)))


# %%
def ladder(width, depth, batch, bucket_size, times):
    import copy

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    network, device = labkit.exercises.networks.mlp(width, depth)
    world = dist.get_world_size()
    torch.manual_seed(dist.get_rank() + 1)  # every rank has samples of its own
    x, last = torch.randn(batch, width, device=device), next(iter(network.parameters()))
    ddp = DistributedDataParallel(copy.deepcopy(network), bucket_cap_mb=bucket_size * 4 / 2**20)
    sender = {way: Sender(last) for way in ("per tensor", "flat", "buckets")}
    no_sync, size = lambda: backward(network, x), 4 * sum(parameter.numel() for parameter in network.parameters())
    simulated = network_for(no_sync, size)
    works = {"no sync": no_sync}
    for suffix, send in (("", dict.fromkeys(sender, simulated)), (", real", sender)):
        works[f"per tensor{suffix}"] = synced(network, x, per_tensor, send["per tensor"], world)
        works[f"flat{suffix}"] = synced(network, x, flat, send["flat"], world)
        works[f"buckets{suffix}"] = overlapped(network, x, bucket_size, send["buckets"], world)
    works["DDP, real"] = lambda: backward(ddp, x)
    works["DDP, real"]()
    facts = {"all-reduces": {}, "early": {}, "difference": {}, "spans": {}, "MB/s": simulated.bytes_per_s / 1e6}
    for way, counter in sender.items():
        works[f"{way}, real"]()
        facts["all-reduces"][way], facts["early"][way] = counter.all_reduces, counter.early
        off = (flat_of(network) - flat_of(ddp)).norm() / flat_of(ddp).norm()
        facts["difference"][way] = max(1e-12, off.item())
    facts["spans"] = {way: labkit.spans_of(works[f"{way}, real"]) for way in ("flat", "buckets")}
    return labkit.in_turns(works, times) | {"facts": facts}


# %% [markdown]
# The network here has 12 layers, and a bucket holds about three. **Predict:** on the simulated network, what
# percentage (0 to 100) of the time that `flat` adds to a step do your buckets save?

# %%
BY_HAND = ("per tensor", "flat", "buckets")
LADDER = ("no sync", *BY_HAND, *(f"{way}, real" for way in BY_HAND), "DDP, real")
BROAD = 2048 if SEVERAL else WIDTH  # so that a GPU computes for longer than Python takes to ask it to
deep = {"width": BROAD, "depth": 12, "batch": BATCH // (2 if SEVERAL else 8), "bucket_size": 3 * BROAD * BROAD}
steps = labkit.steps.together(ladder, LADDER, n=DEVICES, seconds=20, times=labkit.rounds(), **deep)
by_hand_panel = labkit.experiment("DP-6", steps)

# %%
def print_rungs(points):
    facts, took = points[0].records[0].setting, {point.label: point.value for point in points}
    print(f"the simulated network carries {facts['MB/s']:.4g} MB/s, so that flat's message is about 40 % of a step")
    for way in BY_HAND:
        early = facts["early"][way]
        print(f"{way}: {facts['all-reduces'][way]} all-reduces, {early} of them before the backward pass is over")
    for suffix, name in (("", "simulated"), (", real", "real")):
        sending_ms = took[f"flat{suffix}"] - took["no sync"]
        hidden_ms = took[f"flat{suffix}"] - took[f"buckets{suffix}"]
        print(f"{name} network: flat sends for {sending_ms:.3g} ms; buckets hide {hidden_ms:.3g} ms of it")


await by_hand_panel.report(print_rungs, needs=all_three)

# %% [markdown]
# And where does the time go on the real network? This is the step of one rank under PyTorch's profiler (which itself costs time).
# Run the two cells again once you have measured.

# %%
def one_step_of(way):
    points = by_hand_panel.evidence.points
    if not points:
        return "measure DP-6 first"
    return labkit.timeline(points[0].records[0].setting["spans"][way], f"One step, {way}, on rank 0")


one_step_of("flat")

# %%
one_step_of("buckets")

# %% [markdown]
# **Explain** what the two timelines show: where are messages sent while something is computed?
# Which bucket can never be hidden, and why does DDP fill its buckets in the reverse order of the parameters?

# %% [markdown]
# ## DP-3: more ranks, the same batch
#
# *Strong scaling*: the batch stays the same, and the ranks share it. T = a + b/n, where b is the work that is
# shared and a is what is not: sending the gradient, starting the step.
# One rank alone and all ranks together take turns in the same processes.
# (Two ranks may even be a little *more* than twice as fast, where half of the batch fits a cache and all of it does not.)

# %%
def flat_gradient(network, x):
    import torch

    network.zero_grad()
    network(x).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in network.parameters()])


def alone(width, depth, batch):
    import torch
    import torch.distributed as dist

    network, device = labkit.exercises.networks.mlp(width, depth)
    x = torch.randn(batch, width, device=device)
    return lambda: flat_gradient(network, x) if dist.get_rank() == 0 else None


def shared(width, depth, batch):
    import torch
    import torch.distributed as dist

    network, device = labkit.exercises.networks.mlp(width, depth)
    x = torch.randn(batch // dist.get_world_size(), width, device=device)

    def work():
        gradient = flat_gradient(network, x)
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()

    return work


# %% [markdown]
# **Predict** what fraction of one rank's time two ranks need. CERN's epochs on 4, 8, 16 and 32 GPUs are drawn over
# yours, relative to the time on 4 GPUs. Theirs is a different experiment: every GPU keeps its batch of 64, so with
# more GPUs an epoch has fewer steps and fewer all-reduces.

# %%
COUNTS = [n for n in (2, 4, 8) if n <= DEVICES]
def n_ranks(n):
    shape = {"width": WIDTH, "depth": DEPTH, "batch": BATCH}
    return labkit.steps.compared_step(f"{n} ranks", n, shared, alone, band=(0.0, 1.0), ranks=n, **shape)


scaling = labkit.experiment("DP-3", *map(n_ranks, COUNTS))

# %%
def speed_ups(points):
    for point in points:
        print(f"{point.label}: speed-up {1 / point.value:.2f}, efficiency {1 / point.value / point.x:.0%}")


await scaling.report(speed_ups)
for gpus in (4, 8):
    speedup = labkit.published.figure(f"dettmers.krizhevsky.{gpus}").value
    print(f"Krizhevsky, {gpus} GPUs: speed-up {speedup}, efficiency {speedup / gpus:.0%}")

# %% [markdown]
# ## DP-4: what does sending cost a step?
#
# The gradient's bytes do not depend on the batch; the arithmetic does. So the same step of two ranks runs in three
# versions, in turns: it sends the whole gradient, or one number in its place, or nothing at all.
# The first minus the second is what the *bytes* cost; the second minus the third is the start-up and the
# waiting for each other. One rank alone, with the whole batch, shows whether a second one is worth it.
#
# **Predict:** with the small batch, what percentage of a step do the gradient's bytes take?

# %%
def send_whole(gradient):
    """Send the gradient, and return how many numbers that were."""
    import torch.distributed as dist

    dist.all_reduce(gradient)
    return len(gradient)


def send_one(gradient):
    import torch.distributed as dist

    dist.all_reduce(gradient[:1])
    return len(gradient[:1])


def send_nothing(gradient):
    return 0


def sending_times(width, depth, batches, times):
    import torch
    import torch.distributed as dist

    network, device = labkit.exercises.networks.mlp(width, depth)
    rank, world, works = dist.get_rank(), dist.get_world_size(), {}
    sends = {"the whole gradient": send_whole, "one number": send_one, "nothing": send_nothing}
    for batch in batches:
        full_batch = torch.randn(batch, width, device=device)
        own_part = full_batch.tensor_split(world)[rank]
        for payload, send in sends.items():
            works[f"batch {batch}, {payload}"] = lambda own_part=own_part, send=send: send(flat_gradient(network, own_part))
        works[f"batch {batch}, alone"] = lambda full_batch=full_batch: flat_gradient(network, full_batch) if rank == 0 else None
    sent = {payload: works[f"batch {batches[0]}, {payload}"]() for payload in sends}
    return labkit.in_turns(works, times) | {"facts": {"sent": sent}}


# %%
WIDE = 4096 if SEVERAL else 512
BATCHES = (64, 1024, 8192) if SEVERAL else (16, 256 * MORE, 2048 * MORE)
if labkit.is_quick():
    BATCHES = BATCHES[:2]
PAYLOADS = ("the whole gradient", "one number", "nothing", "alone")
spots = {f"batch {batch}, {kind}": batch for kind in PAYLOADS for batch in BATCHES}
kinds = {label: label.partition(", ")[2] for label in spots}
sent_steps = labkit.steps.together(
    sending_times, spots, series=kinds, n=2, seconds=15, width=WIDE, depth=4, batches=BATCHES, times=min(20, labkit.rounds())
)
worth = labkit.experiment("DP-4", sent_steps)

# %%
def print_costs(points):
    took = {point.label: point.value for point in points}
    for batch in BATCHES if len(took) == len(PAYLOADS) * len(BATCHES) else ():
        gradient_ms, number_ms, nothing_ms, alone_ms = (took[f"batch {batch}, {kind}"] for kind in PAYLOADS)
        print(f"batch {batch}: bytes {gradient_ms - number_ms:.3g} ms, start-up and waiting {number_ms - nothing_ms:.3g} ms, of {gradient_ms:.3g} ms")
        print(f"   two ranks are {alone_ms / gradient_ms:.2f} times as fast as one")


await worth.report(print_costs)

# %% [markdown]
# **Explain** with α and β from DP-2 (notebook 4a): which part of the cost is α, which is S/β, and which is neither?

# %% [markdown]
# ## What the published figures say, and where they are wrong

# %%
print(labkit.published.corrections("E3", "E4", "E5", "E13"))
labkit.cite("dettmers", "cern6", "habr", "nvidia")

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("DP-6", "DP-3", "DP-4")

# %%
my_numbers = labkit.drawn("4b", millions=(10, 25, 60, 120), batch=(32, 64, 128))
print(f"your model has {my_numbers['millions']} million parameters, and your batch is {my_numbers['batch']}")

# %% [markdown]
# **Decide** for the model above, whose numbers are your own: a second 1g.5gb slice is free.
# Do you take it? Name the two figures that decide.

# %% [markdown]
# # Optional sections
#
# There are no exercises that later notebooks need here; run what interests you.

# %% [markdown]
# ## Exercise 2: bandwidths, in the terms of nccl-tests
#
# Which link do you have, and is it used well? [nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)
# answers with two numbers for each collective, in GB/s (10⁹ bytes). S is the size of the *whole* array: what a rank gives
# to an all-reduce, a broadcast or a reduce-scatter, but what it *gets* from an all-gather, to which it gives one part.
#
# - The *algorithm bandwidth*, algbw = S/t, tells how long your message takes.
# - The *bus bandwidth*, busbw, is algbw times what a rank must send at least, over S. It is compared with the link's own
#   figure, whatever the collective and the number of ranks.
#
# What must a rank send? Of an all-gather, its part to each of the others; of a reduce-scatter, everybody else's parts;
# an all-reduce is the one after the other; in a broadcast all of S must leave the one rank that has it.

# %%
def bandwidths(collective, input_bytes, ranks, seconds):
    """algbw and busbw of an "all-reduce", "all-gather", "reduce-scatter" or "broadcast", in GB/s."""
    # <solution>
    size = input_bytes * ranks if collective == "all-gather" else input_bytes
    share = (ranks - 1) / ranks
    sent = {"all-reduce": 2 * share, "all-gather": share, "reduce-scatter": share, "broadcast": 1}[collective]
    return size / seconds / 1e9, sent * size / seconds / 1e9
    # </solution>
    # <student>
    # return None  # about four lines
    # </student>


# %%
bandwidths_verdict = labkit.exercises.check_bandwidths(bandwidths)
print(bandwidths_verdict)

# %% [markdown]
# ## DP-15: size against bus bandwidth
#
# Four collectives, from 4 kB to the longest message, in turns. Where several GPUs are linked, the all-reduce runs on three
# ways: as NCCL likes it (over NVLink, if there is any); with `NCCL_P2P_DISABLE=1`, which keeps GPUs from reaching one
# another's memory, so that everything goes through the host's, over PCIe; and by gloo, between tensors in host memory.

# %%
def arrays(megabytes, device):
    """The whole array and a rank's part of it, full of the rank's number plus one."""
    import torch
    import torch.distributed as dist

    rank, world = dist.get_rank(), dist.get_world_size()
    part = torch.full((int(megabytes * 250_000) // world,), rank + 1.0, device=device)
    return part.repeat(world), part


def call_of(collective, whole, part, group):
    """What runs the collective, and the mean of the numbers that it must leave."""
    import torch.distributed as dist

    world = dist.get_world_size()
    total = world * (world + 1) / 2
    calls = {
        "all-reduce": (lambda: dist.all_reduce(whole, group=group), whole, total),
        "all-gather": (lambda: dist.all_gather_into_tensor(whole, part, group=group), whole, total / world),
        "reduce-scatter": (lambda: dist.reduce_scatter_tensor(part, whole, group=group), part, total),
        "broadcast": (lambda: dist.broadcast(whole, world - 1, group=group), whole, float(world)),
    }
    return calls[collective]


def collective_times(collectives, sizes, times, way):
    import os

    import torch.distributed as dist

    if way == "through the host":
        os.environ["NCCL_P2P_DISABLE"] = "1"  # before NCCL connects anything
    group = dist.new_group(backend="gloo") if way == "gloo" else dist.group.WORLD
    device, works, facts = "cuda" if dist.get_backend(group) == "nccl" else "cpu", {}, {"right": True}
    for collective in collectives:
        for size in sizes:
            whole, part = arrays(size, device)
            call, result, mean = call_of(collective, whole, part, group)
            call()
            facts["right"] &= abs(result.double().mean().item() / mean - 1) < 1e-6
            facts["longest"] = whole.nbytes / 1e6  # by its own count
            works[label_of(collective, size, way)] = call
    return labkit.in_turns(works, times) | {"facts": facts}


# %%
def label_of(collective, size, way):
    return f"{collective}{f' {way}' if way else ''}, {size:g} MB"


def bus_gb_per_s(record):
    """The bus bandwidth, by your function, of a record whose label says what it is of."""
    name, _, size = record.setting["label"].partition(", ")
    input_bytes, collective = 1e6 * float(size.removesuffix(" MB")), name.partition(" ")[0]
    if collective == "all-gather":
        input_bytes /= record.ranks
    both = bandwidths(collective, input_bytes, record.ranks, record.median_s)
    if both is None:
        raise labkit.errors.NotMeasured("write bandwidths first")
    return both[1]


# %% [markdown]
# **Predict** at how many GB/s the longest all-reduce's bus bandwidth ends.

# %%
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast")
SIZES = (0.004, 0.064, 1, 16, 256) if SEVERAL else (0.004, 0.064, 1, 16)


def on_the_way(collectives, way=""):
    spots = {label_of(name, size, way): size for name in collectives for size in SIZES}
    lines = {label: label.rpartition(",")[0] for label in spots}
    link = {"through the host": "NCCL, through host memory", "gloo": "gloo, host memory"}.get(way)
    options = {"n": DEVICES, "seconds": 10, "series": lines, "link": link, "value": bus_gb_per_s}
    measured = {"collectives": collectives, "sizes": SIZES, "times": min(20, labkit.rounds()), "way": way}
    return labkit.steps.together(collective_times, spots, **options, **measured)


several_ways = [on_the_way(("all-reduce",), way) for way in ("through the host", "gloo")] if place.tier == "several-gpus" else []
bus = labkit.experiment("DP-15", several_ways, on_the_way(COLLECTIVES))

# %%
def print_bandwidths(points):
    for point in points:
        if point.x == max(SIZES):
            megabytes_to_send = 1e3 * point.value * point.records[0].median_s
            print(f"{point.label}: bus bandwidth {point.value:.3g} GB/s; {megabytes_to_send:.3g} MB must leave a rank")
    reduced = [point for point in points if point.series == "all-reduce"]
    for half in [point for point in reduced if point.value >= reduced[-1].value / 2][:1]:
        print(f"an all-reduce has half of its last bandwidth from {half.x:g} MB on")


await bus.report(print_bandwidths, needs=bandwidths_verdict)
print("measured between GPUs" if place.tier == "several-gpus" else labkit.recorded_note("DP-15"))

# %% [markdown]
# **Explain** the left and the right end of the curves by α and β (notebook 4a). Where two collectives end apart, what
# does one of them send that it need not?

# %% [markdown]
# ## DP-3-cern: which of CERN's rows does T = a + b/n fit?
#
# CERN trained a GAN on 4 to 32 A100s: with MIG off, and cut into 3g.20gb and 2g.10gb slices.
# The model has two free parameters and must fit three or four points. How large must a miss be to mean anything? In the
# same post, the same number of GPUs (16) took 120 to 160 s depending on where they were: 14 % either way of the middle.
# **Predict:** by what percentage will it miss the worst point of the MIG-off row? (Computed, so drawn hollow.)

# %%
def cern_row(part):
    epochs = [(n, labkit.published.figure(f"cern6.epoch.{part}.{n}").value) for n in (4, 8, 16, 32)]
    return [(n, seconds) for n, seconds in epochs if seconds is not None]


def worst_miss(part):
    row = cern_row(part)
    *_, residual = labkit.stats.line_fit([1 / n for n, _ in row], [seconds for _, seconds in row])
    return 100 * residual


ROWS = {"full": "MIG off", "3g": "3g.20gb", "2g": "2g.10gb"}
misses = [labkit.steps.computed_step(row_name, x, worst_miss, part) for x, (part, row_name) in enumerate(ROWS.items())]
cern_fit = labkit.experiment("DP-3-cern", misses)

# %%
def fits_of_rows(_):
    for part, row_name in ROWS.items():
        row = cern_row(part)
        a, b, _ = labkit.stats.line_fit([1 / n for n, _ in row], [seconds for _, seconds in row])
        fitted = ", ".join(f"{a + b / n:.0f}" for n, _ in row)
        print(f"{row_name:>7}: published {', '.join(f'{s:.0f}' for _, s in row)} s; a + b/n gives {fitted} s")


await cern_fit.report(fits_of_rows)

# %% [markdown]
# **Explain:** which misses are larger than CERN's own scatter between placements? From 16 to 32 whole GPUs, an epoch
# becomes 1.54 times faster, more than from 8 to 16. No constant a can explain that, but one point that is 14 % off could.
# What would you have to measure again before you called the model wrong? (The 2g row has only three points.)
# CERN's text says the difference between MIG off and MIG "alleviates" with more GPUs. The ratios:

# %%
for n in (4, 8, 16, 32):
    full_gpus, slices = (labkit.published.figure(f"cern6.epoch.{part}.{n}").value for part in ("full", "3g"))
    print(f"{n:>2} GPUs: {slices:.0f} / {full_gpus:.0f} s = {slices / full_gpus:.2f}")
labkit.cite("cern6")

# %% [markdown]
# ## DP-7: throughput against the batch of one rank
#
# Dettmers (2014, the article of notebook 4a): below a batch of 64 a GPU "loses speed". A slice has fewer SMs to fill: where is its knee?
# (On a GPU: as a CUDA graph, where the knee is the GPU's, and launched by Python, where it may be Python's.)
# **Predict** for the graph whether samples per second rise, stay flat, or fall from 32 to 1024.

# %%
import math


def one_step(width, depth, batch):
    network, device = labkit.exercises.networks.mlp(width, depth)
    x = torch.randn(batch, width, device=device)
    return lambda: flat_gradient(network, x)


def launched_step(width, depth, batch, graph):
    return labkit.parts.confined(one_step(width, depth, batch), None, graph=graph)


def knee_step(kind, batch):
    def rate(record):
        return batch / record.median_s

    shape = {"width": WIDTH, "depth": DEPTH, "batch": batch, "graph": LAUNCHES[kind]}
    return labkit.steps.timed_step(f"{batch}", batch, launched_step, value=rate, seconds=4, series=kind, **shape)


LAUNCHES = labkit.parts.launches(place)  # by name, whether it is a graph
knee = labkit.experiment("DP-7", [knee_step(kind, batch) for kind in LAUNCHES for batch in (32, 63, 64, 65, 256, 1024)])

# %%
def doubling(points):
    for small, big in zip(points, points[1:]):
        if big.x > 1.5 * small.x:
            gain = (big.value / small.value) ** (1 / math.log2(big.x / small.x)) - 1
            kind = f", {big.series}" if big.series else ""
            print(f"from {small.label} to {big.label}{kind}: {gain:.1%} a doubling (Dettmers: 13.6 %)")


await knee.report(doubling)

# %% [markdown]
# ## DP-8: the slowest rank decides
#
# The last rank does its work twice. **Predict** how many ms a step then takes.

# %%
def uneven(width, depth, batch, times):
    import torch.distributed as dist

    network, device = labkit.exercises.networks.mlp(width, depth)
    x = torch.randn(batch, width, device=device)
    is_last = dist.get_rank() == dist.get_world_size() - 1

    def step(work):
        def run():
            for _ in range(work):
                gradient = flat_gradient(network, x)
            dist.all_reduce(gradient)

        return run

    return labkit.in_turns({"even": step(1), "one slow rank": step(2 if is_last else 1)}, times)


# %%
TIMED = {"n": DEVICES, "times": 20}
shape = {"width": WIDTH, "depth": DEPTH, "batch": BATCH // 2}
straggler = labkit.experiment("DP-8", labkit.steps.together(uneven, ("even", "one slow rank"), **shape, **TIMED))

# %%
await straggler.report()

# %% [markdown]
# ## DP-9: two ranks on one device
#
# Habr's author got an exception from NCCL when two ranks shared a GPU.
# The error below comes from this machine's NCCL; versions from 2.30 on can be told to allow it.

# %%
def one_number():
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1, device="cuda"), group=dist.new_group(backend="nccl"))


def nccl_on_one_device():
    options = {"n": len(place.devices) + 1, "share_device": True, "on": place.lends[0] if place.lends else None}
    try:
        labkit.ranks(one_number, **options)
    except labkit.errors.LabError as error:
        return str(error)[:600]
    return "this NCCL let two ranks share one device"


if place.devices[0].backend == "cpu":
    print("DP-9 needs a GPU: NCCL does not run on a CPU.")
elif labkit.is_measured_here():
    print(nccl_on_one_device())
else:
    print("optional: `nccl_on_one_device()` shows it")

# %% [markdown]
# Two trainings that know nothing of each other take turns on a device (without a GPU they share the CPU's cores).
# **Predict:** from one training to two, does the total rise, stay flat, or fall?

# %%
def copies_of(count):
    shape = {"width": WIDTH, "depth": DEPTH, "batch": 64}
    return labkit.steps.shared_step(f"{count}", count, one_step, labkit.sharing.Way.TIME, shows="rate", copies=count, **shape)


side_by_side = labkit.experiment("DP-9", *map(copies_of, (1, 2)))

# %%
await side_by_side.report()

# %% [markdown]
# Habr's author gained 5-10 % by two trainings side by side. On one H200 two of these did 1.8 times the work of one: so
# small a training leaves the device idle while Python launches.
#
# ## DP-10: does DDP's memory grow with the ranks?
#
# CERN suspected that 96 ranks ran out of memory "most likely" because of gradient aggregation.
# DDP keeps a second copy of the gradients in its buckets, unless the gradients *are* views of the buckets;
# that does not depend on the number of ranks. What may grow with the ranks lies outside PyTorch's allocator:
# NCCL's own buffers, one more for each peer. So the memory that the *device* reports is printed as well.
# Where every rank has a GPU or a slice, that is what you measure; elsewhere the ranks are processes on the CPU, whose
# whole memory is measured (there the views saved 18 of 64 MiB in one recording), and nothing is said about NCCL.
# At CERN, the ranks that ran out held 2g.10gb slices of A100s with 40 GB; on a GPU, PyTorch gets at most 10 GB here, too.
# **Predict** how many MiB the views save.

# %%
def ddp_memory(width, depth, views):
    import resource

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(min(1.0, 10 * 2**30 / torch.cuda.mem_get_info()[1]))
    network, device = labkit.exercises.networks.mlp(width, depth)
    ddp = DistributedDataParallel(network, gradient_as_bucket_view=views)
    for _ in range(3):
        ddp(torch.randn(8, width, device=device)).square().mean().backward()
    outside = 0.0
    if device == "cuda":
        mib, (free, total) = torch.cuda.max_memory_allocated() / 2**20, torch.cuda.mem_get_info()
        outside = (total - free - torch.cuda.memory_reserved()) / 2**20
    else:
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {f"{dist.get_world_size()} ranks": {"MiB": mib, "outside": outside}}


# %%
def memory_steps(n):
    label, shape = f"{n} ranks", {"n": n, "value": "MiB", "width": 2048, "depth": 4}
    kinds = {"copies": False, "views": True}
    return [
        labkit.steps.together(ddp_memory, {label: n}, series={label: kind}, views=views, **shape)
        for kind, views in kinds.items()
    ]


WORLDS = [n for n in (2, 4) if not SEVERAL or DEVICES >= n]
buckets = labkit.experiment("DP-10", *map(memory_steps, WORLDS))

# %%
def outside(points):
    for point in points:
        record = point.records[0]
        on_cpu, device_label = record.devices[0].backend == "cpu", record.devices[0].label
        memory = "the whole process" if on_cpu else f"{record.setting['outside']:.0f} MiB outside of PyTorch (context, NCCL)"
        memory += "" if on_cpu else f", {point.value:.0f} MiB inside, of 10 GB that it may have"
        print(f"{point.label}, {point.series}: {memory}, each rank on {device_label}")
    if on_cpu:
        print("measured on CPU ranks: the peak of a whole process shows only part of what the views save, and NCCL is not there")
    elif len({point.label for point in points}) < 2:
        print("two devices show one number of ranks only: whether anything grows needs four")


await buckets.report(outside)

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("4b_sending")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
