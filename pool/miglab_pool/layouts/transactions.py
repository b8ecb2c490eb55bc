"""Layouts and the pool: applied, removed, in force, cut ahead.

Applying is a decision in the ledger and ends no lease: from then on a GPU takes new leases only on
the slices of what is in force there, free slices that it does not want are destroyed, and what it
lacks is made when there is room.  Which layout is in force follows from the rows and the clock.
"""

from collections.abc import Sequence
from dataclasses import replace

from miglab_api.layouts import LayoutDiff, Layouts, LayoutSpec, LayoutState
from miglab_pool.layouts import views as layout_views
from miglab_pool.layouts.checks import (
    PartitionableGpu,
    check_removed,
    check_together,
    find,
    in_words,
    partitionable,
    resolved,
)
from miglab_pool.layouts.rules import Planned, hidden, partitions_text, phase, planned, times_text
from miglab_pool.ledger.rows import LayoutRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.refused import Refused
from miglab_pool.state.store import Store, Subject, locked


class PoolLayouts(Subject):
    """See the module."""

    def partitionable(self) -> list[PartitionableGpu]:
        """The GPUs that a layout may name, and how each can be cut."""
        return partitionable(self.store.current)

    def all(self) -> Layouts:
        """What was applied, and how each GPU stands to what is in force on it."""
        return layout_views.layouts(self.store.current)

    def diffs(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        """What applying these would do now; changes nothing.

        Raises:
            Refused: ``bad-layout``.
        """
        view = self.store.current
        return layout_views.diffs(view, resolved(view, asked))

    def diffs_now(self, asked: Sequence[LayoutSpec]) -> list[LayoutDiff]:
        """As `diffs`, each only with the GPUs on which it would be in force now."""
        view = self.store.current
        return layout_views.diffs_now(view, resolved(view, asked))

    @locked
    def apply(self, asked: Sequence[LayoutSpec], by: str, reason: str = "") -> Layouts:
        """Apply layouts by draining, all or none; one of the same name is replaced.

        Args:
            asked: each with all its GPUs by UUID.
            by: who.
            reason: why, for the ledger.

        Raises:
            Refused: ``bad-layout`` or ``layout-clash``, with what would go; the ledger has it too.
        """
        with self.store.write(durable=True) as tx:
            rows = [_row(self.store, tx, one, by, reason) for one in asked]
            refusal = None
            try:
                partitions = [
                    partitions_text(one.gpus) for one in resolved(self.store.view(tx.at), asked)
                ]
                rows = [
                    replace(row, partitions=partition)
                    for row, partition in zip(rows, partitions, strict=True)
                ]
                check_together(self.store.view(tx.at), rows)
            except Refused as error:
                refusal = error
                rows = [
                    replace(r, state=LayoutState.REFUSED, message=refusal.message) for r in rows
                ]
            else:
                _replace(self.store, tx, rows, by)
            for row in rows:
                tx.put(row, by, row.message or in_words(row), action="apply")
            if refusal is None:
                _retire(self.store, tx, by)
                note_phases(self.store, tx)
        if refusal is not None:
            raise refusal
        return self.all()

    @locked
    def remove(self, name: str, by: str, reason: str = "") -> Layouts:
        """End a layout: its GPUs are cut on demand again, or by the layout beneath it.

        Raises:
            Refused: ``unknown-layout``, or ``layout-clash``: a class counts on it.
        """
        refusal = None
        with self.store.write(durable=True) as tx:
            view = self.store.view(tx.at)
            row = find(view, name)
            try:
                check_removed(view, row)
            except Refused as error:
                refusal = error
                tx.record(row, by, f"not removed: {error.message}", "refused")
            else:
                _end(tx, row, LayoutState.REMOVED, by, reason or f"{by} removed it.")
                note_phases(self.store, tx)
        if refusal is not None:
            raise refusal
        return self.all()


# -- the clock ----------------------------------------------------------------------------------


def note_phases(store: Store, tx: Transaction) -> None:
    """Put into the ledger what the clock has made of each; a change wakes who waits for news."""
    for row in list(store.state.layouts.values()):
        state = _state(planned(row), tx.at, store.settings.pool.reserve_lead_s)
        if state != row.state:
            tx.put(replace(row, state=state), reason=_what_now(state))


def _state(plan: Planned, at: float, lead_s: float) -> LayoutState:
    found = phase(plan, at, lead_s)
    if found.rank:
        return LayoutState.IN_FORCE
    return LayoutState.PLANNED if found.time else LayoutState.OVER


def _what_now(state: LayoutState) -> str:
    if state is LayoutState.IN_FORCE:
        return "from now on its GPUs are cut so"
    return "it is over for this time" if state is LayoutState.PLANNED else "it is over"


def _row(store: Store, tx: Transaction, asked: LayoutSpec, by: str, reason: str) -> LayoutRow:
    return LayoutRow(
        id=store.ledger.new_id("layout"),
        name=asked.name,
        course=asked.course,
        partitions=partitions_text(asked.gpus),
        times=times_text(asked.when),
        made_by=by,
        made_at=tx.at,
        state=LayoutState.PLANNED,
        message=reason,
    )


def _replace(store: Store, tx: Transaction, rows: Sequence[LayoutRow], by: str) -> None:
    names = {row.name for row in rows}
    for old in [row for row in store.state.layouts.values() if row.name in names]:
        _end(tx, old, LayoutState.REPLACED, by, "one of the same name was applied")


def _retire(store: Store, tx: Transaction, by: str) -> None:
    """End what nothing is left of: without times, and a later one on each of its GPUs."""
    for plan in hidden(store.view(tx.at).plans):
        reason = "a later layout holds on each of its GPUs"
        _end(tx, store.state.layouts[plan.number], LayoutState.REPLACED, by, reason)


def _end(tx: Transaction, row: LayoutRow, state: LayoutState, by: str, message: str) -> None:
    action = "remove" if state is LayoutState.REMOVED else "replace"
    tx.put(replace(row, state=state, message=message), by, message, action=action)
