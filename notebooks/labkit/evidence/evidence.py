"""Evidence: one JSON file per experiment: prediction, samples, verdict, explanation.

A file carries a digest of its own content. That deters editing and cannot prevent it: whoever can
read this code can also compute the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.errors import EvidenceDamaged
from labkit.evidence.prediction import Prediction
from labkit.records import Comparison, Measurement, Verdict, from_data, to_data

SCHEMA = 1
FOLDER = Path("evidence")
NOT_APPLICABLE = "not applicable here"  # what a tier is expected to show where it cannot be asked


@dataclass(frozen=True)
class Point:
    """One measured point: where on the x axis, its label, its value and the raw records.

    Points with the same `series` belong together; without one they are the experiment's only one.
    """

    x: float
    label: str
    value: float
    records: tuple[Measurement, ...] = ()
    comparison: Comparison | None = None
    low: float | None = None
    high: float | None = None
    series: str = ""


@dataclass(frozen=True)
class Judgement:
    """What a check made of the points; `check` stands in files of before."""

    verdict: Verdict
    why: str
    expected: str
    check: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything one run of one experiment showed.

    `headless` runs (no person at the panel) never count as a student's. `stopped` says why the run
    is incomplete. `verdict_read` is what the student read from the plot.
    """

    experiment: str
    title: str
    unit: str
    place: str
    tier: str
    started: str
    points: tuple[Point, ...] = ()
    prediction: Prediction | None = None
    judgement: Judgement | None = None
    explanation: str = ""
    headless: bool = False
    stopped: str | None = None
    ended: str = ""
    replayed_from: str | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    verdict_read: Verdict | None = None
    emulated: bool = False

    @property
    def is_students(self) -> bool:
        """Whether it may count as a student's own: predicted first, run by hand, measured here."""
        return not self.headless and self.replayed_from is None and self.prediction is not None

    @property
    def is_open_to_claims(self) -> bool:
        """Whether there is a verdict that the student has not seen: theirs comes first."""
        asked = self.judgement is not None and self.judgement.expected != NOT_APPLICABLE
        has_reader = self.prediction is not None and (
            not self.headless or self.replayed_from is not None
        )
        return asked and has_reader and self.verdict_read is None

    @property
    def samples(self) -> int:
        """How many samples it holds in all."""
        return sum(len(record.samples_s) for point in self.points for record in point.records)


def digest(data: Mapping[str, Any]) -> str:
    """A fingerprint of the content, the digest itself left out."""
    content = {name: value for name, value in data.items() if name != "digest"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def save(evidence: Evidence, folder: Path = FOLDER) -> Path:
    """Write the evidence of one experiment, in one step, over what an earlier run left.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = {"schema": SCHEMA, **to_data(evidence)}
    data["digest"] = digest(data)
    target = folder / f"{evidence.experiment}.json"
    draft = target.with_suffix(".part")
    draft.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    draft.replace(target)
    return target


def load(path: Path) -> Evidence:
    """Read evidence back, and see that it is whole and unedited.

    Raises:
        EvidenceDamaged: it is not JSON, of another schema, incomplete, edited, or contradicts
            itself.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise EvidenceDamaged(f"{path.name} does not exist yet: measure first.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceDamaged(f"{path.name} cannot be read ({error}). Measure again.") from error
    return read(text, path.name)


def read(text: str, name: str) -> Evidence:
    """Evidence from the text of a file; `load` says what it refuses.

    Args:
        text: the file's content.
        name: the file's name, for the message.
    """
    data = _json(text, name)
    if data.get("schema") != SCHEMA:
        raise EvidenceDamaged(
            f"{name} has schema {data.get('schema')!r}; this labkit reads {SCHEMA}. Measure again."
        )
    if data.get("digest") != digest(data):
        raise EvidenceDamaged(
            f"{name} was changed after it was measured (its digest does not fit its content). "
            "Measure again; what was measured cannot be corrected by hand."
        )
    content = {name: value for name, value in data.items() if name not in ("schema", "digest")}
    try:
        evidence: Evidence = from_data(Evidence, content)
    except (ValueError, TypeError) as error:
        raise EvidenceDamaged(f"{name} cannot be read: {error}. Measure again.") from error
    problems = inconsistencies(evidence)
    if problems:
        raise EvidenceDamaged(f"{name} contradicts itself: {problems[0]}. Measure again.")
    return evidence


def _json(text: str, name: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise EvidenceDamaged(f"{name} is not whole JSON ({error}). Measure again.") from error
    if not isinstance(data, dict):
        raise EvidenceDamaged(f"{name} holds no evidence. Measure again.")
    return data


def inconsistencies(evidence: Evidence) -> list[str]:
    """Where the evidence contradicts itself; empty for an honest file."""
    found = []
    prediction = evidence.prediction
    if prediction is not None and prediction.at > evidence.started:
        found.append(
            f"the prediction ({prediction.at}) is later than the start ({evidence.started})"
        )
    for point in evidence.points:
        for record in point.records:
            if any(sample <= 0 for sample in record.samples_s):
                found.append(f"{record.name} has a time that is not positive")
            if len(record.samples_s) > 4 and len(set(record.samples_s)) == 1:
                found.append(f"all samples of {record.name} are identical")
    return found
