"""Numbers of a question that are one student's own, so that answers cannot be copied."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from labkit.arguments import public
from labkit.errors import WrongArgument


def student_here() -> str:
    """Who works here: by the hub, else by the machine."""
    name = os.environ.get("JUPYTERHUB_USER")
    if name:
        return name
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return "unknown"


@public
def drawn(question: str, *, student: str = "", **choices: Sequence[Any]) -> dict[str, Any]:
    """Draw a question's numbers for a student: the same ones every time, on every machine.

    Args:
        question: the same numbers are drawn for the same question.
        student: who works here; a marker names the student of a hand-in.
        choices: by name, what may be drawn.

    Raises:
        WrongArgument: a name has nothing to draw from.
    """
    if not choices or not all(isinstance(some, list | tuple) and some for some in choices.values()):
        raise WrongArgument(
            "drawn takes what may be drawn, by name: `batch=(32, 64)`, "
            f"not {', '.join(choices) or 'nothing'}."
        )
    seed = f"{student or student_here()}/{question}"
    return {
        name: some[int(sha256(f"{seed}/{name}".encode()).hexdigest(), 16) % len(some)]
        for name, some in choices.items()
    }
