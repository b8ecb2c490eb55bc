"""`miglab pool layout`: what it asks, what it prints, how it ends."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from miglab_api.layouts import GpuLayout, LayoutDrain, Layouts, PlacedSlice
from miglab_hub.cli.pool import commands
from miglab_hub.errors import RefusedError, StartError
from miglab_hub.pool_api import PoolApi

from .test_cli import lab

__all__ = ["lab"]  # a fixture
TEXT = "version: v1\nmig-configs: {a: []}\n"
DONE = GpuLayout(
    gpu="GPU-0", index=0, layout="a", partition=("1g.5gb",) * 7, conforms=True, ready_at=0.0
)
TO_DO = GpuLayout(
    gpu="GPU-1", index=1, layout="a", partition=("1g.5gb", "1g.5gb", "3g.20gb"), conforms=False,
    makes=(PlacedSlice(profile="3g.20gb", start=4, size=4),),
    removes=(PlacedSlice(profile="1g.5gb", start=0, size=1),),
    drains=(
        LayoutDrain(
            slice_id=2, lease=7, user="[b]bob\x1b", course="ml", profile="2g.10gb", start=4, size=2,
            ends_at=1_780_387_200.0,
        ),
    ),
    ready_at=1_780_387_200.0,
)  # fmt: skip


class AnsweringService:
    """Answers each call with the next answer; keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode().split("/api")[1]
        self.asked.append((request.method, path, json.loads(request.content or "null")))
        answer = self.answers.pop(0)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "layouts.yaml"
    file.write_text(TEXT)
    return file


def run(
    monkeypatch: pytest.MonkeyPatch,
    lab: Path,
    service: AnsweringService,
    *words: str,
    stdin: str = "",
) -> Result:
    monkeypatch.setattr(
        "miglab_hub.pool_api.PoolApi",
        lambda url, token: PoolApi(url, token, httpx.MockTransport(service)),
    )
    return CliRunner().invoke(commands.app, ["--config", str(lab), "layout", *words], input=stdin)


def now(*gpus: GpuLayout, **more: Any) -> dict[str, Any]:
    return Layouts(at=0.0, gpus=gpus or (DONE, TO_DO)).model_dump(mode="json") | more


def test_show(monkeypatch: pytest.MonkeyPatch, lab: Path) -> None:
    """What is applied, and how each GPU stands; hostile names are text."""
    free = GpuLayout(gpu="GPU-2", index=2, conforms=True)
    result = run(monkeypatch, lab, AnsweringService(now(DONE, TO_DO, free)), "show")
    assert result.exit_code == 0, result.output
    _, first, second, third = result.stdout.splitlines()
    assert first.split()[:3] == ["0", "a", "conforms"]
    assert second.split()[:3] == ["1", "a", "differs"]
    assert "3g.20gb + 2x1g.5gb" in second and "3g.20gb at 4" in second
    assert "lease 7 of [b]bob? until 2026-06-02" in result.stdout
    assert third.split() == ["2", "(on", "demand)"]


def test_show_as_file(monkeypatch: pytest.MonkeyPatch, lab: Path) -> None:
    """The file goes to standard output and nothing beside it."""
    result = run(monkeypatch, lab, AnsweringService({"text": TEXT}), "show", "--file")
    assert result.stdout == TEXT


def test_diff(monkeypatch: pytest.MonkeyPatch, lab: Path, file: Path) -> None:
    """The text is sent with its name; what would change is a row for each GPU."""
    service = AnsweringService(now())
    result = run(monkeypatch, lab, service, "diff", str(file), "a")
    assert service.asked == [
        ("POST", "/layout/diff", {"text": TEXT, "file": str(file)[-200:], "name": "a"})
    ]
    assert "by 2026-06-02" in result.stdout
    assert len(result.stdout.splitlines()) == 3


def test_diff_from_standard_input(monkeypatch: pytest.MonkeyPatch, lab: Path) -> None:
    """A dash is standard input."""
    service = AnsweringService(now())
    run(monkeypatch, lab, service, "diff", "-", stdin=TEXT)
    assert service.asked[0][2]["text"] == TEXT


