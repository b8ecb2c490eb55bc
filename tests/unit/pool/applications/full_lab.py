"""Both listeners over a real pool in which there is something of each kind, with hostile names."""

from pathlib import Path

from fastapi import FastAPI
from tests.pool_settings import changed
from tests.unit.pool.conftest import SETTINGS, World
from tests.unit.pool.layout_drafts import draft

from miglab_api.gpus import SliceState
from miglab_api.leases import WarningKind
from miglab_api.reservations import ReservationRequest
from miglab_api.staff import MessageRequest
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.applications.student_app import student_app
from miglab_pool.gpu.readings import GpuInfo
from miglab_pool.http.access.auth import SignIn
from miglab_pool.pool import Pool
from miglab_pool.reclaim.activity import SignalBoard
from miglab_pool.reclaim.policy import Rules
from miglab_pool.reclaim.round import Reclaimer
from miglab_pool.settings import Gpus
from miglab_pool.worker.holders import LabelledContainer
from miglab_pool.worker.inspect_gpu import Finding

from .fakes import ACCESS, BOOK, SECRET, FakeTokens

EVIL = """'"><miglab-evil onerror="evil()">&lt;{{ 7 * 7 }}[red]\u202e\n=1+1"""
"""A name, a reason, a message: closes attributes and tags, opens others, is markup elsewhere."""

CLASS = ReservationRequest(
    course="vision", shape="1g.5gb", count=2, weekdays=("tue",), from_time="10:00",
    to_time="12:00", tz="Europe/Berlin", reason=EVIL,
)  # fmt: skip


def apps(pool: Pool, findings: tuple[Finding, ...] = ()) -> tuple[FastAPI, FastAPI]:
    """The management and the student application over a pool."""
    board = SignalBoard()
    runner = PoolRunner(pool, Metrics({"1g.5gb"}), reclaimer=Reclaimer(Rules(), board))
    runner.is_reconciled = True  # as after start, but without its timers
    runner.findings = findings
    tokens = FakeTokens(ACCESS)
    sign_in = SignIn(ACCESS, SECRET, BOOK, tokens)
    staff = management_app(runner, sign_in, default_course="everyone", notices=(EVIL,))
    student = student_app(runner, tokens, board, courses=BOOK.courses, default_course="everyone")
    return staff, student


class FullLab:
    """Three GPUs: one is used, one has what is broken and foreign, one is leased whole."""

    def __init__(self, folder: Path) -> None:
        gpus_table = Gpus(simulate=("A100-40GB",) * 3, whole=(2,))
        self.world = World(folder, changed(SETTINGS, gpus=gpus_table), gpus=3)
        gpus = self.world.driver.gpus()
        self.world.machine.set_mig(False, gpus[2].uuid)
        self.world.crash()  # as after the host was started anew
        self._foreign(gpus[1])
        self._people()
        self._staff(gpus[1].uuid)
        self.world.check()
        findings = tuple(self.world.pool.reconcile())
        self.management, self.student = apps(self.world.pool, findings)

    def close(self) -> None:
        """End it; whatever was done, the invariants hold."""
        self.world.check()
        self.world.close()

    def _people(self) -> None:
        """Two servers of alice's, hostile ones, one warned, a whole GPU, and a line."""
        world = self.world
        world.run("alice")
        world.run("alice", server="lab2")
        world.run("bob", "full")
        evil = world.run(EVIL, "3g.20gb", server=EVIL)
        world.pool.leases.warn(evil.id, WarningKind.IDLE, EVIL, world.at + 300)
        world.end(world.run("carol", "2g.10gb"))  # leaves a warm slice
        self.waiting = world.ask(EVIL, "7g.40gb", server="waits").id
        world.ask("alice", "7g.40gb", server="lab3")
        world.pool.estimate()

    def _staff(self, gpu: str) -> None:
        """What staff do, each with a hostile reason."""
        pool, principal = self.world.pool, f"person:{EVIL}"
        pool.staff.put_in_front(self.waiting, EVIL, principal)
        pool.staff.drain(gpu, EVIL, principal)
        slices = self.world.ledger.state.slices.values()
        free = next(row.id for row in slices if row.state == SliceState.FREE)
        pool.staff.quarantine(free, EVIL, principal)
        pool.staff.send(MessageRequest(all=True, text=EVIL, minutes=60), principal)
        pool.reservations.make(CLASS, principal)
        pool.layouts.apply(draft("3g.20gb", 0), principal, EVIL, anyway=EVIL)
        pool.staff.pause(EVIL, principal)
        stray = self.world.new_holder()
        self.world.holders.labels[stray] = LabelledContainer(
            stray, 999, 1, EVIL, (EVIL,), is_running=True
        )

    def _foreign(self, gpu: GpuInfo) -> None:
        """Somebody makes a slice with nvidia-smi, at the last place."""
        profile = gpu.geometry.by_name["1g.5gb"]
        self.world.driver.create(gpu.uuid, profile, profile.placements[-1])
        self.world.pool.reconcile()
