"""Evidence: one JSON file per experiment: prediction, samples, verdict, explanation.

A prediction is made before measuring: a number with its unit, or a trend, and because. A file
carries a digest of its own content. That deters editing and cannot prevent it: whoever can read
this code can also compute the digest. Runs that were recorded on real GPUs, and the class's, are
evidence too, never the student's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from labkit.errors import EvidenceDamaged, NotAPrediction, NotMeasured
from labkit.records import Comparison, Measurement, Verdict, from_data, now_text, to_data

SCHEMA = 2
FOLDER = Path("evidence")
CLASS = Path("class")  # beside the notebooks: what `labkit grade --class` wrote for them
NOT_APPLICABLE = "not applicable here"  # what a tier is expected to show where it cannot be asked
NUMBER = re.compile(r"([-+]?)(\d[\d.,'’\s]*|[.,]\d+)([eE][-+]?\d+)?")
GROUPED = re.compile(r"\d{1,3}([.,]\d{3})+")
BECAUSE_MIN = 3


class Trend(StrEnum):
    """What a curve does from left to right."""

    RISES = "rises"
    FLAT = "flat"
    FALLS = "falls"

    @property
    def verb(self) -> str:
        """What "it" does."""
        return "stays flat" if self is Trend.FLAT else self.value


@dataclass(frozen=True)
class Prediction:
    """What the student expects; `number` or `trend`, never both."""

    because: str
    at: str
    number: float | None = None
    unit: str | None = None
    trend: Trend | None = None

    def __str__(self) -> str:
        if self.trend is not None:
            return f"it {self.trend.verb}, because {self.because}"
        return f"{with_unit(self.number or 0.0, self.unit)}, because {self.because}"


def with_unit(value: float, unit: str | None) -> str:
    """A number with its unit, or alone where it has none."""
    return f"{value:g} {unit or ''}".rstrip()


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
    """What a check made of the points, for the claim in the wording that the student got.

    Attributes:
        verdict: of the claim.
        reason: what the verdict follows from, in words.
        expected: the verdict that such a device should show, or that it cannot be asked.
        mismatch: why the run does not show what its title says, and what to look at; empty if it
            does.
    """

    verdict: Verdict
    reason: str
    expected: str
    mismatch: str = ""


@dataclass(frozen=True)
class StudentAnswer:
    """What a student answered at one time: a prediction, or a claim about the data.

    Attributes:
        at: when.
        prediction: what they expected of a run; None where it is a claim.
        claim: what they said of the claim; None where it is a prediction.
        is_of_earlier_run: whether a claim was about an earlier run, whose data said something else.
    """

    at: str
    prediction: Prediction | None = None
    claim: Verdict | None = None
    is_of_earlier_run: bool = False

    def __str__(self) -> str:
        answer = f"you say {self.claim}" if self.claim else f"you predict {self.prediction}"
        about = " of an earlier run" if self.is_of_earlier_run else ""
        return f"{self.at[:16]}: {answer}{about}"


@dataclass(frozen=True)
class Evidence:
    """Everything one run of one experiment showed.

    `headless` runs (no person at the panel) never count as a student's. `stopped` says why the run
    is incomplete. `verdict_read` is what the student first said of the claim, at `claimed`, and
    `is_denied` whether the claim they got is the opposite of the check's relation. `later_answers`
    came after something had been seen, or were about an earlier run; none of them counts.
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
    is_denied: bool = False
    claimed: str = ""
    later_answers: tuple[StudentAnswer, ...] = ()

    @property
    def is_students(self) -> bool:
        """Whether it may count as a student's own: predicted first, run by hand, measured here."""
        return not self.headless and self.replayed_from is None and self.prediction is not None

    @property
    def has_question(self) -> bool:
        """Whether there is a claim that somebody can answer."""
        has_verdict = self.judgement is not None and self.judgement.expected != NOT_APPLICABLE
        has_reader = self.prediction is not None and (
            not self.headless or self.replayed_from is not None
        )
        return has_verdict and has_reader

    @property
    def is_open_to_claims(self) -> bool:
        """Whether there is a verdict that the student has not seen: theirs comes first."""
        return self.has_question and self.verdict_read is None

    @property
    def samples(self) -> int:
        """How many samples it holds in all."""
        return sum(len(record.samples_s) for point in self.points for record in point.records)


def parse_number(text: str, unit: str) -> float:
    """Read a number as people of several countries type it.

    "1,5", "2 x", "1e3 GB/s", "12 500", "12'500.5" and "12.500,5" are numbers; "12,500" is a
    question, since half the world would read 12.5.

    Args:
        text: what was typed.
        unit: what is expected, empty where there is none; it is accepted after the number.

    Raises:
        NotAPrediction: there is no number or two possible ones, another unit, or it is below zero
            or not finite.
    """
    typed, in_unit = text.strip(), f" in {unit}" if unit else ""
    if not typed:
        raise NotAPrediction(f"Type a number{in_unit} first, for example 1.5.")
    match = NUMBER.match(typed)
    plain = _plain_digits(match[2], typed) if match else ""
    if match is None or not plain:
        raise NotAPrediction(f"“{typed[:40]}” is not a number. Type one{in_unit}, for example 1.5.")
    suffix = typed[match.end() :].strip()
    if suffix and suffix.casefold() != unit.casefold() and suffix not in ("x", "×"):
        raise NotAPrediction(f"“{suffix[:40]}” is not the unit asked for. Type a number{in_unit}.")
    value = float(f"{match[1]}{plain}{match[3] or ''}")
    if not math.isfinite(value):
        raise NotAPrediction(f"“{typed[:40]}” is not a finite number. Type one{in_unit}.")
    if value < 0:
        raise NotAPrediction(f"“{typed[:40]}” is below zero, and what is measured here cannot be.")
    return value


