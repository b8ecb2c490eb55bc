"""A server that the hub lost, and that must end: the pool ends that very holder itself."""

import subprocess
import sys

import pytest

from miglab_api.holders import Liveness, process_holder
from miglab_api.leases import LeaseState, LeaseView
from miglab_pool.worker.holders import HostHolders

from .conftest import World


def test_an_abandoned_holder_is_ended(world: World) -> None:
    """Only once it is abandoned, only that one, and the ledger says so first."""
    lease, other = world.run("ada"), world.run("bob")
    world.pool.leases.release(lease.id, "pool", "The class is over.")
    world.pass_time(600)
    world.work()
    assert lease.holder in world.holders.there
    world.pool.leases.abandon(frozenset({lease.id, other.id}))
    world.pass_time(world.settings.tuning.probe_s)
    world.work()
    assert world.holders.removed == [lease.holder]
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED
    assert world.pool.leases.find(other.id).state == LeaseState.RUNNING
    said = [row["reason"] for row in world.ledger.history("lease", str(lease.id))]
    assert any("the pool ends" in words for words in said)


def run_forgotten(world: World) -> LeaseView:
    """A lease whose server's engine has forgotten it."""
    lease = world.run("ada")
    world.holders.there.remove(lease.holder)
    world.holders.forgotten.add(lease.holder)
    return lease


def test_what_an_engine_has_forgotten_is_ended_before_its_slice_is_free(world: World) -> None:
    """At once, whatever the lease's state: of it nobody but the kernel knows."""
    lease = run_forgotten(world)
    states = []
    world.holders.before_remove = lambda: states.append(world.pool.leases.find(lease.id).state)
    world.pool.reconcile()
    world.work()
    assert (world.holders.removed, states) == ([lease.holder], [LeaseState.RUNNING])
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED
    said = [row["reason"] for row in world.ledger.history("lease", str(lease.id))]
    assert any("its engine has forgotten it" in words for words in said)


def test_what_cannot_be_ended_keeps_its_slice(world: World) -> None:
    """It may not be killed: then nobody else is given what it uses."""
    lease = run_forgotten(world)
    world.holders.end = lambda _holder: False  # type: ignore[method-assign]
    world.pool.reconcile()
    world.pass_time(600)
    world.work()
    assert world.pool.leases.find(lease.id).state == LeaseState.RUNNING


def test_a_silent_engine_ends_nothing(world: World) -> None:
    """Unknown frees nothing."""
    lease = world.run("ada")
    world.pool.leases.release(lease.id, "pool", "The class is over.")
    world.holders.is_silent = True
    world.pool.leases.abandon(frozenset({lease.id}))
    world.pass_time(600)
    world.work()
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASING
    world.holders.is_silent = False


@pytest.mark.parametrize("ignores", [False, True])
def test_a_process_is_asked_and_then_killed(ignores: bool) -> None:
    """SIGTERM first; whoever ignores it is killed the next time."""
    code = "import signal, sys; "
    code += "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if ignores else ""
    code += "print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        holder, holders = process_holder(process.pid), HostHolders()
        holders.end(holder)
        if ignores:
            assert holders.probe(holder) is Liveness.ALIVE
            holders.end(holder)
        process.wait(60)
        assert holders.probe(holder) is Liveness.GONE


def test_another_process_with_that_pid_is_left_alone() -> None:
    """A pid that was given again is another process."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        pid, started, boot = process_holder(process.pid).split(",")
        assert HostHolders().end(f"{pid},{int(started) - 1},{boot}")
        assert process.poll() is None


def test_a_container_is_stopped_before_it_is_removed() -> None:
    """As `docker stop`, so that JupyterLab can save; then it is removed."""
    asked: list[str] = []

    class EngineOfOneContainer:
        def stop(self, container: str, timeout: int) -> None:
            asked.append(f"stop {container[:2]} {timeout}")

        def remove_container(self, container: str, force: bool) -> None:
            asked.append(f"remove {container[:2]}")

        def inspect_container(self, container: str) -> dict[str, str]:
            return {"Id": container}

    holder = f"container:{'ab' * 32}"
    assert not HostHolders("unix:///none", "lab1", client=EngineOfOneContainer()).end(holder)
    assert asked == ["stop ab 10", "remove ab"]
