"""Who somebody is: the hub's user id; what they are called follows it.

Everywhere else in the pool a name stands for a person, and this is what makes that true: in the
ledger a name is one person's at any time, by the table ``people``, and the spawner tells who has
it now before it asks for anything.  Somebody renamed takes all rows along.  Somebody else who gets
the name gets none of them: these are of the former bearer, called "NAME (ID)" until the hub says
how that one is called now, if the account is still there.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.sqlite import insert

from miglab_pool.ledger import tables
from miglab_pool.ledger.rows import LeaseRow, MessageRow, ReservationRow, TicketRow
from miglab_pool.ledger.transaction import Transaction
from miglab_pool.state.store import Store, Subject, locked

WHOSE = (
    tables.tickets.c.user,
    tables.leases.c.user,
    tables.messages.c.to_user,
    tables.progress.c.user,
)
CAUSES = (
    tables.transitions.c.by,
    tables.leases.c.warn_by,
    tables.messages.c.by,
    tables.reservations.c.made_by,
)
"""The columns that say whose a row is, and who caused it."""


class People(Subject):
    """See the module."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        rows = store.ledger.read(select(tables.people))
        self._names = {row["id"]: row["called"] for row in rows}
        self.on_rename: list[Callable[[str, str], None]] = []

    @locked
    def tell(self, user_id: str, name: str) -> None:
        """This is how the hub calls somebody now.

        Only for what the hub's own process says: an answer that was kept for a while may have the
        name of before.

        Args:
            user_id: who; empty where nobody is ever renamed.
            name: the name.
        """
        before = self._names.get(user_id)
        if not user_id or before == name:
            return
        bearer = self._bearer(name)
        with self.store.write(durable=True) as tx:
            if bearer is not None:
                self._call(tx, bearer, name, f"{name} ({bearer})")
            self._call(tx, user_id, before, name)

    @locked
    def meet(self, user_id: str, name: str) -> str:
        """What somebody is called whom the hub called ``name``, perhaps a while ago.

        It takes a name from nobody: one that somebody else bears here is theirs until the hub's own
        process tells otherwise.
        """
        called = self.name_of(user_id)
        if called is not None:
            return called
        if self._bearer(name) is not None:
            return f"{name} ({user_id})"
        self.tell(user_id, name)
        return name

    def _bearer(self, name: str) -> str | None:
        return next((user_id for user_id, called in self._names.items() if called == name), None)

    def name_of(self, user_id: str) -> str | None:
        """What the ledger calls somebody; None for one it has not met.  From any thread."""
        return self._names.get(user_id)

    def _call(self, tx: Transaction, user_id: str, before: str | None, name: str) -> None:
        put = insert(tables.people).values(id=user_id, called=name)
        tx.add(put.on_conflict_do_update(index_elements=["id"], set_={"called": name}))
        tx.on_commit.append(lambda: self._note(user_id, before, name))
        if before is not None:
            _rename_past(tx, before, name)
            _rename_live(self.store, tx, before, name)

    def _note(self, user_id: str, before: str | None, name: str) -> None:
        self._names[user_id] = name
        if before is None:
            return
        self.store.uses.read_anew()
        for rename in self.on_rename:
            rename(before, name)


def _rename_past(tx: Transaction, before: str, name: str) -> None:
    for column in WHOSE:
        tx.add(update(column.table).where(column == before).values({column: name}))
    for column in CAUSES:
        query = update(column.table)
        tx.add(query.where(column == f"person:{before}").values({column: f"person:{name}"}))
        mark = f"server:{before}/"
        its_server = f"server:{name}/" + func.substr(column, len(mark) + 1)
        begins = column.startswith(mark, autoescape=True)
        tx.add(query.where(begins).values({column: its_server}))


def _rename_live(store: Store, tx: Transaction, before: str, name: str) -> None:
    """The same in memory, for what is live."""
    state = store.state
    kinds: tuple[dict[int, Any], ...] = (
        state.tickets,
        state.leases,
        state.messages,
        state.reservations,
    )
    for rows in kinds:
        for row in list(rows.values()):
            tx.put(_renamed(row, before, name))


def _renamed(
    row: TicketRow | LeaseRow | MessageRow | ReservationRow, before: str, name: str
) -> TicketRow | LeaseRow | MessageRow | ReservationRow:
    if isinstance(row, TicketRow):
        return replace(row, user=_name(row.user, before, name))
    if isinstance(row, LeaseRow):
        user, warn_by = _name(row.user, before, name), _cause(row.warn_by, before, name)
        return replace(row, user=user, warn_by=warn_by)
    if isinstance(row, MessageRow):
        to_user = None if row.to_user is None else _name(row.to_user, before, name)
        return replace(row, to_user=to_user, by=_cause(row.by, before, name))
    return replace(row, made_by=_cause(row.made_by, before, name))


def _name(user: str, before: str, name: str) -> str:
    return name if user == before else user


def _cause(by: str, before: str, name: str) -> str:
    if by == f"person:{before}":
        return f"person:{name}"
    mark = f"server:{before}/"
    return f"server:{name}/{by.removeprefix(mark)}" if by.startswith(mark) else by
