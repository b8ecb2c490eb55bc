"""The reference of the benchmarks lists those there are, and what their JSON holds."""

import re
from dataclasses import fields
from pathlib import Path

from miglab_bench.commands import app
from miglab_bench.measures.pages import PageRow
from miglab_bench.measures.scale import ScaleRow
from miglab_bench.measures.spawn import Round
from miglab_bench.measures.storm import StormRow

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "bench.md").read_text(encoding="utf-8")


def test_every_benchmark_is_in_the_reference() -> None:
    """The table lists exactly the commands there are."""
    table = PAGE.split("## ")[0]
    listed = re.findall(r"^\| `([\w-]+)", table, re.MULTILINE)
    assert sorted(listed) == sorted(str(command.name) for command in app.registered_commands)


def test_every_figure_is_in_the_reference() -> None:
    """Each field of the JSON of these is named."""
    for record in (StormRow, PageRow, Round, ScaleRow):
        for field in fields(record):
            assert f"`{field.name}`" in PAGE
