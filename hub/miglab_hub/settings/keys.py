"""Which keys lab.toml has, by the models of its tables: for the reference, and for what is wrong.

Pure.  A field that is excluded, or marked as fixed, is no key.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from miglab_pool.settings import Fixed, PoolSettings

OLD_NAMES = {
    "students": "write [servers] instead",
    "courses.NAME.borrow": "write lends instead",
    "courses.NAME.ends": "reserve the class: what is drawn is guaranteed to its end",
    "courses.NAME.class_ends": "reserve the class: what is drawn is guaranteed to its end",
    "quotas.NAME.live_slices": "write memory_slices instead",
    "reclaim.keepalive_s": "write still_here_s instead",
    "reclaim.stay_s": "write still_here_s instead",
    "reclaim.stays": 'leave it out: "I am still here" works twice',
    "lab.timezone": "write timezone in [lab] instead",
    "reclaim.maintenance": "write maintenance in [lab] instead",
    "lab.students_can_act_as_staff": "write it in [accept_risk] instead",
    "servers.students_can_read_secrets": "write it in [accept_risk] instead",
    "authentication.anyone_can_be_any_student": "write it in [accept_risk] instead",
    "gpus.simulated": 'write simulate = ["A100-40GB"], with the model of each GPU, or uuids alone',
    "gpus.count": 'write simulate = ["A100-40GB"], with the model of each GPU, instead',
    "gpus.model": 'write simulate = ["A100-40GB"], with the model of each GPU, instead',
    "gpus.models": "write simulate instead",
    "servers.docker_url": "set the environment variable DOCKER_HOST instead",
    "servers.network": "leave it out: the network has the lab's name",
    "servers.default_shape": "leave it out: a server that is started without a choice has no GPU",
}
"""What to do about keys of before."""


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The keys of a table, tables in it included."""
    return {
        field.alias or name: field
        for name, field in model.model_fields.items()
        if not (field.exclude or is_fixed(field))
    }


def is_fixed(field: FieldInfo) -> bool:
    """Whether it is a constant that only tests change."""
    return any(isinstance(mark, Fixed) for mark in field.metadata)


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """The table that a key stands for, or each of its tables by name; None for a plain value."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def is_named(field: FieldInfo) -> bool:
    """Whether it is a table of tables, such as [courses.NAME]."""
    return table_of(field) not in (None, field.annotation)


def unknown_keys(model: type[BaseModel], table: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with each key that a file has and its tables have not."""
    return _unknown(model, table, (), ())


def _unknown(
    model: type[BaseModel], table: Mapping[str, Any], where: tuple[str, ...], kind: tuple[str, ...]
) -> Iterator[str]:
    allowed = keys_of(model)
    for key, value in table.items():
        here, of_kind = (*where, key), (*kind, key)
        if key not in allowed:
            yield _explained(model, ".".join(here), ".".join(of_kind), key)
        elif (inner := table_of(allowed[key])) and isinstance(value, dict):
            if not is_named(allowed[key]):
                yield from _unknown(inner, value, here, of_kind)
                continue
            for name, named in value.items():
                if isinstance(named, dict):
                    yield from _unknown(inner, named, (*here, name), (*of_kind, "NAME"))


def _explained(model: type[BaseModel], here: str, of_kind: str, key: str) -> str:
    if instead := OLD_NAMES.get(of_kind):
        return f"{here} is a key of before: {instead}"
    field = model.model_fields.get(key)
    if field is not None and is_fixed(field):
        return f"{here} is no setting any more: leave it out (it is {field.default:g})"
    return f"unknown key {here}; allowed here: {', '.join(keys_of(model))}"


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
    """The page of the settings, in Markdown, as the site's build makes it from the models."""
    return "\n".join([HEAD, *(_table(name, field) for name, field in _tables(model))])


def keys(model: type[BaseModel]) -> list[str]:
    """Every key of lab.toml with its table, such as ``courses.NAME.shapes``."""
    return [
        f"{title}.{key}"
        for name, field in _tables(model)
        for title in [_title(name, field)]
        for key in _fields(field)
    ]


def _tables(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """The lab's own tables, then the pool's."""
    fields = list(keys_of(model).items())
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
