"""Shapes: what a lease asks for, in words.  Pure: no NVML, no clock, no files.

cpu              no GPU
full             a whole GPU, MIG off
1g.5gb           one slice
2x1g.5gb         two slices
1g.5gb,2x2g.10gb several kinds
at least 9 GiB, at least 28 SMs, at least 9 GiB and 28 SMs     by need
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from miglab_pool.gpu.geometry import Geometry, Profile

CPU = "cpu"
FULL = "full"
FORMS = "'cpu', 'full', '1g.5gb', '2x1g.5gb', '1g.5gb,2g.10gb' or 'at least 9 GiB and 28 SMs'"
MOST_SLICES = 64
LONGEST_TEXT = 200

_PART = re.compile(r"(?:([0-9]{1,3}) ?[x×] ?)?([0-9]+g\.[0-9]+gb(?:[+-][a-z.]+)?)")
_NEED = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(gib|gb|sms?)")


class ShapeError(ValueError):
    """A shape that cannot be read or that no GPU has; says what is allowed."""


@dataclass(frozen=True)
class Shape:
    """What a lease consists of.

    Attributes:
        parts: profile names with counts, each name once; ``(("full", 1),)`` for a whole GPU,
            ``()`` for no GPU.
    """

    parts: tuple[tuple[str, int], ...]

    @property
    def is_cpu(self) -> bool:
        """Whether it asks for no GPU at all."""
        return not self.parts

    @property
    def is_full(self) -> bool:
        """Whether it asks for a whole GPU with MIG off."""
        return any(name == FULL for name, _ in self.parts)

    @property
    def slice_count(self) -> int:
        """How many slices (a whole GPU counts as one)."""
        return sum(count for _, count in self.parts)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profile of every slice, repeated as often as it is asked for."""
        return tuple(name for name, count in self.parts for _ in range(count))

    def __str__(self) -> str:
        terms = (name if count == 1 else f"{count}x{name}" for name, count in self.parts)
        return ",".join(terms) or CPU


@dataclass(frozen=True)
class Need:
    """A shape asked for by what it must have.

    Attributes:
        memory_gib: least memory, GiB; None = any.
        sm_count: least number of streaming multiprocessors; None = any.
    """

    memory_gib: float | None = None
    sm_count: int | None = None

    def is_met_by(self, profile: Profile) -> bool:
        """Whether a slice of this profile serves."""
        return (self.memory_gib or 0) * 1024 <= profile.memory_mib and (
            self.sm_count or 0
        ) <= profile.sm_count

    def __str__(self) -> str:
        terms = []
        if self.memory_gib is not None:
            terms.append(f"{self.memory_gib:g} GiB")
        if self.sm_count is not None:
            terms.append(f"{self.sm_count} SMs")
        return "at least " + " and ".join(terms)


def parse_shape(text: str) -> Shape | Need:
    """Read a shape.

    Args:
        text: one of the forms in the module's docstring; upper and lower case are the same.

    Returns:
        The shape, or the need that ``resolve`` turns into one.

    Raises:
        ShapeError: the text has none of the forms.
    """
    normalized = " ".join(text[: LONGEST_TEXT + 1].lower().split())
    if not normalized or len(normalized) > LONGEST_TEXT:
        raise ShapeError(f"A shape is one of {FORMS}; this is {_excerpt(text)}.")
    if normalized == CPU:
        return Shape(())
    if normalized == FULL:
        return Shape(((FULL, 1),))
    if normalized.startswith("at least "):
        return _parse_need(normalized)
    return _parse_parts(normalized)


def resolve(text: str, geometries: Iterable[Geometry]) -> Shape:
    """Read a shape and turn a need into the smallest profile that serves.

    Args:
        text: as for ``parse_shape``.
        geometries: of the GPUs there are.

    Raises:
        ShapeError: it cannot be read, or no GPU has such a profile.
    """
    parsed = parse_shape(text)
    profiles = {p.name: p for geometry in geometries for p in geometry.profiles}
    if isinstance(parsed, Need):
        return Shape(((_smallest(parsed, profiles.values()).name, 1),))
    unknown = [name for name, _ in parsed.parts if name != FULL and name not in profiles]
    if unknown:
        raise ShapeError(
            f"No GPU here can be cut into {unknown[0]}; {_available_in_words(profiles)}."
        )
    return parsed


def _parse_parts(text: str) -> Shape:
    counts: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ShapeError(f"{_excerpt(part.strip())} is not a shape; use {FORMS}.")
        count = int(match[1] or 1)
        counts[match[2]] = counts.get(match[2], 0) + count
        if not 1 <= count <= MOST_SLICES:
            raise ShapeError(
                f"{_excerpt(part)} asks for {count} slices; 1 to {MOST_SLICES} can be had."
            )
    if sum(counts.values()) > MOST_SLICES:
        raise ShapeError(f"{_excerpt(text)} asks for more than {MOST_SLICES} slices.")
    return Shape(tuple(sorted(counts.items())))


def _parse_need(text: str) -> Need:
    memory_gib: float | None = None
    sm_count: int | None = None
    for part in re.split(r" and |, ?", text.removeprefix("at least ")):
        match = _NEED.fullmatch(part.removeprefix("at least ").strip())
        if match is None or (match[2][0] == "s" and "." in match[1]):
            raise ShapeError(
                f"{_excerpt(part)} is not a need; write 'at least 9 GiB' or 'at least 28 SMs'."
            )
        if match[2].startswith("sm"):
            sm_count = max(sm_count or 0, int(match[1]))
        else:
            memory_gib = max(memory_gib or 0.0, float(match[1]))
    return Need(memory_gib, sm_count)


def _smallest(need: Need, profiles: Iterable[Profile]) -> Profile:
    profiles = list(profiles)
    # A GPU has one +me slice, so that variant, like any, goes only to those who ask for it by name.
    serving = [p for p in profiles if need.is_met_by(p) and p.is_plain]
    if not serving:
        names = {p.name: p for p in profiles}
        raise ShapeError(f"No slice has {need}; {_available_in_words(names)}.")
    return min(serving, key=lambda p: (p.size, p.compute_slices, p.memory_mib, p.name))


def _available_in_words(profiles: Iterable[str]) -> str:
    names = sorted(profiles)
    if not names:
        return "there is no GPU here that can be cut, only 'cpu' and 'full' can be asked for"
    return "what there is: " + ", ".join(names)


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


@lru_cache(maxsize=1024)
def profiles_of(shape: str) -> tuple[str, ...]:
    """The profiles of a shape that was resolved when it was asked for."""
    parsed = parse_shape(shape)
    assert isinstance(parsed, Shape)
    return parsed.profiles
