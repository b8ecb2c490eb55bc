"""The claims of the course: the relation, what it rests on, and what each tier should show.

A third of the claims that apply on a device are false there, so that no answer is always right; no
claim is an author's unless the notebook quotes it. In its twin's world (`labkit_authoring.twins`)
the effect that a title names is absent, and the verdict must notice. What an exercise already
decides has no claim.
"""

from __future__ import annotations

from labkit.evidence.check import Check, NotApplicable, everywhere, on_gpus
from labkit.evidence.relations import (
    AllOf,
    Exactly,
    HiddenShare,
    NearIdeal,
    RatioIn,
    greater,
    less,
)
from labkit.records import Tier, Verdict

SUPPORTED, CONTRADICTED = Verdict.SUPPORTED, Verdict.CONTRADICTED

EMULATED = NotApplicable(
    "an emulated slice has few SMs and little memory, but the whole GPU's bandwidth and cache"
)
NO_GPU = NotApplicable("this is a statement about GPUs, and a CPU cannot show it")
SHARED = NotApplicable(
    "two ranks on one device take turns on it: what splitting gains needs a device for each"
)


CHECKS: dict[str, Check] = {
    check.key: check
    for check in (
        Check(
            "T-1",
            "The same function against itself differs by less than 5 %",
            RatioIn("first", "second", (0.95, 1.05)),
            "noise floor: wider than this, no ratio of a few percent can be measured now",
            everywhere(SUPPORTED),
        ),
        Check(
            "T-2",
            "A timer that does not wait reads less than half of the true time",
            less("unwaited", "waited", 0.5),
            "an unsynchronised timer reads 9 to 110 times too fast (H200, n = 4096 and 8192)",
            on_gpus(SUPPORTED, NotApplicable("on the CPU a call returns when it is done")),
        ),
        Check(
            "T-3",
            "Your own timer agrees with labkit's to 10 %, in both directions",
            RatioIn("own", "labkit", (0.9, 1.1)),
            "a bound must have two sides: an unsynchronised timer is too fast",
            everywhere(SUPPORTED),
        ),
        Check(
            "T-4",
            "The rate grows with the intensity all the way: from axpy to matmul, it gains as "
            "much as the operations per byte do",
            greater("matmul rate", "axpy rate as far up"),
            "roofline: right of the ridge the rate is flat; 20 to 75 times for 256 to 4096",
            everywhere(CONTRADICTED),
            instead="the rate grew {:.3g} times as much as the operations per byte did: right of "
            "the ridge the roof is flat",
        ),
        Check(
            "T-6",
            "In the small batch's step, something computes for less than a third of the "
            "share of the time that it does in the big batch's",
            less("small batch's busy share", "big batch's busy share", 1 / 3),
            "small kernels end before Python has launched the next; a CPU's operators are the work",
            on_gpus(SUPPORTED, CONTRADICTED),
            instead="the small batch's share is {:.2f} of the big one's",
        ),
        Check(
            "T-7",
            "A part's ridge in fp32 lies at most at two thirds of the whole's",
            less("the part's ridge", "the whole's ridge", 2 / 3),
            "its roof falls with its SMs and its slant less: 16 of 132 SMs of an H200 reach 28 %",
            on_gpus(SUPPORTED, NO_GPU),
            emulated=EMULATED,
        ),
        Check(
            "MIG-1",
            "fp32 matmul per SM is the same on a small part as on a big one, to 10 %",
            RatioIn("small per SM", "big per SM", (0.9, 1.1)),
            "CERN 152-159 GFLOP/s per SM over five sizes, Habr 155-171; fp32 only",
            on_gpus(SUPPORTED, NO_GPU),
        ),
        Check(
            "MIG-3",
            "A small part's share of the bandwidth exceeds its share of the SMs by half or more",
            greater("bandwidth share", "SM share", 1.5),
            "a few of a whole GPU's SMs use its wide memory: 16 of 132 of an H200 reach 29 %; a "
            "slice's SMs are no more than its memory feeds (8 of 16 took 1.91 times as long)",
            {**on_gpus(SUPPORTED, NO_GPU), Tier.SLICE: CONTRADICTED},
            emulated=EMULATED,
            instead="its share of the bandwidth is {:.2f} times its share of the SMs",
        ),
        Check(
            "MIG-5",
            "A step takes longer on a part of the SMs, at most in proportion to them, plus 10 %",
            AllOf((greater("part", "whole"), less("part, in proportion", "whole", 1.1))),
            "CERN on half the slice: simpletrack 1.97, training 1.87-1.94; here as a CUDA graph",
            on_gpus(SUPPORTED, NO_GPU),
        ),
        Check(
            "MIG-6",
            "With busy neighbours a call takes at most 5 % longer",
            RatioIn("crowded", "alone", (0.95, 1.05)),
            "NVIDIA: 149.54 to 147.49 sentences/s (-1.4 %) on slices; time sharing takes multiples",
            {
                **on_gpus(SUPPORTED, NotApplicable("neighbours on CPU cores are no slices")),
                Tier.WHOLE_GPU: CONTRADICTED,
                Tier.SEVERAL_GPUS: CONTRADICTED,
                Tier.SLICE: NotApplicable(
                    "copies inside one slice share that slice by time, and MIG isolates slices; "
                    "the recorded run and two slices can show it"
                ),
            },
            emulated=EMULATED,
            instead="with its neighbours at work a call takes {:.2f} times as long",
        ),
        Check(
            "MIG-7",
            "Seven small copies together do more than one after another",
            greater("together", "in turn"),
            "NVIDIA: 1.87 times with slices, 1.26 times sharing by time; CUDA graphs, margin 5 %",
            {
                **on_gpus(SUPPORTED, NotApplicable("copies on CPU cores say nothing about a GPU")),
                Tier.SLICE: NotApplicable(
                    "one copy as a CUDA graph fills a small slice (two on 16 SMs of an H200 did "
                    "0.93 times its work); the recorded run on a whole GPU can show it"
                ),
            },
        ),
        Check(
            "MIG-14",
            "At the same rate of requests, a request waits longer where answers come in the "
            "biggest batch",
            greater("a request, biggest batch", "a request, batch 1"),
            "requests come at random; a batch must fill before it is answered",
            everywhere(SUPPORTED),
        ),
        Check(
            "MX-2",
            "A bf16 matmul is at least twice as fast as fp32",
            greater("fp32 time", "bf16 time", 2.0),
            "CERN: tensor over fp32 9.8 to 14.9 times; no direction is promised on a CPU",
            on_gpus(
                SUPPORTED,
                NotApplicable("it depends on AMX or AVX512-BF16, and no direction is promised"),
            ),
        ),
        Check(
            "MX-5",
            "Multiplying the loss by a small number (2^-10) leaves fp16's gradients nearer to the "
            "true ones than multiplying it by a big one (2^10)",
            Exactly("error at 2^-10 over that at 2^10", "below 1", lambda value: value < 1),
            "at 2^-10 every gradient is zero, so the error is 1; at 2^10 it is about a thousandth",
            everywhere(CONTRADICTED),
            instead="the error at 2^-10 is {:.3g} times as large as at 2^10",
        ),
        Check(
            "MX-9",
            "AMP shrinks what is kept for the backward pass as much as pure bf16 does, to 5 %",
            Exactly(
                "kept with AMP over pure bf16",
                "between 0.95 and 1.05",
                lambda value: 0.95 <= value <= 1.05,
            ),
            "autocast also keeps a 16-bit copy of every weight: 1.18 and 1.36 times, by width",
            everywhere(CONTRADICTED),
            instead="AMP keeps {:.2f} times as much: its 16-bit copies of the weights come on top",
        ),
        Check(
            "MX-12",
            "With bf16 the model ends within 2 % of the bits per byte that it has with fp32",
            Exactly("bits of bf16 over fp32", "0.98 to 1.02", lambda value: 0.98 <= value <= 1.02),
            "the weights and Adam stay in fp32; the seeds themselves differ by about as much",
            everywhere(SUPPORTED),
        ),
        Check(
            "DP-12",
            "Added gradients spoil the training with both: SGD at a rate of 0.4 and Adam at 0.1 "
            "end with at least 1.5 times the loss",
            AllOf(
                tuple(
                    Exactly(
                        f"loss with {name}, added over averaged, at the end",
                        "at least 1.5",
                        lambda value: value >= 1.5,
                    )
                    for name in ("Adam", "SGD")
                )
            ),
            "Adam divides by the size of past gradients, in which a constant factor cancels",
            everywhere(CONTRADICTED),
            instead="with Adam, the run that adds ends with {:.3g} times the loss",
        ),
        Check(
            "DP-2",
            "Small messages cost what their bytes say: half a megabyte takes at least 30 times as "
            "long as 8 kB, a sixtieth of it",
            greater("0.5 MB", "0.008 MB", 30.0),
            "t = alpha + S/beta: below about 1 MB the start-up decides",
            everywhere(CONTRADICTED),
            instead="it takes {:.3g} times as long: the start-up decides at both sizes",
        ),
        Check(
            "DP-3",
            "Two ranks are faster than one",
            greater("one rank", "two ranks"),
            "T = a + b/n; where a half fits a cache, two CPU ranks were up to 2.5 times as fast",
            everywhere(SUPPORTED),
            least_gain=1.5,
        ),
        Check(
            "DP-4",
            "With the small batch, sending the gradient's bytes makes a step at least 10 % longer",
            greater("the whole gradient", "one number", 1.1),
            "the same step with an all-reduce of one number in its place, in turns",
            everywhere(SUPPORTED),
        ),
        Check(
            "DP-6",
            "On the simulated network, buckets hide at least a third of what flat's message costs",
            HiddenShare("flat", "buckets", "no sync", 1 / 3),
            "four buckets, the first after a quarter; waiting for a core is nothing they can hide",
            everywhere(SUPPORTED),
            least_gain=1.0,
        ),
        Check(
            "DP-13",
            "With the same batches, two ranks end with at least 2 % more bits per byte than one",
            Exactly(
                "bits of two ranks over one rank", "at least 1.02", lambda value: value >= 1.02
            ),
            "the mean of two halves' gradients is the whole batch's: only rounding differs",
            everywhere(CONTRADICTED),
            instead="two ranks end with {:.3f} times the bits per byte: they take the same steps",
        ),
        Check(
            "MP-3",
            "Splitting the pair pays with the most tokens, and does not with the fewest",
            AllOf(
                (
                    greater("most tokens, whole", "most tokens, split"),
                    less("fewest tokens, whole", "fewest tokens, split"),
                )
            ),
            "an all-reduce has a start-up time, and few tokens are soon computed",
            {**everywhere(SUPPORTED), Tier.SLICE: SHARED, Tier.WHOLE_GPU: SHARED},
            least_gain=1.5,
        ),
        Check(
            "MP-6",
            "With the best number of micro-batches, a pipeline takes at most 1.25 times its ideal",
            NearIdeal("the best", "its ideal", 1.25),
            "ideal: (m + stages - 1) times the slowest stage's time at that micro-batch, alone",
            everywhere(SUPPORTED),
            least_gain=1.5,
        ),
        Check(
            "CH-1",
            "A step costs the same SMs x time on a part as on all, to 10 %",
            RatioIn("all: SMs x time", "a part: SMs x time", (0.9, 1.1)),
            "T = a + b/s, so s T = a s + b; 811 and 1,360 SM ms on 16 and 132 SMs of an H200, and "
            "1.06 times on 16 of 16 over 8",
            {**on_gpus(CONTRADICTED, NO_GPU), Tier.SLICE: SUPPORTED},
            instead="all of it costs {:.2f} times the SMs x time of the smallest part",
        ),
        Check(
            "CH-2",
            "A bigger batch needs at least 1.1 times the memory, but less than in proportion",
            AllOf(
                (
                    Exactly(
                        "memory, biggest over smallest batch",
                        "at least 1.1",
                        lambda value: value >= 1.1,
                    ),
                    Exactly(
                        "memory a sample, biggest over smallest batch",
                        "below 1",
                        lambda value: value < 1,
                    ),
                )
            ),
            "weights, gradients and Adam's state do not grow; an H200: 1008 to 5310 MiB for 16 x",
            everywhere(SUPPORTED),
        ),
        Check(
            "CH-3",
            "In the biggest batch a sample takes less time than in the smallest",
            less("biggest batch, a sample", "smallest batch, a sample"),
            "a small batch leaves SMs idle; an H200: 0.28 to 0.13 ms a sample",
            everywhere(SUPPORTED),
        ),
    )
}
