# %% [markdown]
# # 3b. Kernels, and reading a trace
#
# **Afterwards you can decide** whether a slow piece of PyTorch needs a fused kernel, a compiler, or a look at its trace.
# You will be able to
#
# - say what an operation holds and moves beside what its formula needs, and measure both;
# - write the softmax that goes through a row in blocks, which is what makes attention fusible;
# - find in a trace whether a program waits for its input, for launches, or for a synchronisation;
# - say when compiling pays, and what 8 bits lose (optional sections).
#
# You need the roofline of notebook 1 (T-4) and the formats of notebook 3.
#
# About 70 minutes; the sections after the summary are optional.

# %% [markdown]
# A *kernel* is one program that runs on the device. PyTorch without a compiler ("eager") starts one for each operation, and each reads
# its input from memory and writes its result back. *Fused* means that one kernel does the work of several, so that what lies
# between them never leaves the fast memory inside the processor.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
ON_GPU = place.is_gpu
COMPILES = labkit.exercises.kernels.has_compiler(ON_GPU)
HEADS, DEPTH = (16, 64) if ON_GPU else (4, 64)  # of attention
CARD = tuple(map(int, (place.devices[0].capability or "0.0").split("."))) if ON_GPU else (0, 0)  # its compute capability
IS_SMALL = place.devices[0].memory_mib < 16000  # as a slice of 5 GB is
LENGTHS = ((256, 512, 1024, 2048) if IS_SMALL else (512, 1024, 2048, 4096)) if ON_GPU else (128, 256, 512, 1024)
ROWS, WIDTH = (16384, 4096) if ON_GPU else (1024, 2048)  # of the block
DTYPE = "bfloat16" if ON_GPU else "float32"
print(f"{HEADS} heads of {DEPTH}, up to {LENGTHS[-1]} tokens, {DTYPE}{'' if ON_GPU else ' (scaled down for a CPU)'}")
if not COMPILES:
    print("There is no C++ compiler here, and torch.compile needs one: what is compiled is left out below.")
labkit.card(place)

# %% [markdown]
# ## Exercise 1: a softmax in blocks
#
# The softmax of a row divides exp(x - m) by the row's sum of it, where m is the row's largest number: without m, exp overflows. A kernel's
# fast memory has no room for a long row. It goes through the row in blocks, and does not know m before the end. The trick
# (Milakov and Gimelshein, [Online normalizer calculation for softmax](https://arxiv.org/abs/1805.02867), 2018):
# keep the largest number *so far* and the sum *so far*; when a block brings a larger number, the old sum is too big by a factor that you know.
#
# - `read(block)` returns the block's numbers, a tensor of rows × some columns; `blocks` says how many blocks there are;
# - `write(block, part)` takes the block's results;
# - each block may be read twice and is written once. Rows do not mix, and the last block may be narrower.

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU


def softmax_by_blocks(read, write, blocks):
    # <solution>
    part = read(0)
    largest = part.amax(dim=1, keepdim=True)
    total = (part - largest).exp().sum(dim=1, keepdim=True)
    for block in range(1, blocks):
        part = read(block)
        above = torch.maximum(largest, part.amax(dim=1, keepdim=True))
        total = total * (largest - above).exp() + (part - above).exp().sum(dim=1, keepdim=True)
        largest = above
    for block in range(blocks):
        write(block, (read(block) - largest).exp() / total)
    # </solution>
    # <student>
    # return None  # about ten lines: one pass for the largest and the sum, one that writes
    # </student>


# %%
softmax_verdict = labkit.exercises.check_softmax(softmax_by_blocks)
print(softmax_verdict)

# %% [markdown]
# With a GPU you write the same as a Triton kernel at the end of this notebook, and the same matrices judge it.

# %% [markdown]
# ## KN-1: memory by length
#
# Attention with L tokens has L × L scores for each head. The naive way computes all of them, then their softmax, then the product with v. *Flash* attention
# (Dao et al., [FlashAttention](https://arxiv.org/abs/2205.14135), 2022) goes through the scores in blocks, as your softmax does.
# PyTorch's `scaled_dot_product_attention` has several *backends*: `math` is the naive way in C++, which computes
# 16-bit inputs in fp32, and so holds more than twice as much and is slower; a GPU also has `efficient`, and from compute capability 9 on this notebook tries
# `cudnn`.

# %%
BACKENDS = {"math": "MATH", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
WAYS = ("naive", "math", "flash", *(("efficient",) if ON_GPU else ()), *(("cudnn",) if CARD >= (9, 0) else ()))


def attention(way):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def naive(q, k, v):
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return torch.softmax(scores, dim=-1) @ v

    def by_backend(q, k, v):
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[way])):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return naive if way == "naive" else by_backend


