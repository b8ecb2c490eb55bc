# %% [markdown]
# # 3. Mixed precision
#
# **Afterwards you can decide**, for a model of yours and the slice you hold, which of fp16 and bf16 to use, if any.
# You will be able to
#
# - say what range and what precision a format has, and what it loses;
# - measure whether 16 bits make a product, and a training, faster;
# - write a loss scaler, and say between which scales gradients survive;
# - count what 16 bits save of a training step's memory, and what they do not.
#
# You write the loss scaler yourself, and test a sentence about it from a widely read article: Tim Dettmers,
# [Which GPU(s) to Get for Deep Learning](https://timdettmers.com/2023/01/30/which-gpu-for-deep-learning/).
#
# About 70 minutes for the core; the sections after the summary are optional.

# %% [markdown]
# How large the experiments are depends on what you hold.
# On a CPU they are scaled down, and every plot says that it does not show a GPU.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
ON_GPU = place.is_gpu
SIZES = (1024, 2048, 4096) if ON_GPU else (128, 256, 512)
WIDTH, BATCH = (1024, 4096) if ON_GPU else (128, 256)
if labkit.is_quick():
    SIZES = SIZES[-1:]
print(f"matrices up to {SIZES[-1]}, layers {WIDTH} wide{'' if ON_GPU else ' (scaled down for a CPU)'}")
labkit.card(place)

# %% [markdown]
# ## What 16 bits can hold
#
# A floating-point number is a sign, an *exponent* (how big) and a *mantissa* (how exact).
# fp16 spends 5 bits on the exponent and 10 on the mantissa, bf16 spends 8 and 7, fp32 8 and 23.
# Type numbers of your own into this cell, very small and very big ones, and see what becomes of them.

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU

FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def show(number):
    for name, dtype in FORMATS.items():
        print(f"{name}: {number:g} becomes {torch.tensor(number).to(dtype).item():.10g}")


show(1e-8)

# %% [markdown]
# ## MX-2: is it faster?
#
# Tensor cores multiply 16-bit numbers much faster than the ordinary cores multiply 32-bit ones.
# The data sheet of an A100 says 16 times. How much of it is reached with a matrix of yours?
# A CPU makes no promise at all.

# %%
def product(size, dtype):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return lambda: a @ b


def fp32_product(size):
    import torch

    return product(size, torch.float32)


def bf16_product(size):
    import torch

    return product(size, torch.bfloat16)


# %% [markdown]
# Both run in the same child process, in turns: if one ran after the other, a drifting clock could decide the result.
# **Predict** how many times as long fp32 takes with the biggest matrix.

# %%
def in_both(n, least=2):
    return labkit.steps.compared_step(f"n={n}", n, fp32_product, bf16_product, band=(least, float("inf")), seconds=8, size=n)


speed = labkit.experiment("MX-2", *map(in_both, SIZES))

# %%
await speed.report()
print("measured on a GPU" if ON_GPU else labkit.recorded_note("MX-2", "MX-9"))

# %% [markdown]
# CERN measured fp32, and fp16 on tensor cores, on A100 slices. (On a CPU with AMX, bf16 is several times faster;
# without AMX, it may be slower. That is why nothing was promised.) Compare only the *ratio* with yours: three sources
# give three "peaks" of the same GPU, from 81.5 to 312 TFLOP/s, because tool, matrix size and type differ.

# %%
for part in ("full", "7g", "3g", "2g", "1g"):
    tensor = labkit.published.figure(f"cern5.flops.fp16-tensor.{part}")
    plain = labkit.published.figure(f"cern5.flops.fp32.{part}")
    print(f"{part:>4}: {tensor.value / plain.value:.1f} x ({tensor.label})")
labkit.cite("cern5")

# %% [markdown]
# **Explain:** the small slices have the *bigger* ratio: 14.1 against 9.8. Is their tensor rate high, or the whole
# GPU's low, and which division tells you? CERN does not explain it; notebook 2 lets you look.

