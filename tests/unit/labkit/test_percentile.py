"""The percentile that is drawn is the one that the exercise asks for."""

import pytest

from labkit.exercises.formula_checks import check_percentile
from labkit.notebook.catalogue.mig import waited
from labkit.records import Device, Measurement, Tier


def test_what_is_drawn_is_the_same_percentile():
    """In milliseconds, of the seconds that were measured."""
    cpu = (Device("cpu", "a CPU", 1024),)
    for samples, percent in check_percentile.cases:
        record = Measurement("waits", tuple(samples), Tier.CPU, cpu, "host", False)
        assert waited(percent)(record) == pytest.approx(
            1e3 * check_percentile.right(samples, percent)
        )
