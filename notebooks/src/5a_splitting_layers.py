# %% [markdown]
# # 5a. Model parallelism: splitting a layer
#
# **Afterwards you can decide** whether to split a layer's matrices over slices,
# and whether splitting the *model* sends less than splitting the *batch*.
# You will be able to
#
# - split a matrix product by rows and by columns, and say which of them adds and which stacks;
# - write a pair of layers with one exchange each way, forward and backward;
# - say how many tokens it takes for a split to pay, and why;
# - find the batch at which a published "nearly 4 times less data" stops being true.
#
# "The article" below is Tim Dettmers,
# [How to Parallelize Deep Learning on GPUs Part 2/2: Model Parallelism](https://timdettmers.com/2014/11/09/model-parallelism-deep-learning/)
# (2014).
#
# About 45 minutes; notebook 5b is the second half. The sections after the summary are optional.

# %% [markdown]
# With several GPUs or slices each rank has its own.
# With one GPU or slice, the ranks are processes on **this container's CPU**; only in MP-3 do they share the GPU or slice.
# Without a GPU, they are always on the CPU. Every plot says which.
# Slices of one GPU have no direct connection: every byte goes through the host's memory.

# %% jupyter={"source_hidden": true}
import labkit

place = labkit.where()
SEVERAL, ON_GPU = place.is_several, place.is_gpu
WIDTH, BATCH = labkit.exercises.networks.sizes_for_two(place)
labkit.card(place)

# %% [markdown]
# ## MP-1: a product, split two ways
#
# The article splits a layer of 1000 × 500 weights over two GPUs, with 128 samples:
#
# | split by | forward on each GPU | then |
# |---|---|---|
# | first dimension (rows) | 128×500 · 500×500 = 128×500 | add |
# | second dimension (columns) | 128×1000 · 1000×250 = 128×250 | stack |
#
# Before you write it: which of the two needs only *part of the input* on each GPU?
#
# ## Exercise 1: split a matrix product

# %%
import torch  # on the CPU only: this notebook itself never touches the GPU


def split_rows(x, weights, ranks):
    """The ranks' products, each with some of the *rows* of weights, and x @ weights made from them."""
    # <solution>
    parts = zip(x.tensor_split(ranks, dim=1), weights.tensor_split(ranks, dim=0), strict=True)
    products = [columns_of_x @ rows for columns_of_x, rows in parts]
    return products, sum(products)
    # </solution>
    # <student>
    # return [], None  # write the row split here
    # </student>


def split_columns(x, weights, ranks):
    """The ranks' products, each with some of the *columns* of weights, and x @ weights made from them."""
    # <solution>
    products = [x @ columns for columns in weights.tensor_split(ranks, dim=1)]
    return products, torch.cat(products, dim=1)
    # </solution>
    # <student>
    # return [], None  # write the column split here
    # </student>


# %%
rows_verdict = labkit.exercises.check_split_matmul(split_rows, by="rows")
columns_verdict = labkit.exercises.check_split_matmul(split_columns, by="columns")
both_right = "right" if rows_verdict.right and columns_verdict.right else "write both splits first"
print("rows:   ", rows_verdict)
print("columns:", columns_verdict)

# %% [markdown]
# The check used 64 bits, where rounding hardly shows. How large is it in fp32, forward and backward, with the
# article's shapes? Autograd finds its way back through your split by itself. **Predict:** what will the relative
# error of the input's gradient be with the row split (a fraction, such as 1e-3; 0 is allowed)?

# %%
def off_by(split_name, part):
    split = split_rows if split_name == "split_rows" else split_columns
    generator = torch.Generator().manual_seed(0)
    x, weights, delta = (
        torch.randn(*shape, generator=generator) for shape in ((128, 1000), (1000, 500), (128, 500))
    )
    results = []
    for product in (lambda a, b: a @ b, lambda a, b: split(a, b, 2)[1]):
        leaf = x.clone().requires_grad_()
        output = product(leaf, weights)
        output.backward(delta)
        results.append(output.detach() if part == "forward" else leaf.grad)
    expected, actual = results
    return max(1e-12, ((actual - expected).norm() / expected.norm()).item())


# %%
SPLITS = [(split_name, part) for split_name in ("split_rows", "split_columns") for part in ("forward", "backward")]


def split_step(x, split_name, part):
    return labkit.steps.computed_step(f"{split_name}, {part}", x, off_by, split_name, part)


exact = labkit.experiment("MP-1", [split_step(x, *split) for x, split in enumerate(SPLITS)])

