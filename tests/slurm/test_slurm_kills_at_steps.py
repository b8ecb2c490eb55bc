"""Hub, service and slurmctld killed at each step of a start, a move, a release and a recovery.

At most steps a command or a job is held at a gate, so that the kill strikes there and nowhere else.
Whoever waited has the same job afterwards, whoever left has none, and nobody has two.
"""

import json
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httpx
import pytest

from miglab_bench.harness.student import CheckFailed, Student, wait_for
from miglab_bench.harness.temporary import SMALLEST_SERVER, TemporaryLab
from miglab_slurm_bench.cluster import SlurmCluster, missing
from miglab_slurm_bench.gates import JOB_BEGINS, SERVER_BEGINS, SERVICE, Gates, after, before
from miglab_slurm_bench.lab import PARTITIONS, PROLOGUE, lab_on, site_of

from .test_slurm_spawner import jobs

pytestmark = pytest.mark.long
SHAPE = "1g.5gb"
GRACE_S = 15.0
ROUND_S = 3.0
"""Between two looks of the hub at Slurm: `[slurm] every_s`."""
BUSY_S = 10.0
"""What commands, a slurmctld that takes its jobs up again and a busy machine may take besides."""
AWAY_S = 1.0
"""So long there is no slurmctld: the lab's commands fail meanwhile."""
SITE = f"attend_grace_s = {GRACE_S}\noffer_s = 30.0\ncommand_timeout_s = 10.0\n"
HUB_CONFIG = """
from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load

configure(c, load())
c.MIGSlurmSpawner.cmd = {command}
"""


def in_the_background(request: Callable[[], object]) -> None:
    """Send a request that a hub or service which is killed never answers."""

    def send() -> None:
        with suppress(httpx.HTTPError, CheckFailed):
            request()

    threading.Thread(target=send, daemon=True).start()


@dataclass
class Scene:
    """A lab, a cluster with one slice on each node, and a student at a step."""

    lab: TemporaryLab
    cluster: SlurmCluster
    gates: Gates
    ada: Student
    staff: Student
    fillers: tuple[int, ...] = ()

    def jobs(self, *states: str) -> set[int]:
        """The lab's jobs."""
        return set(jobs(self.cluster, *states)) - set(self.fillers)

    def slice_jobs(self, *states: str) -> set[int]:
        """Those that wait for a slice or hold one."""
        filters = ("-t", ",".join(states)) if states else ()
        listing = self.cluster.command("squeue", "-h", "-p", "lab", "-o", "%i", *filters)
        return set(map(int, listing.split())) - set(self.fillers)

    def own_job(self) -> int:
        """The job that answers at the student's server; 0 if none does."""
        with suppress(ValueError):
            return int(self._environment()["SLURM_JOB_ID"])
        return 0

    def noted_jobs(self) -> list[int]:
        """The numbers that the hub has written down for jobs that may be alive."""
        file = self.lab.settings.state / "slurm-jobs.sqlite"
        with closing(sqlite3.connect(file)) as rows:
            query = "SELECT job FROM submissions WHERE ended_as = '' AND job IS NOT NULL"
            return [job for (job,) in rows.execute(query)]

    # What people do.

    def fill(self) -> None:
        """Somebody else takes every slice."""
        self.fillers = tuple(
            self.cluster.submit("sleep 900", f"--gres=gpu:{SHAPE}:1", "--time=60")
            for _ in self.cluster.nodes
        )
        running = set(self.fillers)
        self.cluster.until(lambda: running <= set(jobs(self.cluster, "RUNNING")), "a full cluster")

    def make_room(self) -> None:
        """Somebody else gives every slice back."""
        if self.fillers:
            self.cluster.command("scancel", *map(str, self.fillers), check=False)

    def ask(self) -> None:
        """The student asks for a slice."""
        in_the_background(lambda: self.ada.ask_by_api(shape=SHAPE, course="everyone"))

    def stop(self) -> None:
        """The student stops the server, or the start."""
        in_the_background(self.ada.stop)

    def go_on_without_gpu(self) -> None:
        """The student who waits chooses a server without a GPU."""
        in_the_background(lambda: self.ada.start_alternative("cpu"))

    def wait(self) -> None:
        """The student waits in the queue."""
        self.fill()
        self.ask()
        wait_for(self.ada.waiting, "a position in the queue")

    def work_meanwhile(self) -> None:
        """The student works without a GPU, and waits for a slice."""
        self.wait()
        self.ada.start_alternative("cpu")
        self.ada.wait_until_ready()

    def be_offered(self) -> None:
        """The slice comes while the student works without a GPU."""
        self.work_meanwhile()
        self.make_room()
        self.cluster.until(lambda: self.slice_jobs("RUNNING"), "the slice's job runs", 60)

    def be_served(self) -> None:
        """The student gets a server with a slice."""
        self.ask()
        self.ada.wait_until_ready()

    def move(self) -> None:
        """The student takes the slice that is offered, as JupyterLab asks the hub for it."""

        wait_for(self.try_move, "the move to begin")

    def try_move(self) -> bool:
        """Whether the hub takes the request for it."""
        with suppress(ValueError):
            token = self._environment()["JUPYTERHUB_API_TOKEN"]
            answer = httpx.post(
                f"{self.lab.settings.public_url}hub/api/miglab/move/ada/",
                headers={"Authorization": f"token {token}"},
                json={},
                trust_env=False,
            )
            return answer.status_code == 202
        return False

    def remove_as_staff(self) -> None:
        """Staff take the student out of the queue."""
        (ticket,) = self.slice_jobs()
        path = f"tickets/{ticket}/cancel"
        wait_for(lambda: f'"ticket-{ticket}"' in self.staff.page("/services/pool/"), "the page")
        in_the_background(lambda: self.staff.press(path, reason="test"))

    def lose_hub(self) -> None:
        """The hub is killed."""
        self.lab.strike("hub")

    def _environment(self) -> dict[str, str]:
        environment: dict[str, str] = json.loads(self.ada.page("/user/ada/environment"))
        return environment


