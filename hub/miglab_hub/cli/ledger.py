"""`miglab ledger`: says which file is this lab's ledger, where a start has refused to guess."""

import typer

from miglab_hub.backup import lab_at_rest
from miglab_hub.cli import Config
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import load
from miglab_pool.ledger import own_file
from miglab_pool.ledger.tables import LedgerError

app = typer.Typer(help="Begin with a new ledger, or accept the one that is there.")


@app.callback()
def ledger() -> None:
    """Begin with a new ledger, or accept the one that is there."""


@app.command()
def begin(config: Config = None) -> None:
    """Move the ledger aside; the next start makes a new one.  Refused while hub or pool run.

    Servers that run are strangers to a new ledger: their slices show as foreign.
    """
    settings = load(config, running=False)
    with lab_at_rest(settings):
        aside = own_file.begin_anew(settings.ledger)
    print(f"the previous ledger is in {aside}" if aside else "there was no ledger")
    print("the next start makes a new ledger")


@app.command()
def accept(config: Config = None) -> None:
    """Take the ledger that lies there for this lab's.  Refused while hub or pool run."""
    settings = load(config, running=False)
    with lab_at_rest(settings):
        try:
            identity = own_file.accept(settings.ledger)
        except LedgerError as error:
            raise StartError(str(error)) from error
    print(f"{settings.ledger} is this lab's ledger ({identity})")
