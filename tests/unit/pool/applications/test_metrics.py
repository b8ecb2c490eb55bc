"""What Prometheus reads: right figures, bounded labels, and nothing about what is unknown."""

import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.pool.conftest import World

from miglab_api.gpus import SliceState
from miglab_pool.applications.metrics import FINDING_KINDS, GPU_STATES, Metrics
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.gpu.readings import Health, Xid
from miglab_pool.gpu.xids import XidScope
from miglab_pool.ledger import rows

from .fakes import gpu_view, lease_view, slice_view, snapshot

WELL = Health(True, 0, (Xid(31),), 41, 62.5, False, "")
MIB = 1 << 20


def samples(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample by its name and its labels' values, in the order of the labels' names."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_slices_are_labelled_by_their_placement() -> None:
    """Memory by GPU, start and profile; unknown use has no sample, nor has what is gone."""
    metrics = Metrics()
    known_slice = slice_view(1, 0, "ada", memory_used_mib=100, activity_pct=12.5)
    unknown = slice_view(2, 4)
    values = samples(metrics.render(snapshot(gpu_view(known_slice, unknown)), ()))
    assert values["miglab_slice_memory_used_bytes", ("0", "1g.5gb", "0")] == 100 * MIB
    assert values["miglab_slice_activity_ratio", ("0", "1g.5gb", "0")] == 0.125
    assert ("miglab_slice_activity_ratio", ("0", "1g.5gb", "4")) not in values
    assert values["miglab_slice_memory_bytes", ("0", "1g.5gb", "4")] == 4864 * MIB
    assert ("miglab_slice_memory_used_bytes", ("0", "1g.5gb", "4")) not in values
    later = samples(metrics.render(snapshot(gpu_view()), ()))
    assert not [
        name for name, _ in later if name.startswith(("miglab_slice_memory", "miglab_slice_act"))
    ]


def test_what_is_destroyed_and_what_is_made_in_its_place_are_two() -> None:
    """Slices are counted by what they are, not by where they lie."""
    going = slice_view(1, 0, state=SliceState.SCRUBBING)
    coming = slice_view(2, 0, state=SliceState.MAKING)
    values = samples(Metrics().render(snapshot(gpu_view(going, coming)), ()))
    counted = [values["miglab_slices", (state.value,)] for state in (going.state, coming.state)]
    assert counted == [1, 1]


def test_free_memory_slices_are_those_of_gpus_that_answer() -> None:
    """Uncut and free ones are free; a GPU that does not answer offers none.

    The pool's states of a GPU are the metric's, and there is none that nothing sets.
    """
    states = {value for name, value in vars(rows).items() if name.startswith("GPU_")}
    assert states == set(GPU_STATES) == {"ok", "unfit", "unknown", "lost"}
    leased = slice_view(1, 0, "ada", size=4)
    broken = slice_view(3, 4, size=2, state=SliceState.QUARANTINED)
    free = slice_view(2, 6)
    now = snapshot(gpu_view(leased, broken, free), gpu_view(index=1, state="lost"), paused="lunch")
    values = samples(Metrics().render(now, ()))
    assert values["miglab_memory_slices", ()] == 8
    assert values["miglab_memory_slices_free", ()] == 2
    assert values["miglab_gpus", ("lost",)] == 1 and values["miglab_paused", ()] == 1


def test_health_is_told_as_far_as_it_is_known() -> None:
    """What a GPU does not tell has no sample."""
    silent = Health(None, None, None, None, 30.0, False, "")
    wellness = {"GPU-0": WELL, "GPU-1": silent}
    values = samples(
        Metrics().render(snapshot(*(gpu_view(index=number) for number in range(3))), (), wellness)
    )
    assert values["miglab_gpu_temperature_celsius", ("0",)] == 41
    assert values["miglab_gpu_ecc_errors", ("0",)] == 0
    xids = {scope: values["miglab_gpu_xids", ("0", scope)] for scope in XidScope}
    assert xids == dict.fromkeys(XidScope, 0) | {XidScope.PROGRAM: 1}
    assert not [labels for name, labels in values if name == "miglab_gpu_xids" and "1" in labels]
    assert {labels for name, labels in values if name == "miglab_gpu_power_watts"} == {
        ("0",),
        ("1",),
    }


def test_shapes_that_nobody_offers_are_one() -> None:
    """Whatever students ask for, the number of series is bounded."""
    metrics = Metrics({"1g.5gb"})
    for number in range(100):
        metrics.count_wait(f"{number}x1g.5gb", 3.0)
        metrics.count_refusal(f"reason-{number}")
    metrics.count_wait("1g.5gb", -1.0)
    leases = [lease_view(1, "ada"), lease_view(2, "bob", shape="at least 1 GiB")]
    values = samples(metrics.render(snapshot(gpu_view()), leases))
    assert values["miglab_wait_seconds_count", ("other",)] == 100
    assert values["miglab_wait_seconds_sum", ("1g.5gb",)] == 0
    assert values["miglab_refusals_total", ("other",)] == 100
    assert values["miglab_leases", ("other", "running")] == 1


def test_what_is_counted() -> None:
    """Who waited too long was refused, who gives up is among the unserved alone; the driver's
    times to create and to destroy are two histograms.
    """
    metrics = Metrics()
    metrics.count_unserved("refused", "waited-too-long")
    metrics.count_unserved("cancelled", "cancelled")
    metrics.count_unserved("expired", "of my own making")
    metrics.driver_call("create", "1g.5gb", 0.3)
    metrics.driver_call("destroy", "7g.40gb", 1.2)
    values = samples(metrics.render(snapshot(), ()))
    assert values["miglab_tickets_unserved_total", ("cancelled",)] == 1
    assert values["miglab_tickets_unserved_total", ("other",)] == 1
    assert values["miglab_refusals_total", ("waited-too-long",)] == 1
    assert ("miglab_refusals_total", ("cancelled",)) not in values
    assert values["miglab_slice_create_seconds_sum", ("1g.5gb",)] == pytest.approx(0.3)
    assert values["miglab_slice_destroy_seconds_count", ("7g.40gb",)] == 1


async def test_findings_are_those_of_the_last_round(runner: PoolRunner, world: World) -> None:
    """What is open is a state, what was mended is counted; a healed round says zero."""
    unknown, left_over = world.new_holder(), world.new_holder()
    lease = world.pool.leases.find(1)
    world.label(unknown, lease.model_copy(update={"id": 999}), is_running=False)
    world.end(lease)
    world.label(left_over, lease, is_running=False)
    for _ in range(2):
        await runner._reconcile()
        values = samples(runner.metrics.render(snapshot(), ()))
        assert values["miglab_reconcile_open", ("holder",)] == 1
        assert values["miglab_reconcile_repaired_total", ("holder",)] == 1
    assert [finding.target for finding in runner.findings] == [unknown]
    world.holders.present.discard(unknown)
    await runner._reconcile()
    values = samples(runner.metrics.render(snapshot(), ()))
    assert {values["miglab_reconcile_open", (about,)] for about in FINDING_KINDS} == {0}


async def test_the_listener_tells_all_of_it(client: httpx.AsyncClient, world: World) -> None:
    """No token, no name of a person, and what the GPUs said last."""
    world.pool.sample()
    answer = await client.get(str(client.base_url.copy_with(path="/metrics")))
    assert answer.status_code == 200
    assert 'miglab_gpu_power_watts{gpu="0"}' in answer.text
    assert not re.search("alice|bob|MIG-|GPU-", answer.text)
