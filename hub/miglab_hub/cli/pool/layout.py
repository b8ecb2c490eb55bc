"""`miglab pool layout`: how the GPUs are to be cut; shown, compared, applied, removed, asserted."""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from miglab_api.layouts import (
    TEXT_MAX,
    Applied,
    Asserted,
    GpuLayout,
    LayoutDiff,
    LayoutDrain,
    Layouts,
    LayoutState,
    LayoutView,
    PlacedSlice,
)
from miglab_api.wording import in_words
from miglab_hub.cli.pool import mig_parted
from miglab_hub.cli.pool.output import AsJson, api, cell, shown, table, tell
from miglab_hub.cli.pool.reserve import seconds
from miglab_hub.errors import StartError
from miglab_hub.pool_api import PoolApi

app = typer.Typer(help="How the GPUs are partitioned.", no_args_is_help=True)
DIFFERS = 1
POLL_S = 1.0

LayoutFile = Annotated[
    Path, typer.Argument(help="A layout file (YAML), or one of mig-parted; - for standard input.")
]
Names = Annotated[
    list[str] | None,
    typer.Option("--only", help="Only the layout with this name; may be repeated."),
]


@app.command()
def show(
    context: typer.Context,
    as_file: Annotated[
        bool, typer.Option("--file", help="Print the applied layouts as a layout file.")
    ] = False,
    as_mig_parted: Annotated[
        bool, typer.Option("--mig-parted", help="Print them as a file of NVIDIA's mig-parted.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the applied layouts, and how each GPU compares with them."""
    if as_file:
        answer = api(context).call("GET", "/layout/file")
        tell(answer, as_json, lambda: answer["text"].rstrip("\n"))
        return
    answer = api(context).call("GET", "/layout")
    if as_mig_parted:
        tell(answer, as_json, lambda: mig_parted.from_layouts(Layouts.model_validate(answer)))
        return
    tell(answer, as_json, lambda: _shown(Layouts.model_validate(answer)))


@app.command()
def diff(
    context: typer.Context, file: LayoutFile, only: Names = None, as_json: AsJson = False
) -> None:
    """Show what applying a file would change, which leases block it, and until when."""
    answer = api(context).call("POST", "/layout/diff", _text(file, only))
    tell(answer, as_json, lambda: _diffs([LayoutDiff.model_validate(one) for one in answer]))


@app.command()
def apply(
    context: typer.Context,
    file: LayoutFile,
    only: Names = None,
    reason: Annotated[str, typer.Option(help="Why; staff read it.")] = "",
    now: Annotated[
        bool, typer.Option("--now", help="Reclaim the blocking leases after a warning.")
    ] = False,
    warning: Annotated[
        str, typer.Option(help="With --now: how long the holders are warned; 0 for no warning.")
    ] = "5m",
    as_json: AsJson = False,
) -> None:
    """Apply layouts by draining: running leases go on, and no new lease blocks a layout."""
    body = _text(file, only) | {"reason": reason, "now": now, "warning_s": seconds(warning)}
    answer = api(context).call("PUT", "/layout", body)
    tell(answer, as_json, lambda: _applied(Applied.model_validate(answer)))


@app.command()
def remove(
    context: typer.Context,
    name: str,
    reason: Annotated[str, typer.Option(help="Why; the audit records it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Remove a layout; its GPUs follow another layout, or are partitioned on demand."""
    query = f"?{urlencode({'reason': reason})}" if reason else ""
    answer = api(context).call("DELETE", f"/layout/{quote(name, safe='')}{query}")
    tell(answer, as_json, lambda: f"layout {shown(name)} has been removed")


@app.command("assert")
def assert_(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="A layout file; by default the applied layouts.")
    ] = None,
    only: Names = None,
    wait: Annotated[str, typer.Option(help="How long to wait for the GPUs to conform.")] = "0",
    as_json: AsJson = False,
) -> None:
    """Check that the GPUs are partitioned as a layout says; exit status 1 if one differs."""
    body = {} if file is None else _text(file, only)
    if file is None and only:
        raise typer.BadParameter("--only chooses layouts from a file, so name the file too.")
    answer = _asked(api(context), body, time.monotonic() + seconds(wait))
    tell(answer, as_json, lambda: _asserted(Asserted.model_validate(answer)))
    raise typer.Exit(0 if answer["conforms"] else DIFFERS)


def _asked(service: PoolApi, body: dict[str, Any], until: float) -> Any:
    """The answer, asked for again until it conforms or the time is over."""
    while True:
        answer = service.call("POST", "/layout/assert", body)
        if answer["conforms"] or time.monotonic() >= until:
            return answer
        time.sleep(POLL_S)


def _text(file: Path, only: Sequence[str] | None) -> dict[str, Any]:
    """The file as the service reads it.

    Raises:
        StartError: it cannot be read.
    """
    try:
        raw = typer.get_binary_stream("stdin").read() if str(file) == "-" else file.read_bytes()
        text = raw.decode("utf-8-sig")
        if mig_parted.is_mig_parted(text):
            text = mig_parted.to_layout_file(text, str(file))
    except mig_parted.MigPartedError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise StartError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise StartError(f"{file}:{line}: this is not UTF-8; save the file as UTF-8") from error
    if not text or len(text) > TEXT_MAX:
        raise StartError(f"{file} has {len(text)} characters; a layout file has 1 to {TEXT_MAX}")
    return {"text": text, "file": str(file)[-200:], "names": list(only or ())}


# -- for people ---------------------------------------------------------------------------------


def _shown(found: Layouts) -> RenderableType:
    if not found.layouts:
        return "No layout is applied: every GPU is partitioned on demand."
    made = table("layout", "course", "state", "when", "GPUs", "by")
    for one in found.layouts:
        row = (one.name, one.course, _state(one), _when(one), _on(one, found.gpus), one.made_by)
        made.add_row(*(cell(each or "") for each in row))
    return Group(made, "", _table(found.gpus))


def _state(one: LayoutView) -> str:
    return "in force" if one.state is LayoutState.IN_FORCE else one.state.value


def _when(one: LayoutView) -> str:
    """Its times, and when the next begins, by a clock of its own time zone."""
    times = ", ".join(
        f"{'+'.join(time.weekdays) or time.date} {time.from_time}-{time.to_time} {time.tz}"
        for time in one.when
    )
    return times or "always"


def _on(one: LayoutView, gpus: Iterable[GpuLayout]) -> str:
    """Its GPUs and their cuts; those that are gone last, by UUID."""
    there = [(str(gpu.index), one.gpus[gpu.gpu]) for gpu in gpus if gpu.gpu in one.gpus]
    gone = one.gpus.keys() - {gpu.gpu for gpu in gpus}
    found = [*there, *((gpu, one.gpus[gpu]) for gpu in sorted(gone))]
    return ", ".join(f"{gpu}: {_partition(partition)}" for gpu, partition in found)


def _partition(partition: Sequence[str]) -> str:
    """The largest first."""
    return in_words(reversed(partition))


def _diffs(found: Sequence[LayoutDiff]) -> RenderableType:
    replaced = [
        shown(f"{one.layout} replaces {', '.join(one.replaces)}") for one in found if one.replaces
    ]
    return Group(_table([gpu for one in found for gpu in one.gpus]), *replaced)


def _table(gpus: Sequence[GpuLayout]) -> Table:
    made = table(
        "GPU", "layout", "state", "partition", "to create", "to remove", "blocked by", "ready"
    )
    for gpu in gpus:
        row = (
            str(gpu.index),
            gpu.layout or "(on demand)",
            _conforms(gpu),
            _partition(gpu.partition) if gpu.layout else "",
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
    until = f" until {_clock(one.ends_at)}" if one.ends_at is not None else ", without an end"
    return f"lease {one.lease} of {one.user or 'somebody'}{until}"


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


def _applied(found: Applied) -> str:
    return "\n".join(_news(found))


def _news(found: Applied) -> Iterator[str]:
    """A sentence for each GPU on which something is to come, and one for what was done."""
    if found.warned:
        yield f"warned: lease {', '.join(map(str, found.warned))}"
    for gpu in found.gpus:
        if gpu.layout:
            ready = _ready(gpu)
            what = f"GPU {gpu.index}: {gpu.layout}, {_conforms(gpu)}"
            yield shown(f"{what}{f'; ready {ready}' if ready else ''}")
    planned = [one for one in found.layouts if one.state is LayoutState.PLANNED]
    for one in planned:
        yield shown(f"layout {one.name}: planned, {_when(one)}")


def _asserted(found: Asserted) -> RenderableType:
    if not found.gpus:
        return "No layout is in force now, so there is nothing to check."
    if found.conforms:
        indexes = ", ".join(str(gpu.index) for gpu in found.gpus)
        return f"GPU {indexes}: as the layout says"
    return _table([gpu for gpu in found.gpus if not gpu.conforms])
