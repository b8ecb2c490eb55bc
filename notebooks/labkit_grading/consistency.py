"""Who handed in the same samples as somebody else. Pure functions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from labkit.evidence.evidence import Evidence

FEWEST = 5  # a list of fewer samples may be the same by chance


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
