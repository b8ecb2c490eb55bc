"""``python -m miglab_hub.service --config lab.toml``: run the pool service in the foreground.

It is put together from lab.toml: secrets, GPUs, ledger, pool, two applications.

Exit status: 0 after SIGTERM or SIGINT; 2 with one line on standard error for whatever a person
must mend first (settings, a second service, a damaged ledger, a port in use, no GPUs).
"""

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
from fastapi import FastAPI

from miglab_api.leases import LeaseState, LeaseView, WarningKind
from miglab_hub import lab_secrets
from miglab_hub.backup import backup_name, check_restore_ended, make_backup
from miglab_hub.doctor import examine_host, examine_lab_toml
from miglab_hub.mig_rights import examine_mig_rights
from miglab_hub.service.gpus import make_simulated, read_boot_id
from miglab_hub.service.process import (
    access_rules,
    foreground,
    hub_client,
    locked_sockets,
    make_access,
    read_private_file,
    serve_apps,
)
from miglab_hub.settings.lab_toml import Settings
from miglab_hub.watched_folders import watched_folders
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner, Times
from miglab_pool.applications.student_app import student_app
from miglab_pool.gpu.readings import GpuError
from miglab_pool.gpu.watched import WatchedDriver, open_watched
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.hub_address import HubAddress
from miglab_pool.http.access.hub_tokens import SERVER_TOKEN, HubTokens
from miglab_pool.http.connection_limits import stop_on_signals
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.ledger.own_file import check_own, make_new
from miglab_pool.ledger.tables import VERSION, LedgerError
from miglab_pool.pool import Pool
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.policy import TIME_IS_UP
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.reclaim.server_stopper import ServerStopper
from miglab_pool.roster.members import CourseMembers, Members
from miglab_pool.state.lock import GPU_LOCKS, LedgerLock, lock_gpus
from miglab_pool.worker.holders import HostHolders

log = logging.getLogger("miglab_hub.service")  # also where it is run as a program

STUDENT_CACHE_S = 10
GPUS_OPEN_S = 3.0


@dataclass(frozen=True)
class ServiceParts:
    """The parts that run together in one service process.

    Attributes:
        close: gives back what was opened; to be called last.
    """

    runner: PoolRunner
    management: FastAPI
    student: FastAPI
    hub: httpx.AsyncClient
    address: HubAddress
    close: Callable[[], None]


