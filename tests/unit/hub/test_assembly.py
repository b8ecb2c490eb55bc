"""What the service reads from lab.toml, and what it says when it cannot start."""

from pathlib import Path

import pytest

from miglab_bench.harness.processes import free_ports
from miglab_hub.service.__main__ import main
from miglab_hub.service.process import private
from miglab_hub.settings.lab_toml import load
from miglab_pool.http.connection_limits import bind

from .conftest import LAB, lab_with


def refusal_to_start(capsys: pytest.CaptureFixture[str], lab: Path) -> str:
    """Start the service, which must refuse; returns its one line."""
    assert main(["--config", str(lab)]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("miglab-pool: ") and "Traceback" not in stderr
    return stderr


def test_a_damaged_ledger(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and the ledger stays as it is."""
    ledger = load(lab, {}).ledger
    ledger.write_bytes(b"not a ledger at all" * 1000)
    assert "ledger" in refusal_to_start(capsys, lab)
    assert ledger.read_bytes() == b"not a ledger at all" * 1000


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the address and the key; the ledger was not opened."""
    port = free_ports()
    lab = lab_with(tmp_path, LAB.replace("9000", str(port)))
    with bind("127.0.0.1", port + 3, "x"):
        refusal = refusal_to_start(capsys, lab.file)
    assert f"127.0.0.1:{port + 3}" in refusal and "lab.port" in refusal
    assert not lab.ledger.exists()


def test_a_secret_that_others_can_read(tmp_path: Path) -> None:
    """It is not used."""
    file = tmp_path / "secret"
    file.write_text("s" * 32)
    file.chmod(0o640)
    with pytest.raises(PermissionError, match="read by others"):
        private(file)
    file.chmod(0o600)
    assert private(file) == "s" * 32
