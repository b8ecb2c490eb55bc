"""Event streams: so many a person, and each view of the pool is written once for all who see it."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

from fastapi import Depends, Request

from miglab_api.gpus import PoolSnapshot
from miglab_pool.http.access.dependencies import who
from miglab_pool.http.access.principal import Principal, visible_snapshot
from miglab_pool.http.errors import DeniedError
from miglab_pool.http.pool_runner import PoolRunner

A_PERSON = 16  # tabs and `miglab pool watch`


class SnapshotTexts:
    """The pool's snapshot as JSON, as each principal may see it.

    It is the snapshot's identity that says whether it is another: of one version there is one.
    """

    def __init__(self) -> None:
        self._snapshot: PoolSnapshot | None = None
        self._texts: dict[Principal, str] = {}

    async def of(self, runner: PoolRunner, principal: Principal) -> str:
        """The snapshot of this moment for the principal."""
        snapshot = await runner.snapshot()
        if snapshot is not self._snapshot:
            self._snapshot, self._texts = snapshot, {}
        viewer = replace(principal, xsrf="")  # of two sessions of one person
        if viewer not in self._texts:
            self._texts[viewer] = visible_snapshot(snapshot, principal).model_dump_json()
        return self._texts[viewer]


class Streams:
    """The streams that are open, by whoever reads them.

    Args:
        a_person: how many each may have.
    """

    def __init__(self, a_person: int = A_PERSON) -> None:
        self._a_person = a_person
        self._now_open: Counter[str] = Counter()

    def open(self, principal: Principal) -> None:
        """Count one more.

        Raises:
            DeniedError: 429: these are enough.
        """
        if not principal.is_spawner and self._now_open[principal.by] >= self._a_person:
            raise DeniedError(
                429,
                "too-many-streams",
                f"You follow the pool in {self._a_person} windows already. Close one.",
            )
        self._now_open[principal.by] += 1

    def close(self, principal: Principal) -> None:
        """Count one less."""
        self._now_open[principal.by] -= 1
        if not self._now_open[principal.by]:
            del self._now_open[principal.by]


async def _one_stream(request: Request) -> AsyncIterator[None]:
    """Beside the route's own parameter, which says the right."""
    principal = await who(request)
    streams: Streams = request.app.state.streams
    streams.open(principal)
    try:
        yield
    finally:
        streams.close(principal)


ONE_STREAM = Depends(_one_stream)
