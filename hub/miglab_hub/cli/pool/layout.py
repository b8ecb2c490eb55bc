"""`miglab pool layout`: how the GPUs are to be cut; shown, compared, applied, asserted."""

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from miglab_api.gpus import LAYOUT_MAX, Applied, GpuLayout, LayoutDrain, Layouts, PlacedSlice
from miglab_api.wording import partition_in_words
from miglab_hub.cli.pool.output import AsJson, Told, api, asks, cell, shown, table, tell
from miglab_hub.cli.pool.reserve import seconds
from miglab_hub.errors import StartError
from miglab_hub.pool_api import PoolApi

app = typer.Typer(help="How the GPUs are partitioned.", no_args_is_help=True)
DIFFERS = 1
POLL_S = 1.0

LayoutFile = Annotated[
    Path, typer.Argument(help="A layout file (mig-parted's YAML); - for standard input.")
]
Name = Annotated[
    str, typer.Argument(help="Which configuration of the file, if it has several.", metavar="NAME")
]


@asks(app)
def show(
    pool: PoolApi,
    as_file: Annotated[
        bool, typer.Option("--file", help="Print the applied layouts as a layout file.")
    ] = False,
) -> Told:
    """Show the layout of each GPU, and how the GPU compares with it."""
    answer = pool.call("GET", "/layout/file" if as_file else "/layout")
    if as_file:
        return answer, answer["text"].rstrip("\n")
    return answer, _table(Layouts.model_validate(answer).gpus)


@asks(app)
def diff(pool: PoolApi, file: LayoutFile, name: Name = "") -> Told:
    """Show what applying a file would change, which leases block it, and until when."""
    answer = pool.call("POST", "/layout/diff", _text(file, name))
    found = Layouts.model_validate(answer)
    return answer, Group(_table(found.gpus), *map(shown, found.breaks))


@asks(app)
def apply(
    pool: PoolApi,
    file: LayoutFile,
    name: Name = "",
    reason: Annotated[str, typer.Option(help="Why; staff read it.")] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Reclaim the blocking leases after a warning.")
    ] = False,
    warning: Annotated[
        str, typer.Option(help="With --now: how long the holders are warned; 0 for no warning.")
    ] = "5m",
    anyway: Annotated[
        str, typer.Option(help="Why it is applied though it takes slices from a reservation.")
    ] = "",
) -> Told:
    """Apply a layout by draining: running leases go on, and no new lease blocks it."""
    body = _text(file, name) | {
        "reason": reason, "now": now, "warning_s": seconds(warning), "anyway": anyway,
    }  # fmt: skip
    answer = pool.call("PUT", "/layout", body)
    return answer, "\n".join(_news(Applied.model_validate(answer)))


@app.command("assert")
def assert_(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="A layout file; by default the applied layouts.")
    ] = None,
    name: Name = "",
    wait: Annotated[str, typer.Option(help="How long to wait for the GPUs to conform.")] = "0",
    as_json: AsJson = False,
) -> None:
    """Check that the GPUs are partitioned as a layout says; exit status 1 if one differs."""
    body = None if file is None else _text(file, name)
    answer = _asked(api(context), body, time.monotonic() + seconds(wait))
    found = [GpuLayout.model_validate(gpu) for gpu in answer["gpus"] if gpu["layout"] or body]
    tell(answer, _asserted(found), as_json)
    raise typer.Exit(0 if all(gpu.conforms for gpu in found) else DIFFERS)


def _asked(service: PoolApi, body: dict[str, Any] | None, until: float) -> Any:
    """The answer, asked for again until all GPUs conform or the time is over."""
    while True:
        method, path = ("GET", "/layout") if body is None else ("POST", "/layout/diff")
        answer = service.call(method, path, body)
        if all(gpu["conforms"] for gpu in answer["gpus"]) or time.monotonic() >= until:
            return answer
        time.sleep(POLL_S)


def _text(file: Path, name: str) -> dict[str, Any]:
    """The file as the service reads it.

    Raises:
        StartError: it cannot be read.
    """
    try:
        raw = typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise StartError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise StartError(f"{file}:{line}: this is not UTF-8; save the file as UTF-8") from error
    if not text or len(text) > LAYOUT_MAX:
        raise StartError(f"{file} has {len(text)} characters; a layout file has 1 to {LAYOUT_MAX}")
    return {"text": text, "file": str(file)[-200:], "name": name}


# -- for people ---------------------------------------------------------------------------------


def _table(gpus: Iterable[GpuLayout]) -> Table:
    made = table(
        "GPU", "layout", "state", "partition", "to create", "to remove", "blocked by", "ready"
    )
    for gpu in gpus:
        row = (
            str(gpu.index),
            gpu.layout or "(on demand)",
            _conforms(gpu),
            partition_in_words(reversed(gpu.partition)) if gpu.layout else "",
            _placed_slices(gpu.makes),
            _placed_slices(gpu.removes),
            "; ".join((*map(_drain, gpu.drains), *gpu.blocked)),
            _ready(gpu),
        )
        made.add_row(*(cell(each) for each in row))
    return made


def _conforms(gpu: GpuLayout) -> str:
    if not gpu.layout:
        return ""
    return "conforms" if gpu.conforms else "differs"


def _placed_slices(placed: Iterable[PlacedSlice]) -> str:
    return ", ".join(f"{one.profile} at {one.start}" for one in placed)


def _drain(one: LayoutDrain) -> str:
    lease = f"lease {one.lease} of {one.user or 'somebody'}"
    if one.ends_at is not None:
        return f"{lease} until {_clock(one.ends_at)}"
    is_open = one.guaranteed_until <= time.time()
    return f"{lease}, {'open' if is_open else f'guaranteed until {_clock(one.guaranteed_until)}'}"


def _ready(gpu: GpuLayout) -> str:
    """When it could be done."""
    if gpu.conforms or not gpu.layout:
        return ""
    if gpu.blocked:
        return "after somebody has acted"
    if gpu.ready_at is None:
        return "unknown"
    return f"by {_clock(gpu.ready_at)}" if gpu.drains else "at once"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _news(found: Applied) -> Iterator[str]:
    """A sentence for each GPU, and one for whom it warned."""
    if found.warned:
        yield f"warned: lease {', '.join(map(str, found.warned))}"
    for gpu in found.gpus:
        ready = _ready(gpu)
        what = f"{gpu.layout}, {_conforms(gpu)}" if gpu.layout else "partitioned on demand"
        yield shown(f"GPU {gpu.index}: {what}{f'; ready {ready}' if ready else ''}")


def _asserted(found: list[GpuLayout]) -> Table | str:
    if not found:
        return "No layout is applied, so there is nothing to check."
    if all(gpu.conforms for gpu in found):
        return f"GPU {', '.join(str(gpu.index) for gpu in found)}: as the layout says"
    return _table(gpu for gpu in found if not gpu.conforms)
