"""Counted work and what a roof allows."""

import pytest

from labkit.exercises import roofline


def test_a_matmul_is_counted_by_its_definition():
    """2mnk operations; three matrices over the bus, each once."""
    work = roofline.matmul(4, 5, 6, "bfloat16")
    assert work.flops == 240
    assert work.moved_bytes == 2 * (24 + 30 + 20)


def test_memory_decides_left_of_the_ridge_and_arithmetic_right_of_it():
    """An A100: 19.5 TFLOP/s and 1555 GB/s meet at 12.5 FLOP a byte."""
    roof = roofline.Roof(19.5e12, 1555e9)
    assert roof.ridge == pytest.approx(12.54, abs=0.01)
    assert roof.attainable(1.0) == 1555e9
    assert roof.attainable(100.0) == 19.5e12
    assert roof.shortest_s(roofline.copy(10**9)) == pytest.approx(8e9 / 1555e9)


def test_a_ring_sends_what_the_seeds_correction_says():
    """E10: 1.33 ms for n = 6 and 1.47 ms for n = 12 at 40 Gbit/s and 4 MB."""
    times = [roofline.all_reduce_bus_bytes(4e6, n) / 5e9 * 1e3 for n in (6, 12)]
    assert times == pytest.approx([1.333, 1.467], abs=0.001)


def test_every_kind_of_work_has_positive_bytes():
    """Whatever is drawn on a roofline has an intensity."""
    works = [roofline.matvec(4, 5), roofline.axpy(8), roofline.layer_norm(4, 8), roofline.copy(3)]
    assert all(work.intensity >= 0 for work in works)
