"""The claims of the course: what a check is, and what each tier should show.

A third of the claims that apply on a device are false there, so that no answer is always right; no
claim is an author's unless the notebook quotes it. Each has a twin, a world without the effect that
its title names, in which the same pipeline must not give the same verdict (`labkit controls`). What
an exercise already decides has no claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit import stats
from labkit.errors import NotMeasured
from labkit.evidence.evidence import NOT_APPLICABLE, Judgement
from labkit.evidence.relations import (
    Data,
    Relation,
    all_of,
    greater,
    hidden_share,
    less,
    near_ideal,
    ratio_in,
    values_in,
)
from labkit.records import Tier, Verdict

Expected = Mapping[Tier, Verdict | str]  # a verdict, or the reason why a tier cannot be asked
ALL_WORK_ALONE = "all ranks' work, by one alone"
ALL_WORK_TOGETHER = "all ranks' work, side by side"
CORE_SHARE = "share of a core"
LEAST_CORE_SHARE = 0.9  # less, and somebody else computes on it, too


SUPPORTED, CONTRADICTED = Verdict.SUPPORTED, Verdict.CONTRADICTED


def on_every_tier(verdict: Verdict) -> Expected:
    """Expect one verdict on every tier."""
    return dict.fromkeys(Tier, verdict)


def on_gpus(verdict: Verdict, cpu: Verdict | str) -> Expected:
    """Expect one verdict on every GPU tier, and another, or a reason not to ask, on the CPU."""
    return {**on_every_tier(verdict), Tier.CPU: cpu}


@dataclass(frozen=True)
class Check:
    """A relation to be measured.

    Attributes:
        says: the relation in words.
        expected: what each tier should show, by default that it holds; a tier may rightly expect
            the opposite.
        emulated: why an emulated slice cannot be asked; empty where it can.
        least_gain: how many times as much the ranks must get done side by side as one alone, in the
            same rounds, before the relation can be asked of CPU cores.
        instead: what is true where the claim is false; the number found stands in its braces.
    """

    says: str
    relation: Relation
    expected: Expected = field(default_factory=lambda: on_every_tier(SUPPORTED))
    emulated: str = ""
    least_gain: float = 0.0
    instead: str = ""

    def expects(self, tier: Tier, *, emulated: bool = False) -> Verdict | str:
        """What a tier should show, or why it cannot be asked."""
        return self.emulated if emulated and self.emulated else self.expected[tier]

    def judge(self, data: Data, tier: Tier, *, emulated: bool = False) -> Judgement:
        """Judge the measured series, and name what this tier should show.

        Raises:
            NotMeasured: a series is missing; the message says to measure first.
        """
        missing = [name for name in self.relation.needs if name not in data]
        if missing:
            raise NotMeasured(f"The claim needs {', '.join(missing)}: measure first")
        expected = self.expects(tier, emulated=emulated)
        if not isinstance(expected, Verdict):
            return Judgement(Verdict.UNDECIDED, expected, NOT_APPLICABLE)
        if self.least_gain and (busy_cores := explain_busy_cores(data, self.least_gain)):
            return Judgement(Verdict.UNDECIDED, busy_cores, NOT_APPLICABLE)
        outcome = self.relation.judge(data)
        reason = outcome.reason
        if outcome.verdict is Verdict.CONTRADICTED and self.instead and outcome.number is not None:
            reason = f"{self.instead.format(outcome.number)} ({reason})"
        return Judgement(outcome.verdict, reason, expected.value)


def explain_busy_cores(data: Data, least_gain: float) -> str:
    """Explain why the ranks had no core each; empty where they had, or had devices of their own.

    Args:
        data: with what one rank and all of them got done in the same rounds, on CPU cores.
        least_gain: how many times as much, by the lower end of the interval: cores that are free
            now and then decide nothing.
    """
    alone, together = data.get(ALL_WORK_ALONE, ()), data.get(ALL_WORK_TOGETHER, ())
    if not alone or not together:
        return ""
    if (share := stats.median(data[CORE_SHARE])) < LEAST_CORE_SHARE:
        return (
            f"a rank had {share:.0%} of a core while all of them worked, side by side: something "
            "else computes on this machine's cores, or there are fewer than ranks"
        )
    low, high = (float(bound) for bound in stats.interval(alone, together))
    if low >= least_gain:
        return ""
    return (
        f"before they sent anything, the ranks side by side got {low:.1f} to {high:.1f} times as "
        f"much done as one alone, which is not clearly {least_gain:g} times: a core is missing, "
        "busy, or half of another (a hyperthread)"
    )


EMULATED = (
    "an emulated slice has few SMs and little memory, but the whole GPU's bandwidth and cache"
)
NO_GPU = "this is a statement about GPUs, and a CPU cannot show it"
SHARED = "two ranks on one device take turns on it: what splitting gains needs a device for each"

CHECKS: dict[str, Check] = {
    # noise floor: wider than this, no ratio of a few percent can be measured now
    "T-1": Check(
        "The same function against itself differs by less than 5 %",
        ratio_in("first", "second", (0.95, 1.05)),
    ),
    # an unsynchronised timer reads 9 to 110 times too fast (H200, n = 4096 and 8192)
    "T-2": Check(
        "A timer that does not wait reads less than half of the true time",
        less("unwaited", "waited", 0.5),
        on_gpus(SUPPORTED, "on the CPU a call returns when it is done"),
    ),
    # a bound must have two sides: an unsynchronised timer is too fast
    "T-3": Check(
        "Your own timer agrees with labkit's to 10 %, in both directions",
        ratio_in("own", "labkit", (0.9, 1.1)),
    ),
    # roofline: right of the ridge the rate is flat; 20 to 75 times for 256 to 4096
    "T-4": Check(
        "The rate grows with the intensity all the way: from axpy to matmul, it gains as "
        "much as the operations per byte do",
        greater("matmul rate", "axpy rate as far up"),
        on_every_tier(CONTRADICTED),
        instead="the rate grew {:.3g} times as much as the operations per byte did: right of "
        "the ridge the roof is flat",
    ),
    # small kernels end before Python has launched the next; a CPU's operators are the work
    "T-6": Check(
        "In the small batch's step, something computes for less than a third of the "
        "share of the time that it does in the big batch's",
        less("small batch's busy share", "big batch's busy share", 1 / 3),
        on_gpus(SUPPORTED, CONTRADICTED),
        instead="the small batch's share is {:.2f} of the big one's",
    ),
    # its roof falls with its SMs and its slant less: 16 of 132 SMs of an H200 reach 28 %
    "T-7": Check(
        "A part's ridge in fp32 lies at most at two thirds of the whole's",
        less("the part's ridge", "the whole's ridge", 2 / 3),
        on_gpus(SUPPORTED, NO_GPU),
        emulated=EMULATED,
    ),
    # CERN 152-159 GFLOP/s per SM over five sizes, Habr 155-171; fp32 only
    "MIG-1": Check(
        "fp32 matmul per SM is the same on a small part as on a big one, to 10 %",
        ratio_in("small per SM", "big per SM", (0.9, 1.1)),
        on_gpus(SUPPORTED, NO_GPU),
    ),
    # a few of a whole GPU's SMs use its wide memory: 16 of 132 of an H200 reach 29 %; a slice's
    # SMs are no more than its memory feeds (8 of 16 took 1.91 times as long)
    "MIG-3": Check(
        "A small part's share of the bandwidth exceeds its share of the SMs by half or more",
        greater("bandwidth share", "SM share", 1.5),
        {**on_gpus(SUPPORTED, NO_GPU), Tier.SLICE: CONTRADICTED},
        emulated=EMULATED,
        instead="its share of the bandwidth is {:.2f} times its share of the SMs",
    ),
    # CERN on half the slice: simpletrack 1.97, training 1.87-1.94; here as a CUDA graph
    "MIG-5": Check(
        "A step takes longer on a part of the SMs, at most in proportion to them, plus 10 %",
        all_of(greater("part", "whole"), less("part, in proportion", "whole", 1.1)),
        on_gpus(SUPPORTED, NO_GPU),
    ),
    # NVIDIA: 149.54 to 147.49 sentences/s (-1.4 %) on slices; time sharing takes multiples
    "MIG-6": Check(
        "With busy neighbours a call takes at most 5 % longer",
        ratio_in("crowded", "alone", (0.95, 1.05)),
        {
            **on_gpus(SUPPORTED, "neighbours on CPU cores are no slices"),
            Tier.WHOLE_GPU: CONTRADICTED,
            Tier.SEVERAL_GPUS: CONTRADICTED,
            Tier.SLICE: "copies inside one slice share it by time, and MIG isolates slices: "
            "the recorded run and two slices can show it",
        },
        emulated=EMULATED,
        instead="with its neighbours at work a call takes {:.2f} times as long",
    ),
    # NVIDIA: 1.87 times with slices, 1.26 times sharing by time; CUDA graphs, margin 5 %
    "MIG-7": Check(
        "Seven small copies together do more than one after another",
        greater("together", "in turn"),
        {
            **on_gpus(SUPPORTED, "copies on CPU cores say nothing about a GPU"),
            Tier.SLICE: "one copy as a CUDA graph fills a small slice (two on 16 SMs of an H200 "
            "did 0.93 times its work); the recorded run on a whole GPU can show it",
        },
    ),
    # requests come at random; a batch must fill before it is answered
    "MIG-14": Check(
        "At the same rate of requests, a request waits longer where answers come in the "
        "biggest batch",
        greater("a request, biggest batch", "a request, batch 1"),
    ),
    # CERN: tensor over fp32 9.8 to 14.9 times; no direction is promised on a CPU
    "MX-2": Check(
        "A bf16 matmul is at least twice as fast as fp32",
        greater("fp32 time", "bf16 time", 2.0),
        on_gpus(SUPPORTED, "it depends on AMX or AVX512-BF16, and no direction is promised"),
    ),
    # at 2^-10 every gradient is zero, so the error is 1; at 2^10 it is about a thousandth
    "MX-5": Check(
        "Multiplying the loss by a small number (2^-10) leaves fp16's gradients nearer to the "
        "true ones than multiplying it by a big one (2^10)",
        values_in("error at 2^-10 over that at 2^10", high=1),
        on_every_tier(CONTRADICTED),
        instead="the error at 2^-10 is {:.3g} times as large as at 2^10",
    ),
    # autocast also keeps a 16-bit copy of every weight: 1.18 and 1.36 times, by width
    "MX-9": Check(
        "AMP shrinks what is kept for the backward pass as much as pure bf16 does, to 5 %",
        values_in("kept with AMP over pure bf16", 0.95, 1.05),
        on_every_tier(CONTRADICTED),
        instead="AMP keeps {:.2f} times as much: its 16-bit copies of the weights come on top",
    ),
    # the weights and Adam stay in fp32; the seeds themselves differ by about as much
    "MX-12": Check(
        "With bf16 the model ends within 2 % of the bits per byte that it has with fp32",
        values_in("bits of bf16 over fp32", 0.98, 1.02),
    ),
    # Adam divides by the size of past gradients, in which a constant factor cancels
    "DP-12": Check(
        "Added gradients spoil the training with both: SGD at a rate of 0.4 and Adam at 0.1 "
        "end with at least 1.5 times the loss",
        all_of(
            values_in("loss with Adam, added over averaged, at the end", 1.5),
            values_in("loss with SGD, added over averaged, at the end", 1.5),
        ),
        on_every_tier(CONTRADICTED),
        instead="with Adam, the run that adds ends with {:.3g} times the loss",
    ),
    # t = alpha + S/beta: below about 1 MB the start-up decides
    "DP-2": Check(
        "Small messages cost what their bytes say: half a megabyte takes at least 30 times as "
        "long as 8 kB, a sixtieth of it",
        greater("0.5 MB", "0.008 MB", 30.0),
        on_every_tier(CONTRADICTED),
        instead="it takes {:.3g} times as long: the start-up decides at both sizes",
    ),
    # T = a + b/n; where a half fits a cache, two CPU ranks were up to 2.5 times as fast
    "DP-3": Check(
        "Two ranks are faster than one",
        greater("one rank", "two ranks"),
        least_gain=1.5,
    ),
    # the same step with an all-reduce of one number in its place, in turns
    "DP-4": Check(
        "With the small batch, sending the gradient's bytes makes a step at least 10 % longer",
        greater("the whole gradient", "one number", 1.1),
    ),
    # four buckets, the first after a quarter; waiting for a core is nothing they can hide
    "DP-6": Check(
        "On the simulated network, buckets hide at least a third of what flat's message costs",
        hidden_share("flat", "buckets", "no sync", 1 / 3),
        least_gain=1.0,
    ),
    # the mean of two halves' gradients is the whole batch's: only rounding differs
    "DP-13": Check(
        "With the same batches, two ranks end with at least 2 % more bits per byte than one",
        values_in("bits of two ranks over one rank", 1.02),
        on_every_tier(CONTRADICTED),
        instead="two ranks end with {:.3f} times the bits per byte: they take the same steps",
    ),
    # an all-reduce has a start-up time, and few tokens are soon computed
    "MP-3": Check(
        "Splitting the pair pays with the most tokens, and does not with the fewest",
        all_of(
            greater("most tokens, whole", "most tokens, split"),
            less("fewest tokens, whole", "fewest tokens, split"),
        ),
        {**on_every_tier(SUPPORTED), Tier.SLICE: SHARED, Tier.WHOLE_GPU: SHARED},
        least_gain=1.5,
    ),
    # ideal: (m + stages - 1) times the slowest stage's time at that micro-batch, alone
    "MP-6": Check(
        "With the best number of micro-batches, a pipeline takes at most 1.25 times its ideal",
        near_ideal("the best", "its ideal", 1.25),
        least_gain=1.5,
    ),
    # T = a + b/s, so s T = a s + b; 811 and 1,360 SM ms on 16 and 132 SMs of an H200, and 1.06
    # times on 16 of 16 over 8
    "CH-1": Check(
        "A step costs the same SMs x time on a part as on all, to 10 %",
        ratio_in("all: SMs x time", "a part: SMs x time", (0.9, 1.1)),
        {**on_gpus(CONTRADICTED, NO_GPU), Tier.SLICE: SUPPORTED},
        instead="all of it costs {:.2f} times the SMs x time of the smallest part",
    ),
    # weights, gradients and Adam's state do not grow; an H200: 1008 to 5310 MiB for 16 x
    "CH-2": Check(
        "A bigger batch needs at least 1.1 times the memory, but less than in proportion",
        all_of(
            values_in("memory, biggest over smallest batch", 1.1),
            values_in("memory a sample, biggest over smallest batch", high=1),
        ),
    ),
    # a small batch leaves SMs idle; an H200: 0.28 to 0.13 ms a sample
    "CH-3": Check(
        "In the biggest batch a sample takes less time than in the smallest",
        less("biggest batch, a sample", "smallest batch, a sample"),
    ),
}
