# %% [markdown]
# # 3. Mixed precision
#
# Afterwards you can decide, for a model of yours and the slice you hold:
# whether 16 bits make it faster, how much memory they save,
# whether its gradients need a loss scale, and which of fp16 and bf16 to take.
#
# You write the loss scaler yourself, and you find out
# why a sentence in a widely read article has it backwards.
#
# About 70 minutes for the core; the sections after the summary are optional.

# %%
import labkit
from labkit.notebook.card import card
from labkit.run.jobs import is_quick

place = labkit.where()
card(place)

# %% [markdown]
# Sizes follow from what you hold.
# On a CPU they are scaled down, and every plot says that it is not a GPU.

# %%
ON_GPU = place.devices[0].backend == "cuda"
SIZES = (1024, 2048, 4096) if ON_GPU else (128, 256, 512)
WIDTH, BATCH = (1024, 4096) if ON_GPU else (128, 256)
if is_quick():
    SIZES = SIZES[-1:]
print(f"matrices up to {SIZES[-1]}, layers {WIDTH} wide{'' if ON_GPU else ' (scaled down for a CPU)'}")

# %% [markdown]
# ## MX-1: what 16 bits can hold
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
# Now predict: what is the largest number fp16 can hold?
# The plot draws each format at the bits of its mantissa; the published figure is drawn beside it.

# %%
def largest(dtype):
    """The largest number that comes back from a format unchanged, found by trying."""
    import torch

    def survives(number):
        return torch.tensor(number, dtype=torch.float64).to(dtype).double().item() == number

    found = 1.0
    while survives(2 * found):
        found *= 2
    step = found / 2
    while step >= found * 2.0**-25:
        found += step if survives(found + step) else 0.0
        step /= 2
    return found


def limits():
    import torch

    def of(dtype):
        info = torch.finfo(dtype)
        return {"largest": largest(dtype), "step at 1": info.eps, "smallest": info.tiny * info.eps}

    return {"fp32": of(torch.float32), "fp16": of(torch.float16), "bf16": of(torch.bfloat16)}


# %%
from labkit.panel.experiment import Experiment, PublishedRow, compared_step, timed_step
from labkit.panel.panel import Panel
from labkit.notebook.steps import apart, fits_step, settle_optional, together

formats = Panel(
    Experiment(
        key="MX-1",
        title="The largest number of each format",
        question="What is the largest number that fp16 can hold?",
        steps=together(
            limits, {"bf16": 7, "fp16": 10, "fp32": 23}, value=lambda m: m.setting["largest"]
        ),
        x_label="bits of the mantissa",
        y_label="largest number",
        unit="number",
        published=PublishedRow("Dettmers", {"dettmers.fp16.max": 10}),
        check="MX-1",
        data=lambda points: {"largest fp16": [p.value for p in points if p.label == "fp16"]},
        log_y=True,
    )
)
formats

# %%
evidence = await formats.settle()
print(formats.runner.message)
for point in evidence.points:
    facts = point.records[0].setting
    print(f"{point.label}: smallest {facts['smallest']:.2g}, step at 1 {facts['step at 1']:.2g}")

# %% [markdown]
# **Explain:** fp16 and bf16 are both 16 bits long.
# What did bf16 pay for its range, and where will you see that price again below?
# Write it into the panel's explanation: it is kept with your evidence.

# %% [markdown]
# ## MX-2: is it faster?
#
# Tensor cores multiply 16-bit numbers much faster than the ordinary cores multiply 32-bit ones.
# The data sheet of an A100 says 16 times; what is reached is less, and depends on the matrix.
# A CPU makes no promise: with AMX bf16 is several times faster, without it may be slower.

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
# Both run in the same child, in turns: compared one after the other, the clock's drift would decide.
# **Predict** the ratio at the biggest matrix.

# %%
def last_pair(points, first, second):
    """The samples of the last point's two sides, named as the check wants them."""
    a, b = points[-1].records
    return {first: a.samples_s, second: b.samples_s}


speed = Panel(
    Experiment(
        key="MX-2",
        title="fp32 time over bf16 time of a matrix product",
        question="How many times as long does fp32 take at the biggest matrix?",
        steps=tuple(
            compared_step(
                f"n={n}", n, fp32_product, bf16_product, band=(2, float("inf")), seconds=8, size=n
            )
            for n in SIZES
        ),
        x_label="matrix size n",
        y_label="fp32 over bf16",
        unit="x",
        check="MX-2",
        data=lambda points: last_pair(points, "fp32 time", "bf16 time"),
        log_x=True,
    )
)
speed