# %% [markdown]
# ## MX-5: gradients that vanish
#
# The smallest positive fp16 number is about 6e-8.
# The gradients of a network that is nearly trained are often smaller, and fp16 makes them **zero**.
# *Loss scaling* multiplies the loss by a number before backpropagation
# and divides the gradients by it afterwards, in fp32.
#
# Dettmers' article says:
# > we usually perform loss scaling where you multiply the loss by a **small number**
# > before backpropagating to prevent this gradient explosion.
#
# The network is the small transformer of MX-12 below, trained for a while on Python's own source code. Its loss is
# divided by 2048 micro-batches, as in gradient accumulation, so that its gradients are as small as those of a big
# model. (Gradients overflow above a certain scale. This loss is 2^11 times smaller than usual, so that limit is 2^11
# times higher here; in real training it lies between 2^10 and 2^20. PyTorch starts at 2^16.)

# %%
SHARES = 2048


def trained_network(steps=50):
    import torch

    torch.set_num_threads(1)  # so small that a second CPU thread would only be waited for
    network, device = labkit.exercises.small_model.model(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        labkit.exercises.small_model.loss_of(network, *labkit.exercises.small_model.batch_of(0, step, device)).backward()
        optimizer.step()
    read, follows = labkit.exercises.small_model.batch_of(0, steps, device)
    return network, read[:4], follows[:4]


# %% [markdown]
# This compares its gradients in fp32 with those in 16 bits, with the loss multiplied by `scale`.

# %%
def gradients(network, x, y, dtype, scale):
    import copy

    import torch

    network_copy = copy.deepcopy(network).to(dtype)
    loss = labkit.exercises.small_model.loss_of(network_copy, x, y) / SHARES
    (loss * scale).backward()
    flat = torch.cat([p.grad.flatten().float() for p in network_copy.parameters()])
    return flat / scale


# %%
def losses(exponents, dtype_name="float16"):
    import torch

    network, x, y = trained_network()
    true_gradients, facts_by_scale = gradients(network, x, y, torch.float32, 1.0), {}
    for exponent in exponents:
        scaled_gradients = gradients(network, x, y, getattr(torch, dtype_name), 2.0**exponent)
        is_lost = (scaled_gradients == 0) & (true_gradients != 0)
        difference = (scaled_gradients - true_gradients).nan_to_num(9e9, 9e9, 9e9)
        facts_by_scale[f"2^{exponent}"] = {
            "zeros": 100 * is_lost.float().mean().item(),
            "inf": 100 * (~scaled_gradients.isfinite()).float().mean().item(),
            "error": min(9e9, (difference.norm() / true_gradients.norm()).item()),
        }
    return facts_by_scale


# %% [markdown]
# **Predict** what percentage of the gradients becomes zero at the smallest scale, 2^-10.
# If the article is right, that is the safe end. Two curves are drawn: gradients that become zero, and those that
# become inf.

# %%
EXPONENTS = (-10, 0, 10, 40) if labkit.is_quick() else (-10, -6, -3, 0, 3, 6, 10, 15, 20, 25, 30, 35, 40, 45)

# %%
scale_spots = {f"2^{e}": e for e in EXPONENTS}
scales = labkit.experiment("MX-5", labkit.steps.together(losses, scale_spots, value="zeros", exponents=EXPONENTS))

# %%
def losses_in_words(points):
    for point in points:
        facts = point.records[0].setting
        lost = f"{facts['zeros']:5.1f} % zero, {facts['inf']:5.1f} % inf or nan"
        print(f"{point.label:>6}: {lost}, relative error {facts['error']:.2g}")


await scales.report(losses_in_words)

# %% [markdown]
# **Explain:** there is a safe window between two cliffs. What happens at each? Which of them is the article's
# sentence about, and does it scale in the right direction?

# %% [markdown]
# ## Exercise 1: a loss scaler
#
# Nobody knows the window beforehand, and it moves during training. So the scale is found during training:
#
# - it starts high;
# - `update(found_inf)` is told whether this step's gradients held an inf or nan;
#   if so it halves the scale and answers `False`: the step must be skipped;
# - otherwise it answers `True`, and after `growth_every` good steps in a row it doubles the scale.

# %%
class LossScaler:
    def __init__(self, start=2.0**16, growth_every=50):
        self.scale, self.growth_every, self.good = start, growth_every, 0

    def update(self, found_inf):
        # <solution>
        if found_inf:
            self.scale, self.good = self.scale / 2, 0
            return False
        self.good += 1
        if self.good == self.growth_every:
            self.scale, self.good = self.scale * 2, 0
        return True
        # </solution>
        # <student>
        # return True  # write the three rules here
        # </student>


# %%
scaler_verdict = labkit.exercises.check_loss_scaler(LossScaler)
print(scaler_verdict)

# %% [markdown]
# ## Exercise 2: a step in mixed precision
#
# A scaler alone trains nothing. Write the step that uses it:
#
# - `gradients_at(scale)` runs the backward pass from scale × loss and returns the gradients, a list of tensors that
#   may be fp16;
# - `step(gradients)` takes a step with the gradients it gets: they must be the true ones, in fp32;
# - `scaler` is a LossScaler: call `update` once in each step; if a gradient is inf or nan, skip the step. Return
#   whether it was taken.

# %%
def scaled_step(gradients_at, step, scaler):
    # <solution>
    scale = scaler.scale
    gradients = gradients_at(scale)
    found_inf = any(not gradient.isfinite().all() for gradient in gradients)
    is_taken = scaler.update(found_inf)
    if is_taken:
        step([gradient.float() / scale for gradient in gradients])
    return is_taken
    # </solution>
    # <student>
    # return None  # about six lines
    # </student>


# %%
step_verdict = labkit.exercises.check_scaled_step(scaled_step)
both_written = "right" if scaler_verdict.right and step_verdict.right else "write LossScaler and scaled_step first"
print(step_verdict)

# %% [markdown]
# ## MX-7: your scaler at work
#
# It trains the small transformer in fp16 and starts far too high, at 2^44.
# PyTorch's own `GradScaler` runs the same training beside it, with the same rules.

# %%
def one_step(network, x, y, optimizer, scale):
    import torch

    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=torch.float16):
        loss = labkit.exercises.small_model.loss_of(network, x, y) / SHARES
    (loss * scale).backward()
    return not all(p.grad.isfinite().all() for p in network.parameters())


