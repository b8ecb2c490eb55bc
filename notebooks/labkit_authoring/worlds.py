"""Broken worlds: for every claim, two or more in which its experiment is not what its title says.

In one the effect is gone, in another it is reversed; some have a way of their own in which such an
experiment breaks. A world changes one named function, of the notebook or in the process that
computes, and nothing else: the notebook's own steps, series and check then say what they say.
`enter` is called by a child that finds `VARIABLE` in its environment.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.run.worker import WORLD as VARIABLE
from labkit_authoring import changes
from labkit_authoring.changes import PROPORTION, TWICE, WHOLE, Change, on_parts, slow_down

CONFINED, SHARING = "labkit.machine.parts:confined", "labkit.measuring.sharing"


@dataclass(frozen=True)
class BrokenWorld:
    """One broken world.

    Attributes:
        name: what is broken in it, as a clause without a subject of its own.
        target: the function that is changed: a notebook's own name, or "module:name".
        change: takes the function, returns the one that takes its place.
        takes_cores: whether it takes cores from the ranks, which are then refused a verdict.
    """

    name: str
    target: str
    change: Change
    takes_cores: bool = False

    @property
    def is_in_the_notebook(self) -> bool:
        """Whether a notebook defines what is changed."""
        return ":" not in self.target


def enter(world_id: str) -> None:
    """Change a function in this process; in a child, before it gets its job.

    Args:
        world_id: the experiment's key and the world's place in its list, as "DP-2/1".
    """
    key, _, place = world_id.partition("/")
    world = WORLDS[key][int(place)]
    module_name, _, name = world.target.partition(":")
    module = importlib.import_module(module_name)
    setattr(module, name, world.change(getattr(module, name)))


def environment(key: str, place: int) -> Mapping[str, str]:
    """The environment variables that make children enter a world of an experiment."""
    if WORLDS[key][place].is_in_the_notebook:
        return {}
    return {VARIABLE: f"{__name__}:{key}/{place}"}


AUTOCAST, ALL_REDUCE = "torch:autocast", "torch.distributed:all_reduce"
COMPILE, PROGRAM = "torch:compile", "labkit.exercises.traces:program"
RING, LAYERS = "labkit.exercises.sharding:Ring", "labkit.exercises.sharding:UnitLayers"
STEPS = "labkit.exercises.stages:PipelineStep"
COLLECTIVES = "labkit.exercises.tensor_parallel:Collectives"
BY_ROWS = "labkit.exercises.tensor_parallel:conjugates_by_rows"
CLUSTER = "labkit.exercises.cluster_readings"

WORLDS: Mapping[str, tuple[BrokenWorld, ...]] = {
    "T-1": (
        BrokenWorld("the second function does more", "matmul", changes.double_every_second(1)),
        BrokenWorld("the first function does more", "matmul", changes.double_every_second(0)),
    ),
    "T-2": (
        BrokenWorld("every call waits for the device", "matmul", changes.wait_for_device),
        BrokenWorld("the naive timer's call waits longer", "matmul", changes.block_longer_unwaited),
    ),
    "T-3": (
        BrokenWorld("the timer times two calls", "my_timer", changes.timer_of_two),
        BrokenWorld("the timer starts after the call", "my_timer", changes.timer_that_starts_late),
    ),
    "T-4": (
        BrokenWorld("there is no roof", "matmul", changes.without_arithmetic),
        BrokenWorld("the rate falls", "matmul", changes.repeat_fp32_product),
    ),
    "T-6": (
        BrokenWorld(
            "the batches differ in nothing, or the small one waits",
            "my_step",
            changes.same_busy_share,
        ),
        BrokenWorld("the big batch's step waits", "my_step", changes.waiting_big_batch),
    ),
    "T-7": (
        BrokenWorld(
            "a part has its share of the memory", CONFINED, on_parts(PROPORTION, PROPORTION)
        ),
        BrokenWorld(
            "a part has less of the memory than of the SMs", CONFINED, changes.narrow_memory
        ),
    ),
    "MIG-1": (
        BrokenWorld("a tenant has half of the part", CONFINED, slow_down(the_part=True, times=2)),
        BrokenWorld("the part is the whole", CONFINED, on_parts(WHOLE, WHOLE)),
    ),
    "MIG-3": (
        BrokenWorld("memory is shared the other way", CONFINED, on_parts(WHOLE, PROPORTION)),
        BrokenWorld("a part has half of its share", CONFINED, on_parts(TWICE, TWICE)),
    ),
    "MIG-5": (
        BrokenWorld("the part is the whole", CONFINED, on_parts(WHOLE, WHOLE)),
        BrokenWorld(
            "the whole is slower than its part", CONFINED, slow_down(the_part=False, times=4)
        ),
    ),
    "MIG-6": (
        BrokenWorld("the neighbours rest", f"{SHARING}:count_in_windows", changes.idle_neighbours),
        BrokenWorld(
            "a call alone does more", f"{SHARING}:calls_per_s", changes.more_work_in("alone")
        ),
    ),
    "MIG-7": (
        BrokenWorld("copies work in turn", f"{SHARING}:calls_per_s", changes.one_after_another),
        BrokenWorld(
            "a call among others does more",
            f"{SHARING}:calls_per_s",
            changes.more_work_in("together"),
        ),
    ),
    "MIG-14": (
        BrokenWorld("nothing is answered in batches", "waits", changes.always_one_by_one),
        BrokenWorld("all requests come at once", "arrivals", changes.all_at_once),
    ),
    "MX-2": (
        BrokenWorld("both formats are fp32", "product", changes.one_format),
        BrokenWorld("the formats are exchanged", "product", changes.exchanged_formats),
    ),
    "MX-5": (
        BrokenWorld("the loss is not scaled", "gradients", changes.scale_ignored),
        BrokenWorld("a small scale is a big one", "gradients", changes.small_helps),
    ),
    "MX-9": (
        BrokenWorld("AMP is off", AUTOCAST, changes.without_autocast),
        BrokenWorld("AMP and fp32 are exchanged", "training", changes.exchanged_kinds),
        BrokenWorld("AMP is pure bf16", "training", changes.amp_in_bf16),
    ),
    "MX-12": (
        BrokenWorld("bf16 is fp32", AUTOCAST, changes.without_autocast),
        BrokenWorld("fp32 does not learn", "rate_of", changes.no_rate("fp32")),
        BrokenWorld("bf16 does not learn", "rate_of", changes.no_rate("bf16")),
        BrokenWorld("nothing learns", "rate_of", changes.no_rate("fp32", "bf16")),
    ),
    "KN-1": (
        BrokenWorld("every way is the naive one", "attention", changes.ways_are("naive")),
        BrokenWorld("every way is fused", "attention", changes.ways_are("flash")),
        BrokenWorld(
            "the fused way is given one block", "attention", changes.always_the_first_tokens
        ),
    ),
    "KN-2": (
        BrokenWorld("every way is fused", "attention", changes.ways_are("flash")),
        BrokenWorld("the fused way works eight times", "attention", changes.fused_repeatedly),
        BrokenWorld("the fused way sees the past only", "attention", changes.fused_causally),
    ),
    "KN-3": (
        BrokenWorld("every program is plain", PROGRAM, changes.always_plain),
        BrokenWorld("plain reads, too", PROGRAM, changes.plain_reads),
        BrokenWorld("one computes less", PROGRAM, changes.computes_less),
    ),
    "KN-4": (
        BrokenWorld("nothing is compiled", COMPILE, changes.without_compiling),
        BrokenWorld("a call without compiling works for long", "block", changes.slow_uncompiled),
    ),
    "DP-13": (
        BrokenWorld("nothing is exchanged", ALL_REDUCE, changes.without_exchange),
        BrokenWorld("two ranks learn, and one does not", "rate_of", changes.no_rate("one rank")),
        BrokenWorld("two ranks do not learn", "rate_of", changes.no_rate("two ranks")),
        BrokenWorld("nothing learns", "rate_of", changes.no_rate("one rank", "two ranks")),
    ),
    "DP-12": (
        BrokenWorld("nothing is exchanged", ALL_REDUCE, changes.without_exchange),
        BrokenWorld("the optimizers are exchanged", "optimizer_of", changes.exchanged_optimizers),
        BrokenWorld("Adam has no denominator", "optimizer_of", changes.without_denominator),
    ),
    "DP-2": (
        BrokenWorld("every message has one number", "reduces", changes.one_number),
        BrokenWorld("small messages are the big ones", "reduces", changes.big_for_small),
        BrokenWorld("a message has no start-up time", "reduces", changes.without_start_up),
    ),
    "DP-3": (
        BrokenWorld("every rank takes the whole batch", "shared", changes.whole_batch),
        BrokenWorld("every rank takes it three times", "shared", changes.three_times_the_batch),
    ),
    "DP-4": (
        BrokenWorld("the gradient has one number", "send_whole", changes.without_bytes),
        BrokenWorld("one number is a long message", "send_one", changes.heavy_number),
        BrokenWorld(
            "all ranks are on one core",
            "labkit.notebook.steps:make_clock",
            changes.on_one_core,
            takes_cores=True,
        ),
    ),
    "DP-6": (
        BrokenWorld("a message is waited for at once", "SimulatedNetwork", changes.blocks),
        BrokenWorld(
            "four messages cost four times one", "SimulatedNetwork", changes.blocks_a_message
        ),
    ),
    "DP-15": (
        BrokenWorld("nothing is exchanged", ALL_REDUCE, changes.without_exchange),
        BrokenWorld("an all-reduce is made twice", "call_of", changes.two_all_reduces),
        BrokenWorld("every message has a kilobyte", "arrays", changes.few_numbers),
    ),
    "SH-1": (
        BrokenWorld("sixteen units are one", LAYERS, changes.units_are(1)),
        BrokenWorld("one unit is sixteen", LAYERS, changes.units_are(16)),
        BrokenWorld("gathered weights are kept", RING, changes.keeps_what_is_gathered),
    ),
    "SH-2": (
        BrokenWorld("a reduce-scatter is an all-reduce", RING, changes.scatters_by_all_reduce),
        BrokenWorld("nothing is scattered", RING, changes.without_scatter),
        BrokenWorld("weights are gathered twice", RING, changes.gathers_twice),
    ),
    "SH-3": (
        BrokenWorld("the layers are one unit", "unit_count", changes.always_one_unit),
        BrokenWorld("long messages are held up", RING, changes.long_messages_wait),
    ),
    "MP-3": (
        BrokenWorld("an exchange takes longer than the work", "reducer", changes.slow_exchange),
        BrokenWorld("an exchange grows with the tokens", "reducer", changes.exchange_by_size),
    ),
    "MP-6": (
        BrokenWorld(
            "the stages work one after the other", "last_stage", changes.waits_for_everything
        ),
        BrokenWorld("several micro-batches cost a rest", "last_stage", changes.rests_between),
    ),
    "MP-11": (
        BrokenWorld("1F1B runs everything forward first", "order", changes.all_forward_first),
        BrokenWorld("GPipe rests after each step", STEPS, changes.rests_after_gpipe),
        BrokenWorld("zero bubble forgets a gradient", "zero_bubble", changes.without_last_weights),
    ),
    "MP-12": (
        BrokenWorld("rows are gathered twice", BY_ROWS, changes.gathers_rows_twice),
        BrokenWorld("g adds on the way back, too", "conjugates", changes.adds_both_ways),
        BrokenWorld("nothing is exchanged", COLLECTIVES, changes.without_collectives),
    ),
    "MP-13": (
        BrokenWorld("the sequence is not divided", "block_step", changes.blocks_are("tensor")),
        BrokenWorld("tensor parallelism divides it", "block_step", changes.exchanged_blocks),
        BrokenWorld("nothing is exchanged", COLLECTIVES, changes.without_collectives),
    ),
    "CH-1": (
        BrokenWorld("the SMs make no difference", CONFINED, on_parts(WHOLE, WHOLE)),
        BrokenWorld("the law is the other one", CONFINED, on_parts(WHOLE, PROPORTION)),
        BrokenWorld("a part costs twice its share", CONFINED, on_parts(TWICE, TWICE)),
    ),
    "CH-2": (
        BrokenWorld("memory does not follow the batch", "train", changes.always_small_batch),
        BrokenWorld("a bigger batch needs less", "train", changes.smaller_for_bigger),
    ),
    "CH-3": (
        BrokenWorld("a batch is gone through in fours", "train", changes.in_batches_of_four),
        BrokenWorld("a sample of a bigger batch costs more", "train", changes.more_for_bigger),
    ),
    "WL-1": (
        BrokenWorld("nothing is exchanged", f"{CLUSTER}:ClockedRing", changes.without_all_reduce),
        BrokenWorld("no worker is throttled", f"{CLUSTER}:kind_at", changes.without_fault),
        BrokenWorld("every worker is throttled", f"{CLUSTER}:kind_at", changes.fault_everywhere),
    ),
    "WL-2": (
        BrokenWorld(
            "nothing learns", "labkit.exercises.cluster:ClusterWorker", changes.without_update
        ),
        BrokenWorld(
            "with the fault, nothing learns", f"{CLUSTER}:kind_at", changes.faulty_do_not_learn
        ),
    ),
}
