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
# You need notebook 1; the all-reduce of notebook 4a and its start-up time help, and the optional part uses 4c's
# reduce-scatter and all-gather.
#
# About 45 minutes; notebook 5b is the second half. The sections after the summary are optional; in the first of them
# you split attention by heads, and see what tensor and sequence parallelism send and keep.

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
# do eight ranks need no more exchanges than two, and why do people in practice stop at the GPUs that share one fast
# link (eight in most servers, 72 in some racks)?

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
cross = labkit.experiment("MP-2", labkit.steps.together(both_splits, batch_spots, value="rows", on="cpu", batches=SENDING))

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
# Later notebooks need none of them; run what interests you.

# %% [markdown]
# ## Attention, split by heads
#
# Attention is a pair of layers like that of exercise 2: a product makes q, k and v for all heads, each head works by
# itself, and a second product takes all heads' results. Each rank takes some of the *heads*: for them the columns of the
# first matrix, and the rows of the second.
#
# Now with autograd. Megatron-LM has two functions for it, *conjugates* of one another
# (Shoeybi et al., [Megatron-LM](https://arxiv.org/abs/1909.08053), 2019, section 3):
#
# | | forward | backward |
# |---|---|---|
# | f, before the first product | nothing | all-reduce |
# | g, after the second product | all-reduce | nothing |
#
# ## Exercise 3: a block of attention over ranks
#
# x has a row for each token, and `qkv` the columns of q, then those of k, then those of v, each head by head. `attend`
# is given: it works with any number of heads. About 20 minutes.

# %%
def attend(product, heads):
    """Attention; the product's columns are q, k and v, each of them head by head."""
    tokens, columns = product.shape
    q, k, v = product.reshape(tokens, 3, heads, -1).permute(1, 2, 0, 3)
    scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(dim=-1)
    return (scores @ v).transpose(0, 1).reshape(tokens, columns // 3)


def own_heads(qkv, out, rank, world):
    """This rank's columns of qkv and its rows of out: those of its own heads."""
    # <solution>
    columns = [matrix.chunk(world, dim=1)[rank] for matrix in qkv.chunk(3, dim=1)]
    return torch.cat(columns, dim=1), out.chunk(world, dim=0)[rank]
    # </solution>
    # <student>
    # return None  # about two lines
    # </student>


def conjugates(all_reduce):
    """Megatron's f and g; all_reduce(tensor) returns the ranks' sum."""

    class CopyToRanks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)  # what a Function returns must not be its input itself

        @staticmethod
        def backward(ctx, delta):
            # <solution>
            return all_reduce(delta)
            # </solution>
            # <student>
            # return None  # one line
            # </student>

    class SumOverRanks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial_sum):
            # <solution>
            return all_reduce(partial_sum)
            # </solution>
            # <student>
            # return None  # one line
            # </student>

        @staticmethod
        def backward(ctx, delta):
            # <solution>
            return delta
            # </solution>
            # <student>
            # return None  # one line
            # </student>

    return CopyToRanks.apply, SumOverRanks.apply


# %%
def split_attention(x, qkv, out, heads, f, g):
    """What every rank gets: attention of all heads, of which this one has so many, and their qkv and out."""
    # <solution>
    return g(attend(f(x) @ qkv, heads) @ out)
    # </solution>
    # <student>
    # return None  # one line
    # </student>


