"""Keeps names in the ledger unique to a person, who is identified by the hub's user id.

Everywhere else in the pool a name stands for a person.  The table ``people`` makes that true: the
spawner reports who has a name before it asks for anything.  When a user is renamed, all rows get
the new name.  When a name passes to another user, its rows stay with the former bearer, who is
called "NAME (ID)" until the hub reports their new name, if the account still exists.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.dialects.sqlite import insert

from miglab_pool.ledger import tables
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.ledger.rows import LeaseRow, MessageRow, ReservationRow, TicketRow
from miglab_pool.state.store import Store, Subject, locked

OWNER_COLUMNS = (
    tables.tickets.c.user,
    tables.leases.c.user,
    tables.messages.c.to_user,
    tables.progress.c.user,
)
CAUSE_COLUMNS = (
    tables.transitions.c.by,
    tables.leases.c.warn_by,
    tables.messages.c.by,
    tables.reservations.c.made_by,
)
"""The columns with a row's user, and those with its cause."""


class People(Subject):
    """The names of the hub's users, as the ledger has them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        rows = store.ledger.read(select(tables.people))
        self._names = {row["id"]: row["called"] for row in rows}
        self.on_rename: list[Callable[[str, str], None]] = []

    @locked
    def rename_user(self, user_id: str, name: str) -> None:
        """Record a user's present name, and rename their rows if they had another.

        Only the hub's own process may report it: a cached answer may have the former name.

        Args:
            user_id: the hub's id of the user; empty where nobody is ever renamed.
            name: the present name.
        """
        before = self._names.get(user_id)
        if not user_id or before == name:
            return
        bearer = self._user_id_of(name)
        with self.store.write(durable=True) as tx:
            if bearer is not None:
                self._record_name(tx, bearer, name, f"{name} ({bearer})")
            self._record_name(tx, user_id, before, name)

    @locked
    def name_for_hub_user(self, user_id: str, name: str) -> str:
        """Return the ledger's name of a user whom the hub called ``name``, perhaps a while ago.

        A name that another user has here stays theirs until the hub's own process says otherwise.
        """
        called = self.name_of(user_id)
        if called is not None:
            return called
        if self._user_id_of(name) is not None:
            return f"{name} ({user_id})"
        self.rename_user(user_id, name)
        return name

    def _user_id_of(self, name: str) -> str | None:
        return next((user_id for user_id, called in self._names.items() if called == name), None)

    def name_of(self, user_id: str) -> str | None:
        """The ledger's name of a user; None for an unknown one.  From any thread."""
        return self._names.get(user_id)

    def _record_name(self, tx: Transaction, user_id: str, before: str | None, name: str) -> None:
        put = insert(tables.people).values(id=user_id, called=name)
        tx.add(put.on_conflict_do_update(index_elements=["id"], set_={"called": name}))
        tx.on_commit.append(lambda: self._remember_name(user_id, before, name))
        if before is not None:
            _rename_in_file(tx, before, name)
            _rename_live(self.store, tx, before, name)

    def _remember_name(self, user_id: str, before: str | None, name: str) -> None:
        self._names[user_id] = name
        if before is None:
            return
        self.store.lease_use_reader.invalidate()
        for rename in self.on_rename:
            rename(before, name)


def _rename_in_file(tx: Transaction, before: str, name: str) -> None:
    for column in OWNER_COLUMNS:
        tx.add(update(column.table).where(column == before).values({column: name}))
    for column in CAUSE_COLUMNS:
        query = update(column.table)
        tx.add(query.where(column == f"person:{before}").values({column: f"person:{name}"}))
        mark = f"server:{before}/"
        its_server = f"server:{name}/" + func.substr(column, len(mark) + 1)
        begins = column.startswith(mark, autoescape=True)
        tx.add(query.where(begins).values({column: its_server}))


def _rename_live(store: Store, tx: Transaction, before: str, name: str) -> None:
    """Rename the live rows, in memory and in the file."""
    state = store.state
    kinds: tuple[dict[int, Any], ...] = (
        state.tickets,
        state.leases,
        state.messages,
        state.reservations,
    )
    for rows in kinds:
        for row in list(rows.values()):
            tx.put(_renamed_row(row, before, name))


def _renamed_row(
    row: TicketRow | LeaseRow | MessageRow | ReservationRow, before: str, name: str
) -> TicketRow | LeaseRow | MessageRow | ReservationRow:
    if isinstance(row, TicketRow):
        return replace(row, user=_new_name(row.user, before, name))
    if isinstance(row, LeaseRow):
        user, warn_by = _new_name(row.user, before, name), _new_cause(row.warn_by, before, name)
        return replace(row, user=user, warn_by=warn_by)
    if isinstance(row, MessageRow):
        to_user = None if row.to_user is None else _new_name(row.to_user, before, name)
        return replace(row, to_user=to_user, by=_new_cause(row.by, before, name))
    return replace(row, made_by=_new_cause(row.made_by, before, name))


def _new_name(user: str, before: str, name: str) -> str:
    return name if user == before else user


def _new_cause(cause: str, before: str, name: str) -> str:
    if cause == f"person:{before}":
        return f"person:{name}"
    mark = f"server:{before}/"
    return f"server:{name}/{cause.removeprefix(mark)}" if cause.startswith(mark) else cause
