"""The same as `exercise_mutants`, of the notebooks about ranks."""

from tests.unit.labkit_grading.exercise_mutants import Exercise

EXERCISES = {
    "average": Exercise(
        "4a_averaging",
        "average_verdict",
        {
            "the sum": (" / len(gradients)", ""),
            "two ranks, whatever there are": ("len(gradients)", "2"),
            "one rank's own": ("sum(gradients) / len(gradients)", "gradients[0]"),
            "the last rank is left out": ("sum(gradients)", "sum(gradients[:-1])"),
            "one too few": ("len(gradients)", "(len(gradients) - 1)"),
            "the median": (
                "sum(gradients) / len(gradients)",
                "torch.stack(gradients).median(0).values",
            ),
            "the largest": ("sum(gradients) / len(gradients)", "torch.stack(gradients).amax(0)"),
            "the wrong axis": ("sum(gradients) / len(gradients)", "torch.stack(gradients).mean(1)"),
            "one number": ("sum(gradients) / len(gradients)", "torch.stack(gradients).mean()"),
            "fp16 adds": (
                "sum(gradients) / len(gradients)",
                "(sum(g.half() for g in gradients) / len(gradients)).double()",
            ),
            "the wrong root": ("/ len(gradients)", "/ len(gradients) ** 0.5"),
        },
        {
            "a stack": "def average(gradients):\n    return torch.stack(gradients).mean(dim=0)",
            "in place": """
def average(gradients):
    total = gradients[0].clone()
    for other in gradients[1:]:
        total += other
    return total.div_(len(gradients))
""",
            "weights that add up to one": """
def average(gradients):
    return sum(gradient * (1 / len(gradients)) for gradient in gradients)
""",
        },
    ),
    "naive_all_reduce": Exercise(
        "4a_averaging",
        "naive_verdict",
        {
            "the mean": ("return total", "return total / world"),
            "nothing comes back": ("return total", "return None"),
            "its own tensor": ("return total", "return tensor"),
            "the last peer is left out": (
                "for peer in peers:\n        total",
                "for peer in peers[:-1]:\n        total",
            ),
            "its own tensor counts twice": ("total = tensor.clone()", "total = tensor * 2"),
            "its own tensor does not count": (
                "total = tensor.clone()",
                "total = torch.zeros_like(tensor)",
            ),
            "the last that came is the sum": ("total += receive(peer)", "total = receive(peer)"),
            "messages in fp16": ("send(peer, tensor)", "send(peer, tensor.half())"),
            "a rank sends to itself": ("if peer != rank", "if True"),
            "only the neighbour": (
                "[peer for peer in range(world) if peer != rank]",
                "[(rank + 1) % world] if world > 1 else []",
            ),
            "half of the tensor": ("send(peer, tensor)", "send(peer, tensor[: len(tensor) // 2])"),
            "a product": ("total += receive(peer)", "total *= receive(peer)"),
            "ranks share memory": """
seen = {}
def naive_all_reduce(tensor, rank, world, send, receive):
    import time
    seen[rank, world] = tensor
    while sum(key[1] == world for key in seen) < world:
        time.sleep(0.001)
    return sum(seen[other, world] for other in range(world))
""",
        },
        {
            "in pairs": """
def naive_all_reduce(tensor, rank, world, send, receive):
    total = tensor.clone()
    for step in range(1, world):
        send((rank + step) % world, tensor)
        total = total + receive((rank - step) % world)
    return total
""",
            "rank 0 adds": """
def naive_all_reduce(tensor, rank, world, send, receive):
    if rank:
        send(0, tensor)
        return receive(0)
    total = sum((receive(other) for other in range(1, world)), tensor)
    for other in range(1, world):
        send(other, total)
    return total
""",
            "a line, there and back": """
def naive_all_reduce(tensor, rank, world, send, receive):
    total = tensor + receive(rank - 1) if rank else tensor.clone()
    if rank < world - 1:
        send(rank + 1, total)
        total = receive(rank + 1)
    if rank:
        send(rank - 1, total)
    return total
""",
        },
    ),
    "ring_all_reduce": Exercise(
        "4a_averaging",
        "ring_verdict",
        {
            "the first round only": (
                "    for step in range(world - 1):\n        send(after, chunks[(rank - step + 1)",
                "    for step in range(0):\n        send(after, chunks[(rank - step + 1)",
            ),
            "the second round only": (
                "    for step in range(world - 1):\n        send(after, chunks[(rank - step) ",
                "    for step in range(0):\n        send(after, chunks[(rank - step) ",
            ),
            "off by one: a step too few": ("range(world - 1)", "range(world - 2)"),
            "the wrong chunk goes first": (
                "chunks[(rank - step + 1) % world])",
                "chunks[(rank - step) % world])",
            ),
            "the second round adds": (
                "chunks[(rank - step) % world] = receive",
                "chunks[(rank - step) % world] += receive",
            ),
            "the first round replaces": ("+= receive(before)", "= receive(before)"),
            "the whole tensor goes round": """
def ring_all_reduce(tensor, rank, world, send, receive):
    total, passing = tensor.clone(), tensor
    for _ in range(world - 1):
        send((rank + 1) % world, passing)
        passing = receive((rank - 1) % world)
        total += passing
    return total
""",
            "sizes can be divided": (
                "tensor.clone().tensor_split(world)",
                "tensor.clone().split(max(1, len(tensor) // world))[:world]",
            ),
            "the mean": ("torch.cat(chunks)", "torch.cat(chunks) / world"),
            "chunks in the order of arrival": (
                "torch.cat(chunks)",
                "torch.cat(chunks[rank:] + chunks[:rank])",
            ),
            "messages in fp16": (
                "send(after, chunks[(rank - step) % world])",
                "send(after, chunks[(rank - step) % world].half())",
            ),
            "everything to everybody": """
def ring_all_reduce(tensor, rank, world, send, receive):
    peers = [peer for peer in range(world) if peer != rank]
    for peer in peers:
        send(peer, tensor)
    return sum((receive(peer) for peer in peers), tensor)
""",
        },
        {
            "the other way round": """
def ring_all_reduce(tensor, rank, world, send, receive):
    parts = [part.clone() for part in tensor.tensor_split(world)]
    to, source = (rank - 1) % world, (rank + 1) % world
    for step in range(world - 1):
        send(to, parts[(rank + step) % world])
        parts[(rank + step + 1) % world] += receive(source)
    for step in range(world - 1):
        send(to, parts[(rank + step - 1) % world])
        parts[(rank + step) % world] = receive(source)
    return torch.cat(parts)
""",
            "in place, by bounds": """
def ring_all_reduce(tensor, rank, world, send, receive):
    result, n = tensor.clone(), len(tensor)
    bounds = [n * i // world for i in range(world + 1)]
    part = lambda i: result[bounds[i % world]:bounds[i % world + 1]]
    for s in range(2 * (world - 1)):
        send((rank + 1) % world, part(rank - s))
        into = part(rank - s - 1)
        came = receive((rank - 1) % world)
        into += came if s < world - 1 else came - into
    return result
""",
            "owners, without a ring": """
def ring_all_reduce(tensor, rank, world, send, receive):
    parts = list(tensor.tensor_split(world))
    others = [r for r in range(world) if r != rank]
    for other in others:
        send(other, parts[other])
    mine = sum((receive(other) for other in others), parts[rank])
    for other in others:
        send(other, mine)
    return torch.cat([mine if r == rank else receive(r) for r in range(world)])
""",
        },
    ),
    "per_tensor": Exercise(
        "4b_sending",
        "per_tensor_verdict",
        {
            "the sum": (" / world", ""),
            "its own gradients": ("all_reduce(gradient)() / world", "gradient"),
            "two ranks, whatever there are": ("/ world", "/ 2"),
            "the last gradient is left out": (
                "for gradient in gradients]",
                "for gradient in gradients[:-1]]",
            ),
            "in another order": ("for gradient in gradients]", "for gradient in gradients[::-1]]"),
            "nobody waits": ("all_reduce(gradient)() / world", "all_reduce(gradient)"),
            "flat results": (
                "all_reduce(gradient)() / world",
                "all_reduce(gradient.flatten())() / world",
            ),
            "messages in fp16": (
                "all_reduce(gradient)() / world",
                "all_reduce(gradient.half())().double() / world",
            ),
            "each travels twice": (
                "all_reduce(gradient)() / world",
                "(all_reduce(gradient)() + all_reduce(gradient)()) / 2 / world",
            ),
            "its own is added again": (
                "all_reduce(gradient)() / world",
                "(all_reduce(gradient)() + gradient) / (world + 1)",
            ),
            "they are divided twice": (
                "all_reduce(gradient)() / world",
                "all_reduce(gradient / world)() / world",
            ),
        },
        {
            "all start, then all are waited for": """
def per_tensor(gradients, world, all_reduce):
    waits = [all_reduce(gradient) for gradient in gradients]
    return [wait() / world for wait in waits]
""",
            "divided before they leave": """
def per_tensor(gradients, world, all_reduce):
    return [all_reduce(gradient / world)() for gradient in gradients]
""",
            "a generator": """
def per_tensor(gradients, world, all_reduce):
    for gradient in gradients:
        total = all_reduce(gradient)()
        yield total.div_(world)
""",
        },
    ),
    "bandwidths": Exercise(
        "4b_sending",
        "bandwidths_verdict",
        {
            "the input of an all-gather": ("input_bytes * ranks if", "input_bytes if"),
            "every input counts in every collective": (
                'input_bytes * ranks if collective == "all-gather" else input_bytes',
                "input_bytes * ranks",
            ),
            "an all-reduce sends once": ("2 * share", "share"),
            "every collective is an all-reduce": (
                '"all-gather": share, "reduce-scatter": share, "broadcast": 1',
                '"all-gather": 2 * share, "reduce-scatter": 2 * share, "broadcast": 2 * share',
            ),
            "a broadcast is shared out": ('"broadcast": 1', '"broadcast": share'),
            "two ranks, whatever there are": ("(ranks - 1) / ranks", "1 / 2"),
            "each rank sends to itself, too": ("(ranks - 1) / ranks", "1"),
            "gigabits": ("return size", "size *= 8\n    return size"),
            "GiB": (
                "size / seconds / 1e9, sent * size / seconds / 1e9",
                "size / seconds / 2**30, sent * size / seconds / 2**30",
            ),
            "MB/s": (
                "size / seconds / 1e9, sent * size / seconds / 1e9",
                "size / seconds / 1e6, sent * size / seconds / 1e6",
            ),
            "the bus bandwidth alone": ("return size / seconds / 1e9, ", "return "),
            "exchanged": (
                "size / seconds / 1e9, sent * size / seconds / 1e9",
                "sent * size / seconds / 1e9, size / seconds / 1e9",
            ),
            "the factor divides": ("sent * size / seconds", "size / seconds / sent"),
        },
        {
            "by cases": """
def bandwidths(collective, input_bytes, ranks, seconds):
    if collective == "all-gather":
        input_bytes *= ranks
    algbw = input_bytes / 1e9 / seconds
    if collective == "broadcast":
        return algbw, algbw
    busbw = algbw * (1 - 1 / ranks)
    return (algbw, 2 * busbw) if collective == "all-reduce" else (algbw, busbw)
""",
            "by what a rank sends": """
def bandwidths(collective, input_bytes, ranks, seconds):
    part = input_bytes if collective == "all-gather" else input_bytes / ranks
    others = ranks - 1
    sent = {"all-reduce": 2 * others, "broadcast": ranks}.get(collective, others) * part
    return [ranks * part / (seconds * 1e9), sent / (seconds * 1e9)]
""",
            "a match": """
def bandwidths(collective, input_bytes, ranks, seconds):
    size, factor = input_bytes, (ranks - 1) / ranks
    match collective:
        case "all-gather":
            size = ranks * size
        case "all-reduce":
            factor *= 2
        case "broadcast":
            factor = 1.0
    algorithm = size / seconds * 1e-9
    return algorithm, factor * algorithm
""",
        },
    ),
    "flat": Exercise(
        "4b_sending",
        "flat_verdict",
        {
            "the sum": (" / world", ""),
            "each in one of its own": "def flat(gradients, world, all_reduce):\n    return [all_reduce(g)() / world for g in gradients]",
            "its own gradients": (
                "all_reduce(together)() / world",
                "all_reduce(together) and together",
            ),
            "shapes are lost": ("part.view(gradient.shape)", "part"),
            "in another order": (
                "for gradient in gradients])\n    parts",
                "for gradient in gradients[::-1]])\n    parts",
            ),
            "the last gradient stays at home": (
                "for gradient in gradients])\n    parts",
                "for gradient in gradients[:-1]])\n    parts",
            ),
            "two ranks, whatever there are": ("/ world", "/ 2"),
            "messages in fp16": (
                "all_reduce(together)()",
                "all_reduce(together.half())().double()",
            ),
            "two messages": (
                "all_reduce(together)()",
                "torch.cat([all_reduce(half)() for half in together.chunk(2)])",
            ),
            "equal parts": (
                "split([gradient.numel() for gradient in gradients])",
                "tensor_split(len(gradients))",
            ),
            "off by one number": ("part.view(gradient.shape)", "part.roll(1).view(gradient.shape)"),
        },
        {
            "offsets": """
def flat(gradients, world, all_reduce):
    buffer = torch.cat([g.reshape(-1) for g in gradients])
    mean, at, result = all_reduce(buffer / world)(), 0, []
    for g in gradients:
        result.append(mean[at:at + g.numel()].reshape(g.shape))
        at += g.numel()
    return result
""",
            "a buffer that is filled": """
def flat(gradients, world, all_reduce):
    sizes = [g.numel() for g in gradients]
    buffer = torch.empty(sum(sizes), dtype=gradients[0].dtype)
    for part, g in zip(buffer.split(sizes), gradients):
        part.copy_(g.view(-1))
    total = all_reduce(buffer)() / world
    return tuple(part.view_as(g) for part, g in zip(total.split(sizes), gradients))
""",
            "torch's own helpers": """
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
def flat(gradients, world, all_reduce):
    wait = all_reduce(_flatten_dense_tensors(gradients))
    return list(_unflatten_dense_tensors(wait() / world, gradients))
""",
        },
    ),
    "Buckets": Exercise(
        "4b_sending",
        "buckets_verdict",
        {
            "the sum": ("(wait() / self.world)", "wait()"),
            "the last bucket is left out": (
                "            self.leave()\n        means",
                "            pass\n        means",
            ),
            "everything leaves at the end": (
                "            self.leave()\n\n",
                "            pass\n\n",
            ),
            "ready waits": (
                "        self.sent.append((",
                "        self.all_reduce(together)()\n        self.sent.append((",
            ),
            "off by one: more than full": (">= self.most", "> self.most"),
            "twice as full": (">= self.most", ">= 2 * self.most"),
            "gradients are counted, not their numbers": (
                "sum(member.numel() for _, member in self.filling)",
                "8 * len(self.filling)",
            ),
            "every gradient leaves alone": (
                "if sum(member.numel() for _, member in self.filling) >= self.most:",
                "if True:",
            ),
            "a bucket leaves before it would overflow": (
                "        self.filling.append((number, gradient))\n",
                "        if self.filling and sum(m.numel() for _, m in self.filling) + gradient.numel() > self.most:\n            self.leave()\n        self.filling.append((number, gradient))\n",
            ),
            "a bucket is not emptied": (
                "        self.filling = []\n\n    def finish",
                "\n    def finish",
            ),
            "shapes are lost": ("part.view(member.shape)", "part"),
            "numbers from zero in the order of arrival": (
                "means.update({number: part.view(member.shape) for",
                "means.update({len(means): part.view(member.shape) for",
            ),
            "an empty bucket leaves, too": (
                "        if self.filling:\n            self.leave()",
                "        self.filling = self.filling or [(0, torch.empty(0))]\n        self.leave()",
            ),
            "messages in fp16": ("self.all_reduce(together)", "self.all_reduce(together.half())"),
            "sixteen, whatever is asked for": (
                "self.most = world, all_reduce, most",
                "self.most = world, all_reduce, 16",
            ),
        },
        {
            "a running count": """
class Buckets:
    def __init__(self, world, all_reduce, most):
        self.world, self.all_reduce, self.most = world, all_reduce, most
        self.open, self.size, self.flying = {}, 0, []
    def ready(self, number, gradient):
        self.open[number] = gradient
        self.size += gradient.numel()
        if self.size >= self.most:
            self._go()
    def _go(self):
        self.flying.append((dict(self.open), self.all_reduce(torch.cat([g.view(-1) for g in self.open.values()]))))
        self.open, self.size = {}, 0
    def finish(self):
        if self.open:
            self._go()
        result = {}
        for members, wait in self.flying:
            total, at = wait(), 0
            for number, g in members.items():
                result[number] = (total[at:at + g.numel()] / self.world).reshape(g.shape)
                at += g.numel()
        return result
""",
            "divided before it leaves": """
class Buckets:
    def __init__(self, world, all_reduce, most):
        self.send = lambda pairs: (pairs, all_reduce(torch.cat([g.flatten() for _, g in pairs]) / world))
        self.most, self.pairs, self.sent = most, [], []
    def ready(self, number, gradient):
        self.pairs = self.pairs + [(number, gradient)]
        if sum(g.numel() for _, g in self.pairs) >= self.most:
            self.sent.append(self.send(self.pairs))
            self.pairs = []
    def finish(self):
        rest = [self.send(self.pairs)] if self.pairs else []
        means = {}
        for pairs, wait in self.sent + rest:
            for (number, g), part in zip(pairs, wait().split([g.numel() for _, g in pairs])):
                means[number] = part.view_as(g)
        return means
""",
            "a subclass of list": """
class Bucket(list):
    def numbers(self):
        return sum(g.numel() for _, g in self)
class Buckets:
    def __init__(self, world, all_reduce, most):
        self.world, self.all_reduce, self.most = world, all_reduce, most
        self.bucket, self.waits = Bucket(), []
    def ready(self, number, gradient):
        self.bucket.append((number, gradient))
        if not self.bucket.numbers() < self.most:
            self.close()
    def close(self):
        if self.bucket:
            flat = torch.hstack([g.ravel() for _, g in self.bucket])
            self.waits.append((self.bucket, self.all_reduce(flat)))
            self.bucket = Bucket()
    def finish(self):
        self.close()
        means = {}
        for bucket, wait in self.waits:
            values = iter(wait() / self.world)
            for number, g in bucket:
                means[number] = torch.stack([next(values) for _ in range(g.numel())]).reshape(g.shape)
        return means
""",
        },
    ),
    "split_rows": Exercise(
        "5a_splitting_layers",
        "rows_verdict",
        {
            "every rank computes everything": "split_rows = lambda x, w, n: ([x @ w] * n, x @ w)",
            "nothing is split": "split_rows = lambda x, w, n: ([x @ w], x @ w)",
            "columns instead of rows": "def split_rows(x, w, n):\n    parts = [x @ c for c in w.tensor_split(n, dim=1)]\n    return parts, torch.cat(parts, dim=1)",
            "the mean": ("sum(products)", "sum(products) / ranks"),
            "the last rank is left out": ("sum(products)", "sum(products[:-1])"),
            "products are put side by side": ("sum(products)", "torch.cat(products, dim=1)"),
            "only the products": ("return products, sum(products)", "return products"),
            "two ranks, whatever there are": ("(ranks, dim", "(2, dim"),
            "in another order": ("return products,", "return products[::-1],"),
            "fp16 multiplies": (
                "columns_of_x @ rows",
                "(columns_of_x.half() @ rows.half()).double()",
            ),
            "the whole x for each": (
                "columns_of_x @ rows",
                "(columns_of_x @ rows) * 0 + x @ weights / ranks",
            ),
        },
        {
            "slices": """
def split_rows(x, weights, ranks):
    size = weights.shape[0] // ranks
    products = []
    for rank in range(ranks):
        part = slice(rank * size, (rank + 1) * size)
        products.append(x[:, part].matmul(weights[part]))
    whole = torch.zeros_like(products[0])
    for product in products:
        whole += product
    return products, whole
""",
            "a stack": """
def split_rows(x, weights, ranks):
    stacked = torch.stack([a @ b for a, b in zip(x.chunk(ranks, 1), weights.chunk(ranks))])
    return list(stacked), stacked.sum(0)
""",
            "one batched product": """
def split_rows(x, weights, ranks):
    a = x.reshape(x.shape[0], ranks, -1).transpose(0, 1)
    b = weights.reshape(ranks, -1, weights.shape[1])
    products = torch.bmm(a, b)
    return tuple(products), products.sum(dim=0)
""",
        },
    ),
    "split_columns": Exercise(
        "5a_splitting_layers",
        "columns_verdict",
        {
            "every rank computes everything": "split_columns = lambda x, w, n: ([x @ w] * n, x @ w)",
            "nothing is split": "split_columns = lambda x, w, n: ([x @ w], x @ w)",
            "rows instead of columns": "def split_columns(x, w, n):\n    parts = [a @ b for a, b in zip(x.tensor_split(n, 1), w.tensor_split(n))]\n    return parts, sum(parts)",
            "products are added": ("torch.cat(products, dim=1)", "sum(products)"),
            "the wrong axis": ("torch.cat(products, dim=1)", "torch.cat(products, dim=0)"),
            "the last rank is left out": (
                "torch.cat(products, dim=1)",
                "torch.cat(products[:-1], dim=1)",
            ),
            "in another order": ("torch.cat(products, dim=1)", "torch.cat(products[::-1], dim=1)"),
            "only the products": ("return products, torch.cat(products, dim=1)", "return products"),
            "two ranks, whatever there are": ("tensor_split(ranks,", "tensor_split(2,"),
            "fp16 multiplies": ("x @ columns", "(x.half() @ columns.half()).double()"),
            "a rank's share of x": ("x @ columns", "x / ranks @ columns"),
        },
        {
            "slices": """
def split_columns(x, weights, ranks):
    size = weights.size(1) // ranks
    products = [torch.mm(x, weights[:, r * size:(r + 1) * size]) for r in range(ranks)]
    return products, torch.hstack(products)
""",
            "transposed": """
def split_columns(x, weights, ranks):
    rows = weights.T.chunk(ranks)
    parts = [(row @ x.T).T for row in rows]
    return tuple(parts), torch.cat([part.T for part in parts]).T
""",
            "a result that is filled": """
def split_columns(x, weights, ranks):
    whole = x.new_zeros(x.shape[0], weights.shape[1])
    products = []
    for out, columns in zip(whole.tensor_split(ranks, 1), weights.tensor_split(ranks, 1)):
        products.append(x @ columns)
        out += products[-1]
    return products, whole
""",
        },
    ),
    "pair_forward": Exercise(
        "5a_splitting_layers",
        "pair_verdict",
        {
            "one rank's part": ("all_reduce(hidden @ second)", "hidden @ second"),
            "no ReLU": (".relu()", ""),
            "ReLU at the end": (
                "all_reduce(hidden @ second)",
                "all_reduce(x @ first @ second).relu()",
            ),
            "the hidden layer is sent": (
                "(x @ first).relu()",
                "(x @ first + 0 * all_reduce(x @ first)).relu()",
            ),
            "the mean": ("all_reduce(hidden @ second)", "all_reduce(hidden @ second) / 2"),
            "messages in fp16": (
                "all_reduce(hidden @ second)",
                "all_reduce((hidden @ second).half()).double()",
            ),
            "it travels twice": (
                "all_reduce(hidden @ second)",
                "(all_reduce(hidden @ second) + all_reduce(hidden @ second)) / 2",
            ),
            "another activation": (".relu()", ".sigmoid()"),
            "what backward needs is forgotten": ("(x, hidden)", "None"),
        },
        {
            "kept in a dictionary": """
def pair_forward(x, first, second, all_reduce):
    before = x @ first
    return all_reduce(torch.relu(before) @ second), {"x": x, "before": before}
def pair_backward(delta, kept, first, second, all_reduce):
    mask = (kept["before"] > 0).to(delta.dtype)
    grad = delta.matmul(second.mT) * mask
    return all_reduce(grad @ first.mT), kept["x"].mT @ grad, torch.relu(kept["before"]).mT @ delta
""",
            "autograd's own": """
class Kept:
    pass
def pair_forward(x, first, second, all_reduce):
    kept = Kept()
    kept.leaves = [t.clone().requires_grad_() for t in (x, first, second)]
    kept.part = (kept.leaves[0] @ kept.leaves[1]).relu() @ kept.leaves[2]
    return all_reduce(kept.part.detach()), kept
def pair_backward(delta, kept, first, second, all_reduce):
    of_x, of_first, of_second = torch.autograd.grad(kept.part, kept.leaves, delta)
    return [all_reduce(of_x), of_first, of_second]
""",
            "everything again in backward": """
def pair_forward(x, first, second, all_reduce):
    return [all_reduce((x @ first).clamp(min=0) @ second), x]
def pair_backward(delta, kept, first, second, all_reduce):
    hidden = (kept @ first).clamp(min=0)
    inner = torch.where(hidden > 0, delta @ second.t(), torch.zeros_like(hidden))
    return (all_reduce(inner @ first.t()), kept.t() @ inner, hidden.t() @ delta)
""",
        },
    ),
    "pair_backward": Exercise(
        "5a_splitting_layers",
        "pair_verdict",
        {
            "one rank's part": ("all_reduce(of_hidden @ first.T)", "of_hidden @ first.T"),
            "ReLU lets everything pass": (" * (hidden > 0)", ""),
            "ReLU lets zero pass": ("(hidden > 0)", "(hidden >= 0)"),
            "weights' gradients are sent, too": (
                "x.T @ of_hidden,",
                "all_reduce(x.T @ of_hidden),",
            ),
            "the mean": ("all_reduce(of_hidden @ first.T)", "all_reduce(of_hidden @ first.T) / 2"),
            "the weights' gradients are exchanged": (
                "x.T @ of_hidden, hidden.T @ delta",
                "hidden.T @ delta, x.T @ of_hidden",
            ),
            "two gradients are enough": (", hidden.T @ delta", ""),
            "the masked delta for the second": ("hidden.T @ delta", "of_hidden.T @ delta"),
            "the output's gradient is sent instead": (
                "all_reduce(of_hidden @ first.T)",
                "all_reduce(delta) @ second.T @ first.T",
            ),
            "messages in fp16": (
                "all_reduce(of_hidden @ first.T)",
                "all_reduce((of_hidden @ first.T).half()).double()",
            ),
            "gradients are means over rows": ("x.T @ of_hidden", "x.T @ of_hidden / len(x)"),
        },
        {
            "einsum": """
def pair_backward(delta, kept, first, second, all_reduce):
    x, hidden = kept
    inner = torch.einsum("bo,ho->bh", delta, second) * (hidden > 0)
    return (
        all_reduce(torch.einsum("bh,ih->bi", inner, first)),
        torch.einsum("bi,bh->ih", x, inner),
        torch.einsum("bh,bo->ho", hidden, delta),
    )
""",
            "by the sign": """
def pair_backward(delta, kept, first, second, all_reduce):
    x, hidden = kept
    inner = delta @ second.T * hidden.sign()
    of_x = all_reduce(inner @ first.T)
    return [of_x, x.T @ inner, hidden.T @ delta]
""",
            "the weights first": """
def pair_backward(delta, kept, first, second, all_reduce):
    x, hidden = kept
    of_second = hidden.mT @ delta
    inner = (delta @ second.mT).masked_fill(hidden == 0, 0)
    of_first = x.mT @ inner
    return all_reduce(inner @ first.mT), of_first, of_second
""",
        },
    ),
    "ledger": Exercise(
        "5b_memory_and_pipelines",
        "ledger_verdict",
        {
            "numbers, not bytes": ("4 * numbers", "1 * numbers"),
            "Adam keeps one number": ("2 * 4 * numbers", "4 * numbers"),
            "Adam keeps three": ("2 * 4 * numbers", "3 * 4 * numbers"),
            "all micro-batches are alive": ("rows // micro_batches", "rows"),
            "checkpoints keep everything": (
                " if checkpoint else depth * (batch + inside)",
                " if False else depth * (batch + inside)",
            ),
            "checkpoints keep nothing inside": ("batch + inside if", "batch if"),
            "ZeRO-1 divides nothing": (" // ranks", ""),
            "ZeRO-1 divides the gradients, too": (
                '"gradients": 4 * numbers',
                '"gradients": 4 * numbers // ranks',
            ),
            "ZeRO-1 divides the parameters, too": (
                '"parameters": 4 * numbers',
                '"parameters": 4 * numbers // ranks',
            ),
            "off by one: a block too few": ("numbers = depth *", "numbers = (depth - 1) *"),
            "a block has one matrix": ("depth * 2 * width", "depth * width"),
            "the width inside is that outside": ("inside = 4 * batch", "inside = batch"),
            "the last result is forgotten": ("(saved_numbers + batch)", "saved_numbers"),
            "activations in fp16": ('"activations": 4 *', '"activations": 2 *'),
        },
        {
            "a dictionary of numbers": """
def ledger(width, depth, rows, micro_batches=1, checkpoint=False, ranks=1):
    weights = 8 * width * width * depth
    edge = rows / micro_batches * width
    kept = depth * edge + 4 * edge if checkpoint else 5 * depth * edge
    counts = {"parameters": weights, "gradients": weights, "optimiser": 2 * weights / ranks, "activations": kept + edge}
    return {kind: 4 * count for kind, count in counts.items()}
""",
            "block by block": """
def ledger(width, depth, rows, micro_batches=1, checkpoint=False, ranks=1):
    share = rows // micro_batches
    book = dict(parameters=0, gradients=0, optimiser=0, activations=share * width * 4)
    for block in range(depth):
        size = 2 * width * (4 * width) * 4
        book["parameters"] += size
        book["gradients"] += size
        book["optimiser"] += 2 * size / ranks
        book["activations"] += share * width * 4
        if not checkpoint or block == 0:
            book["activations"] += share * 4 * width * 4
    return book
""",
            "an inner function": """
def ledger(width, depth, rows, micro_batches=1, checkpoint=False, ranks=1):
    def fp32(*sizes):
        product = 4
        for size in sizes:
            product *= size
        return product
    weights = fp32(depth, 8, width, width)
    one = fp32(rows // micro_batches, width)
    live_blocks = 1 if checkpoint else depth
    return {
        "optimiser": weights * 2 // ranks,
        "activations": one * (depth + 1) + 4 * one * live_blocks,
        "gradients": weights,
        "parameters": weights,
    }
""",
        },
    ),
    "zero_step": Exercise(
        "5b_memory_and_pipelines",
        "zero_verdict",
        {
            "the sum": ("all_reduce(gradient) / world", "all_reduce(gradient)"),
            "its own gradient": (
                "all_reduce(gradient) / world",
                "gradient + 0 * all_reduce(gradient)",
            ),
            "every rank steps everything": ("if owner == rank", "if True"),
            "nobody steps": ("if owner == rank", "if False"),
            "the first weight is left out": ("if owner == rank", "if owner == rank and number"),
            "the last weight is left out": (
                "zip(weights, gradients)",
                "zip(weights[:-1], gradients)",
            ),
            "nobody sends the new weights": ("broadcast(updated, owner)", "updated"),
            "rank 0 sends all weights": ("broadcast(updated, owner)", "broadcast(updated, 0)"),
            "old weights are sent": ("broadcast(updated, owner)", "broadcast(weight, owner)"),
            "two ranks, whatever there are": ("number % world", "number % 2"),
            "rank 0 keeps all state": ("number % world", "0"),
            "messages in fp16": (
                "all_reduce(gradient) / world",
                "all_reduce(gradient.half()).double() / world",
            ),
            "Adam is told another number": ("adam(number,", "adam(number + 1,"),
        },
        {
            "halves, in blocks": """
def zero_step(weights, gradients, adam, rank, world, all_reduce, broadcast):
    means = [all_reduce(g) / world for g in gradients]
    owner_of = [i * world // len(weights) for i in range(len(weights))]
    mine = {i: adam(i, weights[i], means[i]) for i, owner in enumerate(owner_of) if owner == rank}
    return [broadcast(mine.get(i, weights[i]), owner) for i, owner in enumerate(owner_of)]
""",
            "the last rank first": """
def zero_step(weights, gradients, adam, rank, world, all_reduce, broadcast):
    result = []
    for i in range(len(weights)):
        total = all_reduce(gradients[i])
        owner = world - 1 - i % world
        new = weights[i]
        if rank == owner:
            new = adam(i, new, total.div(world))
        result.append(broadcast(new, owner))
    return tuple(result)
""",
            "one flat all-reduce": """
def zero_step(weights, gradients, adam, rank, world, all_reduce, broadcast):
    sizes = [g.numel() for g in gradients]
    mean = all_reduce(torch.cat([g.flatten() for g in gradients])) / world
    means = [m.view_as(g) for m, g in zip(mean.split(sizes), gradients)]
    new = list(weights)
    for i in range(rank, len(weights), world):
        new[i] = adam(i, weights[i], means[i])
    for i in range(len(weights)):
        new[i] = broadcast(new[i], i % world)
    return new
""",
        },
    ),
    "schedule": Exercise(
        "5b_memory_and_pipelines",
        "schedule_verdict",
        {
            "one after another": "schedule = lambda p, m: [[(s, b)] for b in range(m) for s in range(p)]",
            "all stages at once": "schedule = lambda p, m: [[(s, b) for s in range(p)] for b in range(m)]",
            "only the first stage": "schedule = lambda p, m: [[(0, b)] for b in range(m)]",
            "off by one: the last tick is missing": (
                "micro_batches + stages - 1",
                "micro_batches + stages - 2",
            ),
            "off by one: an empty tick": ("micro_batches + stages - 1", "micro_batches + stages"),
            "the last micro-batch is left out": ("< micro_batches]", "< micro_batches - 1]"),
            "a micro-batch too many": ("< micro_batches]", "<= micro_batches]"),
            "the last stage first": (
                "(stage, tick - stage) for",
                "(stages - 1 - stage, tick - stage) for",
            ),
            "micro-batches count from one": (
                "(stage, tick - stage) for",
                "(stage, tick - stage + 1) for",
            ),
            "pairs are exchanged": ("(stage, tick - stage) for", "(tick - stage, stage) for"),
            "all the first stage's work first": "schedule = lambda p, m: [[(s, b)] for s in range(p) for b in range(m)]",
            "three stages, whatever there are": (
                "for stage in range(stages)",
                "for stage in range(min(3, stages))",
            ),
        },
        {
            "appended": """
def schedule(stages, micro_batches):
    ticks = [[] for _ in range(stages + micro_batches - 1)]
    for batch in range(micro_batches):
        for stage in range(stages):
            ticks[stage + batch].append((stage, batch))
    return ticks
""",
            "the last micro-batch first, by a generator": """
def schedule(stages, micro_batches):
    for tick in range(stages + micro_batches - 1):
        yield {(s, micro_batches - 1 - (tick - s)) for s in range(stages) if 0 <= tick - s < micro_batches}
""",
            "played": """
def schedule(stages, micro_batches):
    done, at = [], [0] * stages
    while at[-1] < micro_batches:
        tick = tuple((s, at[s]) for s in range(stages) if at[s] < micro_batches and (s == 0 or at[s - 1] > at[s]))
        for s, _ in tick:
            at[s] += 1
        done.append(tick)
    return done
""",
        },
    ),
    "zero_bubble": Exercise(
        "5b_memory_and_pipelines",
        "zero_bubble_verdict",
        {
            "every W at once": ('"BW" if number >= stage else "B"', '"BW"'),
            "all W at the end": ('"BW" if number >= stage else "B"', '"B"'),
            "a W too early": ("number >= stage else", "number >= stage - 1 else"),
            "a W too late": ("number >= stage else", "number > stage else"),
            "1F1B's own string": """
def zero_bubble(stage, stages, micro_batches):
    warm = min(micro_batches, stages - stage)
    return "F" * warm + "BF" * (micro_batches - warm) + "B" * warm
""",
            "1F1B, each B with its W": """
def zero_bubble(stage, stages, micro_batches):
    warm = stages - stage
    return "F" * warm + "BWF" * (micro_batches - warm) + "BW" * warm
""",
            "GPipe, and W at the end": """
def zero_bubble(stage, stages, micro_batches):
    return "F" * micro_batches + "B" * micro_batches + "W" * micro_batches
""",
            "the last W are forgotten": (' + "W" * stage', ""),
            "W before B": ('"BW" if', '"WB" if'),
            "F before W": (
                'actions += "BW" if number >= stage else "B"\n        actions += "F" if forward < micro_batches else ""',
                'actions += "BF" if forward < micro_batches else "B"\n        actions += "W" if number >= stage else ""',
            ),
            "one F too few at the beginning": (
                '"F" * (stages - stage), stages - stage',
                '"F" * max(1, stages - stage - 1), max(1, stages - stage - 1)',
            ),
            "one F too many at the beginning": (
                '"F" * (stages - stage), stages - stage',
                '"F" * min(micro_batches, stages - stage + 1), stages - stage + 1',
            ),
            "a list": ('return actions + "W" * stage', 'return list(actions + "W" * stage)'),
        },
        {
            "by counts": """
def zero_bubble(stage, stages, micro_batches):
    text = "F" * (stages - stage)
    while text.count("W") < micro_batches:
        if text.count("B") < micro_batches:
            text += "B"
        if text.count("B") - text.count("W") > stage or text.count("B") == micro_batches:
            text += "W"
        if text.count("F") < micro_batches:
            text += "F"
    return text
""",
            "in three parts": """
def zero_bubble(stage, stages, micro_batches):
    warm, left = stages - stage, micro_batches - (stages - stage)
    steps = ["B" + ("W" if n >= stage else "") + ("F" if n < left else "") for n in range(micro_batches)]
    return "F" * warm + "".join(steps) + stage * "W"
""",
            "a generator": """
def zero_bubble(stage, stages, micro_batches):
    def actions():
        yield from "F" * (stages - stage)
        for n in range(micro_batches):
            yield "B"
            if n - stage >= 0:
                yield "W"
            if n + stages - stage < micro_batches:
                yield "F"
        yield from "W" * stage
    return "".join(actions())
""",
        },
    ),
    "order": Exercise(
        "5b_memory_and_pipelines",
        "order_verdict",
        {
            "GPipe": ("min(micro_batches, stages - stage)", "micro_batches"),
            "one at a time": ("min(micro_batches, stages - stage)", "1"),
            "every stage is the first": ("stages - stage", "stages"),
            "off by one: one too few": ("stages - stage", "max(1, stages - stage - 1)"),
            "off by one: one too many": ("stages - stage", "stages - stage + 1"),
            "there are always enough": ("min(micro_batches, stages - stage)", "stages - stage"),
            "the last are never sent back": (' + "B" * warm', ""),
            "backward first": ('"BF" * (micro_batches - warm)', '"FB" * (micro_batches - warm)'),
            "stages from the other end": ("stages - stage", "stage + 1"),
            "a list of a text": ('return "F"', 'return ["F"]'),
            "small letters": (
                'return "F" * warm + "BF" * (micro_batches - warm) + "B" * warm',
                'return ("F" * warm + "BF" * (micro_batches - warm) + "B" * warm).lower()',
            ),
            "all backward at the end": (
                '"BF" * (micro_batches - warm) + "B" * warm',
                '"F" * (micro_batches - warm) + "B" * micro_batches',
            ),
        },
        {
            "step by step": """
def order(stage, stages, micro_batches):
    room, text, forward, backward = stages - stage, "", 0, 0
    while backward < micro_batches:
        if forward < micro_batches and forward - backward < room:
            text += "F"
            forward += 1
        else:
            text += "B"
            backward += 1
    return text
""",
            "joined": """
def order(stage, stages, micro_batches):
    first = min(stages - stage, micro_batches)
    steps = ["F"] * first
    for number in range(micro_batches):
        steps.append("B")
        if first + number < micro_batches:
            steps.append("F")
    return "".join(steps)
""",
            "cut from a longer one": """
def order(stage, stages, micro_batches):
    w = stages - stage if stages - stage < micro_batches else micro_batches
    middle = "FB" * (micro_batches - w + 1)
    return "F" * (w - 1) + middle + "B" * (w - 1)
""",
        },
    ),
}
