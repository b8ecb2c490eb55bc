"""The same as `exercise_mutants`, of the notebook about a worker that lies."""

from tests.unit.labkit_grading.exercise_mutants import Exercise

NOTEBOOK = "7_which_worker_lies"

EXERCISES = {
    "stands_out": Exercise(
        NOTEBOOK,
        "outlier_verdict",
        {
            "the mean in place of the median": (
                "statistics.median(numbers)",
                "statistics.mean(numbers)",
            ),
            "the mean of the distances": (
                "statistics.median(distances)",
                "statistics.mean(distances)",
            ),
            "only what is above": ("abs(number - middle)", "number - middle"),
            "the largest number, whoever stands out": (
                "distances.index(worst)",
                "numbers.index(max(numbers))",
            ),
            "without half of the median": (" and worst > 0.5 * abs(middle)", ""),
            "one of the two is enough": ("and worst", "or worst"),
            "half of the median alone": ("worst > 8 * statistics.median(distances) and ", ""),
            "twice the median distance": ("worst > 8", "worst > 2"),
            "worker 0 where nobody stands out": ("else None", "else 0"),
            "counted from 1": (
                "return distances.index(worst)",
                "return 1 + distances.index(worst)",
            ),
            "the worker in a list": ("distances.index(worst) if", "[distances.index(worst)] if"),
            "sorted on the way": ("middle = ", "numbers.sort()\n    middle = "),
        },
        {
            "numbers of workers, sorted by their distance": """
def stands_out(numbers):
    middle = statistics.median(numbers)
    by_distance = sorted(range(len(numbers)), key=lambda w: abs(numbers[w] - middle))
    typical = statistics.median([abs(n - middle) for n in numbers])
    far = abs(numbers[by_distance[-1]] - middle)
    if far <= 8 * typical or far <= abs(middle) / 2:
        return None
    return by_distance[-1]
""",
            "with torch": """
def stands_out(numbers):
    values = torch.tensor(sorted(numbers), dtype=torch.float64)
    middle = values.quantile(0.5)
    distances = (torch.tensor(numbers, dtype=torch.float64) - middle).abs()
    limit = max(8 * distances.quantile(0.5), abs(middle) / 2)
    return int(distances.argmax()) if distances.max() > limit else None
""".replace("def stands_out(numbers):", "import torch\n\n\ndef stands_out(numbers):"),
            "a loop that remembers": """
def stands_out(numbers):
    def middle_of(values):
        ordered, half = sorted(values), len(values) // 2
        return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2

    middle = middle_of(numbers)
    typical = middle_of([abs(n - middle) for n in numbers])
    culprit, furthest = None, max(8 * typical, 0.5 * abs(middle))
    for worker, number in enumerate(numbers):
        if abs(number - middle) > furthest:
            culprit, furthest = worker, abs(number - middle)
    return culprit
""",
        },
    ),
    "disagreeing": Exercise(
        NOTEBOOK,
        "disagreeing_verdict",
        {
            "whoever is alone, whatever the others say": (
                " and len(set(rows[layer])) == 2",
                "",
            ),
            "always the last worker": ("workers[0]", "len(rows[layer]) - 1"),
            "counted from 1": ("workers[0]", "1 + workers[0]"),
            "worker 0 is right, whatever it says": (
                "sums.count(digits) == 1",
                "digits != sums[0]",
            ),
            "the checksum in place of the worker": ("workers[0]", "rows[layer][workers[0]]"),
            "only the first layer": ("in rows.items()}", "in list(rows.items())[:1]}"),
            "the layers alone": ("return {layer: workers[0]", "return {layer: True"),
            "four workers, whatever there are": ("enumerate(sums)", "enumerate(sums[:4])"),
            "whoever agrees": ("sums.count(digits) == 1", "sums.count(digits) != 1"),
        },
        {
            "with a counter": """
from collections import Counter


def disagreeing(rows):
    odd = {}
    for layer, sums in rows.items():
        counted = Counter(sums).most_common()
        if len(counted) == 2 and counted[1][1] == 1 and counted[0][1] > 1:
            odd[layer] = sums.index(counted[1][0])
    return odd
""",
            "each worker against the set of the others": """
def disagreeing(rows):
    odd = {}
    for layer, sums in rows.items():
        for worker in range(len(sums)):
            others = set(sums[:worker] + sums[worker + 1:])
            if len(others) == 1 and sums[worker] not in others:
                odd[layer] = worker
    return odd
""",
            "the majority first": """
def disagreeing(rows):
    def odd_of(sums):
        most = max(set(sums), key=sums.count)
        return [w for w, s in enumerate(sums) if s != most]

    return {layer: odd_of(sums)[0] for layer, sums in rows.items() if len(odd_of(sums)) == 1}
""",
        },
    ),
}
