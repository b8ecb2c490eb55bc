"""`miglab pool pause, resume, adopt, clear`: what concerns the whole pool."""

from typing import Annotated

import typer

from miglab_hub.cli.pool.output import AsJson, Why, api, tell

app = typer.Typer()


@app.command()
def pause(
    context: typer.Context,
    why: Annotated[str, typer.Argument(help="Shown to all.")],
    as_json: AsJson = False,
) -> None:
    """Grant no new leases; what runs, runs on."""
    answer = api(context).call("POST", "/pool/pause", {"why": why})
    tell(answer, as_json, lambda: "paused")


@app.command()
def resume(context: typer.Context, as_json: AsJson = False) -> None:
    """Grant leases again."""
    answer = api(context).call("POST", "/pool/resume")
    tell(answer, as_json, lambda: "granting again")


@app.command()
def adopt(context: typer.Context, slice_id: int, reason: Why = "", as_json: AsJson = False) -> None:
    """Take over a foreign slice: it is DESTROYED, and its place is the pool's."""
    answer = api(context).call("POST", f"/slices/{slice_id}/adopt", {"reason": reason})
    tell(answer, as_json, lambda: f"slice {slice_id} is being destroyed")


@app.command()
def clear(context: typer.Context, slice_id: int, reason: Why = "", as_json: AsJson = False) -> None:
    """Try again to destroy a slice that was set aside."""
    answer = api(context).call("POST", f"/slices/{slice_id}/clear", {"reason": reason})
    tell(answer, as_json, lambda: f"slice {slice_id} is tried again")
