"""What a cell under a panel shows; it is written anew whenever the panel has settled."""

from __future__ import annotations

import contextlib
import io
import textwrap
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import LabError, WrongArgument
from labkit.panel.experiment import Points
from labkit.panel.runner import Runner

WIDE = 110  # characters of a cell's output, which the notebook would break within a word


@dataclass
class CellReport:
    """One output: the panel's message and whatever `show` prints about the points.

    Attributes:
        runner: of the panel that it is about.
        show: prints about the points.
        needs: an exercise's verdict that stands before the panel.
        with_message: whether the panel's message is said here, too.
    """

    runner: Runner
    show: Callable[[Points], None] | None
    needs: object
    with_message: bool
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if self.show is not None and not callable(self.show):
            raise WrongArgument(
                f"`report` takes a function that prints about the points, not {self.show!r}."
            )

    def text(self) -> str:
        """What there is to say now."""
        evidence = self.runner.shown
        if not evidence.points:
            missing = "" if is_right(self.needs) else str(self.needs)
            hint = f"{self.runner.experiment.key}: measure first"
            return "\n".join(words for words in (missing, evidence.stopped, hint) if words)
        said = textwrap.fill(self.runner.message, WIDE) if self.with_message else ""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if self.show is not None:
                self.show(evidence.points)
        return "\n".join(words for words in (said, printed.getvalue().rstrip()) if words)

    def display(self) -> None:
        """Show it in this cell; as plain text where there is no notebook."""
        publish = publisher()
        if publish is None:
            print(self.text())
        else:
            publish({"text/plain": self.text()}, **self._marks)

    def update(self) -> None:
        """Write it anew where it is shown; what fails is said there."""
        publish = publisher()
        if publish is None:
            return
        try:
            said = self.text()
        except Exception as error:  # outermost frame around the notebook's own words
            said = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        publish({"text/plain": said}, **self._marks, update=True)

    @property
    def _marks(self) -> dict[str, Any]:
        """Where it is shown; JupyterLab forgets the display id when its page is loaded anew.

        The metadata are saved with the notebook: outputs.js of @miglab/jupyterlab finds it by them.
        """
        return {"transient": {"display_id": self._id}, "metadata": {"labkit_report": self._id}}


def is_right(verdict: object) -> bool:
    """Whether an exercise's check said yes: by its `right`, or by words that begin so."""
    if isinstance(verdict, str):
        return verdict.startswith("right")
    return bool(getattr(verdict, "right", verdict))


def publisher() -> Callable[..., Any] | None:
    """What shows data in a notebook's cell; None where there is no notebook."""
    try:
        from IPython import get_ipython
        from IPython.display import publish_display_data
    except ImportError:
        return None
    return publish_display_data if get_ipython() is not None else None
