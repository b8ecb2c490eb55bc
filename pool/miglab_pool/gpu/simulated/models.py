"""The models of GPU that can be simulated; their tables are in ``models.json``."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from miglab_pool.gpu.geometry import Geometry, Profile

ALIASES = {"A30": "A30-24GB", "H100": "H100-80GB", "H200": "H200-141GB", "A100": "A100-40GB"}


@dataclass(frozen=True)
class Engines:
    """Fixed-function engines of one profile."""

    copy: int
    decoders: int
    jpeg: int
    ofa: int


@dataclass(frozen=True)
class Model:
    """A model of GPU.

    Attributes:
        key: what the command line calls it, ``A100-40GB``.
        gpu_name: what NVML calls it.
        memory_mib: memory of the whole GPU, MiB.
        sm_count: streaming multiprocessors of the whole GPU.
        compute_capability: major, minor.
        power_limit_w: board power, W.
        is_hopper: changes MIG mode without a reset, and has GPM.
        compute_slices: 7, or 4 on an A30.
        geometry: how it can be cut.
        engines: by profile id.
    """

    key: str
    gpu_name: str
    memory_mib: int
    sm_count: int
    compute_capability: tuple[int, int]
    power_limit_w: int
    is_hopper: bool
    compute_slices: int
    geometry: Geometry
    engines: dict[int, Engines]


@cache
def models() -> dict[str, Model]:
    """Every model by key."""
    text = files(__package__).joinpath("models.json").read_text(encoding="utf-8")
    return {key: _model(key, facts) for key, facts in json.loads(text)["models"].items()}


def model_named(name: str) -> Model:
    """The model of that name or alias.

    Raises:
        ValueError: there is none; says which there are.
    """
    wanted = name.strip().upper()
    key = ALIASES.get(wanted, wanted)
    if key not in models():
        raise ValueError(f"No simulated GPU is called {name!r}; there are: {', '.join(models())}.")
    return models()[key]


def _model(key: str, facts: dict[str, Any]) -> Model:
    geometry = Geometry(facts["memory_slices"], tuple(map(_profile, facts["profiles"])))
    major, minor = facts["compute_capability"]
    return Model(
        key=key,
        gpu_name=facts["gpu_name"],
        memory_mib=facts["memory_mib"],
        sm_count=facts["sm_count"],
        compute_capability=(major, minor),
        power_limit_w=facts["power_limit_w"],
        is_hopper=facts["is_hopper"],
        compute_slices=facts["compute_slices"],
        geometry=geometry,
        engines={
            p["id"]: Engines(p["copy_engines"], p["decoders"], p["jpeg"], p["ofa"])
            for p in facts["profiles"]
        },
    )


def _profile(facts: dict[str, Any]) -> Profile:
    return Profile(
        name=facts["name"],
        profile_id=facts["id"],
        enum=facts["enum"],
        compute_slices=facts["compute_slices"],
        size=facts["size"],
        sm_count=facts["sm_count"],
        memory_mib=facts["memory_mib"],
        max_count=facts["max_count"],
        starts=tuple(facts["starts"]),
    )