# %%
from labkit.notebook.summary import recorded_note

evidence = await speed.settle()
print(speed.runner.message)
print("measured on a GPU" if ON_GPU else recorded_note("MX-2", "MX-9"))

# %% [markdown]
# CERN measured the same two rates on A100 slices.
# Only the *ratio* may be laid beside yours: four sources give four "peaks" of the same card (E8),
# from 81.5 to 312 TFLOP/s, because tool, matrix size and type differ.

# %%
from labkit.evidence import published

for part in ("full", "7g", "3g", "2g", "1g"):
    tensor = published.figure(f"cern5.flops.fp16-tensor.{part}")
    cores = published.figure(f"cern5.flops.fp32.{part}")
    print(f"{part:>4}: {tensor.value / cores.value:.1f} x ({tensor.label})")

# %% [markdown]
# **Explain:** the small slices have the *bigger* ratio: 14.1 against 9.8.
# Divide by the SMs and you find the whole GPU's tensor rate low, not the slice's high (E6).
# CERN does not explain that; notebook 2 lets you look.

# %% [markdown]
# ## MX-5: gradients that vanish
#
# The smallest positive fp16 number is about 6e-8.
# The gradients of a network that is nearly trained are often smaller, and fp16 makes them **zero**.
# *Loss scaling* multiplies the loss by a number before backpropagation
# and divides the gradients by it afterwards, in fp32.
#
# A widely read article says:
# > we usually perform loss scaling where you multiply the loss by a **small number**
# > before backpropagating to prevent this gradient explosion.
#
# A small network, trained for a while.
# Its loss is shared out over 2048 micro-batches, as gradient accumulation does,
# so that its gradients are as small as those of a big model:

# %%
SHARES = 2048


def trained_network(steps=50):
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small that a second CPU thread would only be waited for
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(512, 64, device=device)
    y = torch.sin(x[:, :10])
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 10),
    ).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()
    return network, x, y


# %% [markdown]
# Its gradients once in fp32, and once in 16 bits with the loss multiplied by `scale`.

# %%
def gradients(network, x, y, dtype, scale):
    import copy

    import torch

    same = copy.deepcopy(network).to(dtype)
    loss = torch.nn.functional.mse_loss(same(x.to(dtype)).float(), y) / SHARES
    (loss * scale).backward()
    flat = torch.cat([p.grad.flatten().float() for p in same.parameters()])
    return flat / scale


# %%
def losses(exponents, dtype_name="float16"):
    import torch

    network, x, y = trained_network()
    true, found = gradients(network, x, y, torch.float32, 1.0), {}
    for exponent in exponents:
        got = gradients(network, x, y, getattr(torch, dtype_name), 2.0**exponent)
        is_lost = (got == 0) & (true != 0)
        difference = (got - true).nan_to_num(9e9, 9e9, 9e9)
        found[f"2^{exponent}"] = {
            "zeros": 100 * is_lost.float().mean().item(),
            "inf": 100 * (~got.isfinite()).float().mean().item(),
            "error": min(9e9, (difference.norm() / true.norm()).item()),
        }
    return found


# %% [markdown]
# **Predict** how many percent of the gradients are zero at the smallest scale, 2^-10.
# If the article is right, that is the safe end.

# %%
EXPONENTS = (-10, 0, 10, 40) if is_quick() else (-10, -6, -3, 0, 3, 6, 10, 15, 20, 25, 30, 35, 40, 45)


def ends(points):
    at = {point.x: [point.value] for point in points}
    return {"zeros at 2^10, %": at[10], "zeros at 2^-10, %": at[-10]}


# %%
scales = Panel(
    Experiment(
        key="MX-5",
        title="Gradients that fp16 makes zero",
        question="How many percent of the gradients are lost at scale 2^-10?",
        steps=together(
            losses,
            {f"2^{e}": e for e in EXPONENTS},
            value=lambda m: m.setting["zeros"],
            exponents=EXPONENTS,
        ),
        x_label="loss scale, as a power of 2",
        y_label="gradients that became zero (%)",
        unit="%",
        check="MX-5",
        data=ends,
    )
)
scales

# %%
evidence = await scales.settle()
print(scales.runner.message)
for point in evidence.points:
    facts = point.records[0].setting
    print(
        f"{point.label:>6}: {facts['zeros']:5.1f} % zero, {facts['inf']:5.1f} % inf or nan, "
        f"relative error {facts['error']:.2g}"
    )

