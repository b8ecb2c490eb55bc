"""Whether evidence fits together: samples and summary, counts, times. Pure functions.

An honest file passes whatever it measured. None of this proves that a file is honest.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping

from labkit import stats
from labkit.evidence.evidence import Evidence, Point, inconsistencies
from labkit.records import Comparison, Measurement

CLOSE = 1e-6
SLACK_S = 2.0  # stored times are whole seconds
FEWEST = 5  # a list of fewer samples may be the same by chance


def faults(evidence: Evidence) -> list[str]:
    """Everything in which the evidence contradicts itself; empty for an honest file."""
    found = [*inconsistencies(evidence), *_times(evidence)]
    for point in evidence.points:
        found += _point(point)
    return found


def _times(evidence: Evidence) -> Iterator[str]:
    """Start before end, records in between, and no more measured than the run lasted."""
    try:
        start, end = (
            datetime.datetime.fromisoformat(x) for x in (evidence.started, evidence.ended)
        )
        dates = [
            datetime.datetime.fromisoformat(record.date)
            for point in evidence.points
            for record in point.records
            if record.date
        ]
    except ValueError:
        yield "a time in it is no time"
        return
    slack = datetime.timedelta(seconds=SLACK_S)
    if end < start:
        yield "it ended before it started"
    elif any(not start - slack <= date <= end + slack for date in dates):
        yield "a record's date lies outside the run"
    elif measured_s(evidence) > (end - start).total_seconds() + SLACK_S:
        yield "its samples take longer than the whole run lasted"


def measured_s(evidence: Evidence) -> float:
    """Seconds the different samples took at least."""
    unique = {record.samples_s: record for point in evidence.points for record in point.records}
    return sum(sum(one.samples_s) * one.inner for one in unique.values())


def _point(point: Point) -> Iterator[str]:
    if not math.isfinite(point.value):
        yield f"{point.label} has no finite value"
    if point.comparison is not None:
        yield from _comparison(point, point.comparison)
    for record in point.records:
        if record.stopped is None and record.clock != "none" and not _is_counted(record):
            yield f"{point.label} holds neither samples nor facts"


def _is_counted(record: Measurement) -> bool:
    return bool(record.samples_s or record.setting or record.peak_mib)


def _comparison(point: Point, found: Comparison) -> Iterator[str]:
    """Every look must follow from the samples, and the point from the last look."""
    a, b = found.a.samples_s, found.b.samples_s
    if [one.samples_s for one in point.records] != [a, b]:
        yield f"the records of {point.label} are not those that were compared"
    for look in found.looks:
        if look.rounds > min(len(a), len(b)):
            yield f"{point.label} judged {look.rounds} rounds and holds fewer samples"
            return
        again = stats.look(a[: look.rounds], b[: look.rounds], found.band)
        same = zip(
            (look.ratio, look.low, look.high), (again.ratio, again.low, again.high), strict=True
        )
        if not all(math.isclose(x, y, rel_tol=CLOSE) for x, y in same):
            yield f"the samples of {point.label} do not give its interval"
        elif look.verdict is not again.verdict:
            yield f"the interval of {point.label} does not give its verdict"
    if not math.isclose(point.value, found.ratio, rel_tol=CLOSE):
        yield f"{point.label} draws another ratio than its samples give"


def fingerprints(evidence: Evidence) -> set[str]:
    """One for each list of samples that cannot be the same by chance."""
    lists = (record.samples_s for point in evidence.points for record in point.records)
    return {
        hashlib.sha256(json.dumps(one).encode()).hexdigest() for one in lists if len(one) >= FEWEST
    }


def twins(evidence: Mapping[str, Iterable[Evidence]]) -> dict[tuple[str, str], list[str]]:
    """Who holds the same samples as somebody else.

    Args:
        evidence: by student.

    Returns:
        By student and experiment, the other students.
    """
    holders: dict[str, list[tuple[str, str]]] = {}
    for student, items in evidence.items():
        for item in items:
            for mark in fingerprints(item):
                holders.setdefault(mark, []).append((student, item.experiment))
    found: dict[tuple[str, str], list[str]] = {}
    for held in holders.values():
        for student, experiment in held:
            others = {other for other, _ in held if other != student}
            known = set(found.get((student, experiment), []))
            if others:
                found[student, experiment] = sorted(known | others)
    return found
