"""The models of GPU that can be simulated; their tables are in ``models.json``."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pydantic import TypeAdapter

from miglab_pool.gpu.geometry import Geometry

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
    facts = json.loads(text)["models"]
    known = {key: {"key": key, **of_model} for key, of_model in facts.items()}
    return TypeAdapter(dict[str, Model]).validate_python(known)


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
