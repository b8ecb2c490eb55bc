"""A real JupyterHub in this process, a real pool, students as local processes."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.empty import empty_hub
from tests.hubs import STUDENT, Hub, hub_config_for, running_hub
from tests.pool_sender import over
from traitlets.config import Config

from miglab_spawner import backends as client

from .lab import URL, PoolLab


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PoolLab]:
    """The pool; the spawners' HTTP client leads to it."""
    async with PoolLab(tmp_path) as lab:
        monkeypatch.setattr(client, "send_request", over(lab.http))
        monkeypatch.setattr(client, "RETRY_PAUSES_S", (0.0, 0.0, 0.0))
        yield lab


@pytest.fixture
def hub_config(lab: PoolLab, tmp_path: Path) -> Config:
    """The hub's configuration; a test module may override it."""
    c = hub_config_for("mig-local")
    c.MIGLocalSpawner.cmd = [sys.executable, "-S", str(STUDENT)]
    c.MIGLocalSpawner.args = []
    c.MIGLocalSpawner.homes_dir = str(tmp_path / "homes")
    c.MIGLocalSpawner.pool_url = URL
    c.MIGLocalSpawner.pool_secret_file = str(lab.secret_file)
    c.MIGLocalSpawner.longest_wait_s = 60
    c.MIGLocalSpawner.pool_patience_s = 10
    c.MIGLocalSpawner.interrupt_timeout = 5
    c.MIGLocalSpawner.poll_interval = 3600
    return c


@pytest.fixture
async def hub(
    hub_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Hub]:
    """A running hub."""
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "jupyterhub.sqlite"
    database.write_bytes(empty_hub())
    monkeypatch.setenv("JUPYTERHUB_TEST_DB_URL", f"sqlite:///{database}")
    async with running_hub(hub_config) as hub:
        yield hub
