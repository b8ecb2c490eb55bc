"""`miglab pool pause, resume, adopt, clear`: what concerns the whole pool."""

from typing import Annotated

import typer

from miglab_hub.cli.pool.output import AsJson, api, tell
from miglab_hub.cli.pool.staff import command_of

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


for _key in ("adopt", "clear"):
    app.command(_key)(command_of(_key))
