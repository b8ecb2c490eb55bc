"""What a marker should look at before believing a measurement: flags, and never a verdict.

Evidence is a student's word: whoever can run labkit can write such a file. These flags find what is
easily done: a shipped recording or a classmate's run under one's own name, also with a little noise
on it; another machine; times that cannot be. They cannot show that a run is honest.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.evidence import evidence as store
from labkit.evidence.evidence import Evidence
from labkit.notebook.catalogue import EXPERIMENTS
from labkit.records import Measurement
from labkit_grading.submissions import Item, Submission

LEAST_CORRELATION = 0.9
"""Of two records' ranks; among 9,102 pairs of honest records of the same function, measured on
different machines for docs/gallery with 20 to 80 samples each, the highest is 0.88."""
FEWEST = 12  # samples whose ranks say something
FEWEST_EQUAL = 5  # samples of which fewer may be the same by chance
CLASS_LEAST = 3  # zips, so that a machine can be nobody else's
CLOCK_S = 1.0  # times are kept to the second
SHIPPED = "the shipped recording"


@dataclass(frozen=True)
class _Fingerprint:
    """One record's samples, made comparable: two of one kind match if their product is large."""

    item: Item
    kind: tuple[str, str, int]
    shape: Any


def flags_of(
    submissions: Sequence[Submission], machines: Collection[str] = ()
) -> dict[Item, list[str]]:
    """By zip and experiment, sentences for the marker.

    Args:
        submissions: of the whole class.
        machines: the names of the lab's devices, as evidence has them; without any, a device is
            flagged that nobody else in the class measured on.
    """
    flags: dict[Item, list[str]] = defaultdict(list)
    for item, other, count, all_count in _shared(submissions):
        flags[item].append(f"{count} of {all_count} records rise and fall as in {other}")
    holders = Counter(name for submission in submissions for name in _devices_of(submission))
    is_class = len(submissions) >= CLASS_LEAST
    for submission in submissions:
        for key, evidence in submission.evidence.items():
            item = (submission.file, key)
            flags[item] += _machine_flags(evidence, machines, holders if is_class else {})
            flags[item] += backward_times(evidence)
    return {item: sentences for item, sentences in flags.items() if sentences}


def _shared(submissions: Sequence[Submission]) -> Iterator[tuple[Item, str, int, int]]:
    """Each experiment of a zip with each other holder of its samples: how many, of how many."""
    fingerprints = [
        mark
        for submission in submissions
        for evidence in submission.evidence.values()
        for mark in _fingerprints(submission.file, evidence)
    ]
    keys = {mark.item[1] for mark in fingerprints}
    shipped = [
        mark
        for key in sorted(keys)
        if store.is_recorded(key)
        for mark in _fingerprints(SHIPPED, store.recorded(key))
    ]
    counts = Counter(mark.item for mark in fingerprints)
    matched: dict[tuple[Item, str], int] = defaultdict(int)
    for group in _by_kind([*fingerprints, *shipped]):
        for mark, files in _matches(group):
            for other in files - {mark.item[0]}:
                matched[mark.item, other] += 1
    for (item, other), count in sorted(matched.items()):
        if item[0] != SHIPPED:
            yield item, other, count, counts[item]


def _fingerprints(file: str, evidence: Evidence) -> Iterator[_Fingerprint]:
    for record in (record for point in evidence.points for record in point.records):
        shape = _shape_of(record)
        if shape is not None:
            kind = evidence.experiment, record.name, len(record.samples_s)
            yield _Fingerprint((file, evidence.experiment), kind, shape)


def _shape_of(record: Measurement) -> Any:
    """A vector of length 1: of the samples' ranks, or of few samples themselves; or None.

    The product of two of these is the correlation of their ranks. Few samples are compared exactly:
    their ranks agree by chance.
    """
    count = len(record.samples_s)
    if count < FEWEST_EQUAL or len(set(record.samples_s)) == 1:
        return None
    samples = np.asarray(record.samples_s)
    if count < FEWEST:
        return samples
    _, places, sizes = np.unique(samples, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - sizes / 2)[places]  # equal samples share their middle rank
    centred = ranks - ranks.mean()
    return centred / np.linalg.norm(centred)


def _by_kind(fingerprints: Iterable[_Fingerprint]) -> Iterable[list[_Fingerprint]]:
    groups: dict[tuple[str, str, int], list[_Fingerprint]] = defaultdict(list)
    for mark in fingerprints:
        groups[mark.kind].append(mark)
    return groups.values()


def _matches(group: Sequence[_Fingerprint]) -> Iterator[tuple[_Fingerprint, set[str]]]:
    """Each record of one kind with the files in which another one matches it."""
    shapes = np.stack([mark.shape for mark in group])
    if shapes.shape[1] < FEWEST:
        is_match = (shapes[:, None] == shapes[None]).all(axis=2)
    else:
        is_match = shapes @ shapes.T >= LEAST_CORRELATION
    for mark, row in zip(group, is_match, strict=True):
        yield mark, {other.item[0] for other, is_near in zip(group, row, strict=True) if is_near}


def _devices_of(submission: Submission) -> set[str]:
    return {name for evidence in submission.evidence.values() for name in _device_names(evidence)}


def _device_names(evidence: Evidence) -> set[str]:
    records = (record for point in evidence.points for record in point.records)
    return {device.name for record in records for device in record.devices}


def _machine_flags(
    evidence: Evidence, machines: Collection[str], holders: Mapping[str, int]
) -> Iterator[str]:
    for name in sorted(_device_names(evidence)):
        if machines and name not in machines:
            yield f"measured on {name}, which is none of the lab's"
        elif not machines and holders.get(name) == 1:
            yield f"nobody else measured on {name}"
    if evidence.emulated:
        yield "measured on an emulated slice"


def backward_times(evidence: Evidence) -> Iterator[str]:
    """Sentences on times of a run that cannot be; reading has refused a prediction after it."""
    try:
        started, ended = (_time(text) for text in (evidence.started, evidence.ended))
        dates = [_time(record.date) for record in _records(evidence) if record.date]
        ran_s = (ended - started).total_seconds()
    except (ValueError, TypeError):
        yield "a time of it is none"
        return
    if ran_s < 0:
        yield f"it ended {-ran_s:.0f} s before it began"
    elif any(not started <= date <= ended for date in dates):
        yield "a record of it was not made while it ran"
    sampled_s = _least_duration_s(evidence)
    if ran_s >= 0 and sampled_s > ran_s + CLOCK_S:
        yield f"its samples alone took {sampled_s:.0f} s, and the whole run {ran_s:.0f} s"


def _least_duration_s(evidence: Evidence) -> float:
    """How long a run lasts at the least: all samples, one after another.

    Of samples that run at once, the longest of each record counts.
    """
    experiment = EXPERIMENTS.get(evidence.experiment)
    if experiment is not None and experiment.are_samples_concurrent:
        return sum(max(record.samples_s, default=0.0) for record in _records(evidence))
    return sum(sum(record.samples_s) * record.inner for record in _records(evidence))


def _records(evidence: Evidence) -> Iterator[Measurement]:
    return (record for point in evidence.points for record in point.records)


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
