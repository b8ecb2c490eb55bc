"""`lab bench scale` with real pool services, on a lab that is small and a history that is short."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long
BENCH = [sys.executable, "-m", "miglab_hub.cli", "bench", "scale", "--json"]
SMALL = ["--rounds", "1", "--gpus", "1", "--waiting", "3", "--reservations", "8", "--leases", "300"]


def test_a_small_lab_has_every_row() -> None:
    """Each was measured in both labs; whether so short a run keeps the bounds is not asked."""
    process = subprocess.run([*BENCH, *SMALL], stdout=subprocess.PIPE)
    report = json.loads(process.stdout)
    broken = [row["what"] for row in report["rows"] if not row["bounded"]]
    assert process.returncode == bool(broken)
    assert len(report["rows"]) == 15
    for row in report["rows"]:
        assert min(row["empty_ms"], row["full_ms"], row["ratio"]) > 0
