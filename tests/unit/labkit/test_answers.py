"""The right answer to what is asked: a ratio, a percentile, a ridge; and where it is drawn."""

import pytest

from labkit.evidence.evidence import Point
from labkit.exercises import roofline
from labkit.exercises.formula_checks import check_percentile
from labkit.notebook.catalogue import EXPERIMENTS, your_slice
from labkit.notebook.catalogue.mig import wait_percentile
from labkit.records import Device, Measurement, Tier


@pytest.mark.parametrize(
    ("key", "label", "base", "ratio"),
    [("T-3", "own", "labkit", 1.5), ("MX-9", "AMP", "fp32", 150), ("MP-7", "GPipe", "1F1B", 1.5)],
)
def test_the_right_ratio_is_drawn_at_its_point(key, label, base, ratio):
    """Whichever of the two is measured first; with only one of them there is no answer yet."""
    experiment = EXPERIMENTS[key]
    both = (Point(0, label, 3.0), Point(1, base, 2.0))
    for points in (both, both[::-1]):
        answer = experiment.answer(points, is_whole=True)
        assert answer is not None and answer.value == pytest.approx(ratio)
        assert experiment.place_of(answer, points) == label
        assert experiment.height(points, ratio) == pytest.approx(3.0)
    assert all(experiment.answer((point,), is_whole=True) is None for point in both)


def test_the_longest_all_reduce_is_nccls():
    """Other ways are measured first: until NCCL's there is no answer yet, and they are drawn."""
    experiment = EXPERIMENTS["DP-15"]
    others = tuple(Point(256, "other", 2.0, series=f"all-reduce {way}") for way in ("gloo", "host"))
    assert experiment.answer(others, is_whole=False) is None
    by_nccl = tuple(Point(x, f"{x} MB", float(x), series="all-reduce") for x in (16, 256))
    assert experiment.answer((*others, *by_nccl), is_whole=True) == by_nccl[1]


def test_what_is_drawn_is_the_same_percentile():
    """In milliseconds, of the seconds that were measured."""
    cpu = (Device("cpu", "a CPU", 1024),)
    for samples, percent in check_percentile.cases:
        record = Measurement("waits", tuple(samples), Tier.CPU, cpu, "host", False)
        assert wait_percentile(percent)(record) == pytest.approx(
            1e3 * check_percentile.right(samples, percent)
        )


def test_work_is_counted_by_its_definition():
    """2mnk operations of a matmul; three matrices over the bus, each once; all have a place."""
    work = roofline.matmul(4, 5, 6, "bfloat16")
    assert (work.flops, work.moved_bytes) == (240, 2 * (24 + 30 + 20))
    works = [roofline.matvec(4, 5), roofline.axpy(8), roofline.layer_norm(4, 8)]
    assert all(work.intensity >= 0 for work in works)


def limit(name, x, value, series=""):
    return Point(x, f"limit of {name}", value, series=series)


def test_every_format_has_its_roof_over_one_slant():
    """Memory gives 10 GB/s: fp32's 20 GFLOP/s is met at 2 FLOP a byte, bf16's 40 at 4."""
    points = [limit("memory", 0.5, 5.0), limit("fp32", 8.0, 20.0), limit("bf16", 16.0, 40.0)]
    roofs = your_slice.roof(points)
    assert roofs["the roof in fp32"] == [(0.5, 5.0), (2.0, 20.0), (16.0, 20.0)]
    assert roofs["the roof in bf16"] == [(0.5, 5.0), (4.0, 40.0), (16.0, 40.0)]
    assert your_slice.roof(points[1:]) == {}


def test_a_part_has_its_own_ridge():
    """Half the arithmetic at the same bandwidth: half the ridge, and it is drawn on the slant."""
    points = [
        limit("memory, 1 of 2", 0.5, 5.0, "1 of 2"),
        limit("fp32, 1 of 2", 8.0, 10.0, "1 of 2"),
        limit("memory, all 2", 0.5, 5.0, "all 2"),
        limit("fp32, all 2", 8.0, 20.0, "all 2"),
    ]
    ridge = EXPERIMENTS["T-7"]
    assert ridge.answer(points, is_whole=True).value == 1.0
    assert ridge.height(points, 1.0) == 10.0
    assert set(your_slice.roofs_by_part(points)) == {
        "the roof in fp32, 1 of 2",
        "the roof in fp32, all 2",
    }
    assert ridge.answer(points[:1], is_whole=True) is None