# %% [markdown]
# **Explain:** there is a safe window between two cliffs. What happens at each?
# The article's sentence (E9) names the right technique with the wrong direction:
# the loss is multiplied by a *large* number, against *underflow*; too large a number brings the explosion.

# %% [markdown]
# ## Exercise: a loss scaler
#
# Nobody knows the window beforehand, and it moves during training. So the scale is found on the way:
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
from labkit.exercises.code_checks import check_loss_scaler

scaler_verdict = check_loss_scaler(LossScaler)
print(scaler_verdict)

# %% [markdown]
# ## MX-7: your scaler at work
#
# It trains the small network in fp16 and starts far too high, at 2^44.
# PyTorch's own `GradScaler` runs the same training beside it, with the same rules.

# %%
def one_step(network, x, y, optimizer, scale):
    import torch

    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype=torch.float16):
        output = network(x)
    loss = torch.nn.functional.mse_loss(output.float(), y) / SHARES
    (loss * scale).backward()
    return not all(p.grad.isfinite().all() for p in network.parameters())


def own_trace(steps):
    import torch

    network, x, y = trained_network()
    optimizer, scaler = torch.optim.SGD(network.parameters(), lr=1e-3), LossScaler(2.0**44)
    trace = []
    for _ in range(steps):
        scale = scaler.scale
        found_inf = one_step(network, x, y, optimizer, scale)
        if is_taken := scaler.update(found_inf):
            for p in network.parameters():
                p.grad /= scale
            optimizer.step()
        trace.append((scale, is_taken))
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
    found, skipped = {}, 0
    for i, (own, torchs) in enumerate(zip(own_trace(steps), torch_trace(steps))):
        skipped += not own[1]
        found[f"step {i}"] = {"scale": own[0], "torch": torchs[0], "skipped": skipped}
    return {f"step {i}": found[f"step {i}"] for i in range(0, steps, every)}


# %% [markdown]
# **Predict:** around which scale will it settle?

# %%
STEPS, EVERY = (64, 4) if is_quick() else (400, 4)


def beside_torch(points):
    facts = [point.records[0].setting for point in points]
    return {
        "your scale over PyTorch's": [fact["scale"] / fact["torch"] for fact in facts],
        "last scale over the first": [facts[-1]["scale"] / facts[0]["scale"]],
    }


trace = Panel(
    Experiment(
        key="MX-7",
        title="The scale during training",
        question="Around which scale will it settle?",
        steps=together(
            both_traces,
            {f"step {i}": i for i in range(0, STEPS, EVERY)},
            value=lambda m: m.setting["scale"],
            steps=STEPS,
            every=EVERY,
        ),
        x_label="training step",
        y_label="loss scale",
        unit="scale",
        check="MX-7",
        data=beside_torch,
        log_y=True,
    )
)
trace

# %%
evidence = await trace.settle() if scaler_verdict.right else trace.evidence
print(trace.runner.message if scaler_verdict.right else "write LossScaler first")
facts = [point.records[0].setting for point in evidence.points]
if facts:
    same = sum(fact["scale"] == fact["torch"] for fact in facts)
    skipped = facts[-1]["skipped"]
    print(f"as PyTorch's GradScaler in {same} of {len(facts)} steps shown, {skipped} skipped")

# %% [markdown]
# **Explain** the saw-tooth: why does it keep bumping into the ceiling, and what does each bump cost?
# PyTorch waits 2000 good steps before it doubles. What is gained by waiting longer?

# %% [markdown]
# ## MX-9: how much memory is saved
#
# Activations wait in memory for the backward pass; 16 bits halve them.
# Weights do not shrink under autocast: an fp32 master copy stays.
# What is kept for the backward pass is *counted*, everywhere, and the check is about that.
# On a GPU the peak of a whole step is measured, too: weights, gradients and temporaries are in it,
# so it falls by much less than half. Every format is measured in a process of its own.

# %%
from labkit.exercises.networks import mlp  # read it with `mlp??`


def kept_for_backward(run):
    """MiB of the tensors that autograd keeps, each counted once."""
    import torch

    seen = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would keep its own graph alive

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = run()
    del loss
    return sum(seen.values()) / 2**20


# %%
KINDS_OF_STEP = {"fp32": ("float32", False), "AMP": ("float32", True), "bf16": ("bfloat16", False)}
ROWS = 16_384  # samples of the step whose peak is drawn, on a GPU