# -- the steps -------------------------------------------------------------------------------------


def nothing(_scene: Scene) -> None:
    """What is arranged beforehand where nothing is."""


def noted_and_unseen(scene: Scene) -> None:
    """The number that sbatch printed is written down, and no listing has shown the job."""
    scene.gates.close(before("squeue"))
    scene.ask()
    wait_for(scene.noted_jobs, "the number to be noted")
    scene.gates.wait_until_reached(before("squeue"))


class Goal(Enum):
    """What must be true when the lab is back."""

    SERVED = auto()
    """The student has a server with a slice: the job that was there at the kill."""
    MEANWHILE = auto()
    """The same server without a GPU runs on, and the slice's job keeps its position."""
    GONE = auto()
    """The student has no server, and no job of theirs is left."""


class Fate(Enum):
    """What becomes of the command that is held when its hub or service is killed."""

    PASSES = auto()
    """It goes on before the lab is back."""
    DIES = auto()
    """It never reaches Slurm."""
    COMES_LATE = auto()
    """It reaches Slurm when the student has a server again."""


@dataclass(frozen=True)
class KillStep:
    """A moment of a server's life.

    Attributes:
        reach: brings the lab there.
        place: the gate at which a command is held; empty for none.
        is_orphan: whether it is only the grace, and nobody's wish, that ends the job.
        repeat: what people do again who were refused, or got no answer.
    """

    reach: Callable[[Scene], object]
    goal: Goal = Goal.SERVED
    place: str = ""
    fate: Fate = Fate.PASSES
    is_orphan: bool = False
    repeat: Callable[[Scene], object] = nothing


def held(
    place: str,
    arrange: Callable[[Scene], object],
    act: Callable[[Scene], object],
    goal: Goal = Goal.SERVED,
    fate: Fate = Fate.PASSES,
    **options: Any,
) -> KillStep:
    """A step at which what the student does is held at a gate."""

    def reach(scene: Scene) -> None:
        arrange(scene)
        scene.gates.close(place)
        act(scene)
        scene.gates.wait_until_reached(place)

    return KillStep(reach, goal, place, fate, **options)


