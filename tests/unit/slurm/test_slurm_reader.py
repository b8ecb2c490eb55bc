"""The reader, over programs that fail or hang in the place of Slurm's commands."""

import asyncio
from pathlib import Path

import pytest
from tests.polling import until

from miglab_slurm.lab import SlurmSite
from miglab_slurm.reader import SlurmReader
from miglab_slurm.submissions import Submissions
from miglab_spawner.backends import BackendUnreachable

HANGS = '#!/bin/sh\n: > "$0.began"\nexec sleep 600\n'
FAILS = "#!/bin/sh\nexit 1\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the reader looks for its commands first; sinfo hangs."""
    monkeypatch.setenv("MIGLAB_SLURM_PATH", str(tmp_path))
    for name in ("sinfo", "scontrol"):
        put(tmp_path / name, HANGS)
    return tmp_path


def put(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)


def reader_in(folder: Path) -> SlurmReader:
    return SlurmReader(Submissions(folder / "jobs.sqlite", "lab"), SlurmSite(command_timeout_s=60))


async def test_a_command_that_fails_ends_the_one_beside_it(commands: Path):
    """The reading is over with the first failure, and leaves no task to wait for the other."""
    put(commands / "squeue", FAILS)
    reader = reader_in(commands)
    with pytest.raises(BackendUnreachable, match="exit 1"):
        await reader.picture()
    await reader.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_reader_that_is_closed_has_ended_its_commands(commands: Path):
    """Both of them: a loop may be closed at once, and nobody would wait for them then."""
    put(commands / "squeue", HANGS)
    reader = reader_in(commands)
    reader.refresh()
    await until(lambda: len(list(commands.glob("*.began"))) >= 2, "two commands to begin")
    await reader.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