def step_with(network, optimizer):
    """A function that takes a step with the gradients it is given."""

    def step(gradients):
        for parameter, gradient in zip(network.parameters(), gradients):
            parameter.grad = gradient
        optimizer.step()

    return step


def own_trace(steps):
    import torch

    network, x, y = trained_network()
    optimizer, scaler, trace = torch.optim.SGD(network.parameters(), lr=1e-3), LossScaler(2.0**44), []

    def gradients_at(scale):
        one_step(network, x, y, optimizer, scale)
        return [parameter.grad for parameter in network.parameters()]

    for _ in range(steps):
        scale = scaler.scale
        trace.append((scale, scaled_step(gradients_at, step_with(network, optimizer), scaler)))
    return trace


# %%
def torch_trace(steps):
    import torch

    network, x, y = trained_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(x.device.type, init_scale=2.0**44, growth_interval=50)
    scaler.scale(torch.zeros(1, device=x.device))  # it makes its scale at first use
    trace = []
    for _ in range(steps):
        scale = scaler.get_scale()
        one_step(network, x, y, optimizer, scale)
        scaler.step(optimizer)
        scaler.update()
        trace.append((scale, scaler.get_scale() >= scale))
    return trace


def both_traces(steps, every):
    """The facts of some steps; the first carries both complete traces, which are drawn as lines."""
    own_steps, torch_steps = own_trace(steps), torch_trace(steps)
    facts_by_step = {
        f"step {i}": {"scale": own_steps[i][0], "skipped": sum(not is_taken for _, is_taken in own_steps[: i + 1])}
        for i in range(0, steps, every)
    }
    facts_by_step["step 0"] |= {name: [scale for scale, _ in pairs] for name, pairs in (("trace", own_steps), ("torch trace", torch_steps))}
    return facts_by_step


# %% [markdown]
# **Predict:** around which scale will it settle? (Type it out: 2^20 is about 1e6, 2^30 about 1e9.) Every step is
# drawn, yours and PyTorch's.

