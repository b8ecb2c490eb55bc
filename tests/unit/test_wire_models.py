"""Each field of what the services answer is filled by somebody.

A field without a default needs no test: a model that is made without it is an error.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from tests.unit.pool.applications.conftest import LAB
from tests.unit.pool.applications.full_lab import apps
from tests.unit.pool.conftest import World

from miglab_api.base import WireModel
from miglab_pool.ledger.rows import (
    GpuRow,
    LeaseRow,
    MessageRow,
    ReservationRow,
    Row,
    SliceRow,
    TicketRow,
)

REPOSITORY = Path(__file__).parents[2]
SERVICES = ("api", "pool", "slurm")
ROWS: dict[str, type[Row]] = {
    "GpuView": GpuRow,
    "LayoutDrain": LeaseRow,
    "LeaseView": LeaseRow,
    "ReservationView": ReservationRow,
    "SentMessage": MessageRow,
    "SliceView": SliceRow,
    "TicketView": TicketRow,
}
"""The row from which `WireModel.of` makes each model."""

FILLED_OTHERWISE = {
    "AuditEntry.user": "staff/log.py selects it as a column",
    "Headcount.holding": "queue/offers.py passes it in a dict, with or without free slices",
    "Headcount.offered": "as holding",
    "Headcount.waiting": "as holding",
    "RosterRow.is_outside": "roster/page.py sets it in a copy, where it knows the members",
    "RosterRow.lease": "roster/page.py sets it in a copy, if the student holds",
    "RosterRow.offered_until": "roster/page.py sets it in a copy, if something is offered",
    "RosterRow.position": "roster/page.py sets it in a copy, if the student waits",
    "RosterRow.shape": "roster/page.py sets it in a copy, if the student waits or holds",
    "RosterRow.since": "as shape",
    "RosterRow.ticket": "roster/page.py sets it in a copy, if the student waits or is offered",
    "ServerStatus.line": "as messages",
    "ServerStatus.messages": "student_app.py sets it in a copy, where it knows the courses",
    "ServerStatus.sharing": "as messages",
    "WaitEstimate.is_late": "queue/offers.py sets it in a copy, once time has passed",
}
"""Fields that no call names, each with where it is filled."""


def response_models(app: FastAPI) -> Iterator[type[WireModel]]:
    """The wire models of an application's responses, and the models in their fields."""
    description = app.openapi()
    models = {model.__name__: model for model in subclasses_of(WireModel)}
    operations = [op for path in description["paths"].values() for op in path.values()]
    open_names = set[str]().union(*(names_in(operation["responses"]) for operation in operations))
    names: set[str] = set()
    while open_names:
        names |= open_names
        schemas = [description["components"]["schemas"][name] for name in open_names]
        open_names = set[str]().union(*map(names_in, schemas)) - names
    return (models[name] for name in names if name in models)


def subclasses_of(model: type[WireModel]) -> Iterator[type[WireModel]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from subclasses_of(subclass)


def names_in(schema: Any) -> set[str]:
    """The models that a part of an OpenAPI description refers to."""
    return set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema)))


def named_in_calls() -> dict[str, set[str]]:
    """For each class the fields that some call of it, or of its `of`, names; `of` adds a row's."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    for package in SERVICES:
        for file in REPOSITORY.joinpath(package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(func=ast.Name(id=name), keywords=keywords):
                        named[name] |= {keyword.arg for keyword in keywords if keyword.arg}
                    case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="of")):
                        named[name] |= {keyword.arg for keyword in node.keywords if keyword.arg}
                        named[name] |= fields_of_row(name)
    return named


def fields_of_row(model: str) -> set[str]:
    row = ROWS.get(model)
    return set(dir(row)) | set(row.__dataclass_fields__) if row else set()


def test_every_field_of_a_response_is_filled(tmp_path: Path) -> None:
    """By name where its model is made, or from a row; whatever else fills one is listed."""
    world = World(tmp_path, LAB)
    models = {model for app in apps(world.pool) for model in response_models(app)}
    world.close()
    assert {model.__name__ for model in models} > ROWS.keys()
    named = named_in_calls()
    unfilled = {
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.is_required() and name not in named[model.__name__]
    }
    assert unfilled == FILLED_OTHERWISE.keys()