def attention_step(x, qkv, out, delta, heads, all_reduce):
    """The result on one rank, and the gradients of x, qkv and out; delta is the result's gradient."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, qkv, out)]
    # <solution>
    result = split_attention(*leaves, heads, *conjugates(all_reduce))
    # </solution>
    # <student>
    # return None  # one line: the result, with your functions
    # </student>
    return result, *torch.autograd.grad(result, leaves, delta)


# %%
attention_verdict = labkit.exercises.check_attention(own_heads, attention_step)
print(attention_verdict)

# %% [markdown]
# ## MP-12: what a split block sends
#
# A transformer's block has more than products: x + dropout(attention(norm(x))). Norm and dropout take each row by itself,
# and in tensor parallelism every rank does all rows. *Sequence parallelism* divides them: each rank has 1/n of the rows, and
# only f and g change (Korthikanti et al., [Reducing Activation Recomputation](https://arxiv.org/abs/2205.05198), 2022, section 4.2):
#
# | | forward | backward | sent, in S |
# |---|---|---|---|
# | tensor | all-reduce | all-reduce | 4 (n-1)/n |
# | sequence | all-gather, reduce-scatter | all-gather, reduce-scatter | 4 (n-1)/n |
# | sequence, gathered anew | the same | one more all-gather | 5 (n-1)/n |
#
# S is the size of x, and a ring sends (n-1)/n S for an all-gather or a reduce-scatter, twice that for an all-reduce. In
# the last way a rank keeps its rows instead of the gathered ones, and gathers them once more to go back.
#
# Every call is noted, and Linux counts the bytes that leave, as in notebook 4c, over gloo in host memory. Torch's own `ColwiseParallel`,
# `RowwiseParallel` and `SequenceParallel` do the same block with torch's collectives. (`labkit.exercises.tensor_parallel??`.)

# %%
WAYS = ("whole", "tensor", "sequence", "sequence, gathered anew")
OF_TORCH = ("torch's tensor", "torch's sequence")
ROWS_KEPT, HEADS_KEPT = "norm and dropout", "attention"


def attention_of(way, heads, collectives):
    """A rank's attention in one of the ways, as a function of x, qkv and out."""
    if way == "whole":
        return lambda x, qkv, out: attend(x @ qkv, heads) @ out
    tools, own_count = labkit.exercises.tensor_parallel, heads // collectives.world
    f, g = conjugates(collectives.all_reduce) if way == "tensor" else tools.conjugates_by_rows(collectives)
    if way == "sequence, gathered anew":
        product = tools.product_of_gathered
        return lambda x, qkv, out: g(attend(product(x, qkv, collectives), own_count) @ out)
    return lambda x, qkv, out: split_attention(x, qkv, out, own_count, f, g)


def own_rows(way, tensor, rank, world):
    """A rank's rows: all of them, or its part where the sequence is divided."""
    return tensor.chunk(world)[rank].clone() if "sequence" in way else tensor


def whole_tensors(tokens, width, device, dtype=torch.float32):
    """x, qkv, out, the gradient of the result, and dropout's mask: the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((tokens, width), (width, 3 * width), (width, width), (tokens, width))
    x, qkv, out, delta = (torch.randn(shape, generator=generator) for shape in shapes)
    mask = torch.rand(tokens, width, generator=generator) < labkit.exercises.tensor_parallel.KEPT_SHARE
    return *(tensor.to(device, dtype) for tensor in (x, qkv / width**0.5, out / width**0.5, delta)), mask.to(device)


# %%
def block_step(way, tensors, heads, collectives):
    """One step of a block on one rank: its result, its gradients and what was kept; and how large its weights are."""
    (x, qkv, out, delta, mask), rank, world = tensors, collectives.rank, collectives.world
    x, delta, mask = (own_rows(way, tensor, rank, world) for tensor in (x, delta, mask))
    qkv, out = (qkv, out) if way == "whole" else own_heads(qkv, out, rank, world)
    x, qkv, out = leaves = [tensor.contiguous().requires_grad_() for tensor in (x.detach(), qkv, out)]
    attention = attention_of(way, heads, collectives)

    def step():
        keeping = labkit.exercises.tensor_parallel.KeptBytes((qkv, out))
        collectives.begin("forward")
        with keeping.by(ROWS_KEPT):
            normed = torch.nn.functional.layer_norm(x, x.shape[1:])
        with keeping.by(HEADS_KEPT):
            result = attention(normed, qkv, out)
        with keeping.by(ROWS_KEPT):
            result = x + result * mask / labkit.exercises.tensor_parallel.KEPT_SHARE
        collectives.begin("backward")
        return result, torch.autograd.grad(result, leaves, delta), keeping.bytes_by_part

    return step, (qkv.nbytes + out.nbytes) / 2**20


def torch_step(way, tensors, heads, collectives, is_counted=True):
    """The same step by torch's own modules; its collectives are counted by torch, which takes time."""
    x, qkv, out, delta, mask = tensors
    x, delta, mask = (own_rows(way, tensor, collectives.rank, collectives.world) for tensor in (x, delta, mask))
    x, tools = x.detach().requires_grad_(), labkit.exercises.tensor_parallel
    block = tools.block_of_torch((qkv, out), heads, mask, collectives.group, by_rows="sequence" in way)
    counts = {"forward": {}, "backward": {}}

    def step():
        x.grad = None
        block.zero_grad()
        with tools.counted_by_torch(counts["forward"], is_counted):
            result = block(x)
        with tools.counted_by_torch(counts["backward"], is_counted):
            result.backward(delta)
        return result.detach(), [x.grad], counts

    return step


