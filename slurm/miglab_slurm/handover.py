"""Where a job that runs asks the hub for its server's environment.

Route below ``/hub``: ``POST api/miglab/slurm/handover``.  Batchspawner's own route lets a server
set any attribute of its spawner, commands that the hub runs included; so that route is not used,
and batchspawner is not imported.  Here a job says who it is and its port, proves it with a
secret that only its script holds, and is told nothing that is not its own.
"""

import asyncio
import hashlib
import hmac
import json
from typing import Annotated, Protocol, runtime_checkable

from jupyterhub.apihandlers.base import APIHandler
from pydantic import Field, ValidationError
from tornado import web

from miglab_api.base import Server, User, WireModel
from miglab_slurm.records import Tag

PATH = "miglab/slurm/handover"
ANSWER_S = 25.0


class JobReport(WireModel):
    """What a job that runs says of itself.

    Attributes:
        secret: proves that the hub wrote the job's script.
        port: on which its server will listen.
    """

    user: User
    server: Server
    course: Annotated[str, Field(max_length=255)]
    shape: Annotated[str, Field(max_length=64)]
    ticket: Annotated[str, Field(max_length=64)]
    lab: Annotated[str, Field(max_length=64)]
    secret: Annotated[str, Field(max_length=128)]
    job: Annotated[int, Field(ge=1, lt=2**32)]
    node: Annotated[str, Field(max_length=255)]
    port: Annotated[int, Field(ge=1024, le=65535)]

    @property
    def tag(self) -> Tag:
        """Whose job it says it is."""
        return Tag(self.lab, self.user, self.server, self.course, self.shape, self.ticket)


@runtime_checkable
class HandsOver(Protocol):
    """A spawner that hands environments to jobs."""

    async def handed_over(self, report: JobReport) -> dict[str, object] | None:
        """Environment and command for this job; None while no start attends it.

        Raises:
            LookupError: nobody wants this job.
        """


def secret_of(cookie_secret: bytes, tag: Tag) -> str:
    """A job's secret: known to the hub, also after its restart, and to the job's script."""
    key = hashlib.sha256(b"miglab-slurm-handover" + cookie_secret).digest()
    said = json.dumps(tag.__dict__, sort_keys=True).encode()
    return hmac.new(key, said, hashlib.sha256).hexdigest()


class HandoverHandler(APIHandler):
    """``api/miglab/slurm/handover``: for jobs, which have no token yet."""

    async def post(self) -> None:
        """Answer with environment and command; 503: ask again; 404: nobody wants this job."""
        try:
            report = JobReport.model_validate_json(self.request.body)
        except ValidationError:
            raise web.HTTPError(400, "This is no report of a job.") from None
        if not hmac.compare_digest(
            report.secret, secret_of(self.settings["cookie_secret"], report.tag)
        ):
            raise web.HTTPError(403, "This is not a job of this hub.")
        spawner = self._spawner(report)
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await spawner.handed_over(report)
        except TimeoutError:
            answer = None
        except LookupError as error:
            raise web.HTTPError(404, str(error)) from error
        if answer is None:
            self.set_status(503)
            self.finish({"message": "Nobody attends this job yet."})
            return
        self.finish(json.dumps(answer))

    def _spawner(self, report: JobReport) -> HandsOver:
        user = self.find_user(report.user)
        if user is None or (report.server and report.server not in user.spawners):
            raise web.HTTPError(404, "There is no such server.")
        spawner = user.spawners[report.server]
        if not isinstance(spawner, HandsOver):
            raise web.HTTPError(404, "This server is no job.")
        return spawner


HANDLERS = [(rf"/api/{PATH}", HandoverHandler)]