# %%
STEPS, EVERY = (64, 21) if labkit.is_quick() else (210, 30)
trace_spots = {f"step {i}": i for i in range(0, STEPS, EVERY)}
trace = labkit.experiment("MX-7", labkit.steps.together(both_traces, trace_spots, value="scale", steps=STEPS, every=EVERY))

# %%
def print_agreement(points):
    facts = points[0].records[0].setting
    if "trace" in facts:
        agreeing = sum(own_scale == torch_scale for own_scale, torch_scale in zip(facts["trace"], facts["torch trace"]))
        skipped = points[-1].records[0].setting["skipped"]
        print(f"as PyTorch's GradScaler in {agreeing} of {len(facts['trace'])} steps, {skipped} skipped")


await trace.report(print_agreement, needs=both_written)

# %% [markdown]
# **Explain** the saw-tooth: why does it keep bumping into the ceiling, and what does each bump cost?
# PyTorch waits 2000 good steps before it doubles. What is gained by waiting longer?

# %% [markdown]
# ## MX-9: how much memory is saved
#
# Activations wait in memory for the backward pass. AMP (automatic mixed precision, `torch.autocast`) keeps them in 16
# bits. Weights do not shrink under autocast: an fp32 master copy stays. What is kept for the backward pass, beside
# the parameters, is *counted* on every device, and the claim is about that. On a GPU the peak of a whole step is
# measured and drawn as well. Each format is measured in a process of its own. (Read the network with
# `labkit.exercises.networks.mlp??`.)

# %%
def kept_for_backward(network, run):
    """MiB of the tensors that autograd keeps beside the parameters, each counted once."""
    import torch

    sizes, parameters = {}, {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:  # they lie there anyway
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = run()
    del loss
    return sum(sizes.values()) / 2**20


# %%
KINDS_OF_STEP = {"fp32": ("float32", False), "AMP": ("float32", True), "bf16": ("bfloat16", False)}
ROWS = 16_384  # samples of the step whose peak is drawn, on a GPU


def training(width, kind):
    """A function that runs one whole step, forward, backward and Adam, on so many samples of its own."""
    import torch

    name, amp = KINDS_OF_STEP[kind]
    network, device = labkit.exercises.networks.mlp(width, 6)
    network.to(getattr(torch, name))
    optimizer = torch.optim.Adam(network.parameters())

    def forward(rows):
        x = torch.randn(rows, width, device=device, dtype=getattr(torch, name))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp, cache_enabled=False):
            return network(x).float().sum()

    def step(rows):
        forward(rows).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return network, forward, step


def peak_mib(step, rows):
    """MiB of tensors at the fullest moment of a step, without the context."""
    import torch

    step(rows)  # Adam makes its moments in the first step
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(rows)
    return torch.cuda.max_memory_allocated() / 2**20


# %%
def memory_of(width, batch, kind):
    import torch

    network, forward, step = training(width, kind)
    on_gpu = torch.cuda.is_available()
    facts = {
        "kept": kept_for_backward(network, lambda: forward(batch)),
        "weights": sum(p.numel() * p.element_size() for p in network.parameters()) / 2**20,
        "peak": peak_mib(step, ROWS) if on_gpu else 0.0,
    }
    return {kind: facts}


# %% [markdown]
# **Predict:** what percentage of fp32's memory does AMP need? (On a GPU this means the peak of a step, which includes
# weights, gradients and temporaries; on a CPU, what is kept for the backward pass.)

# %%
def in_mib(record):
    return record.setting["peak"] or record.setting["kept"]


def memory_step(x, kind):
    return labkit.steps.together(memory_of, {kind: x}, value=in_mib, width=WIDTH, batch=BATCH, kind=kind)


saved = labkit.experiment("MX-9", *map(memory_step, range(len(KINDS_OF_STEP)), KINDS_OF_STEP))

# %%
def memory_in_words(points):
    for point in points:
        facts = point.records[0].setting
        sizes = f"kept for backward {facts['kept']:.1f}, weights {facts['weights']:.1f} MiB"
        print(f"{point.label}: drawn {point.value:.1f} MiB; {sizes}")


