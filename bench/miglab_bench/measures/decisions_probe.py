"""One side of `./lab bench decisions`: builds the pool of the packages it finds, and times it.

Run as a file of its own, with the packages of a checkout on the path; so it imports nothing of
this package.  Reads a question a line (what to time, in which scene), answers milliseconds.
Checkouts from before the pool had a package of its own are built by their older names.
"""

import importlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

GPUS, QUEUED = 64, 200
LEASES_OF_FIVE = 44  # GPUs with five leases; the others have four: 300 in all
COURSES = tuple(f"course{n}" for n in range(5))
SHAPES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
FIVE = (("3g.20gb", 4), ("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 2), ("1g.5gb", 3))
FOUR = (("3g.20gb", 4), ("2g.10gb", 0), ("1g.5gb", 2), ("1g.5gb", 3))
NOON = 1_795_521_600.0  # 2026-11-24 12:00 UTC, a Tuesday
RESERVED = 20
HOUR_S = 3600.0
PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)

NEW = {
    "Driver": "miglab_pool.gpu.driver",
    "SimulatedMachine": "miglab_pool.gpu.simulated.machine",
    "SimulatedNvml": "miglab_pool.gpu.simulated.nvml",
    "Placement": "miglab_pool.gpu.geometry",
    "Ledger": "miglab_pool.ledger.ledger",
    "SliceRow": "miglab_pool.model.rows",
    "LeaseRow": "miglab_pool.model.rows",
    "TicketRow": "miglab_pool.model.rows",
    "Pool": "miglab_pool.pool",
    "Liveness": "miglab_api.holders",
    "LayoutSpec": "miglab_api.layouts",
    "ReservationRequest": "miglab_api.reservations",
    "PoolSettings": "miglab_pool.settings",
}
OLD = {
    "Driver": "miglab_spawner.gpu.nvml",
    "SimulatedMachine": "miglab_spawner.gpu.sim_machine",
    "SimulatedNvml": "miglab_spawner.gpu.simulated",
    "Placement": "miglab_spawner.gpu.geometry",
    "Ledger": "miglab_spawner.pool.ledger.ledger",
    "SliceRow": "miglab_spawner.pool.ledger.rows",
    "LeaseRow": "miglab_spawner.pool.ledger.rows",
    "TicketRow": "miglab_spawner.pool.ledger.rows",
    "Pool": "miglab_spawner.pool.pool",
    "Liveness": "miglab_spawner.processes",
    "LayoutSpec": "miglab_spawner.messages",
    "ReservationRequest": "miglab_spawner.messages",
    "PoolSettings": "miglab_spawner.pool.settings",
}


class Names:
    """The names of a checkout's packages."""

    def __init__(self) -> None:
        # by what is on the path, as an environment may have packages that the checkout lacks
        self.is_new = any(Path(folder, "miglab_pool").is_dir() for folder in PATHS)
        self._homes = NEW if self.is_new else OLD

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._homes[name]), name)

    def settings(self) -> Any:
        """Five courses that offer every shape, and leases of four hours."""
        if self.is_new:
            course = {"title": "A course", "shapes": SHAPES}
            return self.PoolSettings(
                courses=dict.fromkeys(COURSES, course), pool={"lease_s": 4 * HOUR_S}
            )
        rules = importlib.import_module("miglab_spawner.pool.settings").CourseRules
        courses = {name: rules("A course", SHAPES) for name in COURSES}
        return self.PoolSettings(courses=courses, lease_s=4 * HOUR_S)

    def match(self, store: Any, tx: Any) -> None:
        """Let the pool grant whatever it can."""
        if self.is_new:
            grants = importlib.import_module("miglab_pool.transactions.grants")
            (getattr(grants, "grant_all", None) or grants.match)(store, tx)
        else:
            importlib.import_module("miglab_spawner.pool.line.tickets").match(store, tx)


