"""The checks of the experiments: every core experiment of a notebook has one, and some others.

A table: the relation in words and in code, the band's source, and what each tier should show. In
its twin's world (`labkit.authoring.twins`) every one of them must come out the other way.
"""

from __future__ import annotations

from labkit.evidence.check import Check, NotApplicable, everywhere, on_gpus
from labkit.evidence.relations import AllOf, Exactly, RatioIn, dips, greater, less
from labkit.records import Tier, Verdict

SUPPORTED, CONTRADICTED = Verdict.SUPPORTED, Verdict.CONTRADICTED

EMULATED = NotApplicable(
    "an emulated slice has few SMs and little memory, but the whole GPU's bandwidth and cache"
)
NO_GPU = NotApplicable("this is a statement about GPUs, and a CPU cannot show it")


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
            "Work with many operations per byte runs at five times the rate of work with few",
            greater("matmul rate", "axpy rate", 5.0),
            "roofline: left of the ridge memory decides; an H200 gave 0.7 and 786 TFLOP/s",
            everywhere(SUPPORTED),
        ),
        Check(
            "T-6",
            "You read the traces as labkit does: what overlaps counts once",
            AllOf(
                tuple(
                    Exactly(
                        f"{name}, your share less labkit's",
                        "0 to a millionth of a percent",
                        lambda value: abs(value) <= 1e-6,
                    )
                    for name in ("computing", "computing or launching")
                )
            ),
            "exact: the same spans, read by your code and by labkit's",
            everywhere(SUPPORTED),
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
            "16 of 132 SMs of an H200 reach 28 % (12 % of SMs), within a slice as within a GPU",
            on_gpus(SUPPORTED, NO_GPU),
            emulated=EMULATED,
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
            "MIG-12",
            "No packing of one GPU strands fewer SMs than seven 1g.5gb",
            Exactly("SMs used by the best packing", "98", lambda value: value == 98),
            "profile table: 7 x 14 of 98 SMs",
            everywhere(SUPPORTED),
        ),
        Check(
            "MIG-14",
            "In the biggest batch a request waits longer, and more sequences are answered",
            AllOf(
                (
                    greater("biggest batch, a request", "batch 1, a request"),
                    less("biggest batch, a sequence", "batch 1, a request"),
                )
            ),
            "one sequence leaves SMs idle, as in CH-3; NVIDIA serves BERT in batches",
            everywhere(SUPPORTED),
        ),
        Check(
            "MIG-11",
            "A request takes longer on the smallest part, but less than in proportion to its SMs",
            AllOf((greater("part", "whole"), less("part, in proportion", "whole"))),
            "NVIDIA: 1.73 times as long on a seventh of an A100; here as a CUDA graph",
            {
                **on_gpus(SUPPORTED, NO_GPU),
                Tier.SLICE: NotApplicable(
                    "a request may fill the parts of a small slice; the recorded run on a whole "
                    "GPU can show what cutting gains"
                ),
            },
        ),
        Check(
            "MX-1",
            "The largest fp16 number is 65504",
            Exactly("largest fp16", "65504", lambda value: value == 65504),
            "IEEE 754 binary16",
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
            "A big loss scale loses fewer gradients to zero than a small one",
            AllOf(
                (
                    Exactly("zeros at 2^10, %", "below 10", lambda value: value < 10),
                    Exactly("zeros at 2^-10, %", "above 50", lambda value: value > 50),
                )
            ),
            "measured on a small MLP: 100 % at 2^-10, 69.8 % at 1, 0 % at 2^10; refutes E9",
            everywhere(SUPPORTED),
        ),
        Check(
            "MX-7",
            "Your scale is GradScaler's at every step, and it falls until nothing overflows",
            AllOf(
                (
                    Exactly("your scale over PyTorch's", "1", lambda value: value == 1),
                    Exactly("last scale over the first", "below 1", lambda value: value < 1),
                )
            ),
            "the rules are PyTorch's: half at an inf, twice after so many good steps",
            everywhere(SUPPORTED),
        ),
        Check(
            "MX-9",
            "AMP halves what is kept for the backward pass; the weights do not shrink",
            AllOf(
                (
                    Exactly(
                        "kept with AMP over fp32",
                        "between 0.45 and 0.6",
                        lambda value: 0.45 <= value <= 0.6,
                    ),
                    Exactly("weights with AMP over fp32", "1", lambda value: value == 1),
                )
            ),
            "counted bytes; the peak of a step also holds weights, gradients and temporaries",
            everywhere(SUPPORTED),
        ),
        Check(
            "DP-1",
            "k ranks on B/k samples get the gradient of one rank on B, to 1e-5",
            Exactly("relative difference", "at most 1e-5", lambda value: value <= 1e-5),
            "the gradient of a mean is the mean of the gradients",
            everywhere(SUPPORTED),
        ),
        Check(
            "DP-12",
            "Added gradients spoil a training with SGD, and leave one with Adam as it was",
            AllOf(
                (
                    Exactly(
                        "loss with SGD, added over averaged, at the end",
                        "at least 2",
                        lambda value: value >= 2,
                    ),
                    Exactly(
                        "loss with Adam, added over averaged",
                        "between 0.95 and 1.05",
                        lambda value: 0.95 <= value <= 1.05,
                    ),
                )
            ),
            "Adam divides by the size of past gradients, in which a constant factor cancels",
            everywhere(SUPPORTED),
        ),
        Check(
            "DP-2",
            "Four times the bytes take at least twice as long to reduce, where bandwidth decides",
            greater("four times", "bytes", 2.0),
            "t = alpha + S/beta: linear above about 1 MB on slow links, above 64 MB on NVLink",
            everywhere(SUPPORTED),
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
            "At a small batch two ranks are slower than one",
            less("one rank", "two ranks"),
            "2 CPU cores: 0.46 times at batch 64, 1.57 times at 4096; no promise with a fast link",
            {
                **everywhere(SUPPORTED),
                Tier.SEVERAL_GPUS: NotApplicable(
                    "NVLink may be fast enough even for a small batch"
                ),
            },
        ),
        Check(
            "DP-5",
            "A ring all-reduce sends 2(n-1)/n of the bytes per rank",
            Exactly("bytes over 2(n-1)/n S", "1", lambda value: abs(value - 1) < 1e-9),
            "counted; E10",
            everywhere(SUPPORTED),
        ),
        Check(
            "DP-6",
            "Per tensor, flat and in buckets the gradients are DDP's; only buckets leave early",
            AllOf(
                (
                    Exactly(
                        "difference from DDP's gradients",
                        "at most 1e-5",
                        lambda value: value <= 1e-5,
                    ),
                    Exactly(
                        "flat all-reduces before the backward pass is over",
                        "0",
                        lambda value: value == 0,
                    ),
                    Exactly(
                        "buckets that leave before it is over",
                        "at least 1",
                        lambda value: value >= 1,
                    ),
                )
            ),
            "counted; what it gains is the clock's to say, and a CPU may gain nothing",
            everywhere(SUPPORTED),
        ),
        Check(
            "MP-1",
            "A split matmul gives the whole one, to 1e-5",
            Exactly("relative difference", "at most 1e-5", lambda value: value <= 1e-5),
            "blockwise matrix product",
            everywhere(SUPPORTED),
        ),
        Check(
            "MP-3",
            "The split pair gives the whole one's output and gradient, with one exchange each way",
            AllOf(
                (
                    Exactly(
                        "difference of output and input's gradient",
                        "at most 1e-5",
                        lambda value: value <= 1e-5,
                    ),
                    Exactly(
                        "numbers reduced in a step, over tokens times width",
                        "2",
                        lambda value: value == 2,
                    ),
                )
            ),
            "counted; columns then rows: the output forward, the input's gradient backward",
            everywhere(SUPPORTED),
        ),
        Check(
            "MP-2",
            "Model parallelism sends as much as data parallelism at batch 500 (row split)",
            Exactly("crossover batch", "500", lambda value: value == 500),
            "1000 B = 500,000; E11",
            everywhere(SUPPORTED),
        ),
        Check(
            "MP-10",
            "The ledger agrees with the count; ZeRO-1 halves the optimizer state on two ranks",
            AllOf(
                (
                    Exactly(
                        "predicted over counted",
                        "1, to a thousandth",
                        lambda value: abs(value - 1) <= 1e-3,
                    ),
                    Exactly(
                        "optimiser's state of two ranks over one's",
                        "one half",
                        lambda value: abs(value - 0.5) <= 1e-3,
                    ),
                    Exactly(
                        "activations of a quarter of the rows",
                        "one quarter",
                        lambda value: abs(value - 0.25) <= 1e-3,
                    ),
                )
            ),
            "counted bytes: 16 a parameter with Adam in fp32, and what the backward pass needs",
            everywhere(SUPPORTED),
        ),
        Check(
            "MP-6",
            "Pipeline time against micro-batches is a U",
            dips("1 micro-batch", "the best", "the lowest", "the most"),
            "2 CPU stages: 83.7, 51.9, 48.9, 46.9, 57.5 ms for 1 to 16",
            everywhere(SUPPORTED),
            least_gain=1.5,
        ),
        Check(
            "CH-1",
            "More SMs make a step shorter, but cost more: SMs x time rises",
            AllOf((less("all", "a part"), greater("all: SMs x time", "a part: SMs x time"))),
            "Amdahl: T = a + b/s, so s T = a s + b; an H200 gave 792 and 1507 SM ms",
            on_gpus(SUPPORTED, NotApplicable("a CPU's threads are no SMs: they may share a core")),
        ),
        Check(
            "CH-2",
            "A bigger batch needs more memory, but less than in proportion",
            AllOf(
                (
                    Exactly(
                        "memory, biggest over smallest batch",
                        "at least 1",
                        lambda value: value >= 1,
                    ),
                    Exactly(
                        "memory a sample, biggest over smallest batch",
                        "below 1",
                        lambda value: value < 1,
                    ),
                )
            ),
            "weights, gradients and Adam's state do not grow; an H200: 1068 to 6700 MiB for 16 x",
            everywhere(SUPPORTED),
        ),
        Check(
            "CH-3",
            "In the biggest batch a sample takes less time than in the smallest",
            less("biggest batch, a sample", "smallest batch, a sample"),
            "a small batch leaves SMs idle; an H200: 0.77 to 0.13 ms a sample",
            everywhere(SUPPORTED),
        ),
    )
}
