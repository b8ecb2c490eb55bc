"""What holds for every command: JSON, plain in a pipe, exit statuses, completion, reference."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from tests.unit.pool.applications import fakes
from tests.unit.pool.applications.fakes import gpu_view, slice_view, ticket_view
from typer.testing import CliRunner

from miglab_api.gpus import PoolSnapshot, SliceState
from miglab_hub import cli
from miglab_hub.cli import pool
from miglab_hub.cli.pool.show import changed_lines, moment
from miglab_hub.errors import RefusedError, SilentError, StartError

from .conftest import Service, exit_status, invoke, pool_of, run

POOL = typer.main.get_command(pool.app)
REFERENCE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()


def commands(of: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group, by its full name."""
    for name, command in of.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def test_every_command_speaks_json() -> None:
    """None of `miglab pool` is for people alone."""
    pool_commands = dict(commands(POOL))
    assert len(pool_commands) >= 15
    assert not [
        n
        for n, command in pool_commands.items()
        if "as_json" not in {p.name for p in command.params}
    ]


def test_a_row_is_one_line_in_a_pipe(service: Service, lab: Path) -> None:
    """However long the names are: whoever reads by lines gets whole ones."""
    name = "a" * 200
    service.answers["/pool"] = pool_of(slice_view(1, 0, name, server="b" * 200))
    (row,) = [line for line in run(lab, "status").splitlines() if name in line]
    assert f"{name} (server “{'b' * 200}”)" in row


# -- exit statuses -------------------------------------------------------------------------------


def test_the_statuses_are_in_the_reference() -> None:
    """Each kind of no has its own, and the table says it."""
    page = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text()
    section = page.split("## Exit statuses")[1].split("\n## ")[0]
    listed = {int(status) for status in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    error_statuses = {StartError.exit_status, RefusedError.exit_status, SilentError.exit_status}
    assert error_statuses == {2, 3, 4}
    assert listed == error_statuses | {0, 1, cli.INTERRUPTED}


def test_each_no_has_its_status(
    service: Service, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused: 3 with the service's sentence on standard error; no lab: 2; done: 0."""
    at = ["pool", "--config", str(lab)]
    assert exit_status(*at, "leases") == 0
    service.refuses = True
    capsys.readouterr()
    assert exit_status(*at, "release", "1") == 3
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "lab: Not yours.\n")
    assert exit_status("pool", "--config", str(lab) + ".gone", "status") == 2


def test_no_service_is_another_no(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts tell a pool that is away from one that refuses."""
    assert exit_status("pool", "--config", str(lab), "status") == 4
    assert "is the lab running?" in capsys.readouterr().err


# -- watch ---------------------------------------------------------------------------------------


def snapshot(*slices: Any, state: str = "ok", **fields: Any) -> PoolSnapshot:
    return fakes.snapshot(gpu_view(*slices, state=state), **fields)


def test_news_are_what_changed() -> None:
    """At first all there is; then a line for each thing that is another; nothing for nothing."""
    free, leased = slice_view(1, 0), slice_view(1, 0, "alice")
    before = snapshot(free, waiting=(ticket_view(5, "bob", position=1),))
    assert changed_lines(None, before) == [
        "GPU 0: ok",
        "slice 1: 1g.5gb on GPU 0 {0}:1, free",
        "ticket 5: 1g.5gb for bob, waiting, position 1",
    ]
    assert changed_lines(before, before) == []
    now = snapshot(
        leased, slice_view(2, 1, state=SliceState.MAKING), paused="Repairs", state="lost"
    )
    assert changed_lines(before, now) == [
        "paused: Repairs",
        "GPU 0: lost",
        "slice 1: 1g.5gb on GPU 0 {0}:1, leased by alice",
        "slice 2: 1g.5gb on GPU 0 {1}:1, making",
        "ticket 5: gone",
    ]
    assert changed_lines(now, before)[0] == "new leases are granted again"


def test_news_of_hostile_names_are_text() -> None:
    """A name cannot clear the screen of whoever watches."""
    (line,) = changed_lines(snapshot(slice_view(1, 0)), snapshot(slice_view(1, 0, "\x1b[2Jeve\n")))
    assert line.endswith("leased by ?[2Jeve?")


@pytest.mark.parametrize("arguments", [["watch"], ["watch", "--json"]])
def test_watch_in_a_pipe(service: Service, lab: Path, arguments: list[str]) -> None:
    """Lines for people, or a line of JSON for each change; that the stream ended is status 4."""
    snapshots = (snapshot(slice_view(1, 0)), snapshot(slice_view(1, 0, "alice")))
    lines = [f"event: pool\ndata: {s.model_dump_json()}\n\n: ping\n\n" for s in snapshots]
    service.answers["/events"] = httpx.Response(200, text="".join(lines))
    result = invoke(lab, *arguments)
    assert isinstance(result.exception, SilentError) and "ended" in str(result.exception)
    lines = result.stdout.splitlines()
    if "--json" in arguments:
        users = [json.loads(line)["gpus"][0]["slices"][0]["user"] for line in lines]
        assert users == [None, "alice"]
    else:
        assert len(lines) == 3
        assert re.fullmatch(r"\d\d:\d\d:\d\d \w+ slice 1: .* leased by alice", lines[2])


def test_who_may_not_watch_is_told(service: Service, lab: Path) -> None:
    """A refusal of the stream is the service's sentence, as everywhere."""
    service.refuses = True
    result = invoke(lab, "watch")
    assert isinstance(result.exception, RefusedError)
    assert (str(result.exception), result.exception.reason) == ("Not yours.", "forbidden")


# -- audit ---------------------------------------------------------------------------------------

NOON = 1_780_401_600.0
TIMES = {
    "99999d": 0.0, "90m": NOON - 5400,
    "2h": NOON - 7200, "1.5d": NOON - 129_600, "1w": NOON - 604_800,
    "2026-06-02T12:00+00:00": NOON, "2026-06-02 14:00+02:00": NOON,
}  # fmt: skip


@pytest.mark.parametrize(("text", "at"), TIMES.items())
def test_times_as_people_write_them(text: str, at: float) -> None:
    """So long ago, or a date."""
    assert moment(text, NOON) == at
    assert moment(None, NOON) is None


@pytest.mark.parametrize("text", ["", "soon", "2h ago", "-1h", "2026-02-30", "1y", "9" * 400])
def test_no_time(text: str) -> None:
    """What is none is said to be none."""
    with pytest.raises(typer.BadParameter, match="is not a time"):
        moment(text, NOON)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("miglab pool re", {"release", "reserve", "resume"}), ("miglab pool watch --j", {"--json"})],
)
def test_completion_knows_the_commands(typed: str, offered: set[str]) -> None:
    """Tab offers what begins so, in the shells that Typer knows."""
    completion = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    environment = {"_MIGLAB_COMPLETE": "complete_bash", **completion}
    result = CliRunner().invoke(cli.app, prog_name="miglab", env=environment)
    assert offered <= set(result.stdout.split())