# %%
await exact.report(needs=both_right)

# %% [markdown]
# **Explain:** which of the four differ from the whole product at all, and why? (The library may divide the whole
# product into other blocks than the parts, and then more of them differ, as they do on some machines.)
# What changes in the backward pass? Look at the shapes of delta · weightsᵀ.

# %%
labkit.picture("split")

# %% [markdown]
# ## Exercise 2: two layers, one exchange each way
#
# In a transformer's MLP both splits are used. The first matrix is split by *columns*, so each rank has a part of the
# hidden layer and can apply ReLU at once; the second by *rows*, so that this part is all the rank needs. The results
# are partial sums, which need one all-reduce. The backward pass is the mirror image. (This is Megatron-LM's tensor
# parallelism.)
#
# Write both directions for one rank, without autograd; the forward one returns the output and whatever it wants back
# as `kept`. Here `all_reduce(tensor)` waits, and returns the ranks' sum. `delta` is the gradient of the output, and
# every rank has all of it; `first` and `second` are this rank's own parts.

# %%
labkit.picture("pair")

# %%
def pair_forward(x, first, second, all_reduce):
    """relu(x @ W1) @ W2, and what the backward pass will need."""
    # <solution>
    hidden = (x @ first).relu()
    return all_reduce(hidden @ second), (x, hidden)
    # </solution>
    # <student>
    # return None  # about two lines
    # </student>


def pair_backward(delta, kept, first, second, all_reduce):
    """The gradients of x, first and second."""
    # <solution>
    x, hidden = kept
    of_hidden = (delta @ second.T) * (hidden > 0)
    return all_reduce(of_hidden @ first.T), x.T @ of_hidden, hidden.T @ delta
    # </solution>
    # <student>
    # return None  # about three lines
    # </student>


# %%
pair_verdict = labkit.exercises.check_pair(pair_forward, pair_backward)
print(pair_verdict)

# %% [markdown]
# ## MP-3: when splitting the pair pays
#
# Rows of x are tokens. The arithmetic grows with tokens × width², and what is sent grows with tokens × width: their
# ratio does not depend on the tokens at all. But every all-reduce has a start-up time, and few tokens do not fill a device.
# "If the GPUs are not saturated, model parallelism will be slow", says the article.
#
# One rank with the whole pair of layers and two ranks with half of it each take turns, forward and backward.
# If you hold one slice (or one GPU), both ranks compute on it, and what they exchange goes through the host's memory.

# %%
def reducer(log):
    """An all-reduce between the ranks that notes how many numbers it was given."""
    import torch.distributed as dist

    def all_reduce(tensor):
        log.append(tensor.numel())
        dist.all_reduce(tensor)
        return tensor

    return all_reduce


def there_and_back(x, first, second, all_reduce):
    output, saved = pair_forward(x, first, second, all_reduce)
    return output, *pair_backward(torch.ones_like(output), saved, first, second, all_reduce)


def pair_times(width, tokens, times):
    import torch.distributed as dist

    rank, world, log = dist.get_rank(), dist.get_world_size(), []
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    first, second = (torch.randn(*shape, device=device) for shape in ((width, 4 * width), (4 * width, width)))
    own_weights = (first.tensor_split(world, dim=1)[rank].contiguous(), second.tensor_split(world, dim=0)[rank].contiguous())
    inputs = {count: torch.randn(count, width, device=device) for count in tokens}

    def whole(x):
        return lambda: there_and_back(x, first, second, lambda tensor: tensor) if rank == 0 else None

    def split(x):
        return lambda: there_and_back(x, *own_weights, reducer([]))

    x = inputs[max(tokens)]
    truth, results = there_and_back(x, first, second, lambda tensor: tensor), there_and_back(x, *own_weights, reducer(log))
    off = {name: ((results[i] - truth[i]).norm() / truth[i].norm()).item() for i, name in enumerate(("output", "x"))}
    works = {}
    for count, x in inputs.items():
        works |= {f"{count} tokens": whole(x), f"{count} tokens, split": split(x)}
    facts = {"off": off, "sent": sum(log) / (max(tokens) * width)}
    return labkit.in_turns(works, times) | {"facts": facts}


# %% [markdown]
# The most is 1024 tokens; the layers are 2048 wide on a GPU, 256 on a CPU. **Predict** how many ms a step (forward
# and backward) of the split pair then takes.

