"""`lab bench labkit`: JSON for machines, a table for people, a sentence where torch is missing."""

import json
import sys

import pytest
from typer.testing import CliRunner

from miglab_bench.commands import app
from miglab_bench.measures import labkit


@pytest.fixture
def ratios(monkeypatch):
    """A machine that has been measured already."""
    monkeypatch.setattr(labkit, "all_ratios", lambda count: {"copy 1 GiB": 1.0, "blocks": count})


def test_json_and_a_table_hold_the_medians(ratios):
    """One object, one number a comparison; for people each comparison in a row."""
    result = CliRunner().invoke(app, ["labkit", "--json", "--count", "12"])
    assert json.loads(result.output) == {"ratios": {"copy 1 GiB": 1.0, "blocks": 12}}
    result = CliRunner().invoke(app, ["labkit"])
    assert "copy 1 GiB" in result.output
    assert "1.0000" in result.output


def test_without_torch_it_says_what_to_install(monkeypatch):
    """Exit status 2 and one sentence."""
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(app, ["labkit"])
    assert result.exit_code == 2
    assert "pip install ./notebooks[torch]" in result.output


def test_fewer_than_ten_blocks_are_refused():
    """A comparison of fewer blocks says too little."""
    assert CliRunner().invoke(app, ["labkit", "--count", "9"]).exit_code == 2
