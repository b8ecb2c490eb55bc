"""Some of a class's experiments are drawn, measured again here, and put beside what came in."""

import csv
import json
import random
from dataclasses import replace

import pytest
from tests.needs import needs
from tests.notebooks.test_rehearse import SOURCE
from tests.unit.labkit_grading.test_grading import zip_of

from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence, Point, Prediction
from labkit.records import Device, Measurement, Tier, to_data
from labkit_authoring import cli, recheck
from labkit_grading.submissions import Submission

needs("torch", "panels measure with torch")

AT = "2026-03-01T10:00:00+00:00"


def handed_in(key, milliseconds, label="2 ms", **changes):
    """A run that a student measured on some GPU."""
    device = Device("cuda", "NVIDIA A100", 40_000, sms=14)
    record = Measurement("f", (0.002,), Tier.SLICE, (device,), "cuda events", True, date=AT)
    point = Point(1, label, milliseconds, (record,))
    predicted = Prediction("it sleeps", AT, 2.0, "ms")
    run = Evidence(key, "t", "ms", "here", "slice", AT, (point,), predicted, ended=AT)
    return replace(run, **changes)


def zipped(folder, student, *runs):
    """The student's zip."""
    parts = {"manifest.json": json.dumps({"student": student})}
    for run in runs:
        data = {"schema": store.SCHEMA, **to_data(run)}
        data["digest"] = store.digest(data)
        parts[f"evidence/{run.experiment}.json"] = json.dumps(data)
    zip_of(folder / f"{student}.zip", parts)


def test_a_class_is_measured_again(tmp_path, capsys):
    """An honest value agrees, an invented one does not, and what cannot be measured says why."""
    sources, zips, table = tmp_path / "src", tmp_path / "zips", tmp_path / "again.csv"
    sources.mkdir(), zips.mkdir()
    (sources / "9_sleeping.py").write_text(SOURCE)
    zipped(zips, "ann", handed_in("T-9", 2.1))
    zipped(zips, "bob", handed_in("T-9", 0.02), handed_in("T-77", 1.0), handed_in("MX-2", 1.0))
    zipped(zips, "cyd", handed_in("T-9", 2.1, label="3 ms"))
    command = ["recheck", str(zips), "--csv", str(table), "--sources", str(sources), "--count", "9"]
    assert cli.main(command) == 0
    with table.open(encoding="utf-8-sig") as file:
        rows = {(row["file"], row["experiment"]): row for row in csv.DictReader(file)}
    assert 0.9 < float(rows["ann.zip", "T-9"]["again_over_handed_in"]) < 10
    assert float(rows["bob.zip", "T-9"]["again_over_handed_in"]) > 90
    assert rows["ann.zip", "T-9"]["look_at"] == "another device"
    assert ("bob.zip", "T-77") not in rows, "no notebook of the course has it"
    assert rows["bob.zip", "MX-2"]["look_at"] == "no notebook has it"
    assert rows["cyd.zip", "T-9"]["look_at"] == "this point was not measured"
    assert "drawn: T-9 of ann.zip" in capsys.readouterr().out


def test_what_is_drawn_is_a_students_own_and_as_many_as_asked_for():
    """No headless run, no replay; the same seed draws the same."""
    runs = {f"T-{number}": handed_in(f"T-{number}", 1.0) for number in range(1, 7)}
    runs["T-8"] = handed_in("T-8", 1.0, headless=True)
    runs["T-9"] = handed_in("T-9", 1.0, replayed_from="the shipped run")
    zips = [Submission("ann", "ann.zip", runs)]
    draws = recheck.draw(zips, 4, random.Random(1))
    keys = [drawn.evidence.experiment for drawn in draws]
    assert len(set(keys)) == 4
    assert set(keys) <= {f"T-{number}" for number in range(1, 7)}
    assert recheck.draw(zips, 4, random.Random(1)) == draws
    assert len(recheck.draw(zips, 99, random.Random(1))) == 6
    with pytest.raises(LabError, match="nothing to draw"):
        recheck.draw([Submission("eve", "eve.zip")], 1, random.Random(1))


def test_every_experiment_of_the_course_has_its_notebook():
    """Whatever a student may hand in can be drawn."""
    from labkit.notebook.catalogue import EXPERIMENTS
    from labkit_grading.cells import notebooks_of
    from labkit_grading.grading import own_sources

    assert set(EXPERIMENTS) <= notebooks_of(own_sources()).keys()