def test_apply(monkeypatch: pytest.MonkeyPatch, lab: Path, file: Path) -> None:
    """Without --now nobody is warned; it says for each GPU how it stands."""
    service = AnsweringService(now(warned=[]))
    result = run(monkeypatch, lab, service, "apply", str(file), "--reason", "week 1")
    method, path, body = service.asked[0]
    assert (method, path) == ("PUT", "/layout")
    assert (body["now"], body["reason"], body["warning_s"]) == (False, "week 1", 300)
    assert result.stdout.splitlines()[0] == "GPU 0: a, conforms"
    assert result.stdout.splitlines()[1].startswith("GPU 1: a, differs; ready by 2026-06-02")


def test_apply_now(monkeypatch: pytest.MonkeyPatch, lab: Path, file: Path) -> None:
    """With --now the leases that are warned are named."""
    service = AnsweringService(now(warned=[7]))
    result = run(monkeypatch, lab, service, "apply", str(file), "--now", "--warning", "90s")
    assert (service.asked[0][2]["now"], service.asked[0][2]["warning_s"]) == (True, 90)
    assert result.stdout.splitlines()[0] == "warned: lease 7"


@pytest.mark.parametrize(
    ("gpus", "status", "says"),
    [
        ((DONE,), 0, "GPU 0: as the layout says"),
        ((DONE, TO_DO), 1, "lease 7"),
        ((GpuLayout(gpu="GPU-2", index=2, conforms=True),), 0, "nothing to check"),
    ],
)
def test_assert(
    monkeypatch: pytest.MonkeyPatch,
    lab: Path,
    gpus: tuple[GpuLayout, ...],
    status: int,
    says: str,
) -> None:
    """The exit status says whether it conforms; what differs is shown, and that alone."""
    result = run(monkeypatch, lab, AnsweringService(now(*gpus)), "assert")
    assert (result.exit_code, says in result.stdout) == (status, True)
    result = run(monkeypatch, lab, AnsweringService(now(*gpus)), "assert", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (status, now(*gpus))


def test_assert_waits(monkeypatch: pytest.MonkeyPatch, lab: Path, file: Path) -> None:
    """It asks again until it conforms, or the time is over."""
    paused: list[float] = []
    monkeypatch.setattr("miglab_hub.cli.pool.layout.time.sleep", paused.append)
    no, yes = now(TO_DO), now(DONE)
    service = AnsweringService(no, no, yes)
    assert run(monkeypatch, lab, service, "assert", str(file), "--wait", "1h").exit_code == 0
    assert (len(service.asked), len(paused)) == (3, 2)
    assert run(monkeypatch, lab, AnsweringService(no), "assert", str(file)).exit_code == 1


def test_what_is_wrong_in_the_file(monkeypatch: pytest.MonkeyPatch, lab: Path, file: Path) -> None:
    """The service's sentence, with file and line, and the status of a refusal."""
    said = {"reason": "bad-layout", "message": "layouts.yaml:2: mig-configs.a: …"}
    result = run(
        monkeypatch, lab, AnsweringService(httpx.Response(422, json=said)), "apply", str(file)
    )
    assert isinstance(result.exception, RefusedError)
    assert str(result.exception).startswith("layouts.yaml:2:")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (None, "cannot be read: No such file"),
        (b"", "has 0 characters"),
        (b"a: 1\nb: \xe4\n", ":2: this is not UTF-8"),
        (b"x" * 40_000, "has 40000 characters; a layout file has 1 to 32768"),
    ],
)
def test_a_file_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, lab: Path, tmp_path: Path, raw: bytes | None, says: str
) -> None:
    """Nothing is asked; the message names the file."""
    file = tmp_path / "odd.yaml"
    if raw is not None:
        file.write_bytes(raw)
    service = AnsweringService()
    result = run(monkeypatch, lab, service, "diff", str(file))
    assert isinstance(result.exception, StartError)
    assert "odd.yaml" in str(result.exception) and says in str(result.exception)
    assert service.asked == []