# %%
TOKENS = (16, 256) if labkit.is_quick() else (16, 64, 256, 1024)
PAIR_WIDTH = 2048 if ON_GPU else 256
are_sharing = ON_GPU and not SEVERAL and place.slices < 2
halves_on = "two ranks on one device" if are_sharing else "two ranks"
token_spots = {f"{count} tokens{suffix}": count for suffix in ("", ", split") for count in TOKENS}
kinds = {label: f"split over {halves_on}" if "split" in label else "whole on one" for label in token_spots}
sizes = {"width": PAIR_WIDTH, "tokens": TOKENS, "times": labkit.rounds()}
pair_steps = labkit.steps.together(pair_times, token_spots, series=kinds, n=2, share_device=True, **sizes)
paying = labkit.experiment("MP-3", pair_steps)

# %%
def print_speed_ups(points):
    took = {point.label: point.value for point in points}
    for count in TOKENS if len(took) == 2 * len(TOKENS) else ():
        whole_ms, split_ms = took[f"{count} tokens"], took[f"{count} tokens, split"]
        print(f"{count} tokens: speed-up {whole_ms / split_ms:.2f}; {1000 * split_ms / count:.3g} µs a token")
    print(f"sent in a step: {points[0].records[0].setting['sent']:g} numbers a token and width, on each rank")


await paying.report(print_speed_ups, needs=pair_verdict)
print("measured between devices" if SEVERAL else labkit.recorded_note("MP-3"))

# %% [markdown]
# **Explain** where the two curves meet, and which cost of an all-reduce decides there. If they do not meet, why? Why
# do eight ranks need no more exchanges than two, and why do people in practice stop at eight, the GPUs that share one
# fast link?

# %% [markdown]
# ## MP-2: what is sent
#
# Data parallelism sends the layer's gradient: 1000 × 500 numbers, whatever the batch.
# Model parallelism sends activations, forward and backward: the bigger the batch, the more it sends.
# The batch B counts rows of the input. In a transformer these are *tokens* (sequences × length), thousands of
# them, so for today's networks read the result from the right end of the plot. Dettmers, for a batch of 128:
# > a total of 128000 or 160000 elements – that's nearly 4 times less data!
#
# Two ranks really compute and exchange their halves, and what they send is counted.

# %%
def rows_layer(batch):
    """Each rank holds 500 of the 1000 rows: add forward, stack backward."""

    def rank_part(weights, rank, world, send, receive):
        own_rows = weights.tensor_split(world, dim=0)[rank]
        partial_sum = torch.ones(batch, len(own_rows)) @ own_rows
        send(1 - rank, partial_sum)
        delta = partial_sum + receive(1 - rank)
        back = delta @ own_rows.T
        send(1 - rank, back)
        halves = [back, receive(1 - rank)] if rank == 0 else [receive(1 - rank), back]
        return torch.cat(halves, dim=1)

    return rank_part


def columns_layer(batch):
    """Each rank holds 250 of the 500 columns: stack forward, add backward."""

    def rank_part(weights, rank, world, send, receive):
        own_columns = weights.tensor_split(world, dim=1)[rank]
        output_part = torch.ones(batch, len(weights)) @ own_columns
        send(1 - rank, output_part)
        receive(1 - rank)  # the other half of the output; here the gradient is the output itself
        back = output_part @ own_columns.T
        send(1 - rank, back)
        return back + receive(1 - rank)

    return rank_part


# %%
def elements_sent(layer, batch):
    """Elements the busier rank sends; both must end with what one rank alone computes."""
    weights = torch.randn(1000, 500, generator=torch.Generator().manual_seed(3))
    results, sent_bytes = labkit.exercises.run_ranks(layer(batch), [weights] * 2)
    expected = torch.ones(batch, 1000) @ weights @ weights.T
    if any((result - expected).norm() > 1e-4 * expected.norm() for result in results):
        raise ValueError("the exchanged halves do not give the whole layer's result")
    return max(sent_bytes) / 4


def both_splits(batches):
    """What the row split and the column split send, by batch."""
    return {
        f"batch {batch}": {"rows": elements_sent(rows_layer, batch), "columns": elements_sent(columns_layer, batch)}
        for batch in batches
    }


# %% [markdown]
# **Predict:** from which batch on does the row split send as much as data parallelism?

# %%
SENDING = (64, 128, 400, 500, 1024)
batch_spots = {f"batch {batch}": batch for batch in SENDING}
cross = labkit.experiment("MP-2", labkit.steps.together(both_splits, batch_spots, value="rows", batches=SENDING))

# %%
def counts(points):
    for point in points:
        print(f"{point.label}: rows {point.value:,.0f}, columns {point.records[0].setting['columns']:,.0f}")
    print("data parallelism: 500,000 at every batch")


