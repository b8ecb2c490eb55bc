"""The same as `exercise_mutants`, of the notebook about choosing a slice."""

from tests.unit.labkit_grading.exercise_mutants import Exercise

NOTEBOOK = "6_choose_your_slice"
EXERCISES = {
    "split_time": Exercise(
        NOTEBOOK,
        "split_verdict",
        {
            "the other way round": ("return time_big - b / big, b", "return b, time_big - b / big"),
            "b is the difference": (
                "(time_small - time_big) / (1 / small - 1 / big)",
                "time_small - time_big",
            ),
            "a is the time on the big one": ("time_big - b / big", "time_big"),
            "everything shrinks": (
                "return time_big - b / big, b",
                "return 0.0, time_small * small",
            ),
            "nothing shrinks": ("return time_big - b / big, b", "return time_small, 0.0"),
            "the sign": ("(1 / small - 1 / big)", "(1 / big - 1 / small)"),
            "a straight line of SMs": ("(1 / small - 1 / big)", "(big - small)"),
            "a from the wrong slice": ("time_big - b / big", "time_small - b / big"),
            "b for one SM of the small slice": ("b / big, b", "b / big, b / small"),
            "only a": ("return time_big - b / big, b", "return time_big - b / big"),
        },
        {
            "from the small slice": """
def split_time(small, time_small, big, time_big):
    b = (time_small - time_big) * small * big / (big - small)
    return time_small - b / small, b
""",
            "a first": """
def split_time(small, time_small, big, time_big):
    a = (big * time_big - small * time_small) / (big - small)
    b = small * (time_small - a)
    return [a, b]
""",
            "two equations": """
def split_time(small, time_small, big, time_big):
    rows = torch.tensor([[1.0, 1 / small], [1.0, 1 / big]], dtype=torch.float64)
    a, b = torch.linalg.solve(rows, torch.tensor([time_small, time_big], dtype=torch.float64)).tolist()
    return a, b
import torch
""",
        },
    ),
    "job_hours": Exercise(
        NOTEBOOK,
        "hours_verdict",
        {
            "memory shrinks as the SMs do": ('law["memory"] * by_memory', 'law["memory"] * by_sms'),
            "SMs shrink as memory does": ('law["sm"] * by_sms', 'law["sm"] * by_memory'),
            "Python is never slow": ('max(step_ms, law["python"])', "step_ms"),
            "Python's time comes on top": (
                'max(step_ms, law["python"])',
                '(step_ms + law["python"])',
            ),
            "what is fixed shrinks, too": ('law["fixed"] +', 'law["fixed"] * by_sms +'),
            "what is fixed is forgotten": ('law["fixed"] + ', ""),
            "upside down": (
                "held.sms / profile.sms, held.memory / profile.memory",
                "profile.sms / held.sms, profile.memory / held.memory",
            ),
            "seconds, not hours": ("/ 3.6e6", "/ 1e3"),
            "milliseconds are seconds": ("/ 3.6e6", "/ 3600"),
            "the smaller of both": ("max(", "min("),
            "the law is the GPU's, not the measured slice's": (
                "held.sms / profile.sms, held.memory / profile.memory",
                "98 / profile.sms, 8 / profile.memory",
            ),
        },
        {
            "term by term": """
def job_hours(profile, held, law, steps):
    ms = law["fixed"]
    ms += law["sm"] / profile.sms * held.sms
    ms += law["memory"] / profile.memory * held.memory
    if ms < law["python"]:
        ms = law["python"]
    return steps * ms / 1000 / 60 / 60
""",
            "work first, then the shape": """
def job_hours(profile, held, law, steps):
    work = {"sms": law["sm"] * held.sms, "memory": law["memory"] * held.memory}
    shared = sum(amount / getattr(profile, part) for part, amount in work.items())
    return max(law["fixed"] + shared, law["python"]) * (steps / 3_600_000)
""",
            "hours of each limit": """
def job_hours(profile, held, law, steps):
    hours = lambda ms: ms * steps / 3.6e6
    on_gpu = hours(law["fixed"] + law["sm"] * held.sms / profile.sms + law["memory"] * held.memory / profile.memory)
    return max(on_gpu, hours(law["python"]))
""",
        },
    ),
    "price": Exercise(
        NOTEBOOK,
        "price_verdict",
        {
            "waiting is free": ("(wait_h + hours)", "hours"),
            "only waiting costs time": ("(wait_h + hours)", "wait_h"),
            "slices are held while waiting": ("hours * slices", "(hours + wait_h) * slices"),
            "time is free": (" + an_hour * (wait_h + hours)", ""),
            "one slice, whatever there are": ("hours * slices", "hours"),
            "slices are free": ("hours * slices + ", ""),
            "waiting comes off": ("(wait_h + hours)", "(hours - wait_h)"),
            "an hour costs for every slice": ("an_hour *", "an_hour * slices *"),
            "an hour is added once": ("an_hour * (wait_h + hours)", "an_hour + wait_h + hours"),
        },
        {
            "two sums": """
def price(hours, slices, wait_h, an_hour):
    of_slices = slices * hours
    of_time = (hours + wait_h) * an_hour
    return of_slices + of_time
""",
            "an hour of work, an hour of waiting": "price = lambda h, s, w, a: h * (s + a) + w * a",
            "a sum of products": """
def price(hours, slices, wait_h, an_hour):
    return sum(amount * rate for amount, rate in ((hours, slices), (hours, an_hour), (wait_h, an_hour)))
""",
        },
    ),
    "step_price": Exercise(
        NOTEBOOK,
        "step_price_verdict",
        {
            "the time is the price": (" * (profile.memory if", " * (1 if"),
            "sevenths are compute slices": (
                "7 * max(profile.sms / 98, profile.memory / 8)",
                "7 * profile.sms / 98",
            ),
            "sevenths are of memory": (
                "7 * max(profile.sms / 98, profile.memory / 8)",
                "7 * profile.memory / 8",
            ),
            "the smaller share counts": ("max(profile.sms", "min(profile.sms"),
            "shares, not sevenths": ("7 * max", "max"),
            "one unit for all": (
                ' if unit == "memory slices" else 7 * max(profile.sms / 98, profile.memory / 8)',
                "",
            ),
            "what is fixed costs nothing": ("fixed + sms_ms", "sms_ms"),
            "memory does not shrink": ("memory_ms / profile.memory", "memory_ms"),
            "SMs do not shrink": ("sms_ms / profile.sms", "sms_ms"),
            "the SMs share memory, too": ("memory_ms / profile.memory", "memory_ms / profile.sms"),
            "eighths": ("else 7 *", "else 8 *"),
        },
        {
            "two ifs": """
def step_price(fixed, sms_ms, memory_ms, profile, unit):
    ms = fixed + memory_ms / profile.memory + sms_ms / profile.sms
    if unit == "sevenths":
        return ms * max(profile.compute, profile.memory * 7 / 8)
    return ms * profile.memory
""",
            "a table of units": """
def step_price(fixed, sms_ms, memory_ms, profile, unit):
    shares = {"memory slices": lambda p: p.memory, "sevenths": lambda p: 7 * max(p.compute / 7, p.memory / 8)}
    return shares[unit](profile) * (fixed + sms_ms / profile.sms + memory_ms / profile.memory)
""",
            "whole slices first": """
def step_price(fixed, sms_ms, memory_ms, profile, unit):
    units = profile.memory
    if unit != "memory slices":
        units = max(profile.sms / 14, 0.875 * profile.memory)
    return units * fixed + units * sms_ms / profile.sms + units * memory_ms / profile.memory
""",
        },
    ),
    "choose": Exercise(
        NOTEBOOK,
        "choose_verdict",
        {
            "what does not fit is cheap": ('row["fits"] and ', ""),
            "what is late is cheap": (' and row["hours"] <= due_h', ""),
            "off by one: in time is before it is due": (
                'row["hours"] <= due_h',
                'row["hours"] < due_h',
            ),
            "the fastest": ('row["price"]', 'row["hours"]'),
            "the dearest": ("min(able", "max(able"),
            "the first that is able": ('min(able, key=lambda row: row["price"])', "able[0]"),
            "the last that is able": ('min(able, key=lambda row: row["price"])', "able[-1]"),
            "nothing is None": ('else "none"', "else None"),
            "the row, not its shape": ('["shape"] if', " if"),
            "if none is able, the cheapest": (
                'if able else "none"',
                'if able else min(rows, key=lambda row: row["price"])["shape"]',
            ),
            "its price": ('["shape"]', '["price"]'),
        },
        {
            "a loop": """
def choose(rows, due_h):
    best = None
    for row in rows:
        if row["fits"] and not row["hours"] > due_h:
            if best is None or row["price"] < best["price"]:
                best = row
    return "none" if best is None else best["shape"]
""",
            "sorted": """
def choose(rows, due_h):
    for row in sorted(rows, key=lambda row: row["price"]):
        if row["fits"] and row["hours"] <= due_h:
            return row["shape"]
    return "none"
""",
            "pairs, and a default": """
def choose(rows, due_h):
    pairs = ((r["price"], r["shape"]) for r in rows if r["fits"] if r["hours"] <= due_h)
    return min(pairs, default=(0, "none"))[1]
""",
        },
    ),
    "on_ranks": Exercise(
        NOTEBOOK,
        "ranks_verdict",
        {
            "ranks are the speed-up": ("/ speed_up\n    return hours", "/ ranks\n    return hours"),
            "one rank holds a slice": (
                'row["slice_hours"] * ranks / speed_up',
                'row["slice_hours"] / speed_up',
            ),
            "slice-hours do not shrink": (
                'row["slice_hours"] * ranks / speed_up',
                'row["slice_hours"] * ranks',
            ),
            "slice-hours stay": ('row["slice_hours"] * ranks / speed_up', 'row["slice_hours"]'),
            "hours stay": ('hours = row["hours"] / speed_up', 'hours = row["hours"]'),
            "the speed-up multiplies": ('row["hours"] / speed_up', 'row["hours"] * speed_up'),
            "the other way round": (
                'return hours, row["slice_hours"] * ranks / speed_up',
                'return row["slice_hours"] * ranks / speed_up, hours',
            ),
            "hours for slice-hours": ('row["slice_hours"] * ranks', "hours * ranks"),
            "only the hours": (
                'return hours, row["slice_hours"] * ranks / speed_up',
                "return hours",
            ),
            "a rank too many": ("* ranks /", "* (ranks + 1) /"),
        },
        {
            "the efficiency": """
def on_ranks(row, ranks, speed_up):
    efficiency = speed_up / ranks
    return row["hours"] / speed_up, row["slice_hours"] / efficiency
""",
            "a list": "on_ranks = lambda row, n, s: [row['hours'] / s, n * row['slice_hours'] / s]",
            "unpacked": """
def on_ranks(row, ranks, speed_up):
    names, shares = ("hours", "slice_hours"), (1, ranks)
    return tuple(row[name] * share / speed_up for name, share in zip(names, shares))
""",
        },
    ),
}
