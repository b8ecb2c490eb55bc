"""What a hub must be told besides its spawner class, by hand or by lab.toml.

from miglab_slurm.hub_setup import set_up
set_up(c)
"""

from typing import Any

from miglab_hub.configure import NOTEBOOKS_URL
from miglab_slurm.handover import HANDLERS
from miglab_slurm.lab import SlurmSettings
from miglab_spawner import hub_setup


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
    c.JupyterHub.setdefault("extra_handlers", []).extend(HANDLERS)