def tokens(length):
    """q, k and v for one sequence."""
    import torch

    torch.set_num_threads(1)  # on a CPU
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [torch.randn(1, HEADS, length, DEPTH, device=device, dtype=getattr(torch, DTYPE)) for _ in range(3)]


def memory(ways, lengths):
    mib_of, works = labkit.exercises.kernels.held_mib, {way: attention(way) for way in ways}
    inputs = {length: tokens(length) for length in lengths}
    return {f"{way}, {n} tokens": {"MiB": mib_of(lambda way=way, n=n: works[way](*inputs[n]))} for way in ways for n in lengths}


# %% [markdown]
# **Predict** how many times as much the naive way holds as flash, with the longest sequence. (How many numbers are L × L scores, and how many the result?)

# %%
COUNTED = ("naive", "math", "flash")
memory_spots = {f"{way}, {length} tokens": length for way in COUNTED for length in LENGTHS}
ways_of = {label: label.partition(",")[0] for label in memory_spots}
memory_steps = labkit.steps.together(memory, memory_spots, value="MiB", series=ways_of, ways=COUNTED, lengths=LENGTHS)
by_length = labkit.experiment("KN-1", memory_steps)

# %%
def beside_formula(points):
    size = 2 if ON_GPU else 4
    for point in points:
        result = size * HEADS * DEPTH * point.x / 2**20
        scores = size * HEADS * point.x**2 / 2**20
        print(f"{point.label:>18}: {point.value:8.2f} MiB; the result has {result:.2f}, the scores {scores:.2f}")


await by_length.report(beside_formula)

# %% [markdown]
# **Explain** the naive way's figure with the formulas: how many tensors of L × L numbers are alive at its peak? And which of them does flash still compute?

# %% [markdown]
# ## KN-2: time, under the roof
#
# Two pieces of a transformer. *Attention* has 4 L² d FLOPs a head; q, k, v and the result must cross the memory's bus. The *block* is an RMSNorm with a gate:
# about ten FLOPs a number, and two inputs and a result must cross. Both are drawn at the FLOPs per byte that they *need*: how far a point lies below the roof
# is what was moved, or waited for, in vain. Limits are measured beside them, by a copy and a product.

# %%
def block(x, gate, weight):
    import torch

    normal = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight
    return gate * torch.sigmoid(gate) * normal + x


def blocks():
    """The block without a compiler, and with one where there is one."""
    import torch

    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, DTYPE)
    inputs = [torch.randn(*shape, device=device, dtype=dtype) for shape in ((ROWS, WIDTH), (ROWS, WIDTH), (WIDTH,))]
    works = {"block, eager": lambda: block(*inputs)}
    if COMPILES:
        compiled, _ = labkit.exercises.kernels.compile_anew(block, *inputs)
        works["block, compiled"] = lambda: compiled(*inputs)
    source, side = inputs[0], WIDTH if torch.cuda.is_available() else 512
    target, square = torch.empty_like(source), torch.randn(side, side, device=device, dtype=dtype)
    return works | {"limit of memory": lambda: target.copy_(source), "limit of products": lambda: square @ square}


def under_the_roof(ways, length, times):
    qkv, works = tokens(length), {way: attention(way) for way in ways}
    of_attention = {f"attention, {way}": lambda work=work: work(*qkv) for way, work in works.items()}
    results = [works[way](*qkv).float() for way in ("naive", "flash")]
    apart = ((results[0] - results[1]).norm() / results[0].norm()).item()
    return labkit.in_turns(of_attention | blocks(), times) | {"facts": {"apart": apart}}


# %%
SIZE = 2 if ON_GPU else 4  # bytes of a number
LENGTH, SIDE = LENGTHS[-1], WIDTH if ON_GPU else 512
NEEDED = {  # FLOPs and bytes
    "attention": (4 * HEADS * LENGTH**2 * DEPTH, 4 * SIZE * HEADS * LENGTH * DEPTH),
    "block": (10 * ROWS * WIDTH, 3 * SIZE * ROWS * WIDTH),
}
PER_BYTE = {kind: flops / moved for kind, (flops, moved) in NEEDED.items()}
NEEDED["limit of memory"] = (2 * SIZE * ROWS * WIDTH * PER_BYTE["block"], 2 * SIZE * ROWS * WIDTH)  # a copy, drawn at the block's place
NEEDED["limit of products"] = (2 * SIDE**3, 2 * SIDE**3 / PER_BYTE["attention"])  # drawn at attention's
roof_spots = {"block, eager": PER_BYTE["block"], **({"block, compiled": PER_BYTE["block"]} if COMPILES else {})}
roof_spots |= {f"attention, {way}": PER_BYTE["attention"] for way in WAYS}
roof_spots |= {"limit of memory": PER_BYTE["block"], "limit of products": PER_BYTE["attention"]}


