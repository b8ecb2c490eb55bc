"""The cluster's faults are real: each shows in two measurements or more, and names nobody else."""

import functools

import pytest
from tests.needs import needs

import labkit
from labkit.exercises.cluster_faults import FAULTS
from labkit.exercises.cluster_readings import run_cluster
from labkit.exercises.incident_checks import right_disagreeing, right_outlier

needs("torch", "the cluster trains with torch")

CULPRIT, WORKERS = 3, range(8)
FIRST_WAIT = "waiting for the first message, ms"
SHOWN_IN = {
    "throttled card": {"times", "waits", "swap"},
    "slow link": {"waits", "ping", "swap"},
    "duplicated shard": {"norms", "losses", "samples", "swap"},
    "dropped bucket": {"norms", "checksums", "replay", "swap"},
    "scaled gradients": {"norms", "replay", "swap"},
    "another dropout seed": {"numbers", "replay", "swap"},
    "bf16 accumulator": {"numbers", "replay", "swap"},
    "stale optimizer state": {"norms", "checksums", "replay", "swap"},
}
"""By fault, the measurements in which the culprit can be read; the guide has them as a table."""
CLOCKS = {"times", "waits", "ping"}
"""On busy cores a clock may name nobody, or a healthy worker whom other programs held up."""


@functools.cache
def outcome_of(fault, seats=tuple(WORKERS)):
    run = labkit.ranks(run_cluster, n=8, fault=fault, at=CULPRIT, seats=list(seats))
    return run.values[0]


def pair_in(values):
    """The two workers with the same value, where all others differ; the one before is meant."""
    pairs = [w for w in WORKERS if values.count(values[w]) == 2]
    return pairs[0] if len(set(values)) == 7 and pairs[1] == pairs[0] + 1 else None


def worker_in(row, values):
    """The worker that a row names, or None."""
    if row == FIRST_WAIT:
        successor = right_outlier(values)
        return None if successor is None else (successor - 1) % 8
    if row.endswith("shard"):
        return None
    if isinstance(values[0], str) or row.endswith("after"):
        odd = right_disagreeing({row: values}).get(row)
    else:
        odd = right_outlier(values)
    return pair_in(values) if odd is None else odd


def signs_of(outcome):
    """By measurement, the workers that it names."""
    named_by = {}
    for name, rows in outcome["readings"].items():
        workers = {worker_in(row, values) for row, values in rows.items()} - {None}
        if name == "samples" and rows["samples read"] != rows["samples of its shard"]:
            pairs = zip(*rows.values(), strict=True)
            workers = {[read == listed for read, listed in pairs].index(False)}
        if workers:
            named_by[name] = workers
    by_place = [
        min(ms for pair, ms in outcome["pings"].items() if str(place) in pair) for place in WORKERS
    ]
    slow_place = right_outlier(by_place)
    return named_by | ({} if slow_place is None else {"ping": {slow_place}})


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_two_measurements_or_more(fault):
    """What compares values names the culprit alone; of the clocks one at least names a slow one."""
    signs = signs_of(outcome_of(fault))
    by_value = {name: workers for name, workers in signs.items() if name not in CLOCKS}
    assert all(workers == {CULPRIT} for workers in by_value.values())
    assert by_value.keys() == SHOWN_IN[fault] - CLOCKS - {"swap"}
    clocks = SHOWN_IN[fault] & CLOCKS
    assert not clocks or any(CULPRIT in signs.get(name, ()) for name in clocks)


@pytest.mark.long
def test_nothing_names_a_healthy_worker():
    """Without a fault no rule finds anybody by a value."""
    assert signs_of(outcome_of("")).keys() <= CLOCKS


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_swap_moves_what_is_the_workers_and_leaves_what_is_the_places(fault):
    """The symptom follows the worker to place 6; a link's stays, with whoever is there."""
    seats = [0, 1, 2, 6, 4, 5, 3, 7]
    outcome = outcome_of(fault, tuple(seats))
    readings, measurement = outcome["readings"], min(SHOWN_IN[fault] - {"swap", "ping"})
    rows = dict(readings[measurement])
    if fault == "duplicated shard":
        by_place = [readings["losses"]["last step"][worker] for worker in seats]
        assert pair_in(by_place) == 6
        return
    if measurement == "waits":
        rows = {"handing": rows["handing a message over, ms"]}
    if measurement == "times":
        rows = {"own": rows["own computing, ms"]}
    workers = {worker_in(row, values) for row, values in rows.items()} - {None}
    assert workers == {6 if FAULTS[fault].is_of_the_place else CULPRIT}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_the_loss_only_looks_a_little_odd(fault):
    """Nothing crashes, and the held-out loss ends within 5 % of the healthy cluster's."""
    assert 0.95 < outcome_of(fault)["bits"] / outcome_of("")["bits"] < 1.05
