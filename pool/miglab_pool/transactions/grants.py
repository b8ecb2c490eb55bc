"""Matching the queue with what is free: each grant is one transaction."""

from collections.abc import Collection

from miglab_pool.decisions import reserved_places
from miglab_pool.decisions.queue import served, unseated
from miglab_pool.ledger.ledger import Transaction
from miglab_pool.model.queue import Grant
from miglab_pool.model.rows import FULL
from miglab_pool.rules.backfill import first_that_fits
from miglab_pool.state.store import Core
from miglab_pool.transactions import granting, reserved_grants


def match(core: Core, tx: Transaction) -> None:
    """Grant until nobody in line can be served."""
    if core.paused:
        return
    reserved_grants.serve(core, tx)
    seated = reserved_places.seated(core, tx.at)
    line = unseated(core, tx.at)
    while line:
        grant = first_that_fits(
            line, reserved_places.grounds(core, tx.at), core.forecast.ahead(tx.at)
        )
        if grant is None:
            break
        _grant(core, tx, grant)
        line = [one for one in line if one.ticket != grant.ticket]
    _match_whole(core, tx, seated)
    reserved_grants.cut(core, tx)


def _grant(core: Core, tx: Transaction, grant: Grant) -> None:
    granting.grant(core, tx, core.state.tickets[grant.ticket], grant.choices)


def _match_whole(core: Core, tx: Transaction, seated: Collection[int]) -> None:
    is_free = any(core.whole_gpu(row) for row in core.state.gpus.values())
    line = served(core, tx.at) if is_free else []
    wanting = [one for one in line if one.profiles == (FULL,) and one.ticket not in seated]
    for one in wanting:
        gpu = next(iter(reserved_places.free_whole(core, tx.at, one.course)), None)
        if gpu is not None:
            granting.grant_whole(core, tx, core.state.tickets[one.ticket], gpu)
