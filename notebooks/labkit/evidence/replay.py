"""Evidence recorded on real GPUs, shown where a tier is absent, never as the student's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from labkit.errors import NotMeasured
from labkit.evidence.evidence import Evidence, load
from labkit.records import from_data

FOLDER = "recorded"
CLASS = Path("class")  # beside the notebooks: what `labkit grade --class` wrote for them


def _file(key: str) -> Traversable:
    return resources.files("labkit").joinpath(FOLDER, f"{key}.json")


def exists(key: str) -> bool:
    """Whether a recorded run of this experiment is shipped."""
    return _file(key).is_file()


def recorded(key: str) -> Evidence:
    """The shipped evidence of an experiment, marked as recorded elsewhere.

    Raises:
        NotMeasured: none is shipped.
    """
    if not exists(key):
        raise NotMeasured(
            f"No recorded run of {key} is shipped with this labkit: only what you measure is shown."
        )
    data = json.loads(_file(key).read_text(encoding="utf-8"))
    return mark(data)


def of_class_exists(key: str) -> bool:
    """Whether the class's points of this experiment lie beside the notebooks."""
    return (CLASS / f"{key}.json").is_file()


def of_class(key: str) -> Evidence:
    """The medians of the class, as `labkit grade --class` wrote them.

    Raises:
        EvidenceDamaged: the file cannot be read.
    """
    return load(CLASS / f"{key}.json")


def mark(data: Mapping[str, Any]) -> Evidence:
    """Evidence from a file, without the recorder's prediction, marked as not the student's."""
    content = {name: value for name, value in data.items() if name not in ("schema", "digest")}
    content |= {"prediction": None, "explanation": "", "headless": True}
    content["replayed_from"] = f"{content['place']}"
    evidence: Evidence = from_data(Evidence, content)
    return evidence