await saved.report(memory_in_words)

# %% [markdown]
# **Explain** why pure bf16 saves more than AMP, and what you would lose by it (see the mantissas above).

# %% [markdown]
# ## MX-12: a real model, in two formats
#
# So far you have measured pieces. Now a small transformer learns to read: the source code of Python's own standard
# library, byte by byte (`labkit.exercises.small_model??`; the text and its licence lie in `labkit/text`). Its loss is
# given in *bits per byte*, on modules that it never trains on: 8 is guessing. fp32 and bf16 see the same batches,
# from the same weights, and each is trained three times, with three seeds: the median is drawn.

# %%
def rate_of(arm):
    """The learning rate; the same for all."""
    return 3e-3


def one_training(kind, seed, steps, every):
    """By step, bits per byte on held-out modules and seconds of training; and the bits of a number that it computes with."""
    import time

    import torch

    reader, device = labkit.exercises.small_model.model(seed)
    optimizer, seconds, bits_by_step = torch.optim.AdamW(reader.parameters(), lr=rate_of(kind)), 0.0, {}
    for step in range(1, steps + 1):
        started = time.perf_counter()
        read, follows = labkit.exercises.small_model.batch_of(seed, step, device)
        with torch.autocast(device, torch.bfloat16, enabled=kind == "bf16"):
            loss = labkit.exercises.small_model.loss_of(reader, read, follows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # it waits for the device
        seconds += time.perf_counter() - started
        if step % every == 0:
            bits_by_step[step] = (labkit.exercises.small_model.held_out_bits(reader, device), seconds)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=kind == "bf16"):
        return bits_by_step, torch.finfo(reader(read).dtype).bits


def trainings(kinds, seeds, steps, every):
    import torch

    torch.set_num_threads(1)  # on a CPU
    facts_by_label, facts = {}, labkit.exercises.small_model.facts_of_seeds
    for kind in kinds:
        runs, sizes = zip(*(one_training(kind, seed, steps, every) for seed in seeds))
        for step in range(every, steps + 1, every):
            facts_by_label[f"{kind}, step {step}"] = facts([run[step] for run in runs]) | {"bits of a number": max(sizes)}
    return facts_by_label


# %% [markdown]
# **Predict** the bits per byte that bf16 ends with after 80 steps. (8 is guessing.)

# %%
LEARN = {"steps": 40, "every": 20} if labkit.is_quick() else {"steps": 80, "every": 20}
SEEDS = (0,) if labkit.is_quick() else (0, 1, 2)
MARKS = range(LEARN["every"], LEARN["steps"] + 1, LEARN["every"])
training_spots = {f"{kind}, step {step}": step for kind in ("fp32", "bf16") for step in MARKS}
by_kind = {label: label.partition(",")[0] for label in training_spots}
reading = labkit.steps.together(
    trainings, training_spots, value="bits", series=by_kind, seconds=60, kinds=("fp32", "bf16"), seeds=SEEDS, **LEARN
)
learns = labkit.experiment("MX-12", reading)

# %%
await learns.report(labkit.exercises.small_model.seeds_apart)

# %% [markdown]
# ## What the published figures say, and where they are wrong

# %%
print(labkit.published.corrections("E9", "E8", "E7"))
labkit.cite("dettmers", "habr", "cern5")

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("MX-2", "MX-5", "MX-7", "MX-9", "MX-12")

# %%
my_numbers = labkit.drawn("3", millions=(20, 40, 80), gradient=("1e-4", "1e-6", "1e-9"))
print(f"your model has {my_numbers['millions']} million parameters; its gradients are about {my_numbers['gradient']}")

# %% [markdown]
# **Decide** for the model above, whose numbers are your own: it runs out of memory on a 1g.5gb slice.
# fp16 with your scaler, bf16 without one, or a bigger slice? Name the figures that decide.

# %% [markdown]
# # Optional sections
#
# There are no exercises here; run what interests you.
#
# ## MX-6: the same in bf16
#
# **Predict** bf16's share of zeros at scale 1; then look at its relative error, too.

