"""Records survive JSON unchanged and refuse what they do not know."""

import json
from dataclasses import replace

import pytest

from labkit.records import (
    Borrowed,
    ByShape,
    Comparison,
    Device,
    InterimLook,
    Measurement,
    Tier,
    Verdict,
    from_data,
    to_data,
)

DEVICE = Device("cuda", "NVIDIA A100", 4864, sms=14, uuid="MIG-1", is_slice=True, cpu_cores=2.0)
RECORD = Measurement(
    "matmul", (0.25, 0.5, 0.75), Tier.SLICE, (DEVICE,), "cuda events", True, flops=1e12
)


def there_and_back(record):
    """A record through JSON text."""
    return from_data(type(record), json.loads(json.dumps(to_data(record))))


def test_a_comparison_comes_back_as_it_was():
    """Nested records, enums, tuples and None survive."""
    look = InterimLook(20, 1.0, 0.9, 1.1, Verdict.UNDECIDED)
    record = Comparison(RECORD, RECORD, (0.95, 1.05), (look,), "because")
    assert there_and_back(record) == record


@pytest.mark.parametrize(
    "change",
    [
        {"surprise": 1},
        {"samples_s": "0.5"},
        {"samples_s": [True]},
        {"tier": "moon"},
        {"name": None},
    ],
)
def test_a_changed_record_is_refused(change):
    """Unknown fields and wrong types are errors, not guesses; so is a record cut short."""
    with pytest.raises(ValueError, match=r"."):
        from_data(Measurement, {**to_data(RECORD), **change})
    with pytest.raises(ValueError, match="incomplete"):
        from_data(Measurement, {"name": "matmul"})


def test_what_is_said_of_a_record_follows_from_its_samples():
    """Median, spread and rate; the caption names the device, and of a CPU that it is no GPU."""
    assert RECORD.median_s == 0.5
    assert RECORD.iqr_s == pytest.approx(0.25)
    assert RECORD.tflops == pytest.approx(2.0)
    assert all(part in RECORD.caption for part in ("14 SMs", "tier slice", "3 samples"))
    cpu = Device("cpu", "Xeon", 1024, cpu_cores=2.0)
    assert "not a GPU" in Measurement("f", (1.0,), Tier.CPU, (cpu,), "host", False).caption


def test_copies_that_eat_the_cpu_budget_are_called_cpu_bound():
    """Seven at a third of a core fill two cores; of ranks, which wait busily, nobody can tell."""
    ranks = Measurement(
        "f", (1.0,), Tier.SLICE, (DEVICE,), "host", False, ranks=7, cpu_per_copy=0.3
    )
    seven = replace(ranks, setting={"copies": 7})
    assert seven.is_cpu_bound
    assert not replace(seven, ranks=1).is_cpu_bound
    assert not ranks.is_cpu_bound


def test_a_cell_shows_bars_with_intervals_ratios_and_waits():
    """By shape the ratio to the first and the wait, too; samples are folded."""
    samples = tuple(0.010 + 0.0001 * turn for turn in range(20))
    measurement = Measurement("<train>", samples, Tier.CPU, (), "host", False)
    alone = measurement._repr_html_()
    assert "&lt;train&gt;" in alone and "over the first" not in alone
    assert "<td>10.95 ms</td><td>10.4 – 11.5 ms</td><td>20</td>" in alone
    lent = [Borrowed(shape, (), "1", "r", waited) for shape, waited in (("1g", 3), ("2g", 0))]
    slow, fast = (
        replace(measurement, samples_s=tuple(x / factor for x in samples), borrowed=slice_)
        for factor, slice_ in zip((1, 2), lent, strict=True)
    )
    html = ByShape({"1g": slow, "2g": fast})._repr_html_()
    assert "<td>1 ×</td>" in html and "<td>0.5 ×</td>" in html
    assert "<td>3 s</td>" in html
    assert ByShape({"1g": object()})._repr_html_() is None
