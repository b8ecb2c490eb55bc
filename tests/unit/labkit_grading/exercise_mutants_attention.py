"""The same as `exercise_mutants`, of attention that is split over ranks."""

from tests.unit.labkit_grading.exercise_mutants import Exercise

NOTEBOOK, VERDICT = "5a_splitting_layers", "attention_verdict"
COLUMNS = "matrix.chunk(world, dim=1)[rank]"
F_BACK = "            return all_reduce(delta)"
G_FORWARD = "            return all_reduce(partial_sum)"
G_BACK = "            return delta\n"
BLOCK = "g(attend(f(x) @ qkv, heads) @ out)"
STEP = "split_attention(*leaves, heads, *conjugates(all_reduce))"

EXERCISES = {
    "own_heads": Exercise(
        NOTEBOOK,
        VERDICT,
        {
            "one piece of qkv": (
                "torch.cat(columns, dim=1)",
                "qkv.chunk(world, dim=1)[rank]",
            ),
            "the first heads, whatever the rank": (COLUMNS, "matrix.chunk(world, dim=1)[0]"),
            "the heads in reverse": (COLUMNS, "matrix.chunk(world, dim=1)[-1 - rank]"),
            "rows of qkv": (COLUMNS, "matrix.chunk(world, dim=0)[rank]"),
            "columns of out": ("out.chunk(world, dim=0)", "out.chunk(world, dim=1)"),
            "the first rows of out": (
                "out.chunk(world, dim=0)[rank]",
                "out.chunk(world, dim=0)[0]",
            ),
            "all of out": ("out.chunk(world, dim=0)[rank]", "out"),
            "two ranks, whatever there are": (COLUMNS, "matrix.chunk(2, dim=1)[rank % 2]"),
            "every other column": (COLUMNS, "matrix[:, rank::world]"),
            "v before k": ("torch.cat(columns", "torch.cat([columns[n] for n in (0, 2, 1)]"),
            "the columns only": (", out.chunk(world, dim=0)[rank]", ""),
            "three matrices": ("torch.cat(columns, dim=1)", "columns"),
        },
        {
            "a view by heads": """
def own_heads(qkv, out, rank, world):
    size = out.shape[0] // world
    own = slice(rank * size, (rank + 1) * size)
    return qkv.view(len(qkv), 3, -1)[:, :, own].reshape(len(qkv), -1), out[own]
""",
            "by numbers of columns": """
def own_heads(qkv, out, rank, world):
    width = qkv.shape[1] // 3
    size = width // world
    numbers = [part * width + rank * size + n for part in range(3) for n in range(size)]
    return [qkv[:, numbers], out.narrow(0, rank * size, size)]
""",
            "three slices": """
def own_heads(qkv, out, rank, world):
    q, k, v = qkv.tensor_split(3, 1)
    first, last = len(out) * rank // world, len(out) * (rank + 1) // world
    return torch.hstack((q[:, first:last], k[:, first:last], v[:, first:last])), out[first:last].clone()
""",
        },
    ),
    "conjugates": Exercise(
        NOTEBOOK,
        VERDICT,
        {
            "f adds nothing on the way back": (F_BACK, "            return delta"),
            "g adds nothing": (G_FORWARD, "            return partial_sum.clone()"),
            "g adds on the way back, too": (G_BACK, "            return all_reduce(delta)\n"),
            "f adds on the way there, too": ("return x.view_as(x)", "return all_reduce(x)"),
            "f and g are exchanged": (
                "CopyToRanks.apply, SumOverRanks.apply",
                "SumOverRanks.apply, CopyToRanks.apply",
            ),
            "the mean": (G_FORWARD, "            return all_reduce(partial_sum) / 2"),
            "f's mean": (F_BACK, "            return all_reduce(delta) / 2"),
            "f sends twice": (
                F_BACK,
                "            return (all_reduce(delta) + all_reduce(delta)) / 2",
            ),
            "g sends twice": (
                G_FORWARD,
                "            return (all_reduce(partial_sum) + all_reduce(partial_sum)) / 2",
            ),
            "g lets no gradient pass": (G_BACK, "            return delta * 0\n"),
            "messages in fp16": (
                G_FORWARD,
                "            return all_reduce(partial_sum.half()).double()",
            ),
            "f's messages in fp16": (
                F_BACK,
                "            return all_reduce(delta.half()).double()",
            ),
            "one function": ("CopyToRanks.apply, SumOverRanks.apply", "SumOverRanks.apply"),
        },
        {
            "a context that knows": """
class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, all_reduce):
        ctx.add = all_reduce
        return x.clone()
    @staticmethod
    def backward(ctx, delta):
        return ctx.add(delta), None
class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, all_reduce):
        return all_reduce(part)
    @staticmethod
    def backward(ctx, delta):
        return delta, None
def conjugates(all_reduce):
    return [lambda x: Copy.apply(x, all_reduce), lambda part: Add.apply(part, all_reduce)]
""",
            "a hook, and a detached sum": """
def conjugates(all_reduce):
    def f(x):
        x = x.clone()
        x.register_hook(all_reduce)
        return x
    def g(part):
        return part + (all_reduce(part.detach()) - part.detach())
    return f, g
""",
            "one class for both": """
def conjugates(all_reduce):
    def through(forward, backward):
        class Through(torch.autograd.Function):
            @staticmethod
            def forward(ctx, tensor):
                return forward(tensor)
            @staticmethod
            def backward(ctx, delta):
                return backward(delta)
        return Through.apply
    return through(torch.clone, all_reduce), through(all_reduce, torch.clone)
""",
        },
    ),
    "split_attention": Exercise(
        NOTEBOOK,
        VERDICT,
        {
            "no f": ("f(x)", "x"),
            "no g": (BLOCK, "attend(f(x) @ qkv, heads) @ out"),
            "f and g are exchanged": (BLOCK, "f(attend(g(x) @ qkv, heads) @ out)"),
            "f after the product": ("f(x) @ qkv", "f(x @ qkv)"),
            "g before the product": (BLOCK, "g(attend(f(x) @ qkv, heads)) @ out"),
            "f twice": ("f(x) @ qkv", "f(f(x)) @ qkv"),
            "g twice": (BLOCK, "g(g(attend(f(x) @ qkv, heads) @ out)) / 2"),
            "f for q, for k and for v": (
                "f(x) @ qkv",
                "torch.cat([f(x) @ matrix for matrix in qkv.chunk(3, dim=1)], dim=1)",
            ),
            "one head": ("heads) @", "1) @"),
            "no product at the end": (" @ out)", ")"),
            "the residual, too": (BLOCK, f"x + {BLOCK}"),
            "q twice": ("f(x) @ qkv", "(f(x) @ qkv)[:, [*range(qkv.shape[1] // 3)] * 3]"),
        },
        {
            "line by line": """
def split_attention(x, qkv, out, heads, f, g):
    entered = f(x)
    product = torch.matmul(entered, qkv)
    own = attend(product, heads=heads)
    return g(own.matmul(out))
""",
            "torch's own attention": """
def split_attention(x, qkv, out, heads, f, g):
    parts = (f(x) @ qkv).chunk(3, dim=1)
    q, k, v = (part.view(len(x), heads, -1).transpose(0, 1) for part in parts)
    own = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return g(own.transpose(0, 1).flatten(1) @ out)
""",
            "three products": """
def split_attention(x, qkv, out, heads, f, g):
    x = f(x)
    product = torch.cat([x @ matrix for matrix in qkv.chunk(3, dim=1)], dim=1)
    return g(torch.einsum("ti,io->to", attend(product, heads), out))
""",
        },
    ),
    "attention_step": Exercise(
        NOTEBOOK,
        VERDICT,
        {
            "f and g are exchanged": (
                STEP,
                "split_attention(*leaves, heads, *conjugates(all_reduce)[::-1])",
            ),
            "nothing is exchanged": (
                STEP,
                "split_attention(*leaves, heads, *conjugates(torch.clone))",
            ),
            "no gradient comes back": (
                STEP,
                "split_attention(*(leaf.detach() for leaf in leaves), heads, *conjugates(all_reduce))",
            ),
            "one head": ("heads, *conj", "1, *conj"),
            "what is given, and not the leaves": (
                "*leaves, heads",
                "x, qkv, out, heads",
            ),
            "added once more": (STEP, f"all_reduce({STEP}.detach()) + 0 * {STEP}"),
            "the gradient of x is added again": (
                "return result, *torch.autograd.grad(result, leaves, delta)",
                "of_x, *others = torch.autograd.grad(result, leaves, delta)\n    return result, all_reduce(of_x), *others",
            ),
            "the result only": (", *torch.autograd.grad(result, leaves, delta)", ""),
            "the loss is the sum": ("leaves, delta)", "leaves, torch.ones_like(delta))"),
            "gradients in another order": (
                "result, leaves, delta)",
                "result, leaves, delta)[::-1]",
            ),
        },
        {
            "backward": """
def attention_step(x, qkv, out, delta, heads, all_reduce):
    leaves = [tensor.clone().requires_grad_() for tensor in (x, qkv, out)]
    f, g = conjugates(all_reduce)
    result = split_attention(*leaves, heads, f, g)
    result.backward(delta)
    return [result, *(leaf.grad for leaf in leaves)]
""",
            "the scalar product": """
def attention_step(x, qkv, out, delta, heads, all_reduce):
    leaves = x, qkv, out = [tensor.detach().requires_grad_() for tensor in (x, qkv, out)]
    result = split_attention(x, qkv, out, heads, *conjugates(all_reduce))
    return (result, *torch.autograd.grad((result * delta).sum(), leaves))
""",
            "vjp": """
def attention_step(x, qkv, out, delta, heads, all_reduce):
    f, g = conjugates(all_reduce)
    block = lambda *leaves: split_attention(*leaves, heads, f, g)
    result, gradients = torch.autograd.functional.vjp(block, (x, qkv, out), delta)
    return result, *gradients
""",
        },
    ),
}
