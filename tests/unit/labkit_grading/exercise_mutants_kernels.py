"""The same as `exercise_mutants`, of the notebook about kernels."""

from tests.unit.labkit_grading.exercise_mutants import Exercise

RESCALED = "total * (largest - above).exp()"
WRITTEN = "(read(block) - largest).exp() / total"

EXERCISES = {
    "softmax_by_blocks": Exercise(
        "3b_kernels",
        "softmax_verdict",
        {
            "the old sum stays as it was": (RESCALED, "total"),
            "the old sum grows instead of shrinking": ("(largest - above)", "(above - largest)"),
            "the last block's largest counts": (
                "torch.maximum(largest, part.amax(dim=1, keepdim=True))",
                "part.amax(dim=1, keepdim=True)",
            ),
            "the first block's largest counts": ("        largest = above\n", ""),
            "nothing is subtracted": (
                "(read(block) - largest).exp() / total",
                "read(block).exp() / (total * largest.exp())",
            ),
            "one largest for all rows": (
                "largest = part.amax(dim=1, keepdim=True)",
                "largest = part.min() - 900",
            ),
            "one sum for all rows": (WRITTEN, f"{WRITTEN} * total / total.sum()"),
            "the sum is forgotten": (" / total", ""),
            "every block for itself": (WRITTEN, "torch.softmax(read(block), 1)"),
            "the last block is left out": ("range(1, blocks)", "range(1, blocks - 1)"),
            "it is not written": ("write(block, ", "print("),
            "three passes": """
def softmax_by_blocks(read, write, blocks):
    largest = torch.stack([read(b).amax(1) for b in range(blocks)]).amax(0)[:, None]
    total = sum((read(b) - largest).exp().sum(1, keepdim=True) for b in range(blocks))
    for b in range(blocks):
        write(b, (read(b) - largest).exp() / total)
""",
            "the whole row is held": """
def softmax_by_blocks(read, write, blocks):
    parts = [read(b) for b in range(blocks)]
    result = torch.softmax(torch.cat(parts, 1), 1).split(parts[0].shape[1], 1)
    for b in range(blocks):
        write(b, result[b])
""",
            "what is written is in 16 bits": (WRITTEN, f"({WRITTEN}).half().double()"),
        },
        {
            "it begins with minus infinity": """
def softmax_by_blocks(read, write, blocks):
    m, s = torch.tensor(-float("inf")), 0.0
    for b in range(blocks):
        x = read(b)
        new = torch.maximum(m, x.max(1).values)
        s = s * torch.exp(m - new) + torch.exp(x - new[:, None]).sum(1)
        m = new
    for b in range(blocks):
        write(b, torch.exp(read(b) - m[:, None] - torch.log(s)[:, None]))
""",
            "the logarithm of the sum is carried": """
def softmax_by_blocks(read, write, blocks):
    carried = read(0).logsumexp(1)
    for b in range(1, blocks):
        carried = torch.logaddexp(carried, read(b).logsumexp(1))
    for b in reversed(range(blocks)):
        write(b, torch.exp(read(b) - carried.unsqueeze(1)))
""",
            "the last block is kept between the passes": """
def softmax_by_blocks(read, write, blocks):
    log_sum = None
    for b in range(blocks):
        part = read(b)
        here = torch.logsumexp(part, dim=1, keepdim=True)
        log_sum = here if log_sum is None else torch.logaddexp(log_sum, here)
    write(blocks - 1, (part - log_sum).exp())
    for b in range(blocks - 1):
        write(b, (read(b) - log_sum).exp())
""",
        },
    ),
}
