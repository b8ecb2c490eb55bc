"""What this server says to the pool's student listener."""

from collections.abc import Mapping
from typing import Any

from miglab_jupyterlab.asking import Answer, ApiClient


class StudentListener(ApiClient):
    """The student listener, at ``MIGLAB_API``."""

    async def signals(self, body: Mapping[str, Any], known: int | None) -> Answer:
        """Tell how the server is used; answers how it stands, and how the known ticket ended."""
        query = "" if known is None else f"?known={known}"
        return await self.post(f"/api/server/signals{query}", body)

    async def progress(self, body: Mapping[str, Any]) -> Answer:
        """Tell how far the student is, for the course's staff."""
        return await self.post("/api/progress", body)

    async def notice_read(self, course: str) -> Answer:
        """The student has read what the staff are shown; answers how the server stands."""
        return await self.post("/api/progress/notice", {"course": course})

    async def extend(self, by_s: float) -> Answer:
        """Ask for more time; answers the lease."""
        return await self.post("/api/lease/extend", {"by_s": by_s})

    async def keepalive(self) -> Answer:
        """Say that somebody is here; answers the lease."""
        return await self.post("/api/lease/keepalive", {})

    async def release(self) -> Answer:
        """Give the slice back; the server is stopped.  Answers the lease."""
        return await self.post("/api/lease/release", {"reason": "released in JupyterLab"})

    async def cancel(self) -> Answer:
        """Leave the queue, or give up what is offered; answers the ticket."""
        return await self.post("/api/ticket/cancel", {})

    async def requeue(self, ticket: int) -> Answer:
        """Join the queue once more; answers the new ticket."""
        return await self.post("/api/ticket/requeue", {"ticket": ticket})