STEPS = {
    "start: sbatch reaches Slurm after the kill": held(
        before("sbatch"), nothing, Scene.ask),
    "start: sbatch never reaches Slurm": held(
        before("sbatch"), nothing, Scene.ask, fate=Fate.DIES),
    "start: sbatch reaches Slurm after the next start": held(
        before("sbatch"), nothing, Scene.ask, fate=Fate.COMES_LATE),
    "start: Slurm has the job, sbatch has not answered": held(
        after("sbatch"), nothing, Scene.ask, fate=Fate.DIES),
    "start: the number is noted, no listing has shown it": KillStep(noted_and_unseen),
    "start: the job waits": KillStep(Scene.wait),
    "start: the job runs and has not reported": held(
        JOB_BEGINS, nothing, Scene.ask),
    "start: the environment is handed over, the server begins": held(
        SERVER_BEGINS, nothing, Scene.ask),
    "start: the server answers": KillStep(Scene.be_served),
    "move: the job without a GPU is being submitted": held(
        before("sbatch"), Scene.wait, Scene.go_on_without_gpu),
    "move: without a GPU, in the queue": KillStep(Scene.work_meanwhile, Goal.MEANWHILE),
    "move: the slice has come": KillStep(Scene.be_offered, Goal.MEANWHILE),
    "move: the job without a GPU is about to be cancelled": held(
        before("scancel"), Scene.be_offered, Scene.move, fate=Fate.DIES),
    "move: it is cancelled, scancel has not answered": held(
        after("scancel"), Scene.be_offered, Scene.move),
    "release: scancel never reaches Slurm": held(
        before("scancel"), Scene.be_served, Scene.stop, Goal.GONE, Fate.DIES),
    "release: Slurm ends the job, scancel has not answered": held(
        after("scancel"), Scene.be_served, Scene.stop, Goal.GONE),
    "release: a start that waits is stopped": held(
        before("scancel"), Scene.wait, Scene.stop, Goal.GONE, Fate.DIES),
    "release: staff remove a job from the queue": held(
        before("scancel", SERVICE), Scene.wait, Scene.remove_as_staff, Goal.GONE, Fate.DIES,
        repeat=Scene.remove_as_staff),
    "recovery: a new hub has not looked yet": held(
        before("squeue"), Scene.wait, Scene.lose_hub),
    "recovery: nobody comes back, the job is about to be cancelled": held(
        before("scancel"), Scene.wait, Scene.lose_hub, Goal.GONE, Fate.DIES,
        is_orphan=True),
}  # fmt: skip
VICTIMS = ("hub", "reclaimer", "slurmctld")
ALL_ROWS = os.environ.get("MIGLAB_KILLS") == "all"
"""Every victim at every step, in about 25 minutes; otherwise one victim at each, in turn."""
STEPS_A_LAB = 4
"""`./lab up` waits longer each time before it replaces a hub that was killed, up to 30 s."""


# -- the kill, and what holds after it -------------------------------------------------------------


def kill(scene: Scene, step: KillStep, victim: str) -> None:
    """Kill a part at the step, decide on what is held there, and wait until the lab is back."""
    if victim == "slurmctld":
        saved_job = scene.cluster.until_saved()
        scene.cluster.kill("slurmctld")
        scene.gates.open()
        time.sleep(AWAY_S)
        scene.cluster.start_daemons()
        wait_for(lambda: is_answering(scene.cluster), "slurmctld to answer")
        scene.cluster.command("scancel", str(saved_job), check=False)
        return
    victims = scene.lab.strike(victim)
    scene.gates.let_others_pass()
    if step.fate is Fate.DIES and (victim == "hub") == (not step.place.startswith(SERVICE)):
        scene.gates.drop(step.place)
    if step.fate is not Fate.COMES_LATE:
        scene.gates.open()
    scene.lab.wait_until_replaced(victims)


def is_answering(cluster: SlurmCluster) -> bool:
    """Whether slurmctld answers."""
    with suppress(subprocess.SubprocessError):
        cluster.command("squeue", "-h", timeout=5)
        return True
    return False


def come_back(scene: Scene) -> None:
    """The student looks at the page, and asks again where no start is under way."""
    if scene.ada.has_no_server():
        scene.ask()


def is_served_or_waits(scene: Scene) -> bool:
    """Whether the student has a server or a position again; asks for it if not."""
    if scene.ada.is_ready() or scene.ada.waiting():
        return True
    come_back(scene)
    return False


def wait_until_served(scene: Scene) -> None:
    """Wait until the student has a server with a slice, as a student does who comes back."""

    def is_served() -> bool:
        if scene.ada.is_ready() and scene.own_job() in scene.slice_jobs():
            return True
        if scene.ada.is_ready() and scene.slice_jobs("RUNNING"):
            scene.try_move()
        come_back(scene)
        return False

    wait_for(is_served, "a server with a slice", pause_s=0.5)