def giga_per_s(record):
    label = record.setting["label"]
    return NEEDED[label if label in NEEDED else label.partition(",")[0]][0] / record.median_s / 1e9


# %% [markdown]
# **Predict** how many times as long naive attention takes as flash, with the longest sequence. Both have the same FLOPs.

# %%
kinds = {label: "the limits, from other work" if label.startswith("limit") else "measured here" for label in roof_spots}
in_time = {"ways": WAYS, "length": LENGTH, "times": labkit.rounds()}
timed = labkit.steps.together(under_the_roof, roof_spots, value=giga_per_s, seconds=30, series=kinds, **in_time)
roofs = labkit.experiment("KN-2", timed)

# %%
def over_what_is_needed(points):
    rate = {point.label: point.value for point in points}
    for label in rate:
        kind = label.partition(",")[0]
        if kind not in NEEDED or label.startswith("limit") or len(rate) < len(roof_spots):
            continue
        slant = rate["limit of memory"] / PER_BYTE["block"] * PER_BYTE[kind]
        print(f"{label}: {NEEDED[kind][0] / rate[label] / 1e6:.3g} ms, {min(slant, rate['limit of products']) / rate[label]:.1f} times what the roof asks for")


await roofs.report(over_what_is_needed)

# %%
print("measured on a GPU" if ON_GPU else labkit.recorded_note("KN-1", "KN-2", "KN-3"))

# %% [markdown]
# **Explain:** count how often the scores cross the bus in naive attention, and how often x and the gate do in the eager block. Which of the two distances below the roof does your count explain?

# %% [markdown]
# ## KN-3: three bottlenecks
#
# Four programs run two steps through four layers, and end with the same numbers. *plain* has no fault. In A, B and C one thing is wrong with each, in some order:
#
# - *input*: the device waits until Python has made the next batch;
# - *launches*: the work comes in so small pieces that starting them takes longer than computing;
# - *synchronisation*: Python waits until the device is done, and only then prepares what comes next.
#
# **Predict** how many times as long C takes as plain, then measure, and read the traces below.

