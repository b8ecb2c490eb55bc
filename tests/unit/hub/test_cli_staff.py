"""`miglab pool drain, quarantine, reclaim, next, message …`: what they ask and what they print."""

import json
from pathlib import Path
from typing import Any

import pytest

from miglab_api.staff import ActionRequest, MessageRequest, ReclaimRequest, UndoRequest
from miglab_hub.errors import RefusedError

from .conftest import Service, invoked, run

NOTE = {
    "id": 3, "at": 1000.0, "by": "person:ina", "to_user": None, "to_server": None,
    "to_course": None, "text": "Room 2.", "until": 4600.0,
}  # fmt: skip
POOL = ("GET", "/pool", None)
FAN = {"reason": "fan"}
RESERVE = "reserve ml 1g.5gb --count 7 --from 10:00 --to 12:00 --tz Europe/Berlin"


@pytest.fixture(autouse=True)
def notes(service: Service) -> None:
    service.answers = {"/messages": NOTE, "/messages/3": NOTE, "/messages/3?reason=a%26b": NOTE}


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("leases", [("GET", "/leases", None)]),
        ("leases --user a&b", [("GET", "/leases?user=a%26b", None)]),
        ("release 1 --reason over", [("POST", "/leases/1/release", {"reason": "over"})]),
        ("extend 1 30", [("POST", "/leases/1/extend", {"by_s": 1800.0})]),
        ("cancel 1", [("DELETE", "/tickets/1", None)]),
        ("pause --reason fan", [("POST", "/pool/pause", FAN)]),
        ("resume", [("POST", "/pool/resume", None)]),
        ("unreserve 3", [("DELETE", "/reservations/3", None)]),
        ("unreserve 3 --reason a&b", [("DELETE", "/reservations/3?reason=a%26b", None)]),
        ("reclaim", [("GET", "/reclaim", None)]),
        ("reclaim --explain a&b", [("GET", "/reclaim?user=a%26b", None)]),
        ("drain gpu 0 --reason fan", [POOL, ("POST", "/gpus/GPU-0/drain", FAN)]),
        ("drain gpu GPU-a/b --reason fan", [("POST", "/gpus/GPU-a%2Fb/drain", FAN)]),
        ("drain slice 7 --reason fan", [("POST", "/slices/7/drain", FAN)]),
        ("undrain gpu 0", [POOL, ("POST", "/gpus/GPU-0/undrain", {"reason": ""})]),
        ("undrain slice 7 --reason ok", [("POST", "/slices/7/undrain", {"reason": "ok"})]),
        ("quarantine 7 --reason fan", [("POST", "/slices/7/quarantine", FAN)]),
        ("clear 7 --reason fan", [("POST", "/slices/7/clear", FAN)]),
        ("clear 7", [("POST", "/slices/7/clear", {"reason": ""})]),
        ("adopt 7 --reason fan", [("POST", "/slices/7/adopt", FAN)]),
        ("next 1 --reason fan", [("POST", "/tickets/1/next", FAN)]),
        ("next 1 --undo", [("DELETE", "/tickets/1/next", None)]),
        ("extend 1 30 --reason x", [("POST", "/leases/1/extend", {"by_s": 1800.0, "reason": "x"})]),
        ("reclaim 1 --reason fan", [("POST", "/leases/1/reclaim", FAN | {"warning_s": 300.0})]),
        ("reclaim 1 --reason fan --warning 90s",
         [("POST", "/leases/1/reclaim", FAN | {"warning_s": 90.0})]),
        ("reclaim 1 --reason fan --now", [("POST", "/leases/1/reclaim", FAN | {"warning_s": 0.0})]),
        ("message Hi --user ada --server lab2 --for 15m",
         [("POST", "/messages", {"text": "Hi", "all": False, "minutes": 15.0, "to_user": "ada",
                                 "to_server": "lab2"})]),
        ("message Hi --course ml",
         [("POST", "/messages", {"text": "Hi", "all": False, "minutes": 60.0, "to_course": "ml"})]),
        ("message Hi --all", [("POST", "/messages", {"text": "Hi", "all": True, "minutes": 60.0})]),
        ("recall 3 --reason a&b", [("DELETE", "/messages/3?reason=a%26b", None)]),
    ],
)  # fmt: skip
def test_what_each_command_asks(service: Service, lab: Path, words: str, asked: list[Any]) -> None:
    """One call of the API (and one for a GPU's index), in a form that the service can read."""
    run(lab, *words.split())
    assert service.asked == asked
    method, path, body = asked[-1]
    if path.endswith("/reclaim") and method == "POST":
        ReclaimRequest.model_validate(body)
    elif path.endswith(("/drain", "/quarantine", "/next")) and method == "POST":
        ActionRequest.model_validate(body)
    elif path.endswith(("/undrain", "/clear", "/adopt")):
        UndoRequest.model_validate(body)
    elif path == "/messages":
        MessageRequest.model_validate(body)