def training(width, kind):
    """A function that runs one whole step, forward, backward and Adam, on so many samples of its own."""
    import torch

    name, amp = KINDS_OF_STEP[kind]
    network, device = mlp(width, 6)
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
    """What the allocator holds at most in a step, with the context that every process needs."""
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
    return {
        "kept": kept_for_backward(lambda: forward(batch)),
        "weights": sum(p.numel() * p.element_size() for p in network.parameters()) / 2**20,
        "peak": peak_mib(step, ROWS) if on_gpu else 0.0,
    }


# %% [markdown]
# **Predict:** with AMP, how much of the fp32 memory is still needed?

# %%
def in_mib(record):
    return record.setting["peak"] or record.setting["kept"]


def amp_over_fp32(points, what):
    fp32, amp = (point.records[0].setting[what] for point in points[:2])
    return amp / fp32


saved = Panel(
    Experiment(
        key="MX-9",
        title="Memory of one training step",
        question="How many MiB does AMP need? (fp32 is drawn first)",
        steps=apart(memory_of, {kind: {"kind": kind} for kind in KINDS_OF_STEP}, value=in_mib, width=WIDTH, batch=BATCH),
        x_label="fp32, AMP, pure bf16",
        y_label="peak of a step (MiB)" if ON_GPU else "kept for backward (MiB)",
        gpu_y_label="peak of a step (MiB)",  # also of a recorded run that is replayed on a CPU
        unit="MiB",
        check="MX-9",
        data=lambda points: {
            f"{what} with AMP over fp32": [amp_over_fp32(points, what)] for what in ("kept", "weights")
        },
    )
)
saved

# %%
evidence = await saved.settle()
print(saved.runner.message)
for point in evidence.points:
    facts = point.records[0].setting
    kept = f"kept for backward {facts['kept']:.1f}, weights {facts['weights']:.1f} MiB"
    print(f"{point.label}: drawn {point.value:.1f} MiB; {kept}")

# %% [markdown]
# What does that mean for a 1g.5gb slice, with its 4.75 GiB? Not half the memory, twice the samples: gradients,
# temporaries and what the allocator cannot piece together count, too. So it is tried: the process is held to what a
# 1g.5gb leaves it (4.75 GiB without the context that every process takes before its first tensor), and the largest
# number of samples is found by bisection, each try in a process of its own.
# On a CPU there is nothing to say about a GPU; the recorded run says it instead.
#
# **Predict:** how many samples will fit with AMP? What is kept for the backward pass is printed above, and so are the weights.

# %%
SLICE_MIB = 4.75 * 1024


def whole_steps(size, width, kind):
    """Two whole steps on `size` samples, in the memory of a 1g.5gb."""
    import torch

    network, forward, step = training(width, kind)
    free, total = torch.cuda.mem_get_info()
    context = (total - free - torch.cuda.memory_reserved()) / 2**20
    context = context if context < 2000 else 620  # more is somebody else's memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (SLICE_MIB - context) * 2**20 / total))
    for _ in range(2):
        step(size)
    torch.cuda.synchronize()


fitting = Panel(
    Experiment(
        key="MX-9-fits",
        title="Samples that fit a 1g.5gb (4.75 GiB)",
        question="How many samples fit with AMP?",
        steps=tuple(
            fits_step(kind, x, whole_steps, range(4096, 1 << 19, 4096), value=float, width=WIDTH, kind=kind)
            for x, kind in enumerate(KINDS_OF_STEP)
        ) if ON_GPU else (),
        x_label="fp32, AMP, pure bf16",
        y_label="samples",
        unit="samples",
    )
)
fitting

# %%
from labkit.evidence import replay

evidence = await fitting.settle() if ON_GPU else fitting.evidence
found = evidence.points
if not ON_GPU and replay.exists("MX-9-fits"):
    found = replay.recorded("MX-9-fits").points
    print(f"recorded on {found[0].records[0].devices[0].name}, not yours:")
for point in found:
    print(f"{point.label}: {point.value:,.0f} samples fit a 1g.5gb, {point.value / max(1.0, found[0].value):.2f} times fp32's")
if not found:
    print("only a GPU can say what fits a slice: measure it there")

# %% [markdown]
# **Explain** why pure bf16 saves more than AMP, and what you would lose by it (MX-1 has the answer).

# %% [markdown]
# ## What the published figures say, and where they are wrong

# %%
for key in ("E9", "E12", "E8", "E7"):
    error = published.known_errors()[key]
    print(f"{key} says: {error.says}\n   but: {error.correct}\n")

