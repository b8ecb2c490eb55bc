"""What a cell under a panel shows; it is written anew whenever the panel has settled."""

from __future__ import annotations

import contextlib
import io
import textwrap
import uuid
from collections.abc import Callable
from typing import Any

from labkit.errors import LabError, WrongArgument
from labkit.panel.experiment import Points
from labkit.panel.runner import Runner

WIDE = 110  # characters of a cell's output, which the notebook would break within a word


class CellReport:
    """One output: the panel's message and whatever `show` prints about the points.

    Args:
        runner: of the panel that it is about.
        show: prints about the points.
        needs: an exercise's verdict that stands before the panel.
        with_message: whether the panel's message is said here, too.
    """

    def __init__(
        self,
        runner: Runner,
        show: Callable[[Points], None] | None,
        needs: object,
        *,
        with_message: bool,
    ) -> None:
        if show is not None and not callable(show):
            raise WrongArgument(
                f"`report` takes a function that prints about the points, not {show!r}."
            )
        self._runner, self._show, self._needs = runner, show, needs
        self._with_message = with_message
        self._id = uuid.uuid4().hex

    def text(self) -> str:
        """What there is to say now."""
        evidence = self._runner.shown
        if not evidence.points:
            missing = "" if is_right(self._needs) else str(self._needs)
            stopped = evidence.stopped or ""
            hint = f"{self._runner.experiment.key}: measure first"
            return "\n".join(words for words in (missing, stopped, hint) if words)
        said = textwrap.fill(self._runner.message, WIDE) if self._with_message else ""
        return "\n".join(words for words in (said, self._printed(evidence.points)) if words)

    def _printed(self, points: Points) -> str:
        if self._show is None:
            return ""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self._show(points)
        return said.getvalue().rstrip()

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
