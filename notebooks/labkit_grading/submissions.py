"""What students handed in, read from their zips without unpacking them; who handed in the same.

A zip is a stranger's file: sizes are limited, names are only looked up, nothing is written. What
cannot be read costs that zip or that part of it, never the class.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from labkit.errors import LabError
from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence
from labkit.notebook.catalogue import EXPERIMENTS
from labkit_grading.answering.wire import shortened
from labkit_grading.cells import notebooks_of

MOST_PARTS = 500  # of a zip; the course has 62 experiments and 9 notebooks
MOST_WORDS = 120  # characters of a student's text in one line
MEMBER_LIMIT = 16 << 20
TOTAL_LIMIT = 128 << 20
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


def words_of(text: str) -> str:
    """A student's text in one line of a terminal or a plot."""
    return shortened(text, MOST_WORDS)


def read_folder(folder: Path, sources: Path) -> list[Submission]:
    """Every zip of a folder, in order of name, without experiments that the course does not have.

    Args:
        folder: of zips.
        sources: of the course's notebooks, whose experiments count beside labkit's own.

    Raises:
        LabError: the folder does not exist or holds no zip.
    """
    files = sorted(folder.glob("*.zip"))
    if not files:
        raise LabError(f"There is no zip in {folder}.")
    experiments = EXPERIMENTS.keys() | notebooks_of(sources).keys()
    return [_without_unknown(read_zip(file), experiments) for file in files]


def _without_unknown(submission: Submission, experiments: Collection[str]) -> Submission:
    """Leave out what a zip calls an experiment and the course does not, and say so."""
    evidence = {key: run for key, run in submission.evidence.items() if key in experiments}
    if unknown_count := len(submission.evidence) - len(evidence):
        submission.problems["evidence"] = (
            f"{unknown_count} of its experiments are in none of the course's notebooks (--sources)"
        )
    return replace(submission, evidence=evidence)


def read_zip(file: Path) -> Submission:
    """Read one zip; whatever is wrong with it is recorded in `problems`."""
    submission = Submission(file.stem, file.name)
    try:
        texts = dict(_texts(file))
    except Exception as error:  # outermost frame around a stranger's file
        submission.problems["zip"] = f"{file.name} cannot be read: {error_text(error)}"
        return submission
    submission = Submission(_student(texts.get("manifest.json", ""), file.stem), file.name)
    for path, text in ((PurePosixPath(name), text) for name, text in texts.items()):
        if path.parent.name == "evidence":
            _add_evidence(submission, path.stem, text)
        elif path.parent.name == "notebooks":
            submission.notebooks[path.stem] = text
    if not submission.evidence and not submission.notebooks and not submission.problems:
        submission.problems["zip"] = "it holds neither evidence nor a notebook"
    return submission


def error_text(error: Exception) -> str:
    """The first line of an error's message, or its type where it has no message."""
    return str(error).splitlines()[0] if str(error).strip() else type(error).__name__


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    """Read the texts in a hand-in, with their names.

    A zip that was unpacked and packed again has it in a folder, beside what the packer adds.
    """
    with zipfile.ZipFile(file) as archive:
        members = {
            part["part"]: member
            for member in archive.infolist()
            if (part := PART.fullmatch(member.filename)) and not member.is_dir()
        }
        if len(members) > MOST_PARTS:
            raise LabError(f"it has {len(members)} parts; a hand-in has at most {MOST_PARTS}")
        if sum(member.file_size for member in members.values()) > TOTAL_LIMIT:
            raise LabError(f"it unpacks to more than {TOTAL_LIMIT >> 20} MiB")
        for name, member in members.items():
            if member.file_size > MEMBER_LIMIT:
                raise LabError(f"{member.filename} is bigger than {MEMBER_LIMIT >> 20} MiB")
            yield name, archive.read(member).decode("utf-8")


def _student(manifest: str, otherwise: str) -> str:
    try:
        name = json.loads(manifest)["student"]
    except Exception:  # outermost frame around a stranger's file
        return otherwise
    return name if isinstance(name, str) and name else otherwise


def _add_evidence(submission: Submission, key: str, text: str) -> None:
    try:
        evidence = store.parse(text, f"{key}.json")
    except Exception as error:  # outermost frame around a stranger's file
        submission.problems[key] = error_text(error)
        return
    if evidence.experiment != key:
        submission.problems[key] = f"{key}.json holds {evidence.experiment}"
        return
    submission.evidence[key] = evidence


def same_claims(submissions: Iterable[Submission]) -> dict[Item, list[str]]:
    """By zip (and no experiment), the other zips that claim the same student."""
    return _other_files_by_item((s.student, (s.file, "")) for s in submissions)


def _other_files_by_item(marks: Iterable[tuple[str, Item]]) -> dict[Item, list[str]]:
    holders: dict[str, set[Item]] = defaultdict(set)
    for mark, item in marks:
        holders[mark].add(item)
    other_files: dict[Item, set[str]] = defaultdict(set)
    for sharers in holders.values():
        for item in sharers:
            other_files[item] |= {file for file, _ in sharers if file != item[0]}
    return {item: sorted(files) for item, files in other_files.items() if files}