# %% [markdown]
# ## Your summary
#
# Filled in from your own evidence; what is missing says so.

# %%
from labkit.notebook.summary import summary

summary("MX-1", "MX-2", "MX-5", "MX-7", "MX-9")

# %% [markdown]
# **Decide:** your model runs out of memory on a 1g.5gb slice.
# fp16 with your scaler, bf16 without one, or a bigger slice? Name the figures that decide.

# %% [markdown]
# # Optional sections
#
# No exercises here; run what interests you.
#
# ## MX-6: bf16 needs no scale
#
# bf16 has fp32's range. **Predict** its share of zeros; then look at its relative error, too.

# %%
bf16_scales = Panel(
    Experiment(
        key="MX-6",
        title="Gradients that bf16 makes zero",
        question="How many percent of the gradients does bf16 lose at scale 1?",
        steps=together(
            losses,
            {f"2^{e}": e for e in (-10, 0, 10, 40)},
            value=lambda m: m.setting["zeros"],
            exponents=(-10, 0, 10, 40),
            dtype_name="bfloat16",
        ),
        x_label="loss scale, as a power of 2",
        y_label="gradients that became zero (%)",
        unit="%",
    )
)
bf16_scales

# %%
evidence = await settle_optional(bf16_scales)
print(bf16_scales.runner.message)
for point in evidence.points:
    print(f"{point.label:>6}: relative error {point.records[0].setting['error']:.2g}")

# %% [markdown]
# ## MX-8: when AMP does not help
#
# Autocast adds a cast to every layer. A small layer pays more for it than it gains.
# Habr's author wrote "AMP does not work for us". **Predict** whether AMP over fp32 rises or falls with width.

# %%
def step_of(width, amp):
    import torch

    network, device = mlp(width, 3)
    x = torch.randn(256, width, device=device)

    def work():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=amp):
            loss = network(x).float().sum()
        loss.backward()

    return work


def amp_step(width):
    return step_of(width, True)


def fp32_step(width):
    return step_of(width, False)


# %%
amp = Panel(
    Experiment(
        key="MX-8",
        title="AMP time over fp32 time of a training step",
        question="From narrow to wide layers: does the ratio rise, stay flat, or fall?",
        steps=tuple(
            compared_step(f"{w}", w, amp_step, fp32_step, band=(0, 1), seconds=6, width=w)
            for w in ((256, 1024, 4096) if ON_GPU else (32, 128, 512))
        ),
        x_label="width of the layers",
        y_label="AMP over fp32",
        log_x=True,
    )
)
amp

# %%
evidence = await settle_optional(amp)
print(amp.runner.message)

# %% [markdown]
# ## MX-4: what is limited by memory gains by bytes only
#
# Half the bytes, half the time, however many tensor cores there are.
# **Predict** the gain of 16 bits from the left (few operations per byte) to the right.

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


# %% [markdown]
# Named functions, because a lambda cannot be sent to a child.

# %%
def norm32():
    return layer_norm(torch.float32)


def norm16():
    return layer_norm(torch.bfloat16)


def copy32():
    return copy_of(torch.float32)


def copy16():
    return copy_of(torch.bfloat16)


# %%
from labkit.exercises import roofline

WORKS = (
    ("copy", 0.06, copy32, copy16, {}),
    ("layer norm", roofline.layer_norm(4 * BATCH, WIDTH).intensity, norm32, norm16, {}),
    ("matmul", roofline.matmul(*(SIZES[-1],) * 3).intensity, fp32_product, bf16_product, {"size": SIZES[-1]}),
)
gains = Panel(
    Experiment(
        key="MX-4",
        title="What 16 bits gain",
        question="From left to right: does the gain rise, stay flat, or fall?",
        steps=tuple(
            compared_step(label, x, wide, narrow, band=(1, float("inf")), seconds=6, **given)
            for label, x, wide, narrow, given in WORKS
        ),
        x_label="operations per byte (fp32)",
        y_label="fp32 time over 16-bit time",
        log_x=True,
    )
)
gains

# %%
evidence = await settle_optional(gains)
print(gains.runner.message)

# %% [markdown]
# ## MX-10: TF32, the format in between
#
# TF32 has fp32's range and fp16's mantissa; only products on tensor cores use it.
# Dettmers' article expects "near FP32 stability" and "speedups close to FP16"; the data sheet says half of fp16.
# On a CPU the shorter mantissa is emulated by cutting bits off, and there is no speed to see.
# On a GPU the speed is measured below: it decides E12 ("do not provide speedups"), and it is the fair baseline
# for bf16, because plain fp32 products are what nobody runs who may use TF32.

