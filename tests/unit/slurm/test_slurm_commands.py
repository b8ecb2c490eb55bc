"""Slurm's commands: whatever they do, they are over when their time is."""

import asyncio
import os
import select

import pytest

from miglab_slurm import commands
from miglab_spawner.backends import BackendUnreachable

ENDLESS = "sleep 600"  # a command that outlasts the time it is given


def has_ended(pid: int, within_s: float) -> bool:
    """Whether a process ends in time: one that is killed closes its pipes a moment earlier."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(process, "rb") as over:
        return bool(select.select([over], [], [], within_s)[0])


@pytest.mark.parametrize("then", ["wait", "exit 0"])
async def test_what_a_command_has_started_ends_with_it(tmp_path, then):
    """Such as what `runuser` runs, which holds the pipes that are read, whether or not it waits."""
    script = f"{ENDLESS} & echo $! > {tmp_path}/pid; {then}"
    with pytest.raises(BackendUnreachable, match="has not ended within 1 s"):
        await asyncio.wait_for(commands.run(["sh", "-c", script], 1.0), 60)
    assert has_ended(int((tmp_path / "pid").read_text()), within_s=60.0)


@pytest.mark.parametrize(
    ("stderr", "is_silence"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv", True),
        ("sbatch: error: Invalid account or account/partition combination specified", False),
    ],
)
async def test_silence_is_no_refusal(stderr, is_silence):
    """A controller that does not answer is waited for; a refusal is told to who asked."""
    with pytest.raises(BackendUnreachable if is_silence else commands.CommandFailed, match="error"):
        await commands.run(["sh", "-c", f"echo '{stderr}' >&2; exit 1"], 20.0)


async def test_what_may_not_be_ended_is_left(monkeypatch):
    """As a command that `sudo` runs: who asked is told all the same."""
    start, processes = asyncio.create_subprocess_exec, []

    def another_users(*_):
        raise PermissionError(1, "Operation not permitted")

    async def start_and_keep(*command, **options):
        processes.append(await start(*command, **options))
        return processes[-1]

    with monkeypatch.context() as denied, pytest.raises(BackendUnreachable):
        denied.setattr(os, "killpg", another_users)
        denied.setattr(asyncio, "create_subprocess_exec", start_and_keep)
        await asyncio.wait_for(commands.run(ENDLESS.split(), 0.01), 60)
    (process,) = processes
    assert process.returncode is None
    process.kill()
    await process.communicate()  # until then its transport is open


async def test_jobs_get_the_umask_that_students_expect():
    """Of sbatch a job inherits it; the hub's own would keep a group out of a shared folder."""
    before = os.umask(0o077)
    try:
        assert await commands.run(["sh", "-c", "umask"], 20.0) == "0022\n"
    finally:
        os.umask(before)
