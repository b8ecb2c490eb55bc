"""The page of the settings, as the site's build makes it from the models."""

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from miglab_hub.settings.keys import is_named, keys_of, table_of
from miglab_hub.settings.lab_toml import settings_model
from miglab_pool.settings import PoolSettings

HEAD = """# Settings: lab.toml

Operators set everything in `lab.toml`, beside `./lab`.
To use another file, run `./lab up --config FILE`.
An unknown key is an error; the message names the file, the key and the keys that exist.
A value of the wrong type, or a shape that fits on no GPU of the lab, is an error too.
The exit status is then 2, and nothing has been started or changed.
Durations are in seconds and memory is in GiB unless the key says otherwise.
"""


BY_SHAPE = ("limits", "slurm.shapes")


def reference() -> str:
    """The whole page, in Markdown."""
    return "\n".join([HEAD, *(_table(name, field) for name, field in _tables())])


def keys() -> list[str]:
    """Every key of lab.toml with its table, such as ``courses.NAME.shapes``."""
    return [
        f"{title}.{key}"
        for name, field in _tables()
        for title in [_title(name, field)]
        for key in _fields(field)
    ]


def _tables() -> list[tuple[str, FieldInfo]]:
    """The lab's own tables, then the pool's."""
    fields = list(keys_of(settings_model()).items())
    fields.sort(key=lambda named: named[0] in PoolSettings.model_fields)
    return [each for name, field in fields for each in ((name, field), *_tables_in(name, field))]


def _tables_in(name: str, field: FieldInfo) -> list[tuple[str, FieldInfo]]:
    inner = keys_of(_model(field)).items()
    return [(f"{name}.{key}", each) for key, each in inner if table_of(each)]


def _model(field: FieldInfo) -> type[BaseModel]:
    table = table_of(field)
    assert table is not None
    return table


def _title(name: str, field: FieldInfo) -> str:
    return f"{name}.{'SHAPE' if name in BY_SHAPE else 'NAME'}" if is_named(field) else name


def _fields(field: FieldInfo) -> dict[str, FieldInfo]:
    fields = keys_of(_model(field)).items()
    return {name: each for name, each in fields if not table_of(each)}


def _table(name: str, field: FieldInfo) -> str:
    words = " ".join((_model(field).__doc__ or "").split(": ", 1)[1].split())
    title, sentence = _title(name, field), words[0].upper() + words[1:]
    keys = [_key(title, key, each) for key, each in _fields(field).items()]
    return "\n".join([f"## [{title}]", "", sentence, "", *keys])


def _key(table: str, key: str, field: FieldInfo) -> str:
    """A key below a heading that other pages link to, as `[pool.lease_s](#pool.lease_s)`."""
    name = f"{table}.{key}"
    return f"({name})=\n### {name}\n\n{_default(field)}. {field.description}\n"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "Required"
    return f"Default `{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return str(value)
