"""The reference of the benchmarks lists those there are, and what their JSON holds."""

import re
from dataclasses import fields
from pathlib import Path

from miglab_bench.commands import app
from miglab_bench.measures.hub import HubRequest, Measured
from miglab_bench.measures.rounds import Round

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "bench.md").read_text(encoding="utf-8")


def test_every_benchmark_is_in_the_reference() -> None:
    """The table lists exactly the commands there are."""
    table = PAGE.split("## ")[0]
    listed = re.findall(r"^\| `(\w+)", table, re.MULTILINE)
    assert sorted(listed) == sorted(str(command.name) for command in app.registered_commands)


def test_every_figure_is_in_the_reference() -> None:
    """Each field of the JSON of `hub` and `spawn` is named; what was asked for is in `how`."""
    asked_for = {"students", "within_s", "pool_requests"}
    for record in (HubRequest, Measured, Round):
        for field in fields(record):
            assert field.name in asked_for or f"`{field.name}`" in PAGE