def check_served(scene: Scene, place: set[int]) -> None:
    """The slice's job of before is the server, and there is no other job."""
    wait_for(lambda: is_served_or_waits(scene), "a server, or a position", pause_s=0.5)
    assert place <= scene.slice_jobs(), "the position is lost"
    scene.make_room()
    wait_until_served(scene)
    scene.gates.open()
    assert not place or {scene.own_job()} == place, "another job was submitted"
    wait_for(lambda: scene.jobs() == {scene.own_job()}, "one job", ROUND_S + BUSY_S)


def check_meanwhile(scene: Scene, place: set[int], server: int) -> None:
    """The server without a GPU is the same, and the slice that was waited for can be had."""
    wait_for(lambda: scene.ada.is_ready() and scene.own_job() == server, "the same server")
    assert place == scene.slice_jobs()
    scene.make_room()
    scene.cluster.until(lambda: place == scene.slice_jobs("RUNNING"), "the slice comes", 60)
    scene.move()
    wait_for(lambda: scene.ada.is_ready() and {scene.own_job()} == place, "the slice", 60)
    wait_for(lambda: scene.jobs() == place, "one job", ROUND_S + BUSY_S)


def check_gone(scene: Scene, step: KillStep, grace_s: float) -> None:
    """No job is left for longer than one round, and than the grace of a job that nobody gave up."""
    if scene.slice_jobs():
        step.repeat(scene)
    wait_for(lambda: not scene.jobs(), "no job", grace_s + ROUND_S + BUSY_S)
    wait_for(scene.ada.has_no_server, "the hub to have no server")


@pytest.fixture(scope="module")
def lab_and_cluster() -> Iterator[tuple[TemporaryLab, SlurmCluster, Gates]]:
    """Two nodes with one slice each, and a lab whose Slurm commands and jobs pass gates."""
    if absent := missing():
        pytest.skip(f"no Slurm here ({absent})")
    with SlurmCluster(gres={SHAPE: 1}, partitions=PARTITIONS) as cluster:
        gates = Gates(cluster.folder / "gates")
        cluster.environment["MIGLAB_SLURM_PATH"] = str(gates.folder)
        site = site_of(cluster, lines=SITE, prologue=f"{PROLOGUE}\n{gates.prologue}")
        hub_config = HUB_CONFIG.format(command=[gates.launch, *SMALLEST_SERVER])
        with lab_on(cluster, site, hub_config=hub_config, testing="reclaim.every_s = 2") as lab:
            yield lab, cluster, gates


@pytest.fixture
def scene(lab_and_cluster: tuple[TemporaryLab, SlurmCluster, Gates]) -> Iterator[Scene]:
    """A student without a server, and a cluster without a job."""
    lab, cluster, gates = lab_and_cluster
    with closing(lab.signed_in("ada")) as ada, closing(lab.signed_in("instructor")) as staff:
        staff.page("/services/pool/")  # which signs in there
        scene = Scene(lab, cluster, gates, ada, staff)
        yield scene
        gates.open()
        cluster.start_daemons()
        wait_for(lambda: is_cleared(scene), "an empty lab", pause_s=1)


def is_cleared(scene: Scene) -> bool:
    """Whether neither server nor job is left; stops what is."""
    numbers = jobs(scene.cluster)
    scene.cluster.command("scancel", *map(str, numbers), check=False)
    if not scene.ada.has_no_server():
        scene.ada.stop()
        return False
    return not numbers


@pytest.mark.parametrize(
    ("lab_and_cluster", "name", "victim"),
    [
        pytest.param(at // STEPS_A_LAB, name, victim, id=f"{name}-{victim}")
        for at, name in enumerate(STEPS)
        for turn, victim in enumerate(VICTIMS)
        if ALL_ROWS or turn == at % len(VICTIMS)
    ],
    indirect=["lab_and_cluster"],
    scope="module",
)
def test_a_kill_at_a_step(scene: Scene, name: str, victim: str) -> None:
    """Whoever waited keeps the job, whoever left has none within a round, nobody has two."""
    step = STEPS[name]
    step.reach(scene)
    place = scene.slice_jobs()
    server = scene.own_job() if step.goal is Goal.MEANWHILE else 0
    kill(scene, step, victim)
    back_at = time.monotonic()
    if step.goal is Goal.SERVED:
        check_served(scene, place)
    elif step.goal is Goal.MEANWHILE:
        check_meanwhile(scene, place, server)
    else:
        check_gone(scene, step, GRACE_S if step.is_orphan and victim == "hub" else 0.0)
    print(f"{name} × {victim}: {time.monotonic() - back_at:.1f} s")