await cross.report(counts)
labkit.cite("dettmers")

# %% [markdown]
# **Explain** for whom the sentence is true, and what a convolution changes:
# few weights, many activations.

# %% [markdown]
# ## What the published figures say, and where they are wrong

# %%
print(labkit.published.corrections("E11", "E10"))
labkit.cite("dettmers")

# %% [markdown]
# ## Your summary
#
# The summary is filled in from your own evidence and says what is missing.

# %%
labkit.summary("MP-1", "MP-3", "MP-2")

# %%
my_numbers = labkit.drawn("5a", rows=(1000, 2000, 4000), columns=(500, 1500, 3000), batch=(96, 256, 1024))
print(f"your layer has {my_numbers['rows']} × {my_numbers['columns']} weights, and your batch is {my_numbers['batch']}")

# %% [markdown]
# **Decide** for the layer above, whose numbers are your own: split it by rows, by columns, or split the batch?
# Name the numbers that each way sends, and the figure of MP-3 that could change your mind.

# %% [markdown]
# # Optional sections
#
# There are no exercises that later notebooks need here; run what interests you.

# %% [markdown]
# ## MP-4: hiding what a split layer sends
#
# The batch is split into chunks; while one chunk's sum is being sent, the next is computed.
# **Predict** which fraction of the time remains with chunks.

# %%
def halves(width, batch, parts):
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    first = torch.randn(width, 4 * width // parts, device=device)
    second = torch.randn(4 * width // parts, width, device=device)
    return torch.randn(batch, width, device=device), first, second


def split_layers(width, batch):
    import torch.distributed as dist

    x, first, second = halves(width, batch, dist.get_world_size())
    return lambda: dist.all_reduce((x @ first).relu() @ second)


# %%
def chunked_layers(width, batch, chunks=4):
    import torch.distributed as dist

    x, first, second = halves(width, batch, dist.get_world_size())

    def work():
        pending = []
        for part in x.chunk(chunks):
            partial = (part @ first).relu() @ second
            pending.append((dist.all_reduce(partial, async_op=True), partial))
        for handle, _ in pending:
            handle.wait()

    return work


# %%
shape = {"width": 8192 if SEVERAL else 1024, "batch": BATCH}
chunked = labkit.steps.compared_step(
    "4 chunks", 4, chunked_layers, split_layers, band=(0, 1), ranks=2, **shape
)
tricks = labkit.experiment("MP-4", chunked)

# %%
await tricks.report()

# %% [markdown]
# On a CPU the rank that sends needs the core that computes. **Explain** what that does to the trick.

# %% [markdown]
# ## MP-8: one weird trick
#
# Krizhevsky split the batch in the convolutions and the model in the dense layers.
# His network has 2.3 million convolution weights and 58.6 million dense ones;
# its activations, per sample, are counted below from the sizes of its layers. Where the way of splitting changes, the
# 9,216 activations between the two parts must cross as well: that traffic is what his paper is about.
# **Predict** how many million numbers the best of the four combinations sends at batch 128.

# %%
WEIGHTS = {"convolutions": 2.33e6, "dense": 9216 * 4096 + 4096 * 4096 + 4096 * 1000}
ACTIVATIONS = {
    "convolutions": 55 * 55 * 96 + 27 * 27 * 256 + 2 * 13 * 13 * 384 + 13 * 13 * 256,
    "dense": 4096 + 4096 + 1000,
}


def sent_by(convolutions, dense, batch=128):
    ways = {"convolutions": convolutions, "dense": dense}
    inside = sum(WEIGHTS[part] if way == "batch" else 2 * batch * ACTIVATIONS[part] for part, way in ways.items())
    crossing = 2 * batch * 9216 if convolutions != dense else 0  # there and back, where the way of splitting changes
    return (inside + crossing) / 1e6


COMBINATIONS = [(a, b) for a in ("batch", "model") for b in ("batch", "model")]
sends = [labkit.steps.computed_step(f"{a} / {b}", x, sent_by, a, b) for x, (a, b) in enumerate(COMBINATIONS)]
trick = labkit.experiment("MP-8", sends)

# %%
await trick.report()

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S) and run the cell: it makes one zip of your notebooks and evidence,
# says what is missing before you download it, and shows what your marker will see.
#
# To start this notebook over, run `labkit.fresh_copy("5a_splitting_layers")`:
# a *fresh copy* appears beside this one, and nothing of yours is overwritten.

# %%
labkit.hand_in()
