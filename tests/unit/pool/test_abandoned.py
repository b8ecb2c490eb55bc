"""A server that the hub lost, and that must end: the pool ends that very holder itself."""

import subprocess
import sys

import pytest

from miglab_api.holders import Liveness, process_holder
from miglab_api.leases import LeaseState
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


def test_what_an_engine_has_forgotten_is_ended_before_its_slice_is_free(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, whatever the lease's state: of it nobody but the kernel knows."""
    lease = world.run("ada")
    world.holders.there.remove(lease.holder)
    world.holders.forgotten.add(lease.holder)
    with monkeypatch.context() as patch:
        patch.setattr(world.holders, "end", lambda _holder: False)
        world.pool.reconcile()
        world.pass_time(600)
        world.work()
    assert world.pool.leases.find(lease.id).state == LeaseState.RUNNING
    states = []
    world.holders.before_remove = lambda: states.append(world.pool.leases.find(lease.id).state)
    world.pass_time(600)
    world.pool.reconcile()
    world.work()
    assert (world.holders.removed, states) == ([lease.holder], [LeaseState.RUNNING])
    assert world.pool.leases.find(lease.id).state == LeaseState.RELEASED
    said = [row["reason"] for row in world.ledger.history("lease", str(lease.id))]
    assert any("its engine has forgotten it" in words for words in said)


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