# %%
SAMPLES = max(1024, 16384 * (place.devices[0].sms or 0) // 132 // 1024 * 1024)  # so that a slice waits as a whole GPU does
IN_PIECES = {"rows": SAMPLES // 16} if ON_GPU else {"rows": 2}
SHAPE = {"batch": SAMPLES, "width": 1024, "word_count": 1024, "letters": 8} if ON_GPU else {"batch": 256, "width": 128, "word_count": 256, "letters": 96}


def programs(letters, shape, times, span_limit):
    import statistics

    import torch

    torch.set_num_threads(1)  # on a CPU
    works = {letter: labkit.exercises.traces.program(letter, **shape) for letter in letters}
    seconds, plain = labkit.in_turns(works, times), works["plain"]().float()
    facts = {}
    for letter, work in works.items():
        spans = [(lane, name[:32], begin, end) for lane, name, begin, end in labkit.spans_of(work)]
        apart = ((work().float() - plain).norm() / plain.norm()).item()
        facts[letter] = {"ms": statistics.median(seconds[letter]) * 1e3, "each": seconds[letter], "apart": apart, "spans": spans[:span_limit]}
    return facts


# %%
LETTERS = ("plain", "A", "B", "C")
in_turns = {"letters": LETTERS, "shape": SHAPE | IN_PIECES, "times": labkit.rounds(), "span_limit": 450}
four = labkit.steps.together(programs, LETTERS, value="ms", seconds=20, **in_turns)
bottlenecks = labkit.experiment("KN-3", four)

# %%
await bottlenecks.report()

# %% [markdown]
# A trace shows when each operation ran: on the GPU (*GPU kernels*), when Python asked for it (*operators*), and when the driver was told (*launches*); on a CPU there are
# operators only. Point at a box to see its name. Of A, only the first 450 boxes are kept, about one step. Empty space is waiting: ask what was waited *for*. A CPU has no queue to drain, so that a synchronisation costs nothing there:
# without a GPU you are shown the traces that were recorded on one.

# %%
def trace_of(letter):
    evidence = bottlenecks.evidence if ON_GPU else labkit.recorded_run("KN-3") or bottlenecks.evidence
    spans = next((point.records[0].setting["spans"] for point in evidence.points if point.label == letter), None)
    return labkit.timeline(spans, f"{letter}, on {evidence.place.partition(', ')[0]}") if spans else "measure KN-3 first"


trace_of("plain")

# %%
trace_of("A")

# %%
trace_of("B")

# %%
trace_of("C")

# %% [markdown]
# **Which is which?** Write "input", "launches" or "synchronisation" in place of each "?".

# %%
is_wrong_with = {"A": "?", "B": "?", "C": "?"}
print(labkit.exercises.check_bottlenecks(is_wrong_with))

# %% [markdown]
# **Explain** for each of the three what in its trace told you, and what you would change in the program.

# %% [markdown]
# ## What the published figures say
#
# The FlashAttention paper (its section 4.3) reports a memory that is linear in the length, and up to 20 times less than exact attention without fusing.
# It measured forward and backward passes with dropout and a mask; KN-1 counts the forward pass alone, beside q, k and v. From which length on does your ratio exceed 20, and why
# has it no upper limit?

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("KN-1", "KN-2", "KN-3")

# %%
my_numbers = labkit.drawn("3b", length=(2048, 8192, 32768), calls=(50, 5000, 500000))
print(f"your model reads {my_numbers['length']} tokens with 16 heads in bf16, and its step runs {my_numbers['calls']} times")

# %% [markdown]
# **Decide** with these two numbers, which are your own: how many MiB do naive attention's scores take in a layer, does it need a fused kernel on a slice of 5 GB, and would you compile the step?
# (On one H100, compiling took 2.7 s; it saved 0.03 ms a call of the small block of KN-4, and 0.85 ms of the block of KN-2. KN-4 below measures it here, where there is a compiler.)
# Name the figures that decide.

# %% [markdown]
# # Optional sections
#
# ## KN-4: when compiling pays
#
# `torch.compile` traces the block, writes one loop for it (C++ on a CPU, Triton on a GPU) and compiles that, here from an empty cache. Here it would
# do so again for every new shape (`dynamic=False`); by default a second shape makes it compile once more, for all sizes if it can.
# A small block is called again and again. **Predict** the seconds until the first call is done.

# %%
SMALL = (1024, 4096) if ON_GPU else (64, 2048)
CALLS = (1, 10, 100, 1000, 10000, 100000)


def paying(calls, rows, width, times):
    import statistics

    import torch

    torch.set_num_threads(1)  # on a CPU
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, DTYPE)
    inputs = [torch.randn(*shape, device=device, dtype=dtype) for shape in ((rows, width), (rows, width), (width,))]
    compiled, compile_s = labkit.exercises.kernels.compile_anew(block, *inputs)
    seconds = labkit.in_turns({"eager": lambda: block(*inputs), "compiled": lambda: compiled(*inputs)}, times)
    call_s = {way: statistics.median(seconds[way]) for way in ("eager", "compiled")}
    facts = {"compile_s": compile_s, "eager_s": call_s["eager"], "compiled_s": call_s["compiled"]}
    first_s = {"eager": 0.0, "compiled": compile_s}
    return {
        f"{way}, {n} call{'s' if n > 1 else ''}": {"s": first_s[way] + n * call_s[way], **facts}
        for way in call_s for n in calls
    }


# %%
pay_spots = {f"{way}, {n} call{'s' if n > 1 else ''}": n for way in ("eager", "compiled") for n in CALLS}
pay_kinds = {label: label.partition(",")[0] for label in pay_spots}
small = {"calls": CALLS, "rows": SMALL[0], "width": SMALL[1], "times": labkit.rounds()}
pay_steps = labkit.steps.together(paying, pay_spots, value="s", seconds=40, series=pay_kinds, **small) if COMPILES else ()
pays = labkit.experiment("KN-4", *pay_steps)

# %%
if COMPILES:
    await pays.report()
else:
    print("there is no compiler here (g++ for a CPU, gcc or clang for a GPU)")

# %% [markdown]
# ## KN-5: 8 bits
#
# FP8 has two formats: *e4m3* (4 bits of exponent, 3 of mantissa, up to 448) and *e5m2* (range for precision, as bf16 against fp16). The factors here are small, about 0.001, which is less than
# e4m3's smallest number, 2⁻⁹, so that a scale must bring them into the format's range first, as a loss scale did in MX-5. Cards from compute capability 8.9 on multiply FP8 on tensor cores (`torch._scaled_mm`); elsewhere the factors are rounded to
# 8 bits and multiplied in fp32, which shows what is lost, and no speed. **Predict** the relative error of e4m3 with a scale.

# %%
HAS_FP8 = CARD >= (8, 9)
EIGHT = {"bf16": None, "e4m3, scaled": "float8_e4m3fn", "e4m3, no scale": "float8_e4m3fn", "e5m2, scaled": "float8_e5m2"}


def eight_bit_product(label, a, b):
    """A function that multiplies a and b's transpose with a's factors in the format; b's are bf16 or e4m3."""
    import torch

    if EIGHT[label] is None:
        half_a, half_b = a.bfloat16(), b.bfloat16()
        return lambda: half_a @ half_b.t()
    formats, scales, parts = (getattr(torch, EIGHT[label]), torch.float8_e4m3fn), [], []
    for factor, kind in zip((a, b), formats):
        scale = torch.finfo(kind).max / factor.abs().max() if label.endswith(", scaled") else torch.ones((), device=a.device)
        parts.append((factor * scale).to(kind))
        scales.append((1 / scale).float())
    if HAS_FP8:
        return lambda: torch._scaled_mm(parts[0], parts[1].t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)
    wide = [part.float() * scale for part, scale in zip(parts, scales)]
    return lambda: wide[0] @ wide[1].t()


def in_eight_bits(labels, side, times):
    import statistics

    import torch

    torch.set_num_threads(1)  # on a CPU
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = (torch.randn(side, side, device=device) * 1e-3 for _ in range(2))
    works = {label: eight_bit_product(label, a, b) for label in labels}
    exact, seconds = a.double() @ b.double().t(), labkit.in_turns(works, times)
    return {
        label: {"error": ((work().double() - exact).norm() / exact.norm()).item(), "ms": statistics.median(seconds[label]) * 1e3}
        for label, work in works.items()
    }


# %%
eight_bits = {"labels": tuple(EIGHT), "side": 4096 if ON_GPU else 256, "times": labkit.rounds()}
eight_steps = labkit.steps.together(in_eight_bits, tuple(EIGHT), value="error", seconds=10, **eight_bits)
eight = labkit.experiment("KN-5", eight_steps, how="" if HAS_FP8 else ", factors rounded")

# %%
def beside_bf16(points):
    base = points[0].records[0].setting["ms"]
    for point in points if HAS_FP8 else ():
        print(f"{point.label}: {point.records[0].setting['ms']:.3g} ms, bf16 takes {base / point.records[0].setting['ms']:.2f} times as long")


await eight.report(beside_bf16)

# %% [markdown]
# ## On a GPU: your softmax as a Triton kernel
#
# Triton runs one *program* for each row. `tl.program_id(0)` is the row's number; `tl.arange(0, BLOCK)` are a block's places; `tl.load` and `tl.store`
# take addresses and a `mask` for the places that exist. Loops, `tl.max`, `tl.sum`, `tl.maximum` and `tl.exp` do the rest. The same matrices as in exercise 1 judge it.

# %%
if ON_GPU and COMPILES:
    def softmax_kernel(x, y, columns, BLOCK: "tl.constexpr"):
        # <solution>
        row, places = tl.program_id(0), tl.arange(0, BLOCK)
        largest, total = -float("inf"), 0.0
        for start in range(0, columns, BLOCK):
            column = start + places
            part = tl.load(x + row * columns + column, mask=column < columns, other=-float("inf"))
            above = tl.maximum(largest, tl.max(part, 0))
            total = total * tl.exp(largest - above) + tl.sum(tl.exp(part - above), 0)
            largest = above
        for start in range(0, columns, BLOCK):
            column = start + places
            part = tl.load(x + row * columns + column, mask=column < columns, other=-float("inf"))
            tl.store(y + row * columns + column, tl.exp(part - largest) / total, mask=column < columns)
        # </solution>
        # <student>
        # pass  # about twelve lines
        # </student>


# %%
def own_kernel(source, times):
    import torch

    softmax = labkit.exercises.kernels.triton_softmax(source)
    if fault := labkit.exercises.kernel_checks.fault_of_kernel(softmax, "cuda"):
        return {"fault": fault}
    x = torch.randn(4096, 8192, device="cuda")
    works = {"your kernel": lambda: softmax(x, 1024), "torch.softmax": lambda: torch.softmax(x, 1)}
    seconds = labkit.in_turns({**works, "copy": lambda: x.clone()}, times)
    return {name: sorted(seconds[name])[times // 2] * 1e3 for name in (*works, "copy")}


if not (ON_GPU and COMPILES):
    print("a Triton kernel needs a GPU and a C compiler")
elif labkit.is_measured_here():
    import inspect

    print(labkit.ranks(own_kernel, n=1, source=inspect.getsource(softmax_kernel), times=20).values[0])

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("3b_kernels")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
