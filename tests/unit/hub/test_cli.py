"""`miglab pool`: what each command asks, what it prints, and what asks nothing."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.unit.pool.applications.fakes import gpu_view, reservation_view, slice_view, snapshot

from miglab_api.reservations import ReservationRequest
from miglab_api.staff import STAFF_ACTIONS, ActionRequest, MessageRequest, ReclaimRequest
from miglab_hub import pool_api
from miglab_hub.errors import RefusedError
from miglab_hub.settings.lab_toml import Settings

from .conftest import REASONED, Service, invoke, run

HOSTILE = "[red]\x1b[2Jeve[/nonsense]"
DEFUSED = "[red]?[2Jeve[/nonsense]"
NOTE = {
    "id": 3, "at": 1000.0, "by": "person:ina", "to_user": None, "to_server": None,
    "to_course": None, "text": HOSTILE, "until": 4600.0,
}  # fmt: skip
ENTRY = {
    "at": 1000.0, "by": "person:ilse", "action": "drain", "kind": "gpu", "target": "GPU-0",
    "from_state": "ok", "to_state": "ok", "reason": HOSTILE, "course": "ml",
}  # fmt: skip
USED = {
    "slice_hours": 12.34, "leases": 3, "wait_p50_s": 90.0, "wait_p95_s": 600.0,
    "idle_share": 0.25, "known_share": 0.9, "reclaims": 1, "refusals": 2,
}  # fmt: skip
UNKNOWN = {"wait_p50_s": None, "wait_p95_s": None, "idle_share": None}
USAGE = {
    "since": "2026-11-02", "until": "2026-11-08", "timezone": "UTC", "group_by": "course",
    "rows": [{"key": f"={HOSTILE}", **USED}, {"key": "vision", **USED, **UNKNOWN}],
    "total": {"key": "", **USED},
}  # fmt: skip
RESERVE = "reserve ml 1g.5gb --count 7 --from 10:00 --to 12:00 --tz Europe/Berlin"
RESERVED = {
    "course": "ml", "shape": "1g.5gb", "count": 7, "weekdays": ["tue"], "date": None,
    "until": None, "from_time": "10:00", "to_time": "12:00", "tz": "Europe/Berlin",
    "grace_s": 900.0, "reason": "",
}  # fmt: skip
POOL = ("GET", "/pool", None)
FAN = {"reason": "fan"}
MESSAGE = {"text": "Hi", "all": False, "minutes": 60.0}
ON = {"weekdays": [], "date": "2026-06-02", "reason": "exam"}


@pytest.fixture(autouse=True)
def more_answers(service: Service) -> None:
    service.answers |= {
        "/messages": [NOTE], "POST /messages": NOTE, "/messages/": NOTE, "/audit": [ENTRY],
        "/usage": USAGE,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "calls"),
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
         [("POST", "/messages",
           MESSAGE | {"minutes": 15.0, "to_user": "ada", "to_server": "lab2"})]),
        ("message Hi --course ml", [("POST", "/messages", MESSAGE | {"to_course": "ml"})]),
        ("message Hi --all", [("POST", "/messages", MESSAGE | {"all": True})]),
        ("recall 3 --reason a&b", [("DELETE", "/messages/3?reason=a%26b", None)]),
        (f"{RESERVE} --weekly tue", [("POST", "/reservations", RESERVED)]),
        (f"{RESERVE} --weekly Tuesday --grace 1.5h",
         [("POST", "/reservations", RESERVED | {"grace_s": 5400.0})]),
        (f"{RESERVE} --weekly wed,mon --weekly fri",
         [("POST", "/reservations", RESERVED | {"weekdays": ["mon", "wed", "fri"]})]),
        (f"{RESERVE} --on 2026-06-02 --reason exam", [("POST", "/reservations", RESERVED | ON)]),
        (f"{RESERVE} --weekly tue --until 2026-07-31 --grace 0",
         [("POST", "/reservations", RESERVED | {"until": "2026-07-31", "grace_s": 0.0})]),
        ("call 7 --reason ready", [("POST", "/tickets/7/call", {"reason": "ready"})]),
        ("pass 7 --reason away", [("POST", "/tickets/7/pass", {"reason": "away"})]),
        ("usage", [("GET", "/usage?by=course", None)]),
        ("usage --since 2026-11-02 --until 2026-11-08 --by user",
         [("GET", "/usage?since=2026-11-02&until=2026-11-08&by=user", None)]),
        ("audit --by a&b --course ml --limit 5 --everything",
         [("GET", "/audit?by=a%26b&course=ml&everything=true&limit=5", None)]),
    ],
)  # fmt: skip
def test_what_each_command_asks(
    service: Service, lab: Path, command: str, calls: list[Any]
) -> None:
    """One call of the API (and one for a GPU's index), in a form that the service can read."""
    run(lab, *command.split())
    assert service.requests == calls
    method, path, body = calls[-1]
    reads = {
        "reclaim": ReclaimRequest, "next": ActionRequest,
        "call": ActionRequest, "pass": ActionRequest,
        "messages": MessageRequest, "reservations": ReservationRequest,
        **{action.key: action.request_model for action in STAFF_ACTIONS},
    }  # fmt: skip
    if method == "POST" and (request := reads.get(path.rpartition("/")[2])):
        request.model_validate(body)


@pytest.mark.parametrize(
    "command",
    [
        "drain gpu 0", "drain disk 0 --reason fan", "drain slice GPU-0 --reason fan",
        "quarantine 7", "next 1", "call 1", "pass 1",
        "reclaim 1", "reclaim 1 --reason fan --warning soon",
        "message Hi --all --for ever", "message Hi", "message Hi --user ada --course ml",
        f"{RESERVE} --weekly some", f"{RESERVE} --on tue", f"{RESERVE} --weekly tue --grace soon",
        "usage --csv --json", "usage --since soon", "usage --by name", "usage --until 2026-13-01",
        "audit --since soon",
    ],
)  # fmt: skip
def test_what_cannot_be_understood_asks_nothing(service: Service, lab: Path, command: str) -> None:
    """No reason, no such thing, no duration: status 2, and nothing was done."""
    result = invoke(lab, *command.split())
    assert result.exit_code == 2
    assert service.requests == []


def test_a_gpu_that_is_not_there(service: Service, lab: Path) -> None:
    """An index that no GPU has is refused before anything is done."""
    result = invoke(lab, "drain", "gpu", "9", "--reason", "fan")
    assert isinstance(result.exception, RefusedError) and "no GPU 9" in str(result.exception)
    assert service.requests == [POOL]


def test_a_refusal_names_the_option_that_goes_ahead(service: Service, lab: Path) -> None:
    """The service names the field of its way on; the command line says it as its own option."""
    refusal = {"reason": "breaks-reservation", "message": "Say why.", "way_on": "anyway"}
    service.answers["/slices/"] = httpx.Response(409, json=refusal)
    result = invoke(lab, "quarantine", "7", "--reason", "dust")
    assert str(result.exception) == "Say why. To go ahead, add --anyway REASON."
    service.answers["/slices/"] = slice_view(7, 0)
    run(lab, "quarantine", "7", "--reason", "dust", "--anyway", "it smells")
    assert service.requests[-1][2] == {"reason": "dust", "anyway": "it smells"}


TO_ADA = {"to_user": "ada", "to_server": ""}
WARNED = {
    "id": 1, "user": "ada", "shape": "1g.5gb", "state": "warned",
    "warning": {"at": 1000.0, "reclaim_at": 1300.0},
}  # fmt: skip
PRINTED: list[tuple[str, dict[str, Any], list[str]]] = [
    ("status", {}, ["1g.5gb {0}:1 leased 1 alice", "{4}:1"]),
    ("status", {"/pool": snapshot(gpu_view(slice_view(1, 0, HOSTILE)))}, [DEFUSED]),
    ("reclaim", {}, ["lease 1 of alice, 1g.5gb: unknown, keep. Unknown is never idle."]),
    ("reclaim --explain eve", {"/reclaim": [REASONED | {"is_acted_on": False, "user": HOSTILE}]},
     [DEFUSED, "dry run", "busy unknown n 3 keepalives 0"]),
    ("reservations",
     {"/reservations": [reservation_view(1, in_use=3, certain=6, course=HOSTILE)]},
     ["6 of 7", "3 of 7", DEFUSED]),
    ("reservations", {"/reservations": []}, ["There are no reservations."]),
    (f"{RESERVE} --weekly tue", {},
     ["reservation 1: 7 × 1g.5gb for ml, tue 10:00-12:00 Europe/Berlin: planned; "
      "next 2026-06-02 10:00. All 7 are certain."]),
    ("messages", {"/messages": []}, ["No messages are being shown."]),
    *(
        ("messages", {"/messages": [NOTE | to]}, [f" {recipient} ", " ina ", DEFUSED])
        for to, recipient in (
            ({}, "everybody"), ({"to_course": "ml"}, "course ml"), ({"to_user": "ada"}, "ada"),
            (TO_ADA, "ada at the default server"),
            ({"to_user": HOSTILE, "to_server": "lab2"}, f"{DEFUSED} at lab2"),
        )
    ),
    ("audit", {}, [" ilse ", "gpu GPU-0", DEFUSED]),
    ("audit", {"/audit": []}, ["The audit has no such entries."]),
    ("usage", {}, ["from 2026-11-02 to 2026-11-08, UTC", f"={DEFUSED} 12.3", "1.5 min",
                   "vision 12.3 unknown", "all 12.3"]),
    ("usage", {"/usage": USAGE | {"rows": []}}, ["Nothing was used"]),
    ("extend 1 30", {}, ["lease 1 of alice (1g.5gb): running, guaranteed: open"]),
    ("reclaim 1 --reason x --now", {}, ["lease 1 of alice (1g.5gb): running"]),
    ("reclaim 1 --reason x", {"/leases/1/reclaim": WARNED},
     ["lease 1 of ada (1g.5gb): warned; it ends in 300 s"]),
    (f"drain slice 7 --reason {HOSTILE}", {}, [f"slice 7 is draining: {DEFUSED}"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "answers", "printed"), PRINTED)
def test_what_each_command_prints(
    service: Service, lab: Path, command: str, answers: dict[str, Any], printed: list[str]
) -> None:
    """Plain text in a pipe; what is unknown by name, and hostile names defused."""
    service.answers |= answers
    output = run(lab, *command.split())
    assert "\x1b" not in output and "│" not in output
    assert [text for text in printed if text not in " ".join(output.split())] == []


@pytest.mark.parametrize("command", ["status", "release 1", "reclaim", "reservations", "usage"])
def test_json_is_the_answer_as_it_came(service: Service, lab: Path, command: str) -> None:
    """For programs, who are told what the service said."""
    assert json.loads(run(lab, *command.split(), "--json")) == json.loads(service.last_answer)


def test_a_sheet_of_usage(lab: Path) -> None:
    """The same as the service's, without a byte-order mark: a pipe needs none."""
    rows = list(csv.DictReader(io.StringIO(run(lab, "usage", "--csv"))))
    assert rows[0]["course"].startswith("'=[red]") and rows[0]["slice_hours"] == "12.34"
    assert rows[1]["wait_p50_s"] == ""


def test_who_asks(
    service: Service,
    lab: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The operator by this host's secret; a person by a token, from a file before elsewhere."""
    run(lab, "status")
    assert service.token == f"Bearer {settings.pool_secret.read_text().strip()}"
    monkeypatch.setenv(pool_api.TOKEN_VARIABLE, "mine")
    run(lab, "status")
    assert service.token == "Bearer mine"
    (tmp_path / "token").write_text("another\n")
    run(lab, "--token-file", str(tmp_path / "token"), "status")
    assert service.token == "Bearer another"
