"""docs/reference/labkit.md says what the code has, no more and no less."""

import argparse
import dataclasses
import re
import sys
from pathlib import Path

import pytest

import labkit
from labkit import __main__ as command
from labkit import records
from labkit.evidence import evidence, prediction
from labkit.machine import emulate
from labkit.notebook import fresh
from labkit_authoring import cli
from labkit_grading import grading

TEXT = (Path(__file__).parents[3] / "docs/reference/labkit.md").read_text()
RECORDS = (
    evidence.Evidence,
    evidence.Point,
    prediction.Prediction,
    evidence.Judgement,
    records.Measurement,
    records.Comparison,
    records.InterimLook,
    records.Device,
)


def commands():
    """Each command's parser, by name."""
    (found,) = (
        action
        for action in cli.build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return found.choices


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: one.__name__)
def test_every_field_of_the_evidence_is_described(record):
    """The schema's tables hold exactly the records' fields, in order."""
    (row,) = re.findall(rf"^\| `{record.__name__}` \| (.*) \|$", TEXT, re.MULTILINE)
    assert re.findall(r"`(\w+)`", row) == [part.name for part in dataclasses.fields(record)]


@pytest.mark.parametrize("name", [name for name in labkit.__all__ if not name.startswith("__")])
def test_every_public_name_is_described(name):
    """What `labkit` exports is in the reference."""
    assert re.search(rf"`(labkit\.)?{name}\b", TEXT)


def test_every_command_and_option_is_described_and_no_other():
    """The tables of commands and options are those of the parser."""
    assert set(re.findall(r"^\| `labkit (\w+)", TEXT, re.MULTILINE)) == set(commands())
    options = {
        (option, name)
        for name, parser in commands().items()
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option != "--help"
    }
    said = re.findall(r"^\| `(--[\w-]+)` \| ([\w, ]+) \|", TEXT, re.MULTILINE)
    assert {(option, name) for option, names in said for name in names.split(", ")} == options


def test_every_column_of_the_marks_is_described():
    """The CSV's columns, in order."""
    table = TEXT.split("## Grading")[1].split("## Environment")[0]
    said = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    assert said == [part.name for part in dataclasses.fields(grading.MarkRow)]


@pytest.mark.parametrize("name", [emulate.VARIABLE, fresh.VARIABLE, "LAB_HEADLESS", "LAB_QUICK"])
def test_every_variable_is_described(name):
    """What the environment decides is in the reference."""
    assert f"| `{name}` |" in TEXT


def test_where_authors_tools_are_left_out_the_command_says_where_to_run(monkeypatch, capsys):
    """As in a student's server: one sentence, and exit status 2."""
    for module in [name for name in sys.modules if name.startswith("labkit_authoring")]:
        monkeypatch.setitem(sys.modules, module, None)
    assert command.main() == 2
    assert "Run it in a checkout" in capsys.readouterr().err
