"""The open JupyterLab tabs: what each reported last.  Pure: the clock is passed in."""

import math
from collections.abc import Mapping
from typing import Any

from miglab_jupyterlab.signals import MANY, Tabs

LONG_S = 366 * 24 * 3600.0


class OpenTabs:
    """Who is connected, and what they said; the last key press outlives the tab it was in."""

    def __init__(self) -> None:
        self._unsaved: dict[object, int | None] = {}
        self._active_at: float | None = None

    def opened(self, tab: object) -> None:
        """A tab connected; it has not told anything yet."""
        self._unsaved[tab] = None

    def closed(self, tab: object) -> None:
        """A tab went away, and what was not saved in it with it."""
        self._unsaved.pop(tab, None)

    def told(self, tab: object, said: Mapping[str, Any], now: float) -> None:
        """A tab reported; what makes no sense is passed over.

        Args:
            tab: which one.
            said: ``unsaved`` documents, and ``active_age_s`` since the last key or pointer.
            now: seconds of the server's monotonic clock.
        """
        unsaved = _number(said.get("unsaved"), MANY)
        age_s = _number(said.get("active_age_s"), LONG_S)
        if tab in self._unsaved and unsaved is not None:
            self._unsaved[tab] = int(unsaved)
        if age_s is not None:
            self._active_at = max(now - age_s, self._active_at or -math.inf)

    def summary(self, now: float) -> Tabs:
        """All tabs in one; documents are counted per tab, each has its own changes."""
        known = [count for count in self._unsaved.values() if count is not None]
        return Tabs(
            open=len(self._unsaved),
            active_age_s=None if self._active_at is None else now - self._active_at,
            unsaved=min(sum(known), MANY) if known else None,
        )


def _number(value: object, most: float) -> float | None:
    """A number that can be counted with, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= most else None
