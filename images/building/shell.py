"""Running programs, and the hashes by which the build knows what has not changed."""

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

LABEL = "miglab.inputs"


class BuildError(Exception):
    """The build cannot go on; the message says what failed, on what, and what to do."""


def say(line: str) -> None:
    """Tell whoever runs the build what happens, at once."""
    print(f"images: {line}", file=sys.stderr, flush=True)


def run(*command: str, env: Mapping[str, str] | None = None) -> None:
    """Run a program with its output shown; `BuildError` if it fails."""
    try:
        subprocess.run(command, env=env, check=True, stdout=sys.stderr)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise BuildError(f"{command[0]} failed: {error}") from error


def output(*command: str) -> str:
    """What a program prints; empty if it fails or is not there."""
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        return ""
    return done.stdout.strip()


def digest(*parts: str, files: Iterable[Path] = (), below: Path | None = None) -> str:
    """One short hash over texts and files (their names, relative to ``below``, and contents)."""
    whole = hashlib.sha256("\0".join(parts).encode())
    for file in sorted(files):
        name = file.relative_to(below) if below else file.name
        whole.update(f"\0{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:24]


def tree(folder: Path) -> list[Path]:
    """Every file below a folder."""
    return [
        path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]


def image_id(name: str) -> str:
    """The id of a local image; empty if it is not there."""
    return output("docker", "image", "inspect", "--format", "{{.Id}}", name)


def inputs_of(name: str) -> str:
    """The inputs' hash a local image was built from; empty if there is none."""
    template = f'{{{{index .Config.Labels "{LABEL}"}}}}'
    return output("docker", "image", "inspect", "--format", template, name)