# %%
SOME = (-10, 0, 10, 40)
bf16_spots = {f"2^{e}": e for e in SOME}
in_bf16 = labkit.steps.together(losses, bf16_spots, value="zeros", exponents=SOME, dtype_name="bfloat16")
bf16_scales = labkit.experiment("MX-6", in_bf16)

# %%
await bf16_scales.report(losses_in_words)

# %% [markdown]
# ## MX-13: time to a loss
#
# Steps per second are not what you are after. How long does each format take to a loss that *both* reach, with every seed?
# **Predict** how many times as long bf16 takes as fp32 to reach that loss. (It is read from the training above, so it is drawn hollow.)

# %%
SECONDS = labkit.exercises.small_model.seconds_to_loss
both = [labkit.steps.computed_step(kind, x, SECONDS, learns, kind) for x, kind in enumerate(("fp32", "bf16"))]
to_loss = labkit.experiment("MX-13", both)

# %%
await to_loss.report()

# %% [markdown]
# **Explain:** a step in bf16 may be faster or slower here. What would have to be true for it to be faster and yet to need
# longer to the loss? (This model is so small that Python may decide on a GPU.)

# %% [markdown]
# ## MX-1: the ends of the formats
#
# **Predict:** what is the largest number that fp16 can hold? The published figure is drawn beside it.

# %%
def largest(dtype):
    """The largest number that comes back from a format unchanged, found by trying."""
    import torch

    def survives(number):
        return torch.tensor(number, dtype=torch.float64).to(dtype).double().item() == number

    largest_number = 1.0
    while survives(2 * largest_number):
        largest_number *= 2
    step = largest_number / 2
    while step >= largest_number * 2.0**-25:
        largest_number += step if survives(largest_number + step) else 0.0
        step /= 2
    return largest_number


def limits():
    import torch

    def of(dtype):
        info = torch.finfo(dtype)
        return {"largest": largest(dtype), "step at 1": info.eps, "smallest": info.tiny * info.eps}

    return {"fp32": of(torch.float32), "fp16": of(torch.float16), "bf16": of(torch.bfloat16)}


# %%
formats = labkit.experiment("MX-1", labkit.steps.together(limits, ("bf16", "fp16", "fp32"), value="largest"))

# %%
def ends_of_formats(points):
    for point in points:
        facts = point.records[0].setting
        print(f"{point.label}: smallest {facts['smallest']:.2g}, step at 1 {facts['step at 1']:.2g}")


await formats.report(ends_of_formats)

# %% [markdown]
# **Explain:** fp16 and bf16 are both 16 bits long.
# What does bf16 pay for its range, and where will you see that price again below?
# Write it into the panel's explanation: it is kept with your evidence.

# %% [markdown]
# ## MX-11: what it does to training
#
# The loss of the small transformer, from its first step: in fp32, in bf16, in fp16, and in fp16 with *your* scaler.
# Only the products use that format; the weights stay in fp32, and the loss is divided as in MX-5.
# **Predict** the loss that fp16 without a scale ends with. All four begin at 6.1 nats a byte.

# %%
WAYS_TO_TRAIN = {"fp32": ("float32", False), "bf16": ("bfloat16", False), "fp16": ("float16", False), "fp16, your scaler": ("float16", True)}


def loss_curve(type_name, scaled, steps):
    import torch

    (network, x, y), losses, scaler = trained_network(0), [], LossScaler()
    optimizer = torch.optim.SGD(network.parameters(), lr=SHARES / 4)
    step = step_with(network, optimizer)

    def gradients_at(scale):
        optimizer.zero_grad()
        with torch.autocast(x.device.type, dtype=getattr(torch, type_name), enabled=type_name != "float32"):
            loss = labkit.exercises.small_model.loss_of(network, x, y)
        (loss / SHARES * scale).backward()
        losses.append(loss.item())
        return [parameter.grad for parameter in network.parameters()]

    for _ in range(steps):
        scaled_step(gradients_at, step, scaler) if scaled else step(gradients_at(1.0))
    return losses