def apart(results, whole_results, collectives):
    """How far a rank's result and gradients are from its part of the whole block's: the largest, relative."""
    rank, world = collectives.rank, collectives.world
    (result, gradients, _), (whole_result, (of_x, *of_weights), _) = results, whole_results
    pairs = [(result, whole_result), (gradients[0], of_x)]
    pairs = [(part, right if len(part) == len(right) else right.chunk(world)[rank]) for part, right in pairs]
    pairs += zip(gradients[1:], own_heads(*of_weights, rank, world))  # none of torch's, in another order
    return max(((part - right).norm() / right.norm()).item() for part, right in pairs)


# %%
def bytes_of_blocks(tokens, width, heads):
    """What a rank sends in a step, over S; which collectives it calls; how far it is from the whole block."""
    collectives, facts = labkit.exercises.tensor_parallel.Collectives(in_host_memory=True), {}
    tensors, count = whole_tensors(tokens, width, "cpu"), labkit.exercises.sharding.sent_bytes
    whole_results = block_step("whole", tensors, heads, collectives)[0]()
    for way in (*WAYS[1:], *OF_TORCH):
        step = torch_step(way, tensors, heads, collectives) if way in OF_TORCH else block_step(way, tensors, heads, collectives)[0]
        step()
        collectives.barrier()
        before = count()
        results = step()
        collectives.barrier()
        sizes_sent = (count() - before) / tensors[0].nbytes
        calls = results[2] if way in OF_TORCH else collectives.counts()
        facts[way] = {"S": sizes_sent, "calls": calls, "apart": apart(results, whole_results, collectives)}
    return facts


def sent_by_formula(ranks):
    """The table above, in S."""
    of_tensor, of_sequence = {"all-reduce": 2}, {"all-gather": 2, "reduce-scatter": 2}
    calls = {"tensor": of_tensor, "sequence": of_sequence, WAYS[-1]: of_sequence | {"all-gather": 3}}
    ring_bytes = labkit.exercises.tensor_parallel.ring_bytes
    return {way: {"S": ring_bytes(counts, 1, ranks), "computed": True} for way, counts in calls.items()}


# %% [markdown]
# **Predict** how many S a rank sends with sequence parallelism, which has twice as many collectives.

# %%
block_sizes = {"tokens": 256, "width": 1024, "heads": 8}
over_gloo = {"n": 2, "on": "cpu", "link": "gloo over loopback, host memory"}
formula_kinds, counted_kinds = dict.fromkeys(WAYS[1:], "formula"), dict.fromkeys((*WAYS[1:], *OF_TORCH), "measured")
by_formula = labkit.steps.together(sent_by_formula, list(formula_kinds), value="S", series=formula_kinds, ranks=2)
by_count = labkit.steps.together(bytes_of_blocks, list(counted_kinds), value="S", series=counted_kinds, **over_gloo, **block_sizes)
block_bytes = labkit.experiment("MP-12", by_formula, by_count)

