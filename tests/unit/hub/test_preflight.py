"""What stops `./lab up` before anything is started: each is one message that says what to do."""

import os
from pathlib import Path

import pytest

from miglab_bench.harness.ports import free_ports
from miglab_hub.launch import preflight
from miglab_hub.launch.preflight import prepare

from .conftest import lab_with

DOCKER = 'accept_risk.students_can_act_as_staff = true\nservers.spawner = "docker"\n'
LAB = '[courses.everyone]\nshapes = ["1g.5gb"]\n'


def test_two_labs_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one lab is told, port and network, is not the next one's: nothing is left behind."""
    monkeypatch.setattr(preflight, "students_bridge", lambda _settings: "127.0.0.2")
    file = lab_with(tmp_path, DOCKER + LAB).file
    before, port = dict(os.environ), free_ports()
    settings = prepare(file, port)
    assert (settings.lab.port, settings.bridge) == (port, "127.0.0.2")
    assert dict(os.environ) == before
