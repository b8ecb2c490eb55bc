"""A shape in words and as a small picture of a GPU: the same on every page that shows one.

Both need to know how many compute slices a whole GPU has: seven on most models, four on an A30.
Where that is not known (0), the words leave the fraction out, and there is no picture.
"""

import re
from dataclasses import dataclass

_PROFILE = re.compile(r"(?:(\d+)x)?(\d+)g\.(\d+)gb")
_WORDS = {1: "small", 2: "medium"}
_WIDTH, _HEIGHT, _GAP = 9, 22, 2


@dataclass(frozen=True)
class _Slices:
    count: int
    compute: int
    memory_gb: int


def shape_title(shape: str, compute_slices: int) -> str:
    """“Small: 1/7 of a GPU, 5 GB” for ``1g.5gb``; the shape itself if it is no profile's name."""
    parts = _parts(shape)
    if not parts:
        return "Whole GPU" if shape == "full" else shape
    return " + ".join(_title(each, compute_slices) for each in parts)


def gpu_picture(shape: str, compute_slices: int) -> str:
    """A GPU with the part lit that the shape is, as SVG; the words beside it say the same."""
    parts = _parts(shape)
    if not compute_slices or (not parts and shape not in ("full", "cpu")):
        return ""
    lit = compute_slices if shape == "full" else sum(each.count * each.compute for each in parts)
    cells = "".join(
        f'<rect x="{1 + number * (_WIDTH + _GAP)}" y="1" width="{_WIDTH}" height="{_HEIGHT}" rx="2"'
        f' stroke="currentColor" fill="{"currentColor" if number < lit else "none"}"'
        f' stroke-opacity="{1 if number < lit else 0.45}"/>'
        for number in range(compute_slices)
    )
    width = compute_slices * (_WIDTH + _GAP)
    return (
        f'<svg class="gpu-picture" aria-hidden="true" xmlns="http://www.w3.org/2000/svg"'
        f' width="{width}" height="{_HEIGHT + 2}" viewBox="0 0 {width} {_HEIGHT + 2}">{cells}</svg>'
    )


def _parts(shape: str) -> list[_Slices]:
    return [
        _Slices(int(count or 1), int(compute), int(memory))
        for count, compute, memory in _PROFILE.findall(shape)
    ]


def _title(each: _Slices, compute_slices: int) -> str:
    size = _WORDS.get(each.compute, "large")
    if each.compute == compute_slices:
        size, part = "whole GPU", []
    else:
        part = [f"{each.compute}/{compute_slices} of a GPU"] if compute_slices else []
    name = f"{each.count} × {size}" if each.count > 1 else size[0].upper() + size[1:]
    return f"{name}: {', '.join([*part, f'{each.memory_gb} GB'])}{' each' * (each.count > 1)}"
