"""docs/reference/labkit.md says what the code has, no more and no less."""

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from labkit import __main__ as command
from labkit.machine.parts import EMULATE
from labkit.notebook import handing_in
from labkit_grading import grading

TEXT = (Path(__file__).parents[3] / "docs/reference/labkit.md").read_text()


def test_every_column_of_the_marks_is_described():
    """The CSV's columns, in order."""
    table = TEXT.split("## Grading")[1].split("## Environment")[0]
    columns = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    assert columns == [part.name for part in dataclasses.fields(grading.MarkRow)]


@pytest.mark.parametrize("name", [EMULATE, handing_in.VARIABLE, "LAB_HEADLESS", "LAB_QUICK"])
def test_every_variable_is_described(name):
    """What the environment decides is in the reference."""
    assert f"| `{name}` |" in TEXT


def test_where_authors_tools_are_left_out_the_command_says_where_to_run(monkeypatch, capsys):
    """As in a student's server: one sentence, and exit status 2."""
    for module in ("labkit_authoring", "labkit_authoring.cli"):
        monkeypatch.setitem(sys.modules, module, None)
    assert command.main() == 2
    assert "Run it in a checkout" in capsys.readouterr().err
