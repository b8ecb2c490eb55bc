"""What both services are as processes, by whomever they are started."""

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
