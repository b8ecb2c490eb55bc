"""Copies a lab's notebooks into a home, at every start: new ones in, edited ones never touched.

A notebook that the student has not edited since it was copied follows a newer version.  What was
copied is kept, as checksums, in a hidden file beside the notebooks.  Standard library only, so that
an image's entry script may run this very file: ``notebooks.py SOURCE TARGET``.
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

RECORD = ".miglab-copied.json"


def copy_new(source: Path, target: Path) -> list[str]:
    """Copy what is missing, and what is newer where the student's copy is as it was copied.

    Args:
        source: the lab's notebooks; files in folders below count too.
        target: the folder in the home; made if missing.

    Returns:
        The files copied, relative to ``source``.
    """
    target.mkdir(parents=True, exist_ok=True)
    copied_before = _read_record(target / RECORD)
    copied = []
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        name = path.relative_to(source).as_posix()
        new = _checksum(path)
        if _may_copy(target / name, new, copied_before.get(name)):
            _copy(path, target / name)
            copied.append(name)
            copied_before[name] = new
    _write(target / RECORD, json.dumps(copied_before, indent=1, sort_keys=True))
    return copied


def _may_copy(there: Path, new: str, copied: str | None) -> bool:
    if not there.exists():
        return not there.is_symlink()  # a link that leads nowhere is the student's
    if copied is None or not there.is_file():
        return False
    return new != copied and _checksum(there) == copied


def _copy(path: Path, there: Path) -> None:
    there.parent.mkdir(parents=True, exist_ok=True)
    half = there.with_name(f".{there.name}.half")
    shutil.copyfile(path, half)
    os.replace(half, there)  # noqa: PTH105 - atomic: a start that is cut off leaves no half file


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_record(path: Path) -> dict[str, str]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}  # lost or spoilt: then every file there counts as edited
    return record if isinstance(record, dict) else {}


def _write(path: Path, text: str) -> None:
    half = path.with_name(path.name + ".half")
    half.write_text(text, encoding="utf-8")
    os.replace(half, path)  # noqa: PTH105 - as above


if __name__ == "__main__":
    for copied_file in copy_new(Path(sys.argv[1]), Path(sys.argv[2])):
        print("copied", copied_file)
