"""What both services are as processes, by whomever they are started."""

import subprocess
import sys
from pathlib import Path

from miglab_hub.errors import StartError
from miglab_hub.service.process import foreground
from miglab_hub.settings.lab_toml import Settings


def test_what_a_service_writes_is_its_own(tmp_path: Path, used: Settings) -> None:
    """Also where systemd or compose start it, without the launcher: no other user reads it."""
    file = tmp_path / "ledger"

    def write_and_fail(_settings: Settings) -> None:
        file.write_text("who holds what")
        raise StartError("enough")

    command = ["--config", str(used.file)]
    assert foreground("pool", "A service.", write_and_fail, arguments=command) == 2
    assert file.stat().st_mode & 0o777 == 0o600
    (tmp_path / "mine").touch()
    assert (tmp_path / "mine").stat().st_mode & 0o777 != 0o600, "and afterwards as before"


SERVICE_THAT_LOGS = """
import logging
from miglab_hub.service.process import foreground

def log_a_reason(_settings):
    reason = "bye)\\n2026-01-01 00:00:00,000 INFO miglab_pool: all is well\\x1b[2J"
    logging.getLogger("miglab_pool").info("lease 1 of ada ends (%s)", reason)
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("miglab_pool").exception("a round failed")

raise SystemExit(foreground("pool", "A service.", log_a_reason))
"""


def test_a_students_reason_forges_no_line_of_the_log(used: Settings) -> None:
    """It is one line, and commands no terminal; a traceback of the lab's own keeps its lines."""
    command = [sys.executable, "-c", SERVICE_THAT_LOGS, "--config", str(used.file)]
    log = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    line, *next_lines = log.splitlines()
    assert line.endswith("ends (bye) 2026-01-01 00:00:00,000 INFO miglab_pool: all is well?[2J)")
    assert (
        next_lines[1].startswith("Traceback")
        and next_lines[-1] == "ZeroDivisionError: division by zero"
    )
