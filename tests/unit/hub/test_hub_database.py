"""The hub's database waits for no disk in the thread that answers everybody."""

import sqlite3
from pathlib import Path

from sqlalchemy import create_engine, text
from traitlets.config import Config

from miglab_hub import lab_secrets
from miglab_hub.configure import configure, tune
from miglab_hub.settings.lab_toml import load


def test_the_hub_opens_it_with_a_write_ahead_log(tmp_path: Path) -> None:
    """As JupyterHub opens it, with what we configure."""
    file = tmp_path / "lab.toml"
    file.write_text('[courses.everyone]\nshapes = ["1g.5gb"]\n')
    settings = load(file, {})
    lab_secrets.make_all(settings)
    c = Config()
    configure(c, settings)
    engine = create_engine(c.JupyterHub.db_url, **c.JupyterHub.db_kwargs)
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 1  # NORMAL
    engine.dispose()


def test_one_made_before_is_kept(tmp_path: Path) -> None:
    """A lab from before goes on with its people."""
    file = tmp_path / "jupyterhub.sqlite"
    with sqlite3.connect(file) as old:
        old.execute("CREATE TABLE users (name)")
        old.execute("INSERT INTO users VALUES ('ada')")
    old.close()
    connection = sqlite3.connect(file)
    tune(connection, None)
    assert connection.execute("SELECT name FROM users").fetchall() == [("ada",)]
    connection.close()
