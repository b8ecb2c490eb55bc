"""Layouts and the pool: compared, applied.

Applying is a decision in the ledger and ends no lease: from then on a GPU takes new leases only on
the slices of its layout, free slices that it does not want are destroyed, and what it lacks is made
when there is room.  A layout holds until another is applied.
"""

from dataclasses import replace

from miglab_api.gpus import Layouts
from miglab_api.wording import in_words
from miglab_pool.layouts import views
from miglab_pool.layouts.file import LayoutDraft, PartitionableGpu, resolve
from miglab_pool.refused import Refused
from miglab_pool.state.store import Subject, locked


class PoolLayouts(Subject):
    """See the module."""

    def partitionable(self) -> list[PartitionableGpu]:
        """The GPUs that a layout may name, and how each can be cut."""
        return views.partitionable(self.store.current)

    def all(self) -> Layouts:
        """How each GPU stands to its layout."""
        return views.layouts(self.store.current)

    def diff(self, asked: LayoutDraft) -> Layouts:
        """What applying this would do now; changes nothing.

        Raises:
            LayoutError: it names what is not there or not possible.
        """
        view = self.store.current
        return views.diff(view, asked.name, resolve(asked, views.partitionable(view)))

    @locked
    def apply(self, asked: LayoutDraft, by: str, reason: str = "", anyway: str = "") -> Layouts:
        """Apply a layout by draining; GPUs that it names without slices are cut on demand again.

        Args:
            asked: what a file says.
            by: who.
            reason: why, for the ledger.
            anyway: why, though it takes slices from a reservation; empty: then it is refused.

        Returns:
            The GPUs that it names.

        Raises:
            LayoutError: it names what is not there or not possible; nothing was applied.
            Refused: ``breaks-reservation``, with which.
        """
        partitions = resolve(asked, self.partitionable())
        breaks = views.diff(self.store.current, asked.name, partitions).breaks
        if breaks and not anyway:
            raise Refused(
                "breaks-reservation",
                f"{' '.join(breaks)} Leave a GPU out, partition it otherwise, change the "
                "reservation, or say why it is to be applied anyway.",
            )
        said = " ".join([f"({reason})"] * bool(reason) + [f"(anyway: {anyway})"] * bool(anyway))
        with self.store.write(durable=True) as tx:
            for uuid, partition in partitions.items():
                name = asked.name if partition else ""
                row = self.store.state.gpus[uuid]
                row = replace(row, layout=name, partition=",".join(partition))
                cut = in_words(reversed(partition)) if partition else "on demand"
                tx.put(row)
                course = self.store.settings.assigned_course(uuid, row.idx)
                tx.record(row, by, f"{asked.name}: {cut} {said}".strip(), "apply", course)
        return views.diff(self.store.current, asked.name, partitions)