def all_curves(steps, every):
    losses_by_way = {way: loss_curve(*training, steps) for way, training in WAYS_TO_TRAIN.items()}
    return {f"{way}, step {i}": {"loss": losses_by_way[way][i - 1]} for way in losses_by_way for i in range(every, steps + 1, every)}


# %%
EVERY_25 = range(25, 201, 25)
curve_spots = {f"{way}, step {i}": i for way in WAYS_TO_TRAIN for i in EVERY_25}
ways = {label: label.rsplit(", step", 1)[0] for label in curve_spots}
curves = labkit.steps.together(all_curves, curve_spots, value="loss", series=ways, steps=200, every=25)
training_curves = labkit.experiment("MX-11", curves)

# %%
await training_curves.report(needs=both_written)

# %% [markdown]
# **Explain:** nothing overflowed and nothing warned. How would you have noticed without the other curves?

# %% [markdown]
# ## MX-8: when AMP does not help
#
# Autocast adds a cast to every layer, and on a GPU every cast is one more kernel to launch.
# Habr's author wrote "AMP does not work for us". On a GPU each step is timed as a CUDA graph, which is the GPU's own
# time, and as Python launches it.
# **Predict** for the graph whether AMP over fp32 rises or falls with width.

# %%
def step_of(width, amp):
    import torch

    network, device = labkit.exercises.networks.mlp(width, 3)
    x = torch.randn(256, width, device=device)

    def work():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp, cache_enabled=False):
            loss = network(x).float().sum()
        loss.backward()

    return work


def amp_step(width, graph):
    return labkit.parts.confined(step_of(width, True), None, graph=graph)


def fp32_step(width, graph):
    return labkit.parts.confined(step_of(width, False), None, graph=graph)


# %%
WIDTHS = (256, 1024, 4096) if ON_GPU else (32, 128, 512)
LAUNCHES = labkit.parts.launches(place)  # by name, whether it is a graph


def gain_of_amp(kind, width):
    options = {"seconds": 6, "series": kind, "width": width, "graph": LAUNCHES[kind]}
    return labkit.steps.compared_step(f"{width}", width, amp_step, fp32_step, band=(0, 1), **options)


amp = labkit.experiment("MX-8", [gain_of_amp(kind, width) for kind in LAUNCHES for width in WIDTHS])

# %%
await amp.report()

# %% [markdown]
# ## MX-4: what is limited by memory gains only by its bytes
#
# Half the bytes take half the time, however many tensor cores there are.
# **Predict** whether the gain of 16 bits rises, stays flat or falls from left (few operations per byte) to right.

# %%
def layer_norm(dtype):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(4 * BATCH, WIDTH, device=device).to(dtype)
    return lambda: torch.nn.functional.layer_norm(x, (WIDTH,))


def copy_of(dtype):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(16 * BATCH, WIDTH, device=device).to(dtype)
    y = torch.empty_like(x)
    return lambda: y.copy_(x)


# %%
WORKS = (
    ("copy", 0.06, lambda: copy_of(torch.float32), lambda: copy_of(torch.bfloat16), {}),
    (
        "layer norm",
        labkit.exercises.roofline.layer_norm(4 * BATCH, WIDTH).intensity,
        lambda: layer_norm(torch.float32),
        lambda: layer_norm(torch.bfloat16),
        {},
    ),
    ("matmul", labkit.exercises.roofline.matmul(*(SIZES[-1],) * 3).intensity, fp32_product, bf16_product, {"size": SIZES[-1]}),
)
gain_steps = [
    labkit.steps.compared_step(label, x, wide, narrow, band=(1, float("inf")), seconds=6, **arguments)
    for label, x, wide, narrow, arguments in WORKS
]
gains = labkit.experiment("MX-4", gain_steps)

# %%
await gains.report()

# %% [markdown]
# ## MX-10: TF32, the format in between
#
# TF32 has fp32's range and fp16's mantissa; only products on tensor cores use it.
# Dettmers' article expects "near FP32 stability" and "speedups close to FP16"; the data sheet says half of fp16.
# On a CPU the shorter mantissa is emulated by cutting bits off, and there is no speed to see.
# **Predict** the relative error of TF32.
# On a GPU the speed is measured below: it is the fair baseline for bf16, because nobody who may use TF32 runs plain fp32 products.

