"""Who handed in the same as somebody else. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator

from labkit.evidence.evidence import Evidence
from labkit_grading.submissions import Submission

FEWEST = 5  # a list of fewer samples may be the same by chance
Item = tuple[str, str]


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