def _plain_digits(digits: str, typed: str) -> str:
    """The digits with a point for the decimal mark and no other marks; empty: no number's.

    Raises:
        NotAPrediction: the only mark is before three digits, so that it may group or divide.
    """
    digits = re.sub(r"['’\s]", "", digits)
    marks = [sign for sign in digits if sign in ".,"]
    if len(marks) == 1 and GROUPED.fullmatch(digits) and not digits.startswith("0"):
        grouped = re.sub("[.,]", "", digits)
        divided = digits.replace(",", ".").rstrip("0").rstrip(".")
        divided += "0" if GROUPED.fullmatch(divided) else ""  # else it would be asked about again
        raise NotAPrediction(
            f"“{typed[:40]}” could be {grouped} or {divided}. Type one of these two."
        )
    if len(marks) > 1:
        decimal = marks[-1] if marks.count(marks[-1]) == 1 else ""
        integer, _, fraction = digits.rpartition(decimal) if decimal else (digits, "", "")
        if not GROUPED.fullmatch(integer) or len(set(marks) - {decimal}) != 1:
            return ""
        return f"{re.sub('[.,]', '', integer)}.{fraction}"
    return digits.replace(",", ".")


def parse_trend(text: str) -> Trend:
    """Read rises, flat or falls.

    Raises:
        NotAPrediction: it is none of them.
    """
    typed = text.strip().casefold()
    if not typed:
        raise NotAPrediction("Choose first what it does: rises, flat or falls.")
    try:
        return Trend(typed)
    except ValueError as error:
        raise NotAPrediction(f"“{text[:40]}” is none of rises, flat, falls.") from error


def predict(answer: str, because: str, unit: str | None) -> Prediction:
    """Make a prediction, stamped with the time.

    Args:
        answer: the number, or the trend where `unit` is None.
        because: the reason, a few words at least.
        unit: of the number; None asks for a trend.

    Raises:
        NotAPrediction: the number, the trend or the reason cannot be used.
    """
    trend = parse_trend(answer) if unit is None else None
    number = None if unit is None else parse_number(answer, unit)
    reason = because.strip()
    if len(reason) < BECAUSE_MIN:
        raise NotAPrediction("Say in a few words why you expect that; a guess teaches little.")
    return Prediction(reason, now_text(), number=number, unit=unit, trend=trend)


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
    text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
    with draft_of(target) as draft:
        draft.write_text(text, encoding="utf-8")
    return target


@contextlib.contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """A file beside the target that takes its place once it is written, and goes if it is not.

    Each writer has a draft of its own: two kernels of one student save at the same time.
    """
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


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
    return parse(text, path.name)


def parse(text: str, name: str) -> Evidence:
    """Return the evidence in the text of a file; it refuses what `load` refuses.

    Args:
        text: the file's content.
        name: the file's name, for the message.
    """
    data = _parse_object(text, name)
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


def _parse_object(text: str, name: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise EvidenceDamaged(f"{name} is not whole JSON ({error}). Measure again.") from error
    if not isinstance(data, dict):
        raise EvidenceDamaged(f"{name} holds no evidence. Measure again.")
    return data


def inconsistencies(evidence: Evidence) -> list[str]:
    """Describe where the evidence contradicts itself; empty for an honest file."""
    problems = []
    prediction = evidence.prediction
    if prediction is not None and prediction.at > evidence.started:
        problems.append(
            f"the prediction ({prediction.at}) is later than the start ({evidence.started})"
        )
    for point in evidence.points:
        for record in point.records:
            if any(sample <= 0 for sample in record.samples_s):
                problems.append(f"{record.name} has a time that is not positive")
            if len(record.samples_s) > 4 and len(set(record.samples_s)) == 1:
                problems.append(f"all samples of {record.name} are identical")
    return problems


def _recorded_file(key: str) -> Traversable:
    return resources.files("labkit").joinpath("recorded", f"{key}.json")


def is_recorded(key: str) -> bool:
    """Whether a recorded run of this experiment is shipped."""
    return _recorded_file(key).is_file()


def recorded(key: str) -> Evidence:
    """The shipped evidence of an experiment, marked as not the student's, without a prediction.

    Raises:
        NotMeasured: none is shipped.
    """
    if not is_recorded(key):
        raise NotMeasured(
            f"No recorded run of {key} is shipped with this labkit: only what you measure is shown."
        )
    shipped = parse(_recorded_file(key).read_text(encoding="utf-8"), f"{key}.json")
    stripped = replace(shipped, prediction=None, explanation="", headless=True)
    return replace(stripped, replayed_from=shipped.place)


def is_of_class(key: str) -> bool:
    """Whether the class's points of this experiment lie beside the notebooks."""
    return (CLASS / f"{key}.json").is_file()


def of_class(key: str) -> Evidence:
    """The medians of the class, as `labkit grade --class` wrote them.

    Raises:
        EvidenceDamaged: the file cannot be read.
    """
    return load(CLASS / f"{key}.json")
