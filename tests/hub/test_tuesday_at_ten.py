"""A class from the list of students to the marks: docs/howto/tuesday-at-ten.md, as it is printed.

The lab is a test's own, in a time zone in which it is past nine; numbers are of its leases.
"""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from tests.students import asking
from tests.unit.labkit_grading.test_grading import honest_evidence

import labkit
from labkit.evidence import evidence as store
from miglab_bench.harness.student import Student, wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_hub import lab_secrets

pytestmark = pytest.mark.long

PAGE = (Path(__file__).parents[2] / "docs/howto/tuesday-at-ten.md").read_text(encoding="utf-8")
VISION = """
[courses.vision]
title = "Computer vision"
shapes = ["1g.5gb", "7g.40gb"]
roster = "vision.csv"
"""
ROSTER = "user,role\nilse,instructor\nada,\nbob,\n"


def printed(heading: str) -> str:
    """The commands below a heading of the page that begins so."""
    section = re.findall(rf"(?ms)^## {heading}[^\n]*\n(.*?)(?=^## |\Z)", PAGE)[0]
    (block,) = re.findall(r"(?ms)^```sh\n(.*?)^```$", section)
    return str(block)


class Instructor:
    """Ilse at her own computer: a shell with her token and the lab's address."""

    def __init__(self, lab: TemporaryLab, home: Path) -> None:
        self.lab, self.home = lab, home
        browser = Student(
            lab.settings.public_url, "ilse", lab_secrets.read_passwords(lab.settings).instructor
        )
        browser.sign_in()
        answer = browser._api("POST", "/hub/api/users/ilse/tokens", {})
        (home / "lab.token").write_text(answer.json()["token"])
        browser.close()
        self.preamble = self.replaced(PAGE.split("```sh\n")[1].split("```")[0])

    def replaced(self, commands: str, **numbers: object) -> str:
        """The page's commands, as this test has them."""
        hours = (9 - datetime.now(UTC).hour + 12) % 24 - 12  # where it is between nine and ten
        local_time = datetime.now(timezone(timedelta(hours=hours)))
        replacements = {
            "https://pool--service.lab.example.edu": self.lab.settings.public_url.rstrip("/"),
            "--weekly tue": f"--weekly {local_time:%a}".lower(),
            "Europe/Berlin": f"Etc/GMT{-hours:+d}",
            ".venv/bin/labkit": "labkit",
        }
        replacements |= {name.removeprefix("n"): str(number) for name, number in numbers.items()}
        for old, new in replacements.items():
            commands = commands.replace(old, new)
        return commands

    def do(self, commands: str, **numbers: object) -> str:
        """What commands of the page print; numbers are given as n57=…."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        process = subprocess.run(
            ["sh", "-ec", self.preamble + self.replaced(commands, **numbers)],
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": path, "NO_PROXY": "*"},
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout


@pytest.fixture
def lab() -> Iterator[TemporaryLab]:
    """Two GPUs for whoever comes, and a course with its people."""
    lead = "reserve_lead_s = 3600"  # so that slices are kept now
    files = {"vision.csv": ROSTER}
    with temporary_lab(docker=False, gpus=2, pool=lead, more=VISION, files=files) as running:
        yield running


def hand_in(folder: Path) -> None:
    """What the student's last cell makes, as the learning platform names it."""
    home = folder / "ada"
    home.mkdir(parents=True)
    store.save(honest_evidence(), home / "evidence")
    (folder / "hand-ins").mkdir()
    labkit.hand_in(folder=home).file.rename(folder / "hand-ins" / "ada_hand-in.zip")


def test_from_the_roster_to_the_marks(lab: TemporaryLab, tmp_path: Path) -> None:
    """Reserved slices are kept and drawn, the class is steered, and what is handed in is marked."""
    ilse = Instructor(lab, tmp_path)
    printed_text = ilse.do(printed("A week before"))
    assert "reservation 1: 10 × 1g.5gb for vision" in printed_text
    wait_for(lambda: lab.reservations()[0].state == "reserved", "the slices to be kept")

    ada, bob = asking(lab, "ada", "1g.5gb"), asking(lab, "bob", "7g.40gb")
    ada.wait_until_ready()
    wait_for(lambda: "bob" in lab.tickets(), "bob, whose GPU is kept for the class, to wait")
    ilse.do(printed("During the class"), n57=lab.tickets()["bob"].id, n12=lab.leases()["ada"].id)
    assert "needed for the exam" in str(lab.leases()["ada"])
    assert b"Room 2 from 11 on" in lab.ask("/api/messages")
    for student in (ada, bob):
        student.close()

    hand_in(tmp_path)
    ilse.do(printed("After the class"))
    with (tmp_path / "marks.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["file"], row["item"]) == ("ada_hand-in.zip", "MX-2")