# %%
def calls_of_blocks(points):
    for point in points:
        if point.series == "measured":
            calls = point.records[0].setting["calls"]
            listed = "; ".join(f"{way}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()) for way, kinds in calls.items())
            print(f"{point.label}: {point.value:.2f} S; {listed}")


await block_bytes.report(calls_of_blocks, needs=attention_verdict)

# %% [markdown]
# **Explain** why sequence parallelism sends as much as tensor parallelism, though it calls twice as many collectives, and what torch's
# sends beside it. (In torch 2.13, gloo's reduce-scatter is an all-reduce of which each rank keeps its part.)

# %% [markdown]
# ## MP-13: what a split block keeps
#
# For a whole layer in 16 bits, with s tokens, batch b, width h, a heads and t ranks, Korthikanti et al. (section 4, table 2) count
# in bytes kept for the backward pass:
#
# | | |
# |---|---|
# | one rank | s b h (34 + 5 a s / h) |
# | tensor | s b h (10 + 24/t + 5 a s / (h t)) |
# | tensor and sequence | s b h (34 + 5 a s / h) / t |
#
# The 10 are what every rank does for all rows: two norms (4), two masks of dropout (2), and the inputs of two products (4).
# Here it is only the attention half, with b = 1, in 32 bits, and without dropout in the scores: in s h bytes
#
# | | norm and dropout | attention |
# |---|---|---|
# | one rank | 4 + 1 | 4 + 16 + 4 a s / h |
# | tensor | 4 + 1 | 4 + (16 + 4 a s / h) / t |
# | sequence | (4 + 1) / t | 4 + (16 + 4 a s / h) / t |
# | sequence, gathered anew | (4 + 1) / t | (4 + 16 + 4 a s / h) / t |
#
# `torch.autograd.graph.saved_tensors_hooks` shows every tensor that autograd keeps; each counts once.
#
# **Predict** what percentage of tensor parallelism's bytes sequence parallelism keeps, when it gathers anew.

# %%
def everyones_figures(figures):
    """Every rank's figures, in their order."""
    import torch.distributed as dist

    figures_by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(figures_by_rank, figures)
    return figures_by_rank


def kept_by_blocks(tokens, width, heads):
    """MiB that autograd keeps of a block, by its parts; what each rank holds; how far it is from the whole block."""
    collectives, facts = labkit.exercises.tensor_parallel.Collectives(), {}
    tensors = whole_tensors(tokens, width, collectives.device)
    whole_results = block_step("whole", tensors, heads, collectives)[0]()
    for way in WAYS:
        step, weights_mib = block_step(way, tensors, heads, collectives)
        results = step()
        kept_mib = {part: size / 2**20 for part, size in results[2].items()}
        peak = labkit.exercises.tensor_parallel.step_peak_mib(step, collectives.device)
        ranks = everyones_figures({"weights": weights_mib, "kept": sum(kept_mib.values()), "peak": peak})
        facts[way] = kept_mib | {"ranks": ranks} | ({} if way == "whole" else {"apart": apart(results, whole_results, collectives)})
    return facts


def kept_by_formula(way, tokens, width, heads, ranks=2):
    """MiB of the table above, norm and dropout first."""
    rows, gathered, heads_part = (tokens * width / 2**20 for _ in range(3))
    rows /= ranks if "sequence" in way else 1
    gathered /= ranks if way == WAYS[-1] else 1
    heads_part /= ranks if way != "whole" else 1
    return 5 * rows, 4 * gathered + (16 + 4 * heads * tokens / width) * heads_part


# %%
kept_sizes = {"tokens": 2048, "width": 4096, "heads": 32} if place.tier == "several-gpus" else block_sizes
keeps = labkit.experiment("MP-13", labkit.steps.together(kept_by_blocks, WAYS, value=ROWS_KEPT, n=2, **kept_sizes))

# %%
def beside_the_table(points):
    for point in points:
        facts, formula = point.records[0].setting, kept_by_formula(point.label, **kept_sizes)
        pairs = zip((ROWS_KEPT, HEADS_KEPT), formula)
        kept_parts = ", ".join(f"{part} {facts[part]:.2f} MiB (formula {mib:.2f})" for part, mib in pairs)
        by_rank = "; ".join(f"rank {rank}: weights {r['weights']:.1f}, kept {r['kept']:.1f}, at most {r['peak']:.1f} MiB" for rank, r in enumerate(facts["ranks"]))
        print(f"{point.label}: {kept_parts}; {by_rank}")


await keeps.report(beside_the_table, needs=attention_verdict)

# %% [markdown]
# **Explain** what sequence parallelism divides and what stays whole until it is gathered anew. What would you have to do about a
# norm that has weights, whose gradients each rank then has from its own rows only?

# %% [markdown]
# ## MP-14: the block by the clock
#
# One rank with the whole block and two ranks that split it take turns, forward and backward; on several GPUs with more tokens, in bf16,
# over their link. **Predict** which fraction of the whole block's time tensor parallelism takes.

# %%
def block_times(tokens, width, heads, times):
    collectives, works = labkit.exercises.tensor_parallel.Collectives(), {}
    dtype = torch.bfloat16 if collectives.device == "cuda" else torch.float32
    tensors = whole_tensors(tokens, width, collectives.device, dtype)
    for way in (*WAYS, *OF_TORCH):
        step = torch_step(way, tensors, heads, collectives, False) if way in OF_TORCH else block_step(way, tensors, heads, collectives)[0]
        works[way] = (lambda: None) if way == "whole" and collectives.rank else step
    return labkit.in_turns(works, times)


# %%
clock_sizes = kept_sizes | {"tokens": 8192} if place.tier == "several-gpus" else kept_sizes
timed_blocks = labkit.steps.together(block_times, (*WAYS, *OF_TORCH), n=2, seconds=20, times=labkit.rounds(), **clock_sizes)
block_clock = labkit.experiment("MP-14", timed_blocks)

# %%
await block_clock.report()
print("measured between devices" if place.tier == "several-gpus" else labkit.recorded_note("MP-14"))

# %% [markdown]
# Which of the ways would you take between two GPUs, and which between two slices?

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
# On a CPU sending needs a core, too. In our recordings chunks took 0.93 of the time on 16 cores, and 0.99 to 1.00 of it
# between two GPUs. **Explain** when the trick pays.

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
