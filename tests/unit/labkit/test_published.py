"""The published figures are complete, consistent with themselves, and only drawn as permitted."""

import pytest

from labkit.evidence import published
from labkit_authoring.gallery import shown_in


def test_every_known_error_is_there_and_every_mark_points_to_one():
    """Each with what is right and an exercise."""
    errors = published.known_errors()
    assert list(errors) == [f"E{number}" for number in range(1, 16) if number != 12]
    assert all(item.correct and item.exercise.endswith(("?", ".")) for item in errors.values())
    assert {item.error for item in published.figures().values() if item.error} <= set(errors)


def test_each_figure_names_its_source_and_is_shown():
    """Seed, file, line, section; drawn by the catalogue or a notebook, or left out for a reason.

    What the source prints is the number we draw (ranges like 35-40 are drawn at their end).
    """
    shown_ids = shown_in()
    for item in published.figures().values():
        assert item.source.line > 0
        assert item.source.section
        assert item.source.file.startswith(item.source.seed)
        printed = (item.as_printed or "").replace(",", "").lstrip("/").split("-")[-1]
        if printed.replace(".", "").isdigit():
            assert float(printed) == item.value, item.id
        assert (item.id in shown_ids) != bool(item.left_out_because), item.id


def test_cerns_ratios_follow_from_its_rates():
    """The scaling table can be recomputed from the FLOPS table, to the printed digits."""
    for kind in ("fp16", "fp32", "fp64", "fp16-tensor"):
        for a, b in (("7g", "3g"), ("3g", "2g"), ("2g", "1g")):
            rates = [published.figure(f"cern5.flops.{kind}.{part}").value for part in (a, b)]
            printed = published.figure(f"cern5.scaling.{kind}.{a}-{b}").value
            assert rates[0] / rates[1] == pytest.approx(printed, abs=0.025)


def test_rates_are_drawn_per_sm_and_times_only_as_ratios():
    """A bare absolute rate is never overlaid (E8), and out of memory is no number."""
    rate = published.figure("cern5.flops.fp32.1g")
    assert rate.height() == pytest.approx(2.132 / 14)
    time = published.figure("cern6.epoch.full.8")
    with pytest.raises(ValueError, match="only be drawn as a ratio"):
        time.height()
    base = published.figure("cern6.epoch.full.4")
    assert time.height(base) == pytest.approx(160 / 210)
    assert published.figure("cern6.epoch.2g.32").height(base) is None
