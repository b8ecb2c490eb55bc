"""A fresh copy of a delivered notebook, beside the one a student has edited."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

from labkit.arguments import public
from labkit.errors import LabError

VARIABLE = "MIGLAB_NOTEBOOKS"
DELIVERED = "/opt/miglab/notebooks"


@public
def fresh_copy(name: str, folder: Path = Path()) -> Path:
    """Put a fresh copy of a notebook into the folder; nothing is ever overwritten.

    Args:
        name: the notebook's name, with or without .ipynb.
        folder: where the copy goes.

    Returns:
        The copy, "NAME (fresh).ipynb" or with a number.

    Raises:
        LabError: no such notebook was delivered; the message names those that were.
    """
    source = Path(os.environ.get(VARIABLE) or DELIVERED)
    delivered = {file.stem: file for file in sorted(source.rglob("*.ipynb"))}
    wanted = delivered.get(Path(name).name.removesuffix(".ipynb"))
    if wanted is None:
        known = ", ".join(delivered) or f"none; {VARIABLE} names their folder"
        raise LabError(f"No notebook “{name}” lies in {source}. There: {known}.")
    for number in itertools.count(1):
        target = folder / f"{wanted.stem} (fresh{'' if number == 1 else f' {number}'}).ipynb"
        try:
            with target.open("xb") as copy, wanted.open("rb") as original:
                shutil.copyfileobj(original, copy)
        except FileExistsError:
            continue
        return target
    raise AssertionError("itertools.count never ends")
