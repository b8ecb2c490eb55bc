"""What students handed in, read from their zips without unpacking them; who handed in the same.

A zip is a stranger's file: sizes are limited, names are only looked up, nothing is written. What
cannot be read costs that zip or that part of it, never the class.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence

MEMBER_LIMIT = 16 << 20
TOTAL_LIMIT = 128 << 20
FEWEST = 5  # a list of fewer samples may be the same by chance
Item = tuple[str, str]
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


def same_samples(submissions: Iterable[Submission]) -> dict[Item, list[str]]:
    """By zip and experiment, the other zips with samples of it: nobody measures the same twice."""
    return _shared(
        (mark, (one.file, item.experiment))
        for one in submissions
        for item in one.evidence.values()
        for mark in _fingerprints(item)
    )


def same_claims(submissions: Iterable[Submission]) -> dict[Item, list[str]]:
    """By zip (and no experiment), the other zips that claim the same student."""
    return _shared((one.student, (one.file, "")) for one in submissions)


def _fingerprints(evidence: Evidence) -> Iterator[str]:
    """One for each list of samples that cannot be the same by chance."""
    for record in (record for point in evidence.points for record in point.records):
        if len(record.samples_s) >= FEWEST:
            yield hashlib.sha256(json.dumps(record.samples_s).encode()).hexdigest()


def _shared(marks: Iterable[tuple[str, Item]]) -> dict[Item, list[str]]:
    holders: dict[str, set[Item]] = defaultdict(set)
    for mark, item in marks:
        holders[mark].add(item)
    found: dict[Item, set[str]] = defaultdict(set)
    for held in holders.values():
        for item in held:
            found[item] |= {file for file, _ in held if file != item[0]}
    return {item: sorted(files) for item, files in found.items() if files}
