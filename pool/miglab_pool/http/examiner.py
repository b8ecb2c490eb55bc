"""Looks after what the service cannot know from memory: files, disk, Docker.  At most now and then.

An examination may take seconds, or hang: it runs on a thread of its own that nobody waits for
longer than `PATIENCE_S`, and that does not keep the service from ending.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread

from miglab_pool.views.health_findings import HealthFinding, wrong

log = logging.getLogger(__name__)

PATIENCE_S = 3.0
LIVES_S = 60.0
Look = Callable[[], list[HealthFinding]]


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found last.

    Attributes:
        age_s: how long ago; None if nothing was found yet.
        looks_for_s: how long the examination under way has lasted; None if there is none.
    """

    findings: tuple[HealthFinding, ...] = ()
    age_s: float | None = None
    looks_for_s: float | None = None


class Doctor:
    """See the module.

    Args:
        look: examines; may take long.
        clock: seconds that never jump.
        patience_s: how long who asks waits for an examination under way.
    """

    def __init__(
        self,
        look: Look,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._look = look
        self._clock = clock
        self._patience_s = patience_s
        self._began: float | None = None
        self._done: asyncio.Future[list[HealthFinding]] | None = None
        self._found: tuple[float, tuple[HealthFinding, ...]] | None = None

    async def examine(self) -> Examined:
        """What was found, no older than a minute if that can be had in time."""
        is_old = self._found is None or self._clock() - self._found[0] > LIVES_S
        if self._done is None and is_old:
            self._begin()
        if self._done is not None:
            await asyncio.wait({self._done}, timeout=self._patience_s)
            self._take()
        return self._said()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        done = self._done = loop.create_future()
        self._began = self._clock()

        def run() -> None:
            found = self._looked()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set_result, found)

        Thread(target=run, name="miglab-doctor", daemon=True).start()

    def _looked(self) -> list[HealthFinding]:
        """The outer frame of the thread: an examination that fails is a finding."""
        try:
            return self._look()
        except Exception as error:
            log.exception("an examination failed")
            return [wrong("doctor", f"could not look: {error}", "see the pool's log")]

    def _take(self) -> None:
        if self._done is not None and self._done.done():
            self._found = (self._clock(), tuple(self._done.result()))
            self._done = self._began = None

    def _said(self) -> Examined:
        now = self._clock()
        at, findings = self._found or (None, ())
        return Examined(
            findings,
            None if at is None else now - at,
            None if self._began is None else now - self._began,
        )
