"""Wheels of the lab's own distributions, and bare environments to install them into."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pip(*arguments: str | Path) -> None:
    """Run this environment's pip; one that fails fails the test."""
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def build_wheels(folder: Path, sources: Iterable[str]) -> None:
    """Put the wheels of these folders of the repository into a folder, and nothing else."""
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder]
    pip("wheel", *options, *(ROOT / source for source in sources))


def pins(folder: Path) -> list[str | Path]:
    """The options with which pip takes our own wheels from a folder, all others as pinned.

    The pins are without hashes, or pip would ask for those of our own wheels too.
    """
    text = (ROOT / "requirements" / "lab.txt").read_text()
    versions = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?(==[^\s;]+)", text, re.MULTILINE)
    file = folder / "versions.txt"
    file.write_text("\n".join("".join(version) for version in versions))
    return ["--constraint", file, "--find-links", folder]


def bare_environment(folder: Path, *arguments: str | Path) -> Path:
    """The Python of a new environment in which there is what pip installs with these arguments."""
    python = _empty_environment(folder)
    pip("--python", python, "install", "--no-compile", *arguments)
    return python


def offline_environment(folder: Path, wheels: Path, wheel: Path) -> Path:
    """The Python of a new environment with one wheel and what it needs of those in a folder.

    By uv, where the lab could install it: pip takes ten times as long.
    """
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        return bare_environment(folder, "--no-index", "--find-links", wheels, wheel)
    python = _empty_environment(folder)
    options = ["--quiet", "--offline", "--no-index", "--find-links", wheels]
    subprocess.run([uv, "pip", "install", "--python", python, *options, wheel], check=True)
    return python


def _empty_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"