def main(arguments: list[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    start_errors = (LedgerError, GpuError)
    return foreground(
        "miglab-pool", "Run the pool service.", run, *start_errors, arguments=arguments
    )


def run(settings: Settings) -> None:
    """Run the service of these settings until told to stop."""
    with locked_sockets(settings) as sockets:
        at_rest = asyncio.run(_serve(assemble(settings), sockets))
    if not at_rest:
        logging.shutdown()
        os._exit(0)  # a driver call hangs in its thread: the interpreter would wait for it for ever


async def _serve(parts: ServiceParts, sockets: tuple[socket.socket, socket.socket]) -> bool:
    stop = asyncio.Event()
    stop_on_signals(stop)
    await parts.runner.start()
    stopping = asyncio.create_task(_close_waits(parts, stop))
    following = asyncio.create_task(parts.address.follow())
    try:
        await serve_apps(parts.management, parts.student, sockets, stop)
    finally:
        stop.set()
        following.cancel()
        await asyncio.gather(stopping, following, return_exceptions=True)
        at_rest = await parts.runner.stop()
        await parts.hub.aclose()
        if at_rest:
            parts.close()
    return at_rest


async def _close_waits(parts: ServiceParts, stop: asyncio.Event) -> None:
    """End long-polls and event streams as soon as the service is told to stop."""
    await stop.wait()
    parts.runner.notifier.close()


def assemble(settings: Settings) -> ServiceParts:
    """Open all parts of the service; the caller holds the pool's lock.

    Raises:
        LedgerError: the ledger cannot be used.
        StartError: there is no such model of simulated GPUs.
        GpuError: the GPUs cannot be opened.
        AlreadyRunning: another lab's pool service has one of the GPUs.
        OSError: a file cannot be read or written.
    """
    lab_secrets.make_all(settings)
    make_simulated(settings)
    driver, ledger, opened = _open(settings)
    engine = settings.docker_url if settings.servers.spawner == "docker" else ""
    holders = HostHolders(engine, settings.lab_id)
    pool = Pool(settings, ledger, driver, holders, steady=time.monotonic)
    pool.disk_folders = watched_folders(settings)
    access = make_access(settings)
    hub = hub_client(access)
    shapes = {shape for course in settings.courses.values() for shape in course.shapes}
    metrics = Metrics(shapes)
    pool.worker.boot_id = read_boot_id(settings)
    pool.worker.stopwatch.on_time, pool.store.unserved = metrics.driver_call, metrics.count_unserved
    board = SignalBoard(settings.reclaim.cpu_busy_pct)
    reclaimer = Reclaimer(access_rules(settings), board, metrics.reclaimed)
    end_servers = _end_servers(ServerStopper(hub, time.time), metrics)
    runner = PoolRunner(pool, metrics, _times(settings), end_servers, reclaimer)
    sign_in = SignIn(access, read_private_file(settings.pool_secret), settings.role_book())
    members = CourseMembers(hub, sign_in.book, settings.servers.default_course)
    management = _management(settings, runner, sign_in, members.of)
    server_tokens = HubTokens(make_access(settings, STUDENT_CACHE_S), SERVER_TOKEN)
    student = student_app(
        runner,
        server_tokens,
        board,
        courses=settings.courses,
        default_course=settings.servers.default_course,
        roster=pool.roster,
    )
    address = HubAddress(hub, access, (sign_in.move, server_tokens.move))
    return ServiceParts(runner, management, student, hub, address, opened.close)


def _end_servers(ender: ServerStopper, metrics: Metrics) -> Callable[[PoolRunner], Awaitable[None]]:
    """Return the job that ends servers whose leases are over."""

    async def end_servers(runner: PoolRunner) -> None:
        leases = await runner.decide(lambda pool: release_due_leases(pool, metrics.reclaimed))
        await ender.stop_servers(leases)
        runner.unknown_to_hub = ender.unknown
        abandoned = ender.abandoned
        await runner.decide(lambda pool: pool.leases.abandon(abandoned))

    return end_servers


def _management(
    settings: Settings, runner: PoolRunner, sign_in: SignIn, members: Members
) -> FastAPI:
    lab_toml = settings.file.read_bytes()
    return management_app(
        runner,
        sign_in,
        default_course=settings.servers.default_course,
        notices=settings.notices,
        title=settings.lab.title,
        course_titles={name: course.title for name, course in settings.courses.items()},
        members=members,
        timezone=settings.lab.timezone,
        look=lambda: [examine_lab_toml(settings.file, lab_toml), *examine_host(settings)],
    )


def _open(settings: Settings) -> tuple[WatchedDriver, Ledger, ExitStack]:
    """Open GPUs and ledger, with a stack that closes both; do not wait for a hanging GPU."""
    driver = open_watched(
        simulated_state=settings.simulated_state,
        gpu_uuids=settings.gpus.uuids or None,
        limit_s=settings.gpus.answer_s,
        change_limit_s=settings.gpus.change_s,
    )
    with ExitStack() as opened:
        opened.enter_context(lock_gpus(settings.simulated_state or GPU_LOCKS, driver.uuids))
        opened.callback(driver.close)
        driver.check(GPUS_OPEN_S)
        _report_rights(driver)
        ledger = _open_ledger(settings, opened)
        return driver, ledger, opened.pop_all()


def _open_ledger(settings: Settings, opened: ExitStack) -> Ledger:
    """This lab's ledger, locked before anything is written to it; a lab that begins gets one."""
    check_restore_ended(settings)
    version = check_own(settings.ledger)
    if version is None:
        make_new(settings.ledger)
    opened.enter_context(LedgerLock(settings.ledger))
    _keep_backup(settings, VERSION if version is None else version)
    ledger = Ledger(settings.ledger, version=version)
    opened.callback(ledger.close)
    return ledger


def _report_rights(driver: WatchedDriver) -> None:
    """Log missing rights to create slices, unless all GPUs are leased whole."""
    if driver.simulated:
        return
    rights = examine_mig_rights()
    if rights.is_wrong:
        log.error("%s; %s", rights.observation, rights.remedy)


def _keep_backup(settings: Settings, version: int) -> None:
    """Make a backup before an upgrade changes the ledger, which is of this version."""
    if version == VERSION:
        return
    settings.backups.mkdir(mode=0o700, exist_ok=True)
    file = settings.backups / backup_name(settings, f"before-tables-{VERSION}")
    make_backup(settings, file)
    log.info("The ledger is about to be upgraded; all of it as before: %s", file)


def _times(settings: Settings) -> Times:
    return Times(
        holders_s=settings.pool.holders_s,
        reconcile_s=settings.pool.reconcile_s,
        reclaim_s=settings.reclaim.every_s,
    )


def release_due_leases(
    pool: Pool, count: Callable[[str], None] = lambda _kind: None
) -> list[LeaseView]:
    """Release leases whose time or warning is over; return all live leases."""
    for _ in pool.staff.release_reclaimed():
        count(WarningKind.STAFF.value)
    for lease in pool.leases.leases_to_stop():
        if lease.state is not LeaseState.RELEASING:
            pool.leases.release(lease.id, "pool", TIME_IS_UP)
            count(WarningKind.TIME.value)
    return pool.leases.brief_views()


if __name__ == "__main__":
    sys.exit(main())
