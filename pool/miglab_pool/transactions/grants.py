"""Matching the queue with what is free: each grant is one transaction."""

from collections.abc import Collection

from miglab_pool.decisions import reserved_places
from miglab_pool.decisions.queue import served, unseated
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.model.queue import Grant
from miglab_pool.model.rows import FULL
from miglab_pool.rules.backfill import first_that_fits
from miglab_pool.state.store import Store
from miglab_pool.transactions import granting, reserved_grants


def match(store: Store, tx: Transaction) -> None:
    """Grant until nobody in line can be served."""
    if store.paused:
        return
    reserved_grants.serve(store, tx)
    seated = reserved_places.seated(store, tx.at)
    line = unseated(store, tx.at)
    while line:
        grant = first_that_fits(
            line, reserved_places.grounds(store, tx.at), store.forecast.ahead(tx.at)
        )
        if grant is None:
            break
        _grant(store, tx, grant)
        line = [one for one in line if one.ticket != grant.ticket]
    _match_whole(store, tx, seated)
    reserved_grants.cut(store, tx)


def _grant(store: Store, tx: Transaction, grant: Grant) -> None:
    granting.grant(store, tx, store.state.tickets[grant.ticket], grant.choices)


def _match_whole(store: Store, tx: Transaction, seated: Collection[int]) -> None:
    is_free = any(store.whole_gpu(row) for row in store.state.gpus.values())
    line = served(store, tx.at) if is_free else []
    wanting = [one for one in line if one.profiles == (FULL,) and one.ticket not in seated]
    for one in wanting:
        gpu = next(iter(reserved_places.free_whole(store, tx.at, one.course)), None)
        if gpu is not None:
            granting.grant_whole(store, tx, store.state.tickets[one.ticket], gpu)
