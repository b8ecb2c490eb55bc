"""The same as `exercise_mutants`, of the notebook about sharding."""

from tests.unit.labkit_grading.exercise_mutants import Exercise

NOTEBOOK = "4c_sharding"
MEAN = "reduce_scatter(gradient) / world"
OWN_PART = "weights[number].chunk(world)[rank]"

EXERCISES = {
    "zero1_step": Exercise(
        NOTEBOOK,
        "zero1_verdict",
        {
            "the sum": (" / world", ""),
            "two ranks, whatever there are": ("/ world", "/ 2"),
            "its own gradient": (
                MEAN,
                "reduce_scatter(gradient) * 0 + gradient.chunk(world)[rank]",
            ),
            "every rank steps the whole unit": (
                f"all_gather(adam(number, {OWN_PART}, mean))",
                "adam(number, weights[number], all_gather(mean))",
            ),
            "the first part, whatever the rank": ("[rank]", "[0]"),
            "nobody gathers": ("all_gather(adam(", "(adam("),
            "the old part is gathered": (
                f"all_gather(adam(number, {OWN_PART}, mean))",
                f"adam(number, {OWN_PART}, mean) is None or all_gather({OWN_PART})",
            ),
            "the last unit is left out": ("enumerate(gradients)", "enumerate(gradients[:-1])"),
            "the gradient is reduced whole": (
                MEAN,
                "all_gather(reduce_scatter(gradient)).chunk(world)[rank] / world",
            ),
            "the gradient travels twice": (
                MEAN,
                "(reduce_scatter(gradient) + reduce_scatter(gradient)) / 2 / world",
            ),
            "Adam is told another number": ("adam(number,", "adam(number + 1,"),
            "messages in fp16": (MEAN, "reduce_scatter(gradient.half()).double() / world"),
            "units in the order of the backward pass": ("return new", "return new[::-1]"),
        },
        {
            "all scattered, then all stepped, then all gathered": """
def zero1_step(weights, gradients, adam, rank, world, reduce_scatter, all_gather):
    means = [reduce_scatter(g / world) for g in gradients]
    parts = [w.chunk(world)[rank] for w in weights]
    stepped = [adam(n, part, mean) for n, (part, mean) in enumerate(zip(parts, means))]
    return tuple(all_gather(part) for part in stepped)
""",
            "slices by length, from the last unit to the first": """
def zero1_step(weights, gradients, adam, rank, world, reduce_scatter, all_gather):
    new = list(weights)
    for n in range(len(weights) - 1, -1, -1):
        size = weights[n].numel() // world
        part = weights[n][rank * size:(rank + 1) * size]
        new[n] = all_gather(adam(n, part, reduce_scatter(gradients[n]).div(world)))
    return new
""",
            "a view of rows": """
def zero1_step(weights, gradients, adam, rank, world, reduce_scatter, all_gather):
    def one(number):
        rows = weights[number].view(world, -1)
        return all_gather(adam(number, rows[rank].clone(), reduce_scatter(gradients[number]) / world))
    return list(map(one, range(len(weights))))
""",
        },
    ),
    "Zero2": Exercise(
        NOTEBOOK,
        "zero2_verdict",
        {
            "the sum": (" / self.world", ""),
            "whole gradients are kept until the step": (
                "self.means[number] = self.reduce_scatter(gradient) / self.world",
                "self.means[number] = gradient",
            ),
            "all are scattered in the step": """
class Zero2:
    def __init__(self, rank, world, reduce_scatter, all_gather):
        self.rank, self.world, self.kept = rank, world, {}
        self.reduce_scatter, self.all_gather = reduce_scatter, all_gather
    def ready(self, number, gradient):
        self.kept[number] = gradient
    def step(self, weights, adam):
        means = {n: self.reduce_scatter(g) / self.world for n, g in self.kept.items()}
        return [self.all_gather(adam(n, w.chunk(self.world)[self.rank], means[n])) for n, w in enumerate(weights)]
""",
            "a gradient late": """
class Zero2:
    def __init__(self, rank, world, reduce_scatter, all_gather):
        self.rank, self.world, self.means, self.kept = rank, world, {}, []
        self.reduce_scatter, self.all_gather = reduce_scatter, all_gather
    def ready(self, number, gradient):
        self.scatter()
        self.kept.append((number, gradient))
    def scatter(self):
        for number, gradient in self.kept:
            self.means[number] = self.reduce_scatter(gradient) / self.world
        self.kept = []
    def step(self, weights, adam):
        self.scatter()
        return [self.all_gather(adam(n, w.chunk(self.world)[self.rank], self.means[n])) for n, w in enumerate(weights)]
""",
            "its own part": (
                "self.reduce_scatter(gradient) / self.world",
                "gradient.chunk(self.world)[self.rank] + 0 * self.reduce_scatter(gradient)",
            ),
            "units count from the end": ("self.means[number] =", "self.means[len(self.means)] ="),
            "the first part, whatever the rank": ("[self.rank]", "[0]"),
            "nobody gathers": ("self.all_gather(adam(", "(adam("),
            "every rank steps everything": (
                "own_parts = [unit.chunk(self.world)[self.rank] for unit in weights]\n",
                "own_parts, self.means = weights, {n: self.all_gather(m) for n, m in self.means.items()}\n",
            ),
            "the last unit is left out": ("for unit in weights]", "for unit in weights[:-1]]"),
            "two ranks, whatever there are": ("/ self.world", "/ 2"),
            "messages in fp16": (
                "self.reduce_scatter(gradient)",
                "self.reduce_scatter(gradient.half()).double()",
            ),
        },
        {
            "a list, and a loop": """
class Zero2:
    def __init__(self, rank, world, reduce_scatter, all_gather):
        self.own = lambda tensor: tensor.view(world, -1)[rank]
        self.scatter = lambda tensor: reduce_scatter(tensor / world)
        self.gather, self.parts = all_gather, []
    def ready(self, number, gradient):
        self.parts.insert(0, self.scatter(gradient))
    def step(self, weights, adam):
        new = []
        for number, mean in enumerate(self.parts):
            new.append(self.gather(adam(number, self.own(weights[number]), mean)))
        return new
""",
            "divided in the step, in the order of arrival": """
class Zero2:
    def __init__(self, rank, world, reduce_scatter, all_gather):
        self.rank, self.world, self.sums = rank, world, {}
        self.reduce_scatter, self.all_gather = reduce_scatter, all_gather
    def ready(self, number, gradient):
        self.sums[number] = self.reduce_scatter(gradient)
    def step(self, weights, adam):
        new = list(weights)
        for number, total in self.sums.items():
            part = weights[number].tensor_split(self.world)[self.rank]
            new[number] = self.all_gather(adam(number, part, total.div(self.world)))
        return tuple(new)
""",
            "a generator": """
class Zero2:
    def __init__(self, rank, world, reduce_scatter, all_gather):
        self.rank, self.world = rank, world
        self.reduce_scatter, self.all_gather = reduce_scatter, all_gather
        self.mean_of = {}
    def ready(self, number, gradient):
        self.mean_of[number] = self.reduce_scatter(gradient).mul_(1 / self.world)
    def step(self, weights, adam):
        for number, unit in enumerate(weights):
            size = len(unit) // self.world
            own = unit[self.rank * size : (self.rank + 1) * size]
            yield self.all_gather(adam(number, own, self.mean_of[number]))
""",
        },
    ),
    "zero3_forward": Exercise(
        NOTEBOOK,
        "zero3_verdict",
        {
            "nothing is gathered": ("all_gather(part)", "part"),
            "all units are gathered first": (
                "for number, part in enumerate(parts):\n        x = layer(number, x, all_gather(part))",
                "for number, unit in enumerate([all_gather(part) for part in parts]):\n        x = layer(number, x, unit)",
            ),
            "the last unit is left out": ("enumerate(parts)", "enumerate(parts[:-1])"),
            "from the last unit to the first": (
                "enumerate(parts)",
                "reversed(list(enumerate(parts)))",
            ),
            "every unit gets the first input": ("x = layer(", "y = layer("),
            "the first unit's weights for all": ("all_gather(part)", "all_gather(parts[0])"),
            "each is gathered twice": (
                "all_gather(part)",
                "all_gather(all_gather(part)[: len(part)])",
            ),
            "nothing comes back": ("return x", "return None"),
            "units count from one": ("layer(number,", "layer(number + 1,"),
            "weights in fp16": ("all_gather(part)", "all_gather(part.half()).double()"),
            "only the first unit": ("    return x", "        return x"),
        },
        {
            "by index": """
def zero3_forward(x, parts, layer, all_gather):
    for i in range(len(parts)):
        whole = all_gather(parts[i])
        x = layer(i, x, whole)
        del whole
    return x
""",
            "folded": """
def zero3_forward(x, parts, layer, all_gather):
    from functools import reduce
    return reduce(lambda out, pair: layer(pair[0], out, all_gather(pair[1])), enumerate(parts), x)
""",
            "from the end of a list": """
def zero3_forward(x, parts, layer, all_gather):
    waiting = list(enumerate(parts))[::-1]
    while waiting:
        number, part = waiting.pop()
        x = layer(number, x, all_gather(part))
    return x
""",
            "it calls itself": """
def zero3_forward(x, parts, layer, all_gather, number=0):
    if number == len(parts):
        return x
    return zero3_forward(layer(number, x, all_gather(parts[number])), parts, layer, all_gather, number + 1)
""",
        },
    ),
    "zero3_backward": Exercise(
        NOTEBOOK,
        "zero3_verdict",
        {
            "the sum": (" / world", ""),
            "two ranks, whatever there are": ("/ world", "/ 2"),
            "nothing is gathered": ("all_gather(parts[number])", "parts[number]"),
            "from the first unit to the last": ("reversed(range(len(parts)))", "range(len(parts))"),
            "gradients are scattered at the end": """
def zero3_backward(delta, parts, layer_backward, world, reduce_scatter, all_gather):
    gradients = [None] * len(parts)
    for number in reversed(range(len(parts))):
        delta, gradients[number] = layer_backward(number, delta, all_gather(parts[number]))
    return [reduce_scatter(gradient) / world for gradient in gradients]
""",
            "all units are gathered first": (
                "    for number in reversed(range(len(parts))):\n        delta, gradient = layer_backward(number, delta, all_gather(parts[number]))",
                "    units = [all_gather(part) for part in parts]\n    for number in reversed(range(len(parts))):\n        delta, gradient = layer_backward(number, delta, units[number])",
            ),
            "whole gradients are kept": (MEAN, "all_gather(reduce_scatter(gradient)) / world"),
            "in the order of the backward pass": ("return means", "return means[::-1]"),
            "the first unit is left out": (
                "reversed(range(len(parts)))",
                "reversed(range(1, len(parts)))",
            ),
            "its own part": (
                MEAN,
                "0 * reduce_scatter(gradient) + gradient[: len(parts[number])]",
            ),
            "nothing comes back": ("return means", "return None"),
            "messages in fp16": (MEAN, "reduce_scatter(gradient.half()).double() / world"),
        },
        {
            "a list that grows at its front": """
def zero3_backward(delta, parts, layer_backward, world, reduce_scatter, all_gather):
    means = []
    for number in range(len(parts) - 1, -1, -1):
        delta, gradient = layer_backward(number, delta, all_gather(parts[number]))
        means.insert(0, reduce_scatter(gradient.div(world)))
    return means
""",
            "by number": """
def zero3_backward(delta, parts, layer_backward, world, reduce_scatter, all_gather):
    mean_of = {}
    for number, part in reversed(list(enumerate(parts))):
        whole = all_gather(part)
        delta, gradient = layer_backward(number, delta, whole)
        mean_of[number] = reduce_scatter(gradient).mul(1 / world)
    return tuple(mean_of[number] for number in sorted(mean_of))
""",
            "turned round at the end": """
def zero3_backward(delta, parts, layer_backward, world, reduce_scatter, all_gather):
    means, number = [], len(parts)
    while number:
        number -= 1
        delta, gradient = layer_backward(number, delta, all_gather(parts[number]))
        means.append(reduce_scatter(gradient) / world)
    means.reverse()
    return means
""",
        },
    ),
}
