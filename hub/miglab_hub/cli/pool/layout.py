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
from miglab_api.plain_text import printable
from miglab_api.wording import partition_in_words
from miglab_hub.cli.pool.output import (
    AsJson,
    CommandOutput,
    api,
    cell,
    pool_command,
    print_answer,
    table,
)
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


@pool_command(app)
def show(
    pool: PoolApi,
    as_file: Annotated[
        bool, typer.Option("--file", help="Print the applied layouts as a layout file.")
    ] = False,
) -> CommandOutput:
    """Show the layout of each GPU, and how the GPU compares with it."""
    answer = pool.call("GET", "/layout/file" if as_file else "/layout")
    if as_file:
        return answer, answer["text"].rstrip("\n")
    return answer, _table(Layouts.model_validate(answer).gpus)


@pool_command(app)
def diff(pool: PoolApi, file: LayoutFile, name: Name = "") -> CommandOutput:
    """Show what applying a file would change, which leases block it, and until when."""
    answer = pool.call("POST", "/layout/diff", _layout_body(file, name))
    layouts = Layouts.model_validate(answer)
    return answer, Group(_table(layouts.gpus), *map(printable, layouts.breaks))


@pool_command(app)
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
) -> CommandOutput:
    """Apply a layout by draining: running leases go on, and no new lease blocks it."""
    body = _layout_body(file, name) | {
        "reason": reason, "now": now, "warning_s": seconds(warning), "anyway": anyway,
    }  # fmt: skip
    answer = pool.call("PUT", "/layout", body)
    return answer, "\n".join(_describe_applied(Applied.model_validate(answer)))


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
    body = None if file is None else _layout_body(file, name)
    answer = _wait_until_conforming(api(context), body, time.monotonic() + seconds(wait))
    gpus = [GpuLayout.model_validate(gpu) for gpu in answer["gpus"] if gpu["layout"] or body]
    print_answer(answer, _describe_conformance(gpus), as_json)
    raise typer.Exit(0 if all(gpu.conforms for gpu in gpus) else DIFFERS)


def _wait_until_conforming(service: PoolApi, body: dict[str, Any] | None, until: float) -> Any:
    """Return the comparison, polled until all GPUs conform or the time is over."""
    while True:
        method, path = ("GET", "/layout") if body is None else ("POST", "/layout/diff")
        answer = service.call(method, path, body)
        if all(gpu["conforms"] for gpu in answer["gpus"]) or time.monotonic() >= until:
            return answer
        time.sleep(POLL_S)


def _layout_body(file: Path, name: str) -> dict[str, Any]:
    """Return the request body with the content of a layout file.

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
    layout_table = table(
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
            "; ".join((*map(_describe_drain, gpu.drains), *gpu.blocked)),
            _ready_time(gpu),
        )
        layout_table.add_row(*(cell(text) for text in row))
    return layout_table


def _conforms(gpu: GpuLayout) -> str:
    if not gpu.layout:
        return ""
    return "conforms" if gpu.conforms else "differs"


def _placed_slices(slices: Iterable[PlacedSlice]) -> str:
    return ", ".join(f"{placed_slice.profile} at {placed_slice.start}" for placed_slice in slices)


def _describe_drain(drain: LayoutDrain) -> str:
    lease = f"lease {drain.lease} of {drain.user or 'somebody'}"
    if drain.ends_at is not None:
        return f"{lease} until {_clock(drain.ends_at)}"
    is_open = drain.guaranteed_until <= time.time()
    return f"{lease}, {'open' if is_open else f'guaranteed until {_clock(drain.guaranteed_until)}'}"


def _ready_time(gpu: GpuLayout) -> str:
    """Return when the layout could be applied, in words."""
    if gpu.conforms or not gpu.layout:
        return ""
    if gpu.blocked:
        return "after somebody has acted"
    if gpu.ready_at is None:
        return "unknown"
    return f"by {_clock(gpu.ready_at)}" if gpu.drains else "at once"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def _describe_applied(applied: Applied) -> Iterator[str]:
    """Yield a line for each GPU, and one for the warned leases."""
    if applied.warned:
        yield f"warned: lease {', '.join(map(str, applied.warned))}"
    for gpu in applied.gpus:
        ready = _ready_time(gpu)
        state = f"{gpu.layout}, {_conforms(gpu)}" if gpu.layout else "partitioned on demand"
        yield printable(f"GPU {gpu.index}: {state}{f'; ready {ready}' if ready else ''}")


def _describe_conformance(gpus: list[GpuLayout]) -> Table | str:
    if not gpus:
        return "No layout is applied, so there is nothing to check."
    if all(gpu.conforms for gpu in gpus):
        return f"GPU {', '.join(str(gpu.index) for gpu in gpus)}: as the layout says"
    return _table(gpu for gpu in gpus if not gpu.conforms)