class TimedLock:
    """A lock that says how long it was held."""

    def __init__(self) -> None:
        self._lock, self._depth, self._since = threading.RLock(), 0, 0.0
        self.held_s = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._since = time.thread_time()

    def __exit__(self, *_exc: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.held_s += time.thread_time() - self._since
        self._lock.release()


class HoldersOfNobody:
    """Servers that all live."""

    def __init__(self, alive: Any) -> None:
        self._alive = alive

    def probe(self, _holder: str) -> Any:
        """It is there."""
        return self._alive

    def missing(self, _holders: object) -> set[str]:
        """None is."""
        return set()

    def engine(self) -> str:
        """There is none."""
        return ""

    def expect(self, engine: str) -> None:
        """Nothing to expect."""

    def labelled(self) -> list[Any]:
        """None is."""
        return []

    def remove(self, _holder: str, *, force: bool) -> bool:
        """Nothing is removed."""
        return False


class LoadedPool:
    """A pool whose every slice is leased, with a queue; ``start``: at the start of classes."""

    def __init__(self, folder: Path, *, is_start: bool) -> None:
        self.names, self.at = Names(), NOON
        folder.mkdir(parents=True)
        self.names.SimulatedMachine.create(folder / "gpus", gpus=GPUS)
        nvml = self.names.SimulatedNvml(folder / "gpus", sleep=lambda _s: None, now=lambda: self.at)
        self.driver = self.names.Driver(nvml)
        self.ledger = self.names.Ledger(folder / "ledger.sqlite")
        holders = HoldersOfNobody(self.names.Liveness.ALIVE)
        self.pool = self.names.Pool(
            self.names.settings(), self.ledger, self.driver, holders, lambda: self.at
        )
        self.pool.reconcile()
        self.store = self.pool.store if hasattr(self.pool, "store") else self.pool.core
        self.gpus = list(self.ledger.state.gpus)
        self._turn = 0
        with self.store.write() as tx:
            self._lease_all(tx)
        self.pool.reconcile()
        if is_start:
            self._start()
        with self.store.write() as tx:
            self._queue(tx)
        self.store.lock = TimedLock()

    # -- what there is ------------------------------------------------------------------------

    def _lease_all(self, tx: Any) -> None:
        infos = {info.uuid: info for info in self.driver.gpus()}
        number = 0
        for index, gpu in enumerate(self.gpus):
            for name, start in FIVE if index < LEASES_OF_FIVE else FOUR:
                profile = infos[gpu].geometry.by_name[name]
                placement = self.names.Placement(start, profile.size)
                self._lease(tx, number, self.driver.create(gpu, profile, placement))
                number += 1

    def _lease(self, tx: Any, number: int, made: Any) -> None:
        lease, profile = self.ledger.new_id("lease"), made.profile
        row = self.names.SliceRow(
            id=self.ledger.new_id("slice"),
            gpu=made.gpu_uuid,
            generation=number + 1,
            profile=profile.name,
            start=made.placement.start,
            size=made.placement.size,
            sm_count=profile.sm_count,
            memory_mib=profile.memory_mib,
            state="leased",
            gi_id=made.gi_id,
            ci_id=made.ci_id,
            uuid=made.uuid,
            lease=lease,
            tried=True,
            course=COURSES[number % 5],
        )
        tx.put(row)
        tx.put(
            self.names.LeaseRow(
                id=lease,
                ticket=None,
                generation=number + 1,
                user=f"holder{number}",
                server="",
                course=COURSES[number % 5],
                shape=profile.name,
                state="running",
                granted_at=NOON - HOUR_S,
                attached_at=NOON - HOUR_S,
                ends_at=NOON + 600 + 30 * number,
                holder=f"container:{number:064x}",
                slices=(row.id,),
            )
        )

    def _queue(self, tx: Any) -> None:
        for number in range(QUEUED):
            row = self.names.TicketRow(
                id=self.ledger.new_id("ticket"),
                user=f"student{number}",
                server="",
                course=COURSES[number % 5],
                shape=SHAPES[number // 5 % 4],
                asked=SHAPES[number // 5 % 4],
                state="waiting",
                created_at=NOON - number,
                attended_at=NOON,
            )
            tx.put(row)

    def _start(self) -> None:
        """Three classes of 20 begin in five minutes, and two layouts hold."""
        for course in COURSES[:3]:
            asked = self.names.ReservationRequest(
                course=course, shape="1g.5gb", count=RESERVED, date="2026-11-24",
                from_time="12:05", to_time="14:00", tz="UTC",
            )  # fmt: skip
            self._call("reservations", "make", "reserve")(asked, "bench")
        partitions = {"a": ("1g.5gb",) * 7, "b": ("3g.20gb", "3g.20gb")}
        for number, (name, partition) in enumerate(partitions.items()):
            gpus = dict.fromkeys(self.gpus[8 * number : 8 * number + 8], partition)
            asked = [self.names.LayoutSpec(name=name, gpus=gpus)]
            self._call("layouts", "apply", "lay")(asked, "bench")

    def _call(self, part: str, name: str, older: str) -> Any:
        """What the pool is asked; in an older checkout it has no parts."""
        return getattr(getattr(self.pool, part, None), name, None) or getattr(self.pool, older)

    # -- what is timed ------------------------------------------------------------------------

    def time(self, what: str) -> tuple[float, float]:
        """Milliseconds that something took after a change, and of them with the lock held.

        Of this thread's processor: whatever else the machine does counts on neither side.
        """
        self._turn += 1
        self.at += 1.0
        before = self.store.lock.held_s
        if what == "match":
            began = time.thread_time()
            self._touch()
            with self.store.write() as tx:
                self.names.match(self.store, tx)
                assert not tx.has_begun, "something was granted"
        else:
            self._touch()
            before = self.store.lock.held_s
            began = time.thread_time()
            getattr(self, f"_{what}")()
        took_s = time.thread_time() - began
        return took_s * 1000, (self.store.lock.held_s - before) * 1000

    def _touch(self) -> None:
        """One GPU is seen anew, as after every step that the worker takes."""
        gpu = self.gpus[self._turn % GPUS]
        with self.store.lock:
            getattr(self.store, "changed" if hasattr(self.store, "changed") else "redraw")([gpu])

    def _offers(self) -> None:
        self.pool.offers(list(COURSES), "student1")

    def _snapshot(self) -> None:
        self.pool.snapshot()

    def _leases(self) -> None:
        self._call("leases", "live", "leases")()

    def _cases(self) -> None:
        self._call("leases", "cases", "cases")()


def main() -> None:
    """Answer questions until there are no more."""
    with tempfile.TemporaryDirectory(prefix="miglab-decisions-") as name:
        scenes = {
            what: LoadedPool(Path(name, what), is_start=what == "start") for what in sys.argv[1:]
        }
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            scene, what = json.loads(line)
            print(json.dumps(scenes[scene].time(what)), flush=True)


if __name__ == "__main__":
    main()
