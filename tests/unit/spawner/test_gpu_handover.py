"""How slices are asked of an engine, and how a container's own list of GPUs is read."""

import socket
from contextlib import closing
from typing import Any

import pytest
from docker.errors import APIError
from requests import Response
from tests.unit.pool.applications.fakes import lease_view, slice_view

from miglab_api.engine import gpu_driver_name
from miglab_spawner.containers import gpu_handover
from miglab_spawner.containers.gpu_handover import check_container, listing_thread, visible_uuids
from miglab_spawner.refusals import REASONS
from miglab_spawner.slices_missing import SlicesMissing, check_lease

A100 = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n"
FIRST = "  MIG 1g.5gb      Device  0: (UUID: MIG-1)\n"
SECOND = "  MIG 1g.5gb      Device  1: (UUID: MIG-2)\n"
H100 = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-3157e9c9-950c-45a3-7193-57dc5b898755)\n"  # read
NEXT = "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)\n"


@pytest.mark.parametrize(
    ("engine", "driver"),
    [
        ("20.10.24+dfsg1", "nvidia"),
        ("28.5.2", "nvidia"),
        ("29.1.5", "nvidia"),
        ("29.2.0", "nvidia.runtime-hook"),
        ("29.2.0-rc.1", "nvidia.runtime-hook"),
        ("29.10.1", "nvidia.runtime-hook"),
        ("30.0", "nvidia.runtime-hook"),
        ("dev", "nvidia"),
        ("", "nvidia"),
    ],
)
def test_the_hook_is_named_as_the_engine_knows_it(engine: str, driver: str) -> None:
    """From 29.2 on ``nvidia`` means CDI first; before that nobody knows the hook's other name."""
    assert gpu_driver_name(engine) == driver


@pytest.mark.parametrize(
    ("listing", "uuids"),
    [
        ("", []),
        ("No devices found.\n", []),
        (A100, ["GPU-a"]),
        (H100, ["GPU-3157e9c9-950c-45a3-7193-57dc5b898755"]),
        (A100 + FIRST, ["MIG-1"]),
        (A100 + FIRST + SECOND, ["MIG-1", "MIG-2"]),
        (A100 + FIRST + NEXT + SECOND, ["MIG-1", "MIG-2"]),
        (A100 + FIRST + NEXT, ["MIG-1", "GPU-b"]),
        (A100 + "  Unable to query MIG devices\n", ["GPU-a"]),
        (A100 + "  MIG 1g.5gb Device 0: (UUID: MIG-GPU-a/7/0)\n", ["MIG-GPU-a/7/0"]),
        ("something (UUID: MIG-1) unheard of\n", ["MIG-1"]),
    ],
)
def test_the_devices_of_a_container_are_read(listing: str, uuids: list[str]) -> None:
    """Slices, and GPUs without any: one of which no slice is there equals no lease."""
    assert visible_uuids(listing) == uuids


def test_a_lease_of_which_a_uuid_is_missing_is_refused() -> None:
    """The engine would inject what it has UUIDs for, and say nothing."""
    slices = (slice_view(1, 0), slice_view(2, 1))
    check_lease(lease_view(1, "ada", slices=slices, uuids=("MIG-1", "MIG-2")))
    for uuids in ((), ("MIG-1",)):
        with pytest.raises(SlicesMissing, match="lease 1 has 2 slices") as refusal:
            check_lease(lease_view(1, "ada", slices=slices, uuids=uuids))
        assert refusal.value.reason == "slice-without-uuid"


@pytest.mark.parametrize("reason", [name for name in REASONS if name.startswith("slice-")])
def test_every_missing_slice_is_told_in_words(reason: str) -> None:
    """What happened, and what to do; the details are the operator's."""
    message = SlicesMissing(reason, "GPU-a").message_for("Your server was not started")
    assert message.startswith("Your server was not started, because ")
    assert "Try again" in message and "GPU-a" not in message


class SilentEngine:
    """Its container's ``nvidia-smi`` hangs: the connection stays open and says nothing."""

    def __init__(self) -> None:
        self.connection, self.container_end = socket.socketpair()

    def exec_create(self, *_: Any, **__: Any) -> dict[str, str]:
        return {"Id": "look"}

    def exec_start(self, *_: Any, **__: Any) -> socket.socket:
        return self.connection


def test_a_look_that_hangs_ends_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline ends the connection, so that the thread which reads it goes on."""
    monkeypatch.setattr(gpu_handover, "LISTING_TIMEOUT_S", 0.1)
    engine = SilentEngine()
    with closing(engine.container_end):
        with listing_thread() as thread:
            look = thread.submit(check_container, engine, "ada", ("MIG-1",))
        with pytest.raises(SlicesMissing, match="no answer within") as refusal:
            look.result(timeout=60)
        assert refusal.value.reason == "slice-unknown"
        assert engine.connection.fileno() == -1


class RefusingEngine:
    """It refuses to run anything in its container."""

    def __init__(self, status: int, explanation: str) -> None:
        self.status, self.explanation = status, explanation

    def exec_create(self, *_: Any, **__: Any) -> None:
        response = Response()
        response.status_code = self.status
        raise APIError("refused", response, self.explanation)


@pytest.mark.parametrize(
    ("status", "explanation", "has_hint"),
    [
        (500, "cannot exec: no space left on device", False),
        (404, "No such container: ada", False),
        (404, "container ada not found", False),
        (400, 'exec: "nvidia-smi": executable file not found in $PATH', True),
    ],
)
def test_what_the_engine_refuses_is_told_in_its_words(
    status: int, explanation: str, has_hint: bool
) -> None:
    """With its status; only a program that is not there points at the image's capabilities."""
    with pytest.raises(SlicesMissing) as refusal:
        check_container(RefusingEngine(status, explanation), "ada", ("MIG-1",))
    assert f"the engine answered {status}: {explanation}" in refusal.value.details
    assert ("`utility`" in refusal.value.details) is has_hint
    assert "exit status" not in refusal.value.details
