"""How many of the pool's files somebody reads who follows a grant, or a round of the reclaimer.

A failure prints them in the order in which they are entered, with how often the path comes by.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.unit.pool.conftest import World
from tests.unit.pool.reclaim.test_round import STEP_S, ReclaimWorld

import miglab_pool
from miglab_pool.leases.grant import grant_all

POOL = Path(miglab_pool.__file__).parent
GRANT_MOST, ROUND_MOST = 12, 15


@contextmanager
def traced() -> Iterator[Counter[str]]:
    """The pool's files that are entered, in order, with how often from another file."""
    stays: Counter[str] = Counter()
    last = ""

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal last
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(POOL):
            return
        name = str(path.relative_to(POOL))
        stays[name] += name != last
        last = name

    sys.setprofile(note)
    try:
        yield stays
    finally:
        sys.setprofile(None)


def test_a_grant_is_read_in_few_files(world: World) -> None:
    """Two students ask and one GPU has room: from `grant_all` to leases, slices and offers."""
    tickets = [world.ask("ada").id, world.ask("bob", "3g.20gb").id]
    with world.pool.store.write() as tx, traced() as stays:
        grant_all(world.pool.store, tx)
    assert {lease.ticket for lease in world.pool.leases.live()} == set(tickets)
    assert len(stays) <= GRANT_MOST, dict(stays)


def test_a_round_of_the_reclaimer_is_read_in_few_files(tmp_path: Path) -> None:
    """Three leases, of which one is idle while somebody waits: it is warned."""
    lab = ReclaimWorld(tmp_path)
    idle, *busy_leases = [lab.run(name, "2g.10gb") for name in ("ada", "bob", "carl")]
    lab.busy.update(lease.id for lease in busy_leases)
    lab.ask("dora", "2g.10gb")
    lab.live(405)
    lab.pass_time(STEP_S)
    lab.ticks += STEP_S
    for lease in (idle, *busy_leases):
        lab.report(lease.id)
    lab.pool.sample()
    with traced() as stays:
        lab.reclaimer.round(lab.pool)
    assert lab.pool.leases.warned() == {idle.id}
    lab.close()
    assert len(stays) <= ROUND_MOST, dict(stays)
