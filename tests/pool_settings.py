"""Settings of a pool for a test: other values by their names alone, in whatever table they are."""

from typing import Any

from miglab_pool.settings import PoolSettings


def changed(settings: PoolSettings, **values: Any) -> PoolSettings:
    """The settings with other values.

    Args:
        settings: what stays as it is where nothing else is said.
        values: whole tables (``courses``), keys of [pool], [reclaim] or `Tuning` (``offer_s``), and
            ``assigned``: the course of each assigned GPU, by its index as text.
    """
    tables = {name: getattr(settings, name) for name in PoolSettings.model_fields}
    assigned = values.pop("assigned", None)
    for key, value in values.items():
        if key in tables:
            tables[key] = value
        else:
            table = next(t for t in ("pool", "reclaim", "tuning") if key in _keys(tables[t]))
            tables[table] = type(tables[table])(**{**tables[table].model_dump(), key: value})
    if assigned is not None:
        tables["courses"] = {
            name: course.model_copy(
                update={"gpus": tuple(int(gpu) for gpu, owner in assigned.items() if owner == name)}
            )
            for name, course in tables["courses"].items()
        }
    return PoolSettings(**tables)


def _keys(table: Any) -> set[str]:
    return set(type(table).model_fields)
