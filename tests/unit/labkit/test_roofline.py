"""Counted work and what a roof allows."""

import pytest

from labkit.evidence.evidence import Point
from labkit.exercises import roofline
from labkit.notebook.catalogue import your_slice


def test_a_matmul_is_counted_by_its_definition():
    """2mnk operations; three matrices over the bus, each once."""
    work = roofline.matmul(4, 5, 6, "bfloat16")
    assert work.flops == 240
    assert work.moved_bytes == 2 * (24 + 30 + 20)


def test_every_kind_of_work_has_positive_bytes():
    """Whatever is drawn on a roofline has an intensity."""
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
    older = your_slice.roof([points[0], limit("arithmetic", 8.0, 20.0)])
    assert list(older) == ["the roof"]
    assert your_slice.roof(points[1:]) == {}


def test_a_part_has_its_own_ridge():
    """Half the arithmetic at the same bandwidth: half the ridge, and it is drawn on the slant."""
    points = [
        limit("memory, 1 of 2", 0.5, 5.0, "1 of 2"),
        limit("fp32, 1 of 2", 8.0, 10.0, "1 of 2"),
        limit("memory, all 2", 0.5, 5.0, "all 2"),
        limit("fp32, all 2", 8.0, 20.0, "all 2"),
    ]
    found = your_slice.ridge_of_part(points)
    assert found.value == 1.0
    assert your_slice.height_of_ridge(points, 1.0) == 10.0
    assert set(your_slice.roofs_by_part(points)) == {
        "the roof in fp32, 1 of 2",
        "the roof in fp32, all 2",
    }
    with pytest.raises(LookupError):  # which a panel takes for "not measured yet"
        your_slice.ridge_of_part(points[:1])
