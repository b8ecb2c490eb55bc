"""Glossary and code agree: no *not* word is on the wire, and a class name means one thing."""

import re
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import typer

import miglab_api
from miglab_api.base import WireModel
from miglab_hub.cli.pool import app
from miglab_hub.settings.keys import keys
from miglab_hub.settings.lab_toml import settings_model
from miglab_pool.applications.management_app import ROUTERS
from miglab_pool.applications.metrics import Metrics
from miglab_pool.http.access.principal import Right

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
METRICS: set[Any] = set(Metrics().registry._collector_to_names)
ON_THE_WIRE = GLOSSARY.split("## Inside")[0]

VERBS = frozenset({"accept_risk.students_can_act_as_staff"})
"""Identifiers in which a word to avoid is a verb of everyday English."""

SAME_THING = {
    "Pool": "the pool, and the table of lab.toml that sets it",
    "NoProxy": "a hub's configuration without a proxy, in the text of two configurations",
    "Line": "where a person stands, and an assumption that `miglab prove` tries, in its report",
    "LossScaler": "the student's exercise, and the twin that stands in for it",
    "Buckets": "the same",
    "SimulatedNetwork": "the same",
    "Zero2": "the student's exercise, and wrong solutions of it",
}
"""Class names that occur more than once, each with the reason."""

FOLDERS = ("api", "spawner", "pool", "hub", "bench", "notebooks", "images", "deploy", "tests")
COPIES = {"wheelhouse", "build", "dist"}
"""Folders into which builds copy sources."""


WORD = re.compile(r"^- \*\*(.+?)\*\*: .*?(?: \*\(not (.+)\)\*)?$", re.MULTILINE)


def rows(text: str) -> list[tuple[str, str]]:
    """Each entry's words, and those that are avoided."""
    return WORD.findall(text)


def not_words() -> set[str]:
    """The words to avoid, as identifiers write them."""
    cells = (row[-1] for row in rows(ON_THE_WIRE))
    return {term.strip().replace(" ", "_") for cell in cells if cell for term in cell.split(",")}


def json_keys() -> set[str]:
    """The keys of everything that passes between processes."""
    for module in iter_modules(miglab_api.__path__):
        import_module(f"miglab_api.{module.name}")
    keys, models = set(), [WireModel]
    while models:
        model = models.pop()
        keys |= set(model.model_fields)
        models += model.__subclasses__()
    return keys


IDENTIFIERS = {
    "path": {route.path for router in ROUTERS for route in router.routes},
    "right": {right.value for right in Right},
    "JSON key": json_keys(),
    "command": set(typer.main.get_command(app).commands),
    "metric": {metric._name for metric in METRICS},
    "label": {name for metric in METRICS for name in metric._labelnames},
    "setting": set(keys(settings_model())),
}


@pytest.mark.parametrize("kind", IDENTIFIERS)
def test_what_is_not_said(kind: str) -> None:
    """No identifier has a word that the glossary avoids, in the singular or the plural."""
    assert IDENTIFIERS[kind]
    alternatives = "|".join(map(re.escape, sorted(not_words())))
    avoided = re.compile(rf"(?:^|[^a-z])(?:{alternatives})s?(?:$|[^a-z])")
    assert not [name for name in IDENTIFIERS[kind] if name not in VERBS and avoided.search(name)]


def test_each_word_stands_once() -> None:
    """A word has one row, and is not avoided in another."""
    terms = [term.strip() for row in rows(GLOSSARY) for term in row[0].split(",")]
    assert len(terms) == len(set(terms)) > 50
    assert not {term.replace(" ", "_") for term in terms} & not_words()


def class_names() -> dict[str, list[str]]:
    """Where each class is defined."""
    files_by_name = defaultdict(list)
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        if COPIES & set(path.parts):
            continue
        for name in re.findall(
            r"^ *class (\w+)[(:]", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            files_by_name[name].append(str(path.relative_to(ROOT)))
    return files_by_name


def test_a_class_name_means_one_thing() -> None:
    """A class name occurs once in the repository, or it is known why it does not."""
    repeated = {name: files for name, files in class_names().items() if len(files) > 1}
    assert not {name: files for name, files in repeated.items() if name not in SAME_THING}
