"""What students handed in, read from their zips without unpacking them.

A zip is a stranger's file: sizes are limited, names are only looked up, nothing is written. What
cannot be read costs that zip or that part of it, never the class.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence

MEMBER_LIMIT = 16 << 20
TOTAL_LIMIT = 128 << 20
PART = re.compile(
    r"(?:[^/]+/)?(?P<part>manifest\.json|evidence/[^/]+\.json|notebooks/[^/]+\.ipynb)"
)


@dataclass(frozen=True)
class Submission:
    """One student's zip.

    Attributes:
        student: as the zip claims; its file name when it claims nothing.
        file: the zip's name, which says whose it is.
        evidence: what could be read, by experiment.
        notebooks: the notebooks' texts, by stem.
        problems: by file or experiment, what could not be read and why.
    """

    student: str
    file: str
    evidence: dict[str, Evidence] = field(default_factory=dict)
    notebooks: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def read_folder(folder: Path) -> list[Submission]:
    """Every zip of a folder, in order of name.

    Raises:
        LabError: the folder does not exist or holds no zip.
    """
    files = sorted(folder.glob("*.zip"))
    if not files:
        raise LabError(f"There is no zip in {folder}.")
    return [read_zip(file) for file in files]


def read_zip(file: Path) -> Submission:
    """One zip; whatever is wrong with it is said in `problems`."""
    found = Submission(file.stem, file.name)
    try:
        texts = dict(_texts(file))
    except Exception as error:  # outermost frame around a stranger's file
        found.problems["zip"] = f"{file.name} cannot be read: {said(error)}"
        return found
    found = Submission(_student(texts.get("manifest.json", ""), file.stem), file.name)
    for path, text in ((PurePosixPath(name), text) for name, text in texts.items()):
        if path.parent.name == "evidence":
            _add_evidence(found, path.stem, text)
        elif path.parent.name == "notebooks":
            found.notebooks[path.stem] = text
    if not found.evidence and not found.notebooks and not found.problems:
        found.problems["zip"] = "it holds neither evidence nor a notebook"
    return found


def said(error: Exception) -> str:
    """An error in words; where a stranger's file caused it, it may have none of its own."""
    return str(error).splitlines()[0] if str(error).strip() else type(error).__name__


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    """What a hand-in consists of, by name.

    A zip that was unpacked and packed again has it in a folder, beside what the packer adds.
    """
    with zipfile.ZipFile(file) as archive:
        members = {
            part["part"]: one
            for one in archive.infolist()
            if (part := PART.fullmatch(one.filename)) and not one.is_dir()
        }
        if sum(one.file_size for one in members.values()) > TOTAL_LIMIT:
            raise LabError(f"it unpacks to more than {TOTAL_LIMIT >> 20} MiB")
        for name, one in members.items():
            if one.file_size > MEMBER_LIMIT:
                raise LabError(f"{one.filename} is bigger than {MEMBER_LIMIT >> 20} MiB")
            yield name, archive.read(one).decode("utf-8")


def _student(manifest: str, otherwise: str) -> str:
    try:
        name = json.loads(manifest)["student"]
    except Exception:  # outermost frame around a stranger's file
        return otherwise
    return name if isinstance(name, str) and name else otherwise


def _add_evidence(found: Submission, key: str, text: str) -> None:
    try:
        one = store.read(text, f"{key}.json")
    except Exception as error:  # outermost frame around a stranger's file
        found.problems[key] = said(error)
        return
    if one.experiment != key:
        found.problems[key] = f"{key}.json holds {one.experiment}"
        return
    found.evidence[key] = one
