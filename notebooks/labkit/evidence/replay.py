"""Evidence recorded on real GPUs, shown where a tier is absent, never as the student's own."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from labkit.errors import NotMeasured
from labkit.evidence.evidence import Evidence, load, read

FOLDER = "recorded"
CLASS = Path("class")  # beside the notebooks: what `labkit grade --class` wrote for them


def _file(key: str) -> Traversable:
    return resources.files("labkit").joinpath(FOLDER, f"{key}.json")


def exists(key: str) -> bool:
    """Whether a recorded run of this experiment is shipped."""
    return _file(key).is_file()


def recorded(key: str) -> Evidence:
    """The shipped evidence of an experiment, marked as not the student's, without a prediction.

    Raises:
        NotMeasured: none is shipped.
    """
    if not exists(key):
        raise NotMeasured(
            f"No recorded run of {key} is shipped with this labkit: only what you measure is shown."
        )
    found = read(_file(key).read_text(encoding="utf-8"), f"{key}.json")
    without = replace(found, prediction=None, explanation="", headless=True)
    return replace(without, replayed_from=found.place)


def of_class_exists(key: str) -> bool:
    """Whether the class's points of this experiment lie beside the notebooks."""
    return (CLASS / f"{key}.json").is_file()


def of_class(key: str) -> Evidence:
    """The medians of the class, as `labkit grade --class` wrote them.

    Raises:
        EvidenceDamaged: the file cannot be read.
    """
    return load(CLASS / f"{key}.json")
