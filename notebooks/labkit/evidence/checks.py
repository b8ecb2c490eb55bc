"""The claims of the course, and what each tier should show.

A third of the relations do not hold on a device; each claim has two wordings, of which one is the
opposite of the other, and a student gets one of them: no answer is right for everybody. No claim is
an author's unless the notebook quotes it. Each has broken worlds, without the effect that its title
names and with the opposite one, in which the same pipeline must say so (`labkit controls`). What an
exercise already decides has no claim.
"""

from __future__ import annotations

from labkit.evidence.check import CONTRADICTED, SUPPORTED, Check, Premise, on_every_tier, on_gpus
from labkit.evidence.relations import (
    all_of,
    greater,
    hidden_share,
    less,
    near_ideal,
    ratio_in,
    values_in,
)
from labkit.records import Tier
from labkit.student import draw

EMULATED = (
    "an emulated slice has few SMs and little memory, but the whole GPU's bandwidth and cache"
)
NO_GPU = "this is a statement about GPUs, and a CPU cannot show it"
SHARED = "two ranks on one device take turns on it: what splitting gains needs a device for each"
LEARNED = Premise(
    values_in("bits at the end over the first mark", high=0.98),
    "the training that is compared with learned nothing",
)

CHECKS: dict[str, Check] = {
    # noise floor: wider than this, no ratio of a few percent can be measured now
    "T-1": Check(
        "The same function against itself differs by less than 5 %",
        "The same function against itself differs by 5 % or more",
        ratio_in("first", "second", (0.95, 1.05)),
        "whether both sides call the same function, and what else runs on this machine",
    ),
    # an unsynchronised timer reads 9 to 110 times too fast (H200, n = 4096 and 8192)
    "T-2": Check(
        "A timer that does not wait reads less than half of the true time",
        "A timer that does not wait reads at least half of the true time",
        less("unwaited", "waited", 0.5),
        "which of the two timers waits for the device, and whether the call itself does",
        on_gpus(SUPPORTED, "on the CPU a call returns when it is done"),
    ),
    # a bound must have two sides: an unsynchronised timer is too fast
    "T-3": Check(
        "Your own timer agrees with labkit's to 10 %, in both directions",
        "Your own timer differs from labkit's by more than 10 %, in one direction or the other",
        ratio_in("own", "labkit", (0.9, 1.1)),
        "what lies between your timer's two readings of the clock",
    ),
    # roofline: right of the ridge the rate is flat; 20 to 75 times for 256 to 4096
    "T-4": Check(
        "The rate grows with the intensity all the way: from axpy to matmul, it gains as "
        "much as the operations per byte do",
        "The rate stops growing with the intensity: from axpy to matmul, it gains less than the "
        "operations per byte do",
        greater("matmul rate", "axpy rate as far up"),
        "what `axpy` and `matmul` really compute, and the operations counted for them",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                greater("matmul rate", "axpy rate", 1.5),
                "more operations a byte bring no higher rate: there is no slant",
            ),
            Premise(
                less("matmul rate", "axpy rate as far up", 0.5),
                "nothing but the memory holds the product back: there is no roof",
            ),
        ),
        instead="the rate grew {:.3g} times as much as the operations per byte did: right of "
        "the ridge the roof is flat",
    ),
    # small kernels end before Python has launched the next; a CPU's operators are the work
    "T-6": Check(
        "In the small batch's step, something computes for less than a third of the "
        "share of the time that it does in the big batch's",
        "In the small batch's step, something computes for at least a third of the "
        "share of the time that it does in the big batch's",
        less("small batch's busy share", "big batch's busy share", 1 / 3),
        "the two timelines below: what a step waits for, and for how long",
        on_gpus(SUPPORTED, CONTRADICTED),
        (
            Premise(
                less("small batch's busy share", "big batch's busy share", 1.2),
                "the big batch's step is the one that waits",
            ),
        ),
        instead="the small batch's share is {:.2f} of the big one's",
    ),
    # its roof falls with its SMs and its slant less: 16 of 132 SMs of an H200 reach 28 %
    "T-7": Check(
        "A part's ridge in fp32 lies at most at two thirds of the whole's",
        "A part's ridge in fp32 lies above two thirds of the whole's",
        less("the part's ridge", "the whole's ridge", 2 / 3),
        "whether the part has only its own SMs, and whether its copy has the whole's memory",
        on_gpus(SUPPORTED, NO_GPU),
        emulated=EMULATED,
    ),
    # CERN 152-159 GFLOP/s per SM over five sizes, Habr 155-171; fp32 only
    "MIG-1": Check(
        "fp32 matmul per SM is the same on a small part as on a big one, to 10 %",
        "fp32 matmul per SM differs by more than 10 % between a small part and a big one",
        ratio_in("small per SM", "big per SM", (0.9, 1.1)),
        "whether the part has exactly the SMs of its label, and nobody else computes on them",
        on_gpus(SUPPORTED, NO_GPU),
    ),
    # a few of a whole GPU's SMs use its wide memory: 16 of 132 of an H200 reach 29 %; a slice's
    # SMs are no more than its memory feeds (8 of 16 took 1.91 times as long)
    "MIG-3": Check(
        "A small part's share of the bandwidth exceeds its share of the SMs by half or more",
        "A small part's share of the bandwidth exceeds its share of the SMs by less than half, "
        "if at all",
        greater("bandwidth share", "SM share", 1.5),
        "whether the copy is larger than the cache, and what else uses the memory",
        {**on_gpus(SUPPORTED, NO_GPU), Tier.SLICE: CONTRADICTED},
        (
            Premise(
                greater("bandwidth share", "SM share", 0.9),
                "the part has less of the bandwidth than of the SMs",
            ),
        ),
        emulated=EMULATED,
        instead="its share of the bandwidth is {:.2f} times its share of the SMs",
    ),
    # CERN on half the slice: simpletrack 1.97, training 1.87-1.94; here as a CUDA graph
    "MIG-5": Check(
        "A step takes longer on a part of the SMs, at most in proportion to them, plus 10 %",
        "A step takes no longer on a part of the SMs, or longer than in proportion to them, "
        "plus 10 %",
        all_of(greater("part", "whole"), less("part, in proportion", "whole", 1.1)),
        "whether the part is one, and whether both run the same step",
        on_gpus(SUPPORTED, NO_GPU),
        (
            Premise(
                greater("part", "whole", 1.05), "fewer SMs make no difference, or the opposite one"
            ),
        ),
    ),
    # NVIDIA: 149.54 to 147.49 sentences/s (-1.4 %) on slices; time sharing takes multiples
    "MIG-6": Check(
        "With busy neighbours a call takes at most 5 % longer",
        "With busy neighbours a call takes over 5 % longer",
        ratio_in("crowded", "alone", (0.95, 1.05)),
        "whether the neighbours work in their windows and rest in the others",
        {
            **on_gpus(SUPPORTED, "neighbours on CPU cores are no slices"),
            Tier.WHOLE_GPU: CONTRADICTED,
            Tier.SEVERAL_GPUS: CONTRADICTED,
            Tier.SLICE: "copies inside one slice share it by time, and MIG isolates slices: "
            "the recorded run and two slices can show it",
        },
        (
            Premise(
                greater("crowded", "alone", 0.9), "a call is faster with neighbours than without"
            ),
        ),
        emulated=EMULATED,
        instead="with its neighbours at work a call takes {:.2f} times as long",
    ),
    # NVIDIA: 1.87 times with slices, 1.26 times sharing by time; CUDA graphs, margin 5 %
    "MIG-7": Check(
        "Seven small copies together do more than one after another",
        "Seven small copies together do no more than one after another",
        greater("together", "in turn"),
        "whether the copies work at the same time, and what they wait for",
        {
            **on_gpus(SUPPORTED, "copies on CPU cores say nothing about a GPU"),
            Tier.SLICE: "one copy as a CUDA graph fills a small slice (two on 16 SMs of an H200 "
            "did 0.93 times its work); the recorded run on a whole GPU can show it",
        },
        (Premise(greater("together", "in turn", 1.15), "together they do as good as no more"),),
    ),
    # requests come at random; a batch must fill before it is answered
    "MIG-14": Check(
        "At the same rate of requests, a request waits longer where answers come in the "
        "biggest batch",
        "At the same rate of requests, a request waits no longer where answers come in the "
        "biggest batch",
        greater("a request, biggest batch", "a request, batch 1"),
        "when the requests come, and whether a batch is full before it is answered",
        premises=(
            Premise(
                greater("a request, biggest batch", "a request, batch 1", 2.0),
                "waiting for a full batch costs a request nothing",
            ),
        ),
    ),
    # CERN: tensor over fp32 9.8 to 14.9 times; no direction is promised on a CPU
    "MX-2": Check(
        "A bf16 matmul is at least twice as fast as fp32",
        "A bf16 matmul is less than twice as fast as fp32",
        greater("fp32 time", "bf16 time", 2.0),
        "the dtypes that are multiplied, and whether TF32 is allowed for fp32",
        on_gpus(SUPPORTED, "it depends on AMX or AVX512-BF16, and no direction is promised"),
    ),
    # at 2^-10 every gradient is zero, so the error is 1; at 2^10 it is about a thousandth
    "MX-5": Check(
        "Multiplying the loss by a small number (2^-10) leaves fp16's gradients nearer to the "
        "true ones than multiplying it by a big one (2^10)",
        "Multiplying the loss by a big number (2^10) leaves fp16's gradients nearer to the "
        "true ones than multiplying it by a small one (2^-10)",
        values_in("error at 2^-10 over that at 2^10", high=1),
        "the format of the gradients, and whether the loss was multiplied before they were taken",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("error at 2^-10 over that at 2^10", 2.0),
                "the scale makes no difference, or the opposite one",
            ),
        ),
        instead="the error at 2^-10 is {:.3g} times as large as at 2^10",
    ),
    # autocast also keeps a 16-bit copy of every weight: 1.18 and 1.36 times, by width
    "MX-9": Check(
        "AMP shrinks what is kept for the backward pass as much as pure bf16 does, to 5 %",
        "AMP and pure bf16 shrink what is kept for the backward pass by amounts that differ by "
        "more than 5 %",
        values_in("kept with AMP over pure bf16", 0.95, 1.05),
        "whether autocast is enabled, and in which format the weights and activations are",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("kept with AMP over fp32", high=0.95),
                "AMP keeps as much as fp32: it was off, or it is not what ran",
            ),
        ),
        instead="AMP keeps {:.2f} times as much: its 16-bit copies of the weights come on top",
    ),
    # the weights and Adam stay in fp32; the seeds themselves differ by about as much
    "MX-12": Check(
        "With bf16 the model ends within 2 % of the bits per byte that it has with fp32",
        "With bf16 the model ends over 2 % away from the bits per byte that it has with fp32",
        values_in("bits of bf16 over fp32", 0.98, 1.02),
        "the formats that the model computes in, and its learning rates",
        premises=(
            Premise(
                values_in("size of a number in bf16", high=17),
                "what is called bf16 computes in 32 bits, so that fp32 is compared with itself",
            ),
            LEARNED,
        ),
    ),
    # the scores have length x length numbers; what is fused holds one block of them
    "KN-1": Check(
        "Twice the length takes over three times the memory, also where attention is fused",
        "Twice the length takes at most three times the memory where attention is fused",
        values_in("flash, twice the length", 3),
        "which way each function goes, and what is alive beside its inputs",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("naive, twice the length", 3),
                "the naive way does not hold all scores",
            ),
            Premise(
                values_in("flash, twice the length", 1.5),
                "the fused way's memory does not follow the length",
            ),
        ),
        instead="it takes {:.3g} times as much: a block of scores at a time is enough",
    ),
    # the same FLOPs; 1.5 to 2.4 times on a CPU's core
    "KN-2": Check(
        "Naive attention takes over 1.25 times as long as the fused one, though it computes the "
        "same",
        "Naive attention takes at most 1.25 times as long as the fused one: it computes the same",
        greater("naive attention", "fused attention", 1.25),
        "what each way computes, and how often the scores cross the memory's bus",
        premises=(
            Premise(
                values_in("distance of the results", high=0.02),
                "the two ways do not compute the same",
            ),
        ),
    ),
    # the slowest gives its work in small pieces
    "KN-3": Check(
        "Though all four compute the same, the slowest takes over 1.25 times as long as plain",
        "All four compute the same, so that the slowest takes at most 1.25 times as long as plain",
        greater("slowest", "plain", 1.25),
        "the four traces below: where nothing runs, and what is waited for",
        premises=(
            Premise(
                values_in("distance from plain's result", high=0.02),
                "the programs do not compute the same",
            ),
        ),
    ),
    # 2 to 20 s of compiling; a call saves less than 0.1 ms
    "KN-4": Check(
        "After 100 calls, compiling has paid for itself",
        "After 100 calls, compiling has not paid for itself",
        values_in("calls until compiling has paid", high=100),
        "whether anything was compiled, from an empty cache, and what a call takes without it",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("eager over compiled", 1.1),
                "what is compiled is no faster",
            ),
        ),
        instead="it pays after {:.3g} calls",
    ),
    # Adam divides by the size of past gradients, in which a constant factor cancels
    "DP-12": Check(
        "Added gradients spoil the training with both: SGD at a rate of 0.4 and Adam at 0.1 "
        "end with at least 1.5 times the loss",
        "Added gradients leave at least one training as it was: SGD at a rate of 0.4 or Adam at "
        "0.1 ends with less than 1.5 times the loss",
        all_of(
            values_in("loss with Adam, added over averaged, at the end", 1.5),
            values_in("loss with SGD, added over averaged, at the end", 1.5),
        ),
        "what the ranks exchange, and which optimizer takes the steps",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("loss with SGD, added over averaged, at the end", 1.5),
                "adding does SGD no harm, so that adding and averaging are the same here",
            ),
        ),
        instead="with Adam, the run that adds ends with {:.3g} times the loss",
    ),
    # t = alpha + S/beta: below about 1 MB the start-up decides
    "DP-2": Check(
        "Small messages cost what their bytes say: half a megabyte takes at least 30 times as "
        "long as 8 kB, a sixtieth of it",
        "Small messages cost more than their bytes say: half a megabyte takes less than 30 times "
        "as long as 8 kB, a sixtieth of it",
        greater("0.5 MB", "0.008 MB", 30.0),
        "how many bytes each message really has, and between which ranks it goes",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("share of its bytes that the longest message had", 0.99, 1.01),
                "messages do not have the bytes of their labels",
            ),
        ),
        instead="it takes {:.3g} times as long: the start-up decides at both sizes",
    ),
    # T = a + b/n; where a half fits a cache, two CPU ranks were up to 2.5 times as fast
    "DP-3": Check(
        "Two ranks are faster than one",
        "Two ranks are no faster than one",
        greater("one rank", "two ranks"),
        "each rank's share of the batch, and whether every rank has a core or device of its own",
        premises=(
            Premise(
                greater("one rank", "two ranks", 1.05), "a second rank gains less than a twentieth"
            ),
        ),
        least_gain=1.5,
    ),
    # the same step with an all-reduce of one number in its place, in turns
    "DP-4": Check(
        "With the small batch, sending the gradient's bytes makes a step at least 10 % longer",
        "With the small batch, sending the gradient's bytes makes a step less than 10 % longer",
        greater("the whole gradient", "one number", 1.1),
        "how many numbers each version sends, and whether every rank has a core of its own",
        premises=(
            Premise(
                values_in("numbers of the whole gradient over one number", 2.0),
                "both versions send as many numbers",
            ),
        ),
        least_gain=1.0,
    ),
    # four buckets, the first after a quarter; waiting for a core is nothing they can hide
    "DP-6": Check(
        "On the simulated network, buckets hide at least a third of what flat's message costs",
        "On the simulated network, buckets hide less than a third of what flat's message costs",
        hidden_share("flat", "buckets", "no sync", 1 / 3),
        "the timelines: when each message starts, and what waits for it",
        least_gain=1.0,
    ),
    # gloo has no reduce-scatter of its own: it all-reduces, and each rank keeps its part (1.8 to 4
    # times as long a byte); NCCL has (1.29 times, two H200)
    "DP-15": Check(
        "One collective uses the link worse: with the longest message, a reduce-scatter's bus "
        "bandwidth is less than two thirds of an all-reduce's",
        "No collective uses the link much worse: with the longest message, a reduce-scatter's bus "
        "bandwidth is at least two thirds of an all-reduce's",
        greater("reduce-scatter per byte on the bus", "all-reduce per byte on the bus", 1.5),
        "what each collective really sends, and whether its result is right",
        {**on_every_tier(SUPPORTED), Tier.SEVERAL_GPUS: CONTRADICTED},
        (
            Premise(
                values_in("results that are right", 0.99),
                "a collective's result is wrong: something was not exchanged",
            ),
            Premise(
                values_in("share of its bytes that the longest message had", 0.99, 1.01),
                "messages do not have the bytes of their labels",
            ),
        ),
        instead="a byte on the bus takes {:.2f} times as long in a reduce-scatter",
    ),
    # the mean of two halves' gradients is the whole batch's: only rounding differs
    "DP-13": Check(
        "With the same batches, two ranks end with at least 2 % more bits per byte than one",
        "With the same batches, two ranks end with less than 2 % more bits per byte than one, "
        "or with fewer",
        values_in("bits of two ranks over one rank", 1.02),
        "what the ranks exchange after each backward pass, and their learning rates",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("distance of the ranks' weights", high=1e-3),
                "the two ranks train models of their own: they do not share their gradients",
            ),
            Premise(
                values_in("bits of two ranks over one rank", 0.98),
                "two ranks end with fewer bits, though they take the same steps",
            ),
            LEARNED,
        ),
        instead="two ranks end with {:.3f} times the bits per byte: they take the same steps",
    ),
    # allocations on 2 ranks, over the weights: 3.10 and 2.60 in 16 units, 4.00 and 4.01 in one
    "SH-1": Check(
        "Dividing the gradients always saves memory: ZeRO-2 peaks at least 5 % below ZeRO-1, in "
        "16 units and in one",
        "Dividing the gradients does not always save memory: ZeRO-2 peaks less than 5 % below "
        "ZeRO-1 in 16 units, or in one",
        all_of(
            values_in("ZeRO-2 over ZeRO-1, in 16 units", high=0.95),
            values_in("ZeRO-2 over ZeRO-1, in one unit", high=0.95),
        ),
        "into how many units the layers are divided, and what is alive while one is gathered",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("ZeRO-2 over ZeRO-1, in 16 units", high=0.95),
                "even unit by unit, dividing the gradients saves nothing",
            ),
            Premise(
                values_in("ZeRO-3 over ZeRO-2, in 16 units", high=0.95),
                "dividing the weights, too, saves nothing",
            ),
        ),
        instead="its peak is {:.2f} times that of ZeRO-1",
    ),
    # a ring: 2 (n-1)/n S for plain, 3 (n-1)/n for ZeRO-3; gloo's own reduce-scatter sends more
    "SH-2": Check(
        "Your ZeRO-3 sends at most half as much again as plain does, to 5 %",
        "Your ZeRO-3 sends over half as much again as plain does, by more than 5 %",
        values_in("bytes of ZeRO-3 over plain", high=1.575),
        "what each collective sends, and how often a unit's weights are gathered",
        premises=(
            Premise(
                values_in("plain's bytes over S", 0.9),
                "plain sends less than a ring must: something was not exchanged",
            ),
            Premise(
                values_in("bytes of ZeRO-3 over plain", 1.425),
                "ZeRO-3 does not gather the weights for both passes",
            ),
            Premise(
                values_in("bytes of ZeRO-2 over plain", 0.95, 1.05),
                "a reduce-scatter and an all-gather are not what an all-reduce is made of",
            ),
            Premise(
                values_in("distance from plain's weights", high=1e-4),
                "the ways do not train the same model",
            ),
        ),
    ),
    # three messages a unit: the start-up of 192 against that of 3
    "SH-3": Check(
        "The bytes decide: in 64 units a step of ZeRO-3 takes less than 1.5 times as long as in "
        "one",
        "The bytes do not decide: in 64 units a step of ZeRO-3 takes at least 1.5 times as long as "
        "in one",
        less("most units", "fewest units", 1.5),
        "into how many units the layers are cut, and what a message costs beside its bytes",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("bytes of most units over fewest", 0.95, 1.05),
                "more units send other bytes",
            ),
            Premise(
                values_in("messages of most units over fewest", 63.9, 64.1),
                "a unit's weights and gradients are not messages of their own",
            ),
        ),
        instead="it takes {:.1f} times as long: every unit has three messages",
    ),
    # an all-reduce has a start-up time, and few tokens are soon computed
    "MP-3": Check(
        "Splitting the pair pays with the most tokens, and does not with the fewest",
        "Splitting the pair pays with the fewest tokens, or does not with the most",
        all_of(
            greater("most tokens, whole", "most tokens, split"),
            less("fewest tokens, whole", "fewest tokens, split"),
        ),
        "the size of each rank's half, and how long an exchange takes",
        {**on_every_tier(SUPPORTED), Tier.SLICE: SHARED, Tier.WHOLE_GPU: SHARED},
        least_gain=1.5,
    ),
    # both wait (p - 1) / (m + p - 1) of the time: 1F1B is there for the memory
    "MP-11": Check(
        "1F1B is not there for the time: its step takes over four fifths of GPipe's",
        "1F1B is there for the time: its step takes at most four fifths of GPipe's",
        greater("1F1B", "GPipe", 0.8),
        "the orders that the stages follow, and the timelines: who waits for whom",
        premises=(
            Premise(
                values_in("kept by 1F1B's first rank over GPipe's", high=0.8),
                "1F1B keeps as much as GPipe, so that it is not 1F1B",
            ),
            Premise(
                values_in("distance from GPipe's gradients", high=1e-3),
                "the schedules do not compute the same gradients",
            ),
        ),
        instead="1F1B takes {:.2f} times as long as GPipe",
    ),
    # an all-reduce is a reduce-scatter and an all-gather: 4 (n-1)/n S each way of dividing
    "MP-12": Check(
        "Twice as many collectives send more: sequence parallelism's bytes are over 1.05 times "
        "tensor parallelism's",
        "Twice as many collectives send no more: sequence parallelism's bytes are at most 1.05 "
        "times tensor parallelism's",
        values_in("bytes of sequence over tensor", 1.05),
        "which collectives each way calls, in which pass, and with how many numbers",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("all-reduces of tensor, forward and backward", 1, 1.5),
                "tensor parallelism does not call one all-reduce in each pass",
            ),
            Premise(
                values_in("calls of tensor", high=2.5),
                "tensor parallelism calls more than two collectives",
            ),
            Premise(
                values_in("bytes of tensor over a ring's", 0.95, 1.05),
                "tensor parallelism does not send what two all-reduces send",
            ),
            Premise(
                values_in("distance from the whole block", high=1e-4),
                "a split block does not compute what the whole one does",
            ),
        ),
        instead="they are {:.2f} times tensor parallelism's: a reduce-scatter and an all-gather "
        "are what an all-reduce is made of",
    ),
    # 5 s h bytes over t: the norm's input and the mask; what is gathered stays whole
    "MP-13": Check(
        "Sequence parallelism divides what norm and dropout keep by the number of ranks, to 5 %",
        "Sequence parallelism does not divide what norm and dropout keep by the number of ranks, "
        "to 5 %",
        values_in("share of norm and dropout, times the ranks", 0.95, 1.05),
        "how many rows norm and dropout are given, and what is noted while they run",
        premises=(
            Premise(
                values_in("attention, one rank over tensor", 1.05),
                "tensor parallelism keeps as much of attention as one rank",
            ),
            Premise(
                values_in("distance from the whole block", high=1e-3),
                "a split block does not compute what the whole one does",
            ),
        ),
    ),
    # ideal: (m + stages - 1) times the slowest stage's time at that micro-batch, alone
    "MP-6": Check(
        "With the best number of micro-batches, a pipeline takes at most 1.25 times its ideal",
        "Even with the best number of micro-batches, a pipeline takes over 1.25 times its ideal",
        near_ideal("the best", "its ideal", 1.25),
        "whether both stages work at the same time, and the schedule that they follow",
        premises=(
            Premise(
                values_in("share of its work that one stage does beside the other", 0.1),
                "the stages do not work at the same time",
            ),
            Premise(
                less("the best", "one micro-batch", 0.95),
                "cutting the batch into micro-batches gains nothing",
            ),
        ),
        least_gain=1.5,
    ),
    # T = a + b/s, so s T = a s + b; 811 and 1,360 SM ms on 16 and 132 SMs of an H200, and 1.06
    # times on 16 of 16 over 8
    "CH-1": Check(
        "A step costs the same SMs x time on a part as on all, to 10 %",
        "A step's SMs x time differ by more than 10 % between a part and all",
        ratio_in("all: SMs x time", "a part: SMs x time", (0.9, 1.1)),
        "the SMs of each part, and what else computes on them",
        {**on_gpus(CONTRADICTED, NO_GPU), Tier.SLICE: SUPPORTED},
        (
            Premise(
                greater("all: SMs x time", "a part: SMs x time", 0.9),
                "a part costs more SMs x time than all of them",
            ),
            Premise(
                less("all: time", "a part: time", 0.9),
                "a step takes as long on a part as on all, so that no law of the SMs shows",
            ),
        ),
        instead="all of it costs {:.2f} times the SMs x time of the smallest part",
    ),
    # weights, gradients and Adam's state do not grow; an H200: 1008 to 5310 MiB for 16 x
    "CH-2": Check(
        "A bigger batch needs at least 1.1 times the memory, but less than in proportion",
        "A bigger batch needs less than 1.1 times the memory, or as much more as it is bigger",
        all_of(
            values_in("memory, biggest over smallest batch", 1.1),
            values_in("memory a sample, biggest over smallest batch", high=1),
        ),
        "whether each process runs its own batch, and from which process the figure is",
    ),
    # a small batch leaves SMs idle; an H200: 0.28 to 0.13 ms a sample
    "CH-3": Check(
        "In the biggest batch a sample takes less time than in the smallest",
        "In the biggest batch a sample takes at least as long as in the smallest",
        less("biggest batch, a sample", "smallest batch, a sample"),
        "whether a batch is computed at once, and by how many samples its time is divided",
        premises=(
            Premise(
                less("biggest batch, a sample", "smallest batch, a sample", 0.97),
                "a bigger batch gains nothing for a sample",
            ),
        ),
    ),
    # whoever waits in the all-reduce takes as long as the slowest: 1.0 times, at 4 times the work
    "WL-1": Check(
        "The slow worker's step takes less than 1.25 times the others': it does not tell",
        "The slow worker is the one whose step takes longest: at least 1.25 times the others'",
        values_in("step of worker 5 over the others'", high=1.25),
        "what each worker computes, and whether anybody waits for anybody",
        premises=(
            Premise(
                values_in("own computing of worker 5 over the others'", 2.0),
                "worker 5 computes no longer than the others",
            ),
            Premise(
                values_in("waiting for the first message of worker 6 over the others'", 2.0),
                "worker 6 does not wait for worker 5",
            ),
        ),
    ),
    # eight faults, of which none raised the loss by 5 %
    "WL-2": Check(
        "The loss would have told: with the fault it ends at least 5 % above the repaired "
        "cluster's",
        "The loss would not have told: with the fault it ends less than 5 % above the repaired "
        "cluster's, or below it",
        values_in("loss with the fault over repaired", 1.05),
        "whether both clusters train, and with which worker",
        on_every_tier(CONTRADICTED),
        (
            Premise(
                values_in("loss repaired over that at the restart", high=0.95),
                "the repaired cluster learns nothing",
            ),
        ),
        instead="it ends at {:.3f} times the repaired cluster's",
    ),
}


def is_denied_for(key: str, student: str) -> bool:
    """Whether a student gets the opposite of an experiment's relation as the claim.

    Args:
        key: the experiment's.
        student: whom it is drawn for: the same wording every time, on every machine.
    """
    return draw(f"{student}/claim of {key}", 2) == 1
