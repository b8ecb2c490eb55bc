"""For every exercise: wrong solutions by what they would teach, and right ones in other styles.

A mutant is a change of the notebook's own solution (what stands there, what stands there instead),
or a whole solution of its own; a style is always a whole one.
"""

from dataclasses import dataclass, field

Mutant = tuple[str, str] | str


@dataclass(frozen=True)
class Exercise:
    """What is tried against one check.

    Attributes:
        notebook: the stem of its source.
        verdict: the name that holds the check's answer.
        mutants: by what each would teach.
        styles: by what is different about them.
    """

    notebook: str
    verdict: str
    mutants: dict[str, Mutant] = field(default_factory=dict)
    styles: dict[str, str] = field(default_factory=dict)


EXERCISES = {
    "my_timer": Exercise(
        "1_your_slice",
        "timer_verdict",
        {
            "a call that has returned is done": (
                "        wait()\n        seconds",
                "        seconds",
            ),
            "the first call is like any other": ("    work()\n    for", "    for"),
            "earlier work does not matter": ("        wait()\n        started", "        started"),
            "one sample is enough": ("return seconds", "return seconds[:1]"),
            "the mean stands for every sample": (
                "return seconds",
                "return [sum(seconds) / rounds] * rounds",
            ),
            "the fastest stands for every sample": (
                "return seconds",
                "return [min(seconds)] * rounds",
            ),
            "the order of samples does not matter": ("return seconds", "return sorted(seconds)"),
            "samples are milliseconds": ("clock() - started)", "1e3 * (clock() - started))"),
            "two calls are one": (
                "        work()\n        wait()",
                "        work()\n        work()\n        wait()",
            ),
            "twenty, whatever is asked for": ("range(rounds)", "range(20)"),
            "off by one: a sample too many": ("range(rounds)", "range(rounds + 1)"),
            "the clock starts after the launch": (
                "        started = clock()\n        work()",
                "        work()\n        started = clock()",
            ),
            "a number that once was right": "def my_timer(work, wait, clock, rounds=20):\n    return [0.006] * rounds",
        },
        {
            "a list comprehension": """
def my_timer(work, wait, clock, rounds=20):
    def once():
        wait()
        begin = clock()
        work()
        wait()
        return clock() - begin
    once()
    return [once() for _ in range(rounds)]
""",
            "differences of a list of moments": """
def my_timer(work, wait, clock, rounds=20):
    work(); wait()
    moments = [clock()]
    for _ in range(rounds):
        work(); wait()
        moments.append(clock())
    return [after - before for before, after in zip(moments, moments[1:])]
""",
            "several calls to warm up, and a tuple": """
def my_timer(work, wait, clock, rounds=20):
    samples = ()
    for number in range(rounds + 3):
        wait()
        t0 = clock()
        work()
        wait()
        samples += (clock() - t0,)
    return samples[3:]
""",
        },
    ),
    "attainable": Exercise(
        "1_your_slice",
        "roof_verdict",
        {
            "memory is always the limit": (
                "min(flops_per_s, intensity * bytes_per_s)",
                "intensity * bytes_per_s",
            ),
            "arithmetic is always the limit": (
                "min(flops_per_s, intensity * bytes_per_s)",
                "flops_per_s",
            ),
            "the larger limit counts": ("min(", "max("),
            "intensity divides": ("intensity * bytes_per_s", "bytes_per_s / intensity"),
            "both limits add up": (
                "min(flops_per_s, intensity * bytes_per_s)",
                "flops_per_s + intensity * bytes_per_s",
            ),
            "both share the time": (
                "min(flops_per_s, intensity * bytes_per_s)",
                "1 / (1 / flops_per_s + 1 / (intensity * bytes_per_s))",
            ),
            "the bandwidth itself is the limit": ("intensity * bytes_per_s", "bytes_per_s"),
            "in TFLOP/s": ("return min(", "return 1e-12 * min("),
            "the ridge is at 10 for every device": (
                "min(flops_per_s, intensity * bytes_per_s)",
                "flops_per_s if intensity >= 10 else intensity * bytes_per_s",
            ),
        },
        {
            "by the ridge": """
def attainable(intensity, flops_per_s, bytes_per_s):
    ridge = flops_per_s / bytes_per_s
    if intensity < ridge:
        return bytes_per_s * intensity
    return flops_per_s
""",
            "by the time of one FLOP": """
def attainable(intensity, flops_per_s, bytes_per_s):
    return 1 / max(1 / flops_per_s, 1 / (intensity * bytes_per_s))
""",
            "sorted, with a lambda": "attainable = lambda i, f, b: sorted([f, i * b])[0]",
        },
    ),
    "busy_share": Exercise(
        "1_your_slice",
        "busy_verdict",
        {
            "what runs inside another counts twice": ("end - max(begin, covered)", "end - begin"),
            "every lane is this lane": ("if kind == lane:", "if True:"),
            "spans come in the order of time": ("sorted(spans, key=lambda span: span[2])", "spans"),
            "a gap is covered": ("max(0.0, end - max(begin, covered))", "max(0.0, end - covered)"),
            "time, not its share": (" / max(end for *_, end in spans)", ""),
            "the share of the lane's own time": (
                "max(end for *_, end in spans)",
                "max([end for kind, *_, end in spans if kind == lane] or [1])",
            ),
            "the step begins with the first span": (
                "max(end for *_, end in spans)",
                "(max(e for *_, e in spans) - min(s[2] for s in spans))",
            ),
            "percents": ("return busy", "return 100 * busy"),
            "the idle share": (
                "return busy / max(end for *_, end in spans)",
                "return 1 - busy / max(end for *_, end in spans)",
            ),
            "the last span ends last": ("max(end for *_, end in spans)", "spans[-1][3]"),
            "the number of spans": ("busy += max(0.0, end - max(begin, covered))", "busy += 1"),
        },
        {
            "merged intervals": """
def busy_share(spans, lane):
    merged = []
    for begin, end in sorted((b, e) for name, _, b, e in spans if name == lane):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return sum(e - b for b, e in merged) / max(span[3] for span in spans)
""",
            "a sweep over the edges": """
def busy_share(spans, lane):
    edges = sorted([(s[2], 1) for s in spans if s[0] == lane] + [(s[3], -1) for s in spans if s[0] == lane])
    running = total = last = 0
    for moment, change in edges:
        if running:
            total += moment - last
        running, last = running + change, moment
    return total / max(s[3] for s in spans)
""",
            "between neighbouring moments": """
def busy_share(spans, lane):
    moments = sorted({0.0, *(s[2] for s in spans), *(s[3] for s in spans)})
    mine = [s for s in spans if s[0] == lane]
    busy = sum(b - a for a, b in zip(moments, moments[1:]) if any(s[2] <= a and b <= s[3] for s in mine))
    return busy / moments[-1]
""",
        },
    ),
    "per_sm_ratio": Exercise(
        "2_mig_trade_offs",
        "per_sm_verdict",
        {
            "the ratio of rates": "per_sm_ratio = lambda big, big_sms, small, small_sms: big / small",
            "upside down": (
                "(big_rate / big_sms) / (small_rate / small_sms)",
                "(small_rate / small_sms) / (big_rate / big_sms)",
            ),
            "the ratio of SMs": "per_sm_ratio = lambda big, big_sms, small, small_sms: big_sms / small_sms",
            "SMs multiply": (
                "(big_rate / big_sms) / (small_rate / small_sms)",
                "(big_rate * big_sms) / (small_rate * small_sms)",
            ),
            "only the big one is divided": ("(small_rate / small_sms)", "small_rate"),
            "only the small one is divided": ("(big_rate / big_sms)", "big_rate"),
            "the SMs are exchanged": (
                "big_rate / big_sms) / (small_rate / small_sms)",
                "big_rate / small_sms) / (small_rate / big_sms)",
            ),
            "rounded to two places": (
                "return (big_rate / big_sms) / (small_rate / small_sms)",
                "return round((big_rate / big_sms) / (small_rate / small_sms), 2)",
            ),
            "whole numbers": (
                "return (big_rate / big_sms) / (small_rate / small_sms)",
                "return (big_rate / big_sms) // (small_rate / small_sms)",
            ),
            "what is lost": ("return (", "return 1 - ("),
        },
        {
            "two names": """
def per_sm_ratio(big_rate, big_sms, small_rate, small_sms):
    of_big = big_rate / big_sms
    of_small = small_rate / small_sms
    return of_big / of_small
""",
            "multiplied across": "per_sm_ratio = lambda a, n, b, m: a * m / (n * b)",
            "with fractions": """
from fractions import Fraction
def per_sm_ratio(big_rate, big_sms, small_rate, small_sms):
    return float(Fraction(big_rate) / big_sms / (Fraction(small_rate) / small_sms))
""",
        },
    ),
    "fits": Exercise(
        "2_mig_trade_offs",
        "fits_verdict",
        {
            "only compute counts": (" and memory <= 8", ""),
            "only memory counts": ("compute <= 7 and ", ""),
            "seven of both": ("memory <= 8", "memory <= 7"),
            "eight of both": ("compute <= 7", "compute <= 8"),
            "off by one": ("compute <= 7", "compute < 7"),
            "either is enough": (" and ", " or "),
            "counts do not matter": ("A100[name].compute * count", "A100[name].compute"),
            "the number of slices": "fits = lambda packing: sum(packing.values()) <= 7",
            "GiB are memory slices": ("A100[name].memory * count", "A100[name].gib * count"),
            "a seventh has 13 SMs": (
                "A100[name].compute * count",
                "A100[name].sms * count / 13",
            ),
            "no two alike": ("return compute", "return max(packing.values()) < 2 and compute"),
        },
        {
            "spelled out": """
def fits(packing):
    left_compute, left_memory = 7, 8
    for name in packing:
        for _ in range(packing[name]):
            left_compute -= A100[name].compute
            left_memory -= A100[name].memory
    return min(left_compute, left_memory) >= 0
""",
            "a table of its own": """
SIZES = {"1g.5gb": (1, 1), "2g.10gb": (2, 2), "3g.20gb": (3, 4), "4g.20gb": (4, 4), "7g.40gb": (7, 8)}
def fits(packing):
    totals = [sum(SIZES[n][i] * c for n, c in packing.items()) for i in (0, 1)]
    return totals[0] <= 7 and totals[1] <= 8
""",
            "all of a generator": """
def fits(packing):
    limits = {"compute": 7, "memory": 8}
    return all(
        sum(getattr(A100[name], part) * count for name, count in packing.items()) <= most
        for part, most in limits.items()
    )
""",
        },
    ),
    "place_slices": Exercise(
        "2_mig_trade_offs",
        "place_verdict",
        {
            "the first start is the only one": (
                "if later_starts is not None:\n            return [start, *later_starts]",
                "return None if later_starts is None else [start, *later_starts]",
            ),
            "a slice may begin anywhere": ("first.starts", "range(8)"),
            "what is in use may be used": (
                "if set(span) & set(taken):\n            continue",
                "pass",
            ),
            "a slice takes one memory slice": (
                "range(start, start + first.memory)",
                "range(start, start + 1)",
            ),
            "a slice takes its compute slices": ("start + first.memory", "start + first.compute"),
            "the new slice takes nothing": ("taken + span", "taken"),
            "the rest is not placed": ("return [start, *later_starts]", "return [start]"),
            "backwards": ("return [start, *later_starts]", "return [*later_starts, start]"),
            "no slices cannot be placed": (
                "    if not wanted:\n        return []\n",
                "    if not wanted:\n        return None\n",
            ),
            "no room is an empty list": ("    return None", "    return []"),
            "taken is changed for good": ("taken + span", "taken.extend(span) or taken"),
            "a greedy choice": """
def place_slices(wanted, taken):
    starts, used = [], set(taken)
    for name in wanted:
        for start in A100[name].starts:
            span = set(range(start, start + A100[name].memory))
            if not span & used:
                starts.append(start)
                used |= span
                break
        else:
            return None
    return starts
""",
        },
        {
            "every choice of starts": """
import itertools
def place_slices(wanted, taken):
    for starts in itertools.product(*(A100[name].starts for name in wanted)):
        used = list(taken)
        for name, start in zip(wanted, starts):
            used += range(start, start + A100[name].memory)
        if len(used) == len(set(used)):
            return list(starts)
    return None
""",
            "largest first, put back in order": """
def place_slices(wanted, taken):
    order = sorted(range(len(wanted)), key=lambda i: -A100[wanted[i]].memory)
    def go(position, used):
        if position == len(order):
            return {}
        profile = A100[wanted[order[position]]]
        for start in profile.starts[::-1]:
            cells = frozenset(range(start, start + profile.memory))
            if not cells & used:
                rest = go(position + 1, used | cells)
                if rest is not None:
                    return {order[position]: start, **rest}
        return None
    found = go(0, frozenset(taken))
    return None if found is None else [found[i] for i in range(len(wanted))]
""",
            "bits of a number": """
def place_slices(wanted, taken):
    def search(names, used):
        if not names:
            return ()
        profile = A100[names[0]]
        for start in profile.starts:
            bits = ((1 << profile.memory) - 1) << start
            if not used & bits:
                later = search(names[1:], used | bits)
                if later is not None:
                    return (start,) + later
    return search(tuple(wanted), sum(1 << n for n in set(taken)))
""",
        },
    ),
    "percentile": Exercise(
        "2_mig_trade_offs",
        "can_rank",
        {
            "samples come sorted": ("sorted(samples)", "samples"),
            "off by one": ("- 1]", "- 0] if percent < 100 else max(samples)"),
            "the mean": "percentile = lambda samples, percent: sum(samples) / len(samples)",
            "from the top": ("sorted(samples)", "sorted(samples, reverse=True)"),
            "rounded down": (
                "math.ceil(percent / 100 * len(ordered)) - 1",
                "int(percent / 100 * len(ordered)) - 1",
            ),
            "rounded to the nearest": (
                "math.ceil(percent / 100 * len(ordered)) - 1",
                "max(0, round(percent / 100 * len(ordered)) - 1)",
            ),
            "always the median": ("percent / 100", "0.5"),
            "the largest": "percentile = lambda samples, percent: max(samples)",
            "between two samples": """
def percentile(samples, percent):
    ordered = sorted(samples)
    at = percent / 100 * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])
""",
        },
        {
            "counting": """
def percentile(samples, percent):
    for candidate in sorted(samples):
        if sum(s <= candidate for s in samples) >= percent / 100 * len(samples):
            return candidate
""",
            "the smallest of those that are large enough": """
def percentile(samples, percent):
    n = len(samples)
    return min(s for s in samples if sum(t <= s for t in samples) * 100 >= percent * n)
""",
            "whole numbers": """
def percentile(samples, percent):
    ordered = sorted(samples)
    place = -(-int(percent * 10) * len(ordered) // 1000)
    return ordered[place - 1]
""",
        },
    ),
    "LossScaler": Exercise(
        "3_mixed_precision",
        "scaler_verdict",
        {
            "an inf changes nothing": ("self.scale / 2, 0", "self.scale, 0"),
            "a step with inf is taken": ("return False", "return True"),
            "an inf quarters": ("self.scale / 2", "self.scale / 4"),
            "it never grows": ("self.scale * 2, 0", "self.scale, 0"),
            "it grows fourfold": ("self.scale * 2", "self.scale * 4"),
            "off by one: a step later": (
                "self.good == self.growth_every",
                "self.good > self.growth_every",
            ),
            "off by one: a step earlier": (
                "self.good == self.growth_every",
                "self.good == self.growth_every - 1",
            ),
            "an inf does not end the row": ("self.scale / 2, 0", "self.scale / 2, self.good"),
            "a doubling does not end the row": ("self.scale * 2, 0", "self.scale * 2, self.good"),
            "fifty, whatever is asked for": ("self.good == self.growth_every", "self.good == 50"),
            "the start is always the same": (
                "= start, growth_every, 0",
                "= 2.0**16, growth_every, 0",
            ),
            "it grows at every good step from then on": (
                "self.scale * 2, 0",
                "self.scale * 2, self.growth_every - 1",
            ),
            "a skipped step grows": ("        self.good += 1\n", "        self.good += 2\n"),
            "it starts low": ("start=2.0**16", "start=1.0"),
        },
        {
            "counting down": """
class LossScaler:
    def __init__(self, start=2.0**16, growth_every=50):
        self.scale, self.growth_every = start, growth_every
        self.left = growth_every
    def update(self, found_inf):
        self.left = self.growth_every if found_inf else self.left - 1
        if found_inf:
            self.scale *= 0.5
        elif not self.left:
            self.scale *= 2
            self.left = self.growth_every
        return not found_inf
""",
            "an exponent and a property": """
import math
class LossScaler:
    def __init__(self, start=2.0**16, growth_every=50):
        self._exponent, self.growth_every, self._row = math.log2(start), growth_every, 0
    @property
    def scale(self):
        return 2.0 ** self._exponent
    def update(self, found_inf):
        if found_inf:
            self._exponent -= 1
            self._row = 0
            return False
        self._row += 1
        if self._row % self.growth_every == 0:
            self._exponent += 1
        return True
""",
            "a dataclass with a history": """
from dataclasses import dataclass, field
@dataclass
class LossScaler:
    start: float = 2.0**16
    growth_every: int = 50
    history: list = field(default_factory=list)
    def __post_init__(self):
        self.scale = self.start
    def update(self, found_inf):
        if found_inf:
            self.history.clear()
            self.scale /= 2
        else:
            self.history.append(1)
            if len(self.history) == self.growth_every:
                self.history = []
                self.scale += self.scale
        return False if found_inf else True
""",
        },
    ),
    "scaled_step": Exercise(
        "3_mixed_precision",
        "step_verdict",
        {
            "fp16 divides": (".float() / scale", " / scale"),
            "scaled gradients are stepped with": (".float() / scale", ".float()"),
            "they are scaled twice": (".float() / scale", ".float() * scale"),
            "only the first gradient is looked at": (
                "for gradient in gradients)",
                "for gradient in gradients[:1])",
            ),
            "an inf and no nan": ("not gradient.isfinite().all()", "gradient.isinf().any()"),
            "a nan and no inf": ("not gradient.isfinite().all()", "gradient.isnan().any()"),
            "an inf has to be everywhere": (
                "not gradient.isfinite().all()",
                "not gradient.isfinite().any()",
            ),
            "only an inf above zero": (
                "not gradient.isfinite().all()",
                "(gradient == float('inf')).any()",
            ),
            "a bad step is taken": ("    if is_taken:", "    if True:"),
            "no step is taken": ("    if is_taken:", "    if False:"),
            "update is told the opposite": ("update(found_inf)", "update(not found_inf)"),
            "the scaler is not told": ("scaler.update(found_inf)", "not found_inf"),
            "the scaler is told twice": (
                "    is_taken =",
                "    scaler.update(found_inf)\n    is_taken =",
            ),
            "the loss is not scaled": ("gradients_at(scale)", "gradients_at(1.0)"),
            "the scale after the update": (".float() / scale", ".float() / scaler.scale"),
            "the last gradient is left out": (
                "for gradient in gradients])",
                "for gradient in gradients[:-1]])",
            ),
            "it is taken always": ("return is_taken", "return True"),
        },
        {
            "a loop": """
def scaled_step(gradients_at, step, scaler):
    factor = scaler.scale
    true, bad = [], False
    for g in gradients_at(factor):
        bad = bad or bool(g.isinf().any()) or bool(g.isnan().any())
        true.append(g.to(torch.float32) / factor)
    taken = scaler.update(bad)
    if taken:
        step(true)
    return taken
""",
            "doubles, by the inverse scale": """
def scaled_step(gradients_at, step, scaler):
    inverse = 1 / scaler.scale
    gradients = [g.double() * inverse for g in gradients_at(scaler.scale)]
    found = not all(torch.isfinite(g).all().item() for g in gradients)
    if not scaler.update(found):
        return False
    step(gradients)
    return True
""",
            "one sum tells": """
def scaled_step(gradients_at, step, scaler):
    scale = scaler.scale
    gradients = [g.float().div_(scale) for g in gradients_at(scale)]
    total = sum((g * 0).sum() for g in gradients)
    ok = scaler.update(bool(total != 0 or total != total))
    if ok:
        step(gradients)
    return ok
""",
        },
    ),
}