# %%
def cut(tensor, bits=13):
    """fp32 with the last bits of the mantissa cut off: TF32 emulated."""
    import torch

    return (tensor.view(torch.int32) >> bits << bits).view(torch.float32)


def product_errors(size):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    true = a.double() @ b.double()
    got = {"fp32": a @ b, "bf16": a.bfloat16() @ b.bfloat16(), "fp16": a.half() @ b.half()}
    torch.set_float32_matmul_precision("high")  # TF32, on a GPU
    got["tf32"] = a @ b if device == "cuda" else cut(a) @ cut(b)
    return {
        name: {"error": ((value.double() - true).norm() / true.norm()).item()}
        for name, value in got.items()
    }


# %%
tf32 = Panel(
    Experiment(
        key="MX-10",
        title="Relative error of a matrix product",
        question="What relative error do you expect of TF32?",
        steps=together(
            product_errors,
            {"bf16": 7, "fp16": 10, "tf32": 10.5, "fp32": 23},
            value=lambda m: m.setting["error"],
            size=SIZES[-1],
        ),
        x_label="bits of the mantissa (TF32 has fp16's 10)",
        y_label="relative error" + ("" if ON_GPU else ", TF32 emulated"),
        unit="relative",
        log_y=True,
    )
)
tf32

# %%
evidence = await settle_optional(tf32)
print(tf32.runner.message)

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
elif evidence.points:
    for name, other in (("fp32", fp32_product), ("bf16", bf16_product)):
        found = labkit.compare(other, tf32_product, band=(0.0, 99.0), size=SIZES[-1])
        print(f"{name} over TF32, n = {SIZES[-1]}: {found.ratio:.2f} times as long")

# %% [markdown]
# ## MX-3: the ordinary cores
#
# fp16, fp32 and fp64 without tensor cores: the data sheet says 4 : 1 : 0.5, CERN measured 1.95 : 1 : 0.485.
# It needs a kernel of its own, because a 16-bit product in PyTorch uses tensor cores; a CPU has none.

# %%
CHAIN = """
extern "C" __global__ void chain(TYPE* out, int rounds) {
    TYPE a = START, b = START, c = START, d = START;
    for (int i = 0; i < rounds; i++) { FMA(a) FMA(b) FMA(c) FMA(d) }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}
"""
KINDS = {
    "fp16": ("unsigned", "0x3c003c00u", 'asm volatile("fma.rn.f16x2 %0, %0, %0, %0;" : "+r"(x));', 4),
    "fp32": ("float", "0.5f", 'asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x));', 2),
    "fp64": ("double", "0.5", 'asm volatile("fma.rn.f64 %0, %0, %0, %0;" : "+d"(x));', 2),
}


def chain(kind, rounds=4096):
    import torch

    type_name, start, fma, _ = KINDS[kind]
    text = CHAIN.replace("TYPE", type_name).replace("START", start)
    text = f"#define FMA(x) {fma}\n" + text
    kernel = torch.cuda._compile_kernel(text, "chain")
    blocks = 8 * torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.empty(blocks * 256, dtype=torch.float64, device="cuda")
    return lambda: kernel(grid=(blocks, 1, 1), block=(256, 1, 1), args=[out, rounds])


# %%
SMS = place.devices[0].sms or 1
cores = Panel(
    Experiment(
        key="MX-3",
        title="Rate of the ordinary cores",
        question="From 16 to 64 bits: does the rate rise, stay flat, or fall?",
        steps=tuple(
            timed_step(
                kind,
                bits,
                chain,
                value=lambda m: m.tflops,
                seconds=5,
                options={"flops": 8 * SMS * 256 * 4096 * 4 * KINDS[kind][3], "samples": 20},
                kind=kind,
            )
            for kind, bits in (("fp16", 16), ("fp32", 32), ("fp64", 64))
        ),
        x_label="bits",
        y_label="TFLOP/s",
    )
)
cores if ON_GPU else print("MX-3 needs a GPU: a CPU has no CUDA cores to measure.")

# %%
if ON_GPU:
    evidence = await settle_optional(cores)
    print(cores.runner.message)

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# with a link to download it, and says what would not count as yours.
#
# To start this notebook over, run `labkit.fresh_copy("3_mixed_precision")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