def test_an_extension_says_for_how_long(lab: Path) -> None:
    """Of a lease whose guarantee is over, that it is open."""
    assert run(lab, "extend", "1", "30") == "lease 1 of alice (1g.5gb): running, guaranteed: open\n"


@pytest.mark.parametrize(
    "words",
    [
        "drain gpu 0", "drain disk 0 --reason fan", "drain slice GPU-0 --reason fan",
        "quarantine 7", "next 1", "reclaim 1", "reclaim 1 --reason fan --warning soon",
        "message Hi --all --for ever", "message Hi", "message Hi --user ada --course ml",
        *(f"{RESERVE} {how}" for how in ("--weekly some", "--on tue", "--weekly tue --grace soon")),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_asks_nothing(service: Service, lab: Path, words: str) -> None:
    """No reason, no such thing, no duration: status 2, and nothing was done."""
    result = invoked(lab, *words.split())
    assert result.exit_code == 2
    assert service.asked == []


def test_a_gpu_that_is_not_there(service: Service, lab: Path) -> None:
    """An index that no GPU has is refused before anything is done."""
    result = invoked(lab, "drain", "gpu", "9", "--reason", "fan")
    assert isinstance(result.exception, RefusedError) and "no GPU 9" in str(result.exception)
    assert service.asked == [POOL]


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ({}, "everybody"),
        ({"to_course": "ml"}, "course ml"),
        ({"to_user": "ada"}, "ada"),
        ({"to_user": "ada", "to_server": ""}, "ada at the default server"),
        ({"to_user": "\x1b[2Jeve", "to_server": "lab2"}, "?[2Jeve at lab2"),
    ],
)
def test_messages_for_people_and_programs(
    service: Service, lab: Path, to: dict[str, str], words: str
) -> None:
    """To whom, by whom, and what; hostile texts defused; the answer as JSON; or that none is."""
    hostile = "[red]\x1b[2JRoom 2."
    service.answers["/messages"] = [NOTE | to | {"text": hostile}]
    said = run(lab, "messages")
    assert words in said and " ina " in said and "[red]?[2JRoom 2." in said
    assert "\x1b" not in said
    assert json.loads(run(lab, "messages", "--json"))[0]["text"] == hostile
    service.answers["/messages"] = []
    assert run(lab, "messages") == "No messages are being shown.\n"


def test_a_reclaim_says_when_it_ends(service: Service, lab: Path) -> None:
    """Warned: in how long; at once: that it is being released."""
    assert run(lab, "reclaim", "1", "--reason", "x", "--now").endswith("running\n")
    lease = {"id": 1, "user": "ada", "shape": "1g.5gb", "state": "warned"}
    warning = {"at": 1000.0, "reclaim_at": 1300.0}
    service.answers["/leases/1/reclaim"] = lease | {"warning": warning}
    said = run(lab, "reclaim", "1", "--reason", "x")
    assert said == "lease 1 of ada (1g.5gb): warned; it ends in 300 s\n"


def test_hostile_reasons_stay_text(service: Service, lab: Path) -> None:
    """What is said back of one's own words cannot steer the terminal."""
    said = run(lab, "drain", "slice", "7", "--reason", "[red]\x1b[2Jfan")
    assert said == "slice 7 is draining: [red]?[2Jfan\n"
