"""Tries labkit on a machine with a GPU, without a notebook.

`PYTHONPATH=notebooks python3 notebooks/rehearse_on_gpu.py report.json` prints one JSON line a part
and writes the whole to the file. Needs torch and numpy only. Exit status 0 when every part gave
what was expected of it.
"""

import json
import sys
import traceback
from pathlib import Path

import labkit
from labkit import errors
from labkit.evidence import checks
from labkit.measuring import sharing
from labkit.records import to_data


def matmul(size=4096, dtype="bfloat16"):
    import torch

    a, b = (torch.randn(size, size, device="cuda", dtype=getattr(torch, dtype)) for _ in range(2))
    return lambda: a @ b


def copy(elements=1 << 28):
    import torch

    source = torch.ones(elements, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def too_much():
    import torch

    return torch.empty(1 << 45, device="cuda", dtype=torch.uint8)


def reduces(elements=1 << 24):
    import torch
    import torch.distributed as dist

    payload = torch.ones(elements, device="cuda")
    return lambda: dist.all_reduce(payload)


def place():
    found = labkit.where()
    assert found.devices[0].backend == "cuda", found
    return found


def timing():
    found = labkit.measure(matmul, flops=2 * 4096**3, dtype="bfloat16", samples=40)
    assert found.clock == "cuda events" and found.cold, found
    assert 0 < found.median_s < 1, found
    return found


def same_against_itself():
    found = labkit.compare(matmul, matmul, band=(0.97, 1.03))
    assert found.verdict is not labkit.Verdict.CONTRADICTED, str(found)
    return found


def memory_is_full():
    try:
        labkit.peak(too_much)
    except errors.OutOfMemory as error:
        return str(error)
    raise AssertionError("nothing was raised")


def sharing_ways():
    return [sharing.probe(way) for way in sharing.Way]


def partitions():
    """fp32 per SM and bandwidth of partitions: the samples of MIG-1 and MIG-3."""
    rows = {}
    for sms in (16, 32, 64):
        found = {
            name: sharing.share(
                function, "SM partitions", copies=1, sms_per_copy=sms, seconds=1.0, **given
            )
            for name, function, given in (
                ("fp32", matmul, {"dtype": "float32"}),
                ("bf16", matmul, {}),
                ("copy", copy, {}),
            )
        }
        rows[str(sms)] = {name: [one.total_per_s, one.sms[0]] for name, one in found.items()}
    return rows


def seven_copies():
    ways = ("time sharing", "MPS")
    return {way: sharing.share(matmul, way, copies=7, seconds=3.0, size=1024) for way in ways}


def several_ranks():
    gpus = len(labkit.where().devices)
    if gpus < 2:
        return "one GPU only"
    return labkit.ranks(reduces, n=2, samples=20)


def backward_stays_on_its_part():
    """A backward pass keeps to its part, though autograd has threads of its own."""
    found = labkit.ranks(sms_of_backward, n=1, sms=16).values[0]
    assert max(found.values()) <= 16, found
    return found


def sms_of_backward(sms):
    import torch

    from labkit.machine.emulate import count_sms, enter_green_context
    from labkit.machine.parts import confined

    seen = []

    class CountedBackward(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            seen.append(count_sms(torch))
            return gradient

    x = torch.ones(1, device="cuda", requires_grad=True)

    def step():
        CountedBackward.apply(x).sum().backward()

    confined(step, sms)()
    enter_green_context(torch, sms)
    step()
    return dict(zip(("a part", "the whole child"), seen, strict=True))


def timer_that_does_not_wait():
    """The wrong timer of exercise 0, against the right one."""
    found = labkit.ranks(unwaited, n=1).values[0]
    judged = checks.CHECKS["T-2"].judge(found, labkit.Tier.WHOLE_GPU)
    assert judged.verdict is labkit.Verdict.SUPPORTED, judged
    return judged


def unwaited():
    import time

    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    a @ a
    torch.cuda.synchronize()
    times = {"unwaited": [], "waited": []}
    for _ in range(40):
        begun = time.perf_counter()
        a @ a
        times["unwaited"].append(time.perf_counter() - begun)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        a @ a
        torch.cuda.synchronize()
        times["waited"].append(time.perf_counter() - begun)
    return times


PARTS = (
    place,
    timing,
    same_against_itself,
    memory_is_full,
    timer_that_does_not_wait,
    sharing_ways,
    partitions,
    backward_stays_on_its_part,
    seven_copies,
    several_ranks,
)


def main():
    report, failed = {}, []
    for part in PARTS:
        try:
            report[part.__name__] = to_data(part())
        except Exception as error:  # outermost frame: one broken part must not hide the others
            failed.append(part.__name__)
            details = getattr(error, "details", "") or traceback.format_exc()
            report[part.__name__] = {"failed": str(error), "details": details[-1500:]}
        print(json.dumps({part.__name__: report[part.__name__]})[:2000], flush=True)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1))
    print(json.dumps({"failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
