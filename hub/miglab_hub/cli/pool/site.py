"""`miglab pool pause, resume, adopt, clear`: what concerns the whole pool."""

from typing import Annotated

import typer

from miglab_hub.cli.pool.output import AsJson, Why, api, tell

app = typer.Typer()


@app.command()
def pause(
    context: typer.Context,
    reason: Annotated[str, typer.Argument(help="The reason, which everybody can read.")],
    as_json: AsJson = False,
) -> None:
    """Stop granting new leases; running leases go on."""
    answer = api(context).call("POST", "/pool/pause", {"reason": reason})
    tell(answer, as_json, lambda: "new leases are paused")


@app.command()
def resume(context: typer.Context, as_json: AsJson = False) -> None:
    """Grant leases again."""
    answer = api(context).call("POST", "/pool/resume")
    tell(answer, as_json, lambda: "new leases are granted again")


@app.command()
def adopt(context: typer.Context, slice_id: int, reason: Why = "", as_json: AsJson = False) -> None:
    """Take over the placement of a foreign slice, which is DESTROYED."""
    answer = api(context).call("POST", f"/slices/{slice_id}/adopt", {"reason": reason})
    tell(answer, as_json, lambda: f"slice {slice_id} is being destroyed")


@app.command()
def clear(context: typer.Context, slice_id: int, reason: Why = "", as_json: AsJson = False) -> None:
    """Try again to destroy a quarantined slice."""
    answer = api(context).call("POST", f"/slices/{slice_id}/clear", {"reason": reason})
    tell(answer, as_json, lambda: f"the pool tries again to destroy slice {slice_id}")
