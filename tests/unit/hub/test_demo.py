"""The simulated class of `./lab up --demo`: who does what, and what its servers report."""

import datetime as dt
from pathlib import Path

import pytest

from miglab_api.leases import Signals
from miglab_hub.demo.director import class_ends, next_class
from miglab_hub.demo.simulated_class import HABITS, check_fits, make_folder, plan_class
from miglab_hub.demo.student_server import signals
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings, load


@pytest.fixture
def demo(tmp_path: Path) -> Settings:
    """The demo lab beside a lab.toml."""
    return load(make_folder(tmp_path / "lab.toml"), {})


def test_the_demo_lab_is_made_once(tmp_path: Path) -> None:
    """The folder comes whole, and what somebody changed in it stays."""
    file = make_folder(tmp_path / "lab.toml")
    file.write_text(file.read_text().replace("miglab demo", "My lesson"))
    assert load(make_folder(tmp_path / "lab.toml"), {}).lab.title == "My lesson"


def test_its_class_asks_for_more_than_there_is(demo: Settings) -> None:
    """Some must wait, some idle and some come and go, each for a shape of their course."""
    students = plan_class(demo.courses)
    assert len(students) == len({student.name for student in students}) > 14  # slices of two A100
    assert {student.habit for student in students} == set(HABITS)
    assert len({student.shape for student in students}) >= 3
    for student in students:
        assert student.shape in demo.courses[student.course].shapes


def test_real_gpus_and_containers_are_refused(demo: Settings) -> None:
    """Nobody is simulated on a GPU that people use."""
    check_fits(demo)
    students = demo.servers.model_copy(update={"spawner": "docker"})
    with pytest.raises(StartError, match=r"need simulated GPUs"):
        check_fits(demo.model_copy(update={"servers": students}))


@pytest.mark.parametrize(
    ("now", "times"),
    [
        ("09:07", "09:30-10:30"),
        ("09:15", "09:45-10:45"),
        ("23:12", "23:30-23:59"),
        ("23:40", "00:00-01:00"),
    ],
)
def test_a_class_begins_soon_and_ends_on_its_day(now: str, times: str) -> None:
    """Within half an hour, whatever the clock says; a reservation lies within a day."""
    at = dt.datetime.fromisoformat(f"2026-03-01T{now}:30+00:00")
    class_start = next_class(at)
    assert f"{class_start:%H:%M}-{class_ends(class_start):%H:%M}" == times
    assert dt.timedelta(0) < class_start - at <= dt.timedelta(minutes=30)


@pytest.mark.parametrize(
    ("habit", "ran_s", "is_busy"),
    [("works", 600.0, True), ("visits", 5.0, True), ("idles", 5.0, True), ("idles", 600.0, False)],
)
def test_reports_are_what_the_pool_reads(habit: str, ran_s: float, is_busy: bool) -> None:
    """Who idles has worked first; all else is busy."""
    report = Signals.model_validate(signals(habit, ran_s))
    assert report.kernels is not None
    assert [kernel.busy for kernel in report.kernels] == [is_busy]
