"""Puts the service of a lab on Slurm together: one reader, one reclaimer, two applications."""

import time
from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from miglab_hub import lab_secrets
from miglab_hub.service.hub_side import access_of, hub_client, private
from miglab_hub.service.reclaim_rules import rules_of
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.hub_tokens import SERVER_TOKEN, HubTokens
from miglab_pool.http.student_app import student_app
from miglab_pool.reclaimer.round import Reclaimer
from miglab_pool.reclaimer.server_stopper import ServerEnder
from miglab_pool.reclaimer.signals import SignalBoard
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.reader import SlurmReader
from miglab_slurm.service.cluster_page import PLACES, page_router
from miglab_slurm.service.management import management_app
from miglab_slurm.service.runner import SlurmRunner
from miglab_slurm.service.usage_log import UsageLog
from miglab_slurm.submissions import Submissions

STUDENT_CACHE_S = 10


@dataclass(frozen=True)
class SlurmParts:
    """What runs together in the service's process."""

    runner: SlurmRunner
    management: FastAPI
    student: FastAPI
    hub: httpx.AsyncClient


def assemble_on_slurm(settings: SlurmSettings) -> SlurmParts:
    """Make everything; nothing is asked yet.

    Raises:
        OSError: a secret cannot be read, or others may read it.
    """
    lab_secrets.make_all(settings)
    access = access_of(settings)
    hub = hub_client(access)
    board = SignalBoard(settings.reclaim.cpu_busy_pct)
    runner = SlurmRunner(
        settings,
        SlurmReader(
            Submissions(settings.slurm_jobs, settings.lab_id), settings.slurm_site, sweeps=False
        ),
        Reclaimer(rules_of(settings), board),
        ServerEnder(hub, time.time),
        UsageLog(settings.slurm_usage),
    )
    sign_in = SignIn(access, private(settings.pool_secret), settings.role_book())
    student = student_app(
        runner,
        HubTokens(access_of(settings, STUDENT_CACHE_S), SERVER_TOKEN),
        board,
        default_course=settings.students.default_course,
    )
    management = management_app(settings, runner, sign_in)
    management.include_router(page_router(), prefix=sign_in.access.prefix)
    management.state.places = PLACES
    return SlurmParts(runner, management, student, hub)
