"""What a hub must be told besides its spawner class, by hand or by lab.toml.

from miglab_slurm.hub_setup import set_up
set_up(c)

And where a job that runs asks the hub for its server's environment.  Route below ``/hub``:
``POST api/miglab/slurm/handover``.  Batchspawner's own route lets a server set any attribute of its
spawner, commands that the hub runs included; so that route is not used, and batchspawner is not
imported.  Here a job says who it is and its port, proves it with a secret that only its script
holds, and is told nothing that is not its own.
"""

import asyncio
import hmac
import json
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from pydantic import ValidationError
from tornado import web

from miglab_hub.configure import NOTEBOOKS_URL
from miglab_slurm.job import HANDOVER, JobReport, JobSpawner
from miglab_slurm.lab import SlurmSettings
from miglab_spawner import hub_setup
from miglab_spawner.at_start import call_at_start

ANSWER_S = 25.0


class HandoverHandler(APIHandler):
    """``api/miglab/slurm/handover``: for jobs, which have no token yet."""

    async def post(self) -> None:
        """Answer with environment and command; 503: ask again; 404: nobody wants this job."""
        try:
            report = JobReport.model_validate_json(self.request.body)
        except ValidationError:
            raise web.HTTPError(400, "This is not a job's report.") from None
        if not hmac.compare_digest(
            report.secret, report.tag.secret(self.settings["cookie_secret"])
        ):
            raise web.HTTPError(403, "This is not a job of this hub.")
        user, server = self.find_user(report.tag.user), report.tag.server
        if user is None or (server and server not in user.spawners):
            raise web.HTTPError(404, "There is no such server.")
        spawner = user.spawners[server]
        if not isinstance(spawner, JobSpawner):
            raise web.HTTPError(404, "This server is no job.")
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


HANDLERS = [(rf"/api/{HANDOVER}", HandoverHandler)]


def set_up(c: Any) -> None:
    """All that every spawner of the lab needs of its hub, and the route by which jobs ask."""
    hub_setup.set_up(c)
    _add_route(c)


def configure(c: Any, settings: SlurmSettings) -> None:
    """The spawner's traits, as lab.toml has them, and the route."""
    spawner = c.MIGSlurmSpawner
    spawner.slurm = settings.slurm_site.model_dump()
    spawner.slurm_jobs_file = str(settings.slurm_jobs)
    spawner.reclaimer_url = settings.pool_url
    spawner.reclaimer_secret_file = str(settings.pool_secret)
    spawner.default_url = NOTEBOOKS_URL if settings.slurm.notebooks else "/lab"
    _add_route(c)


def _add_route(c: Any) -> None:
    call_at_start(c, add_route)


def add_route(app: Any) -> None:
    """Add ours to the site's."""
    app.extra_handlers = [*app.extra_handlers, *HANDLERS]
