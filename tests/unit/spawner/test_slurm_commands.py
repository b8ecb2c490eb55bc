"""Slurm's commands: whatever they do, they are over when their time is."""

import asyncio
import os

import psutil
import pytest

from miglab_spawner.backends.base import BackendUnreachable
from miglab_spawner.backends.slurm import commands


def children():
    return psutil.Process().children(recursive=True)


async def test_what_a_command_has_started_ends_with_it(tmp_path):
    """Such as what `runuser` runs, which holds the pipes that are read."""
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(BackendUnreachable, match="has not ended within 2 s"):
        await asyncio.wait_for(commands.run(["sh", "-c", script], 2.0), 60)
    started = int((tmp_path / "pid").read_text())
    ended = psutil.STATUS_ZOMBIE
    assert not psutil.pid_exists(started) or psutil.Process(started).status() == ended


async def test_what_may_not_be_ended_is_left(monkeypatch):
    """As a command that `sudo` runs: who asked is told all the same."""

    def another_users(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(commands, "GONE_S", 0.01)
    with monkeypatch.context() as denied, pytest.raises(BackendUnreachable):
        denied.setattr(os, "killpg", another_users)
        await asyncio.wait_for(commands.run(["sleep", "600"], 0.01), 60)
    left = [one for one in children() if one.name() == "sleep"]
    for one in left:
        one.kill()
    await asyncio.to_thread(psutil.wait_procs, left)
