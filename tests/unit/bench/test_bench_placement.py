"""The placement benchmark on few arrivals: what must hold at any size."""

import itertools
import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.measures import placement
from miglab_bench.measures.placement import (
    LOADS,
    MIXES,
    POLICIES,
    PROFILES,
    MiglabPacking,
    PolicyMeans,
    arrivals,
    compare,
    mfi_like,
    simulate,
)
from miglab_pool.gpu.simulated.geometry import model_geometry

A100 = model_geometry("A100-40GB")


def _small(**changes: object) -> list[PolicyMeans]:
    return compare(A100, seeds=(0, 1), count=4_000, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def teach() -> dict[str, PolicyMeans]:
    """Every policy on the teaching mix at full load."""
    return {row.policy: row for row in _small(loads=[("teach", 1.0)])}


def test_the_same_seed_draws_the_same_arrivals() -> None:
    """Arrivals depend on mix, load and seed alone."""
    first = arrivals(A100, "teach", 1.0, 3, 50)
    assert arrivals(A100, "teach", 1.0, 3, 50) == first
    assert arrivals(A100, "teach", 1.0, 4, 50) != first


@pytest.mark.parametrize(("mix", "rho"), list(itertools.product(MIXES, LOADS)))
def test_load_is_what_was_asked(mix: str, rho: float) -> None:
    """Memory slices asked per mean lifetime, over the memory slices there are, is ρ."""
    stream = arrivals(A100, mix, rho, 0)
    slice_lifetimes = sum(
        A100.by_name[arrival.profile].size * arrival.lifetime for arrival in stream
    )
    assert slice_lifetimes / stream[-1].at / 64 == pytest.approx(rho, rel=0.05)


def test_mixes_are_distributions() -> None:
    """Each mix gives every profile a share, and the shares sum to one."""
    assert all(len(mix) == len(PROFILES) for mix in MIXES.values())
    assert all(sum(mix) == pytest.approx(1) for mix in MIXES.values())


def test_ours_accepts_most_slices_and_spreading_least(teach: dict[str, PolicyMeans]) -> None:
    """On the teaching mix, weighted by slices; repack bounds all; worst-fit is last, plain too."""
    miglab_accepted, worst = teach["miglab"].accepted_weighted, teach["worst-fit"]
    bounded_policies = set(teach) - {"miglab", "repack"}
    assert all(teach[name].accepted_weighted <= miglab_accepted for name in bounded_policies)
    assert miglab_accepted < teach["repack"].accepted_weighted
    other_rows = [row for name, row in teach.items() if name != "worst-fit"]
    assert all(worst.accepted < row.accepted for row in other_rows)
    assert all(worst.accepted_weighted < row.accepted_weighted for row in other_rows)


@pytest.mark.parametrize("policy", POLICIES)
def test_more_load_is_accepted_less(policy: str) -> None:
    """At ρ = 1.0 every policy refuses more than at 0.8."""
    light, full = _small(policies=[policy], loads=[("uniform", 0.8), ("uniform", 1.0)])
    assert full.accepted_weighted < light.accepted_weighted


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_lab_refuses_nothing(policy: str) -> None:
    """With next to no load everything is accepted, so nothing leaks at release."""
    stream = arrivals(A100, "bimodal", 0.8, 0, count=3)
    assert simulate(A100, policy, stream, warm_up=0) == (1.0, 1.0)
    lab = POLICIES[policy](A100, 1)
    for _ in range(20):
        allocation = lab.take("7g.40gb")
        assert allocation is not None
        assert lab.take("1g.5gb") is None
        lab.give_back(allocation)


def test_ours_keeps_slices_warm_and_remakes_them() -> None:
    """What is given back stays warm: reused as it is, or recut for another shape."""
    lab = MiglabPacking(A100, 1)
    allocation = lab.take("3g.20gb")
    assert allocation is not None
    lab.give_back(allocation)
    assert lab._gpus[0].warm == (allocation[1],)
    again = lab.take("3g.20gb")
    assert again == allocation
    lab.give_back(again)
    lab.take("7g.40gb")
    assert lab._gpus[0].warm == ()


def test_mfi_avoids_the_fragmenting_start() -> None:
    """The fragmentation score too sends the first 1g to the end of a GPU, not to its start."""
    assert mfi_like(A100, 1).take("1g.5gb") == (0, 1 << 6)


def test_jobs_do_not_change_the_figures() -> None:
    """Two processes give the rows that one gives."""
    few = {"policies": ["miglab", "repack"], "loads": [("teach", 1.0)]}
    assert _small(**few, jobs=2) == _small(**few, jobs=1)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[PolicyMeans]:
    """A machine that has been measured already, under every policy, mix and load."""
    every = itertools.product(POLICIES, MIXES, LOADS)
    rows = [PolicyMeans(*combination, 0.9, 0.8) for combination in every]
    monkeypatch.setattr(placement, "compare", lambda geometry, jobs: rows)
    return rows


def test_json_is_the_promised_schema(measured: list[PolicyMeans]) -> None:
    """`--json` prints rows for every policy, mix and load, and the decision times; no more."""
    result = CliRunner().invoke(app, ["placement", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert set(answer) == {"rows", "decision_us"}
    assert answer["rows"] == [asdict(row) for row in measured]
    assert set(answer["rows"][0]) == {"policy", "mix", "rho", "accepted", "accepted_weighted"}
    assert set(answer["decision_us"]) == {"1", "8", "64"}
    assert "how: one run" in result.stderr


def test_table_says_how_it_was_measured(measured: list[PolicyMeans]) -> None:
    """Without `--json`: a table with every policy, the decision times, and the method."""
    measured[:] = [row for row in measured if (row.mix, row.rho) == ("teach", 1.0)]
    result = CliRunner().invoke(app, ["placement"])
    assert result.exit_code == 0
    assert all(policy in result.stdout for policy in POLICIES)
    assert "0.900 (0.800)" in result.stdout
    assert "how: one run" in result.stdout
