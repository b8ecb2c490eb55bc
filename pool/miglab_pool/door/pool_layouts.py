"""Layouts: compared, applied, removed."""

from collections.abc import Sequence

from miglab_api.layouts import LayoutDiff, Layouts, LayoutSpec
from miglab_pool.layouts import transactions as layouts
from miglab_pool.layouts import views as layout_views
from miglab_pool.layouts.checks import PartitionableGpu, partitionable, resolved
from miglab_pool.state.store import Store


class PoolLayouts:
    """See the module."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def partitionable(self) -> list[PartitionableGpu]:
        """The GPUs that a layout may name, and how each can be cut."""
        return partitionable(self._store.current)

    def all(self) -> Layouts:
        """What was applied, and how each GPU stands to what is in force on it."""
        return layout_views.layouts(self._store.current)

    def diffs(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        """What applying these would do now; changes nothing.

        Raises:
            Refused: ``bad-layout``.
        """
        view = self._store.current
        return layout_views.diffs(view, resolved(view, asked))

    def diffs_now(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        """As `diffs`, each only with the GPUs on which it would be in force now."""
        view = self._store.current
        return layout_views.diffs_now(view, resolved(view, asked))

    def apply(self, asked: Sequence[LayoutSpec], by: str, reason: str = "") -> Layouts:
        """Apply layouts by draining: nobody is cut off.

        Raises:
            Refused: ``bad-layout`` or ``layout-clash``; then none is applied.
        """
        with self._store.lock:
            layouts.apply(self._store, asked, by, reason)
            return self.all()

    def remove(self, name: str, by: str, reason: str = "") -> Layouts:
        """End a layout: its GPUs are cut on demand again, or by the layout beneath it.

        Raises:
            Refused: ``unknown-layout``, or ``layout-clash``: a class counts on it.
        """
        with self._store.lock:
            layouts.remove(self._store, name, by, reason)
            return self.all()
