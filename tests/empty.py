"""Empty databases, whose tables are made once in a process and copied for each test."""

import tempfile
from functools import cache
from pathlib import Path

from miglab_pool.ledger.ledger import Ledger


@cache
def empty_ledger() -> bytes:
    """A ledger as a lab begins with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        Ledger(path).close()
        return path.read_bytes()


@cache
def empty_hub() -> bytes:
    """A hub's database as JupyterHub makes it."""
    from jupyterhub.orm import new_session_factory  # most tests need no hub

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jupyterhub.sqlite"
        engine = new_session_factory(f"sqlite:///{path}").kw["bind"]
        engine.dispose()
        return path.read_bytes()
