"""Which keys lab.toml has, by the models of its tables: for the reference, and for what is wrong.

Pure.  A field that is excluded, or marked as fixed, is no key.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from miglab_pool.settings import NotASetting, PoolSettings


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the keys of a table, tables in it included."""
    return {
        field.alias or name: field
        for name, field in model.model_fields.items()
        if not (field.exclude or is_fixed(field))
    }


def is_fixed(field: FieldInfo) -> bool:
    """Whether a field is a constant that only tests change."""
    return any(isinstance(mark, NotASetting) for mark in field.metadata)


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a key's table, or of its tables by name; None for a plain value."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def is_named(field: FieldInfo) -> bool:
    """Whether a field is a table of tables, such as [courses.NAME]."""
    return table_of(field) not in (None, field.annotation)


def unknown_keys(
    model: type[BaseModel], table: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """Yield a message for each key of a file that no table has.

    Args:
        model: the table's.
        table: what the file says in it.
        prefix: what its keys are called after, such as ``courses.vision.``; empty for the whole.
    """
    allowed = keys_of(model)
    for key, value in table.items():
        full_key = f"{prefix}{key}"
        if key not in allowed:
            yield _describe_unknown(model, full_key, key)
        elif (inner := table_of(allowed[key])) and isinstance(value, dict):
            if not is_named(allowed[key]):
                yield from unknown_keys(inner, value, f"{full_key}.")
                continue
            for name, entry in value.items():
                if isinstance(entry, dict):
                    yield from unknown_keys(inner, entry, f"{full_key}.{name}.")


def _describe_unknown(model: type[BaseModel], full_key: str, key: str) -> str:
    field = model.model_fields.get(key)
    if field is not None and is_fixed(field):
        return f"{full_key} is no setting: leave it out (it is {field.default:g})"
    return f"unknown key {full_key}; allowed here: {', '.join(keys_of(model))}"


# -- the page of the settings ----------------------------------------------------------------------

HEAD = """# Settings: lab.toml

Operators set everything in `lab.toml`, beside `./lab`.
To use another file, run `./lab up --config FILE`.
An unknown key is an error; the message names the file, the key and the keys that exist.
A value of the wrong type, or a shape that fits on no GPU of the lab, is an error too.
The exit status is then 2, and nothing has been started or changed.
Durations are in seconds and memory is in GiB unless the key says otherwise.
"""

BY_SHAPE = ("limits", "slurm.shapes")


def reference(model: type[BaseModel]) -> str:
    """Return the reference page of the settings, in Markdown."""
    return "\n".join([HEAD, *(_section(title, table) for title, table in _tables(model))])


def keys(model: type[BaseModel]) -> list[str]:
    """Yield every key of lab.toml with its table, such as ``courses.NAME.shapes``."""
    return [f"{title}.{key}" for title, table in _tables(model) for key in _values(table)]


def _tables(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each table with its title: the lab's own, then the pool's."""
    fields = keys_of(model)
    for key in sorted(fields, key=lambda key: key in PoolSettings.model_fields):
        if (table := table_of(fields[key])) is not None:
            name = f"{above}{key}"
            placeholder = "SHAPE" if name in BY_SHAPE else "NAME"
            title = f"{name}.{placeholder}" if is_named(fields[key]) else name
            yield title, table
            yield from _tables(table, f"{title}.")


def _values(table: type[BaseModel]) -> dict[str, FieldInfo]:
    return {key: field for key, field in keys_of(table).items() if table_of(field) is None}


def _section(title: str, table: type[BaseModel]) -> str:
    """Return a table's section; its keys are headings with anchors, as `[…](#pool.lease_s)`."""
    summary = " ".join((table.__doc__ or "").split(": ", 1)[1].split())
    lines = [f"## [{title}]", "", summary[0].upper() + summary[1:], ""]
    for key, field in _values(table).items():
        name = f"{title}.{key}"
        lines.append(f"({name})=\n### {name}\n\n{_default(field)}. {field.description}\n")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "Required"
    return f"Default `{json.dumps(value, ensure_ascii=False)}`"  # which is TOML, too