# %%
def cut(tensor, bits=13):
    """fp32 with the last bits of the mantissa cut off: TF32 emulated."""
    import torch

    return (tensor.view(torch.int32) >> bits << bits).view(torch.float32)


def product_errors(size):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    exact = a.double() @ b.double()
    products = {"fp32": a @ b, "bf16": a.bfloat16() @ b.bfloat16(), "fp16": a.half() @ b.half()}
    torch.set_float32_matmul_precision("high")  # TF32, on a GPU
    products["tf32"] = a @ b if device == "cuda" else cut(a) @ cut(b)
    return {
        name: {"error": ((value.double() - exact).norm() / exact.norm()).item()}
        for name, value in products.items()
    }


# %%
errors = labkit.steps.together(product_errors, ("bf16", "fp16", "tf32", "fp32"), value="error", size=SIZES[-1])
tf32 = labkit.experiment("MX-10", errors, how="" if ON_GPU else ", TF32 emulated")

# %%
await tf32.report()

# %%
def tf32_product(size):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device) for _ in range(2))

    def work():
        torch.set_float32_matmul_precision("high")
        a @ b
        torch.set_float32_matmul_precision("highest")

    return work


if not ON_GPU:
    print("no TF32 speed without a GPU")
elif tf32.evidence.points:
    for name, other in (("fp32", fp32_product), ("bf16", bf16_product)):
        tf32_comparison = labkit.compare(other, tf32_product, band=(0.0, 99.0), size=SIZES[-1])
        print(f"{name} over TF32, n = {SIZES[-1]}: {tf32_comparison.ratio:.2f} times as long")

# %% [markdown]
# ## MX-3: the ordinary cores
#
# fp16, fp32 and fp64 without tensor cores.
# It needs a kernel of its own, because a 16-bit product in PyTorch uses tensor cores; a CPU has none.
# **Predict:** from 16 to 64 bits, does the rate rise, stay flat or fall?

# %%
CHAIN = """
extern "C" __global__ void chain(TYPE* out, int rounds) {
    TYPE a = START, b = START, c = START, d = START;
    for (int i = 0; i < rounds; i++) { FMA(a) FMA(b) FMA(c) FMA(d) }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}
"""
NUMBERS = {
    "fp16": ("unsigned", "0x3c003c00u", 'asm volatile("fma.rn.f16x2 %0, %0, %0, %0;" : "+r"(x));', 4),
    "fp32": ("float", "0.5f", 'asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x));', 2),
    "fp64": ("double", "0.5", 'asm volatile("fma.rn.f64 %0, %0, %0, %0;" : "+d"(x));', 2),
}


def chain(kind, rounds=4096):
    import torch

    type_name, start, fma, _ = NUMBERS[kind]
    text = CHAIN.replace("TYPE", type_name).replace("START", start)
    text = f"#define FMA(x) {fma}\n" + text
    kernel = torch.cuda._compile_kernel(text, "chain")
    blocks = 8 * torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.empty(blocks * 256, dtype=torch.float64, device="cuda")
    return lambda: kernel(grid=(blocks, 1, 1), block=(256, 1, 1), args=[out, rounds])


# %%
SMS = place.devices[0].sms or 1
def rate(record):
    return record.tflops


def chain_step(bits, kind):
    counted = 8 * SMS * 256 * 4096 * 4 * NUMBERS[kind][3]
    options = {"flops": counted, "samples": 20, "kind": kind}
    return labkit.steps.timed_step(kind, bits, chain, value=rate, seconds=5, **options)


if ON_GPU:
    cores = labkit.experiment("MX-3", *(chain_step(bits, f"fp{bits}") for bits in (16, 32, 64)))
else:
    print("MX-3 needs a GPU: a CPU has no CUDA cores to measure.")

# %%
if ON_GPU:
    await cores.report()

# %% [markdown]
# An A100's data sheet says 4 : 1 : 0.5 for fp16, fp32 and fp64; CERN measured 1.95 : 1 : 0.485.
#
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("3_mixed_precision")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
