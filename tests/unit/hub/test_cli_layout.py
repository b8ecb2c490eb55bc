"""`miglab pool layout`: what it asks, what it prints, how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from miglab_api.gpus import GpuLayout, LayoutDrain, Layouts, PlacedSlice
from miglab_hub.errors import StartError

from .conftest import Service, invoke

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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "layouts.yaml"
    file.write_text(TEXT)
    return file


def run(lab: Path, *arguments: str, stdin: str = "") -> Result:
    return invoke(lab, "layout", *arguments, stdin=stdin)


def now(*gpus: GpuLayout, **fields: Any) -> dict[str, Any]:
    return Layouts(at=0.0, gpus=gpus or (DONE, TO_DO)).model_dump(mode="json") | fields


def answer(service: Service, *answers: Any) -> None:
    """What the service says of layouts, one answer after the other."""
    answers_in_turn = iter(answers * 2 if len(answers) == 1 else answers)
    service.answers |= {"/layout": answers_in_turn, "/layout/diff": answers_in_turn}


def test_show(service: Service, lab: Path) -> None:
    """What is applied, and how each GPU stands; hostile names are text."""
    free = GpuLayout(gpu="GPU-2", index=2, conforms=True)
    answer(service, now(DONE, TO_DO, free))
    result = run(lab, "show")
    assert result.exit_code == 0, result.output
    _, first, second, third = result.stdout.splitlines()
    assert first.split()[:3] == ["0", "a", "conforms"]
    assert second.split()[:3] == ["1", "a", "differs"]
    assert "3g.20gb + 2x1g.5gb" in second and "3g.20gb at 4" in second
    assert "lease 7 of [b]bob? until 2026-06-02" in result.stdout
    assert third.split() == ["2", "(on", "demand)"]


def test_show_as_file(service: Service, lab: Path) -> None:
    """The file goes to standard output and nothing beside it."""
    service.answers["/layout/file"] = {"text": TEXT}
    assert run(lab, "show", "--file").stdout == TEXT


def test_diff(service: Service, lab: Path, file: Path) -> None:
    """The text is sent with its name; what would change is a row for each GPU.

    A dash is standard input.
    """
    answer(service, now())
    result = run(lab, "diff", str(file), "a")
    assert service.requests == [
        ("POST", "/layout/diff", {"text": TEXT, "file": str(file)[-200:], "name": "a"})
    ]
    assert "by 2026-06-02" in result.stdout
    assert len(result.stdout.splitlines()) == 3
    run(lab, "diff", "-", stdin=TEXT)
    assert service.requests[1][2]["text"] == TEXT


def test_apply(service: Service, lab: Path, file: Path) -> None:
    """Without --now nobody is warned; it says for each GPU how it stands, and who is warned."""
    answer(service, now(warned=[]), now(warned=[7]))
    result = run(lab, "apply", str(file), "--reason", "week 1")
    method, path, body = service.requests[0]
    assert (method, path) == ("PUT", "/layout")
    assert (body["now"], body["reason"], body["warning_s"]) == (False, "week 1", 300)
    assert result.stdout.splitlines()[0] == "GPU 0: a, conforms"
    assert result.stdout.splitlines()[1].startswith("GPU 1: a, differs; ready by 2026-06-02")
    result = run(lab, "apply", str(file), "--now", "--warning", "90s")
    assert (service.requests[1][2]["now"], service.requests[1][2]["warning_s"]) == (True, 90)
    assert result.stdout.splitlines()[0] == "warned: lease 7"


@pytest.mark.parametrize(
    ("gpus", "status", "output_part"),
    [
        ((DONE,), 0, "GPU 0: as the layout says"),
        ((DONE, TO_DO), 1, "lease 7"),
        ((GpuLayout(gpu="GPU-2", index=2, conforms=True),), 0, "nothing to check"),
    ],
)
def test_assert(
    service: Service, lab: Path, gpus: tuple[GpuLayout, ...], status: int, output_part: str
) -> None:
    """The exit status says whether it conforms; what differs is shown, and that alone."""
    answer(service, now(*gpus), now(*gpus))
    result = run(lab, "assert")
    assert (result.exit_code, output_part in result.stdout) == (status, True)
    result = run(lab, "assert", "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (status, now(*gpus))


def test_assert_waits(
    service: Service, lab: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks again until it conforms, or the time is over."""
    paused: list[float] = []
    monkeypatch.setattr("miglab_hub.cli.pool.layout.time.sleep", paused.append)
    no, yes = now(TO_DO), now(DONE)
    answer(service, no, no, yes, no)
    assert run(lab, "assert", str(file), "--wait", "1h").exit_code == 0
    assert (len(service.requests), len(paused)) == (3, 2)
    assert run(lab, "assert", str(file)).exit_code == 1


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (None, "cannot be read: No such file"),
        (b"", "has 0 characters"),
        (b"a: 1\nb: \xe4\n", ":2: this is not UTF-8"),
        (b"x" * 40_000, "has 40000 characters; a layout file has 1 to 32768"),
    ],
)
def test_a_file_that_cannot_be_read(
    service: Service, lab: Path, tmp_path: Path, raw: bytes | None, problem: str
) -> None:
    """Nothing is asked; the message names the file."""
    file = tmp_path / "odd.yaml"
    if raw is not None:
        file.write_bytes(raw)
    result = run(lab, "diff", str(file))
    assert isinstance(result.exception, StartError)
    assert "odd.yaml" in str(result.exception) and problem in str(result.exception)
    assert service.requests == []
