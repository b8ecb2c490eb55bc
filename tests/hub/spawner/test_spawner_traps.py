"""Traps of JupyterHub, on a real hub; each test fails without what deals with it.

The numbers are those of the list that the spawner was written against; traps of Docker are in
tests/docker and tests/unit/spawner.
"""

import asyncio
import os
import signal
from typing import Any

import jupyterhub
import pytest
from jupyterhub import orm
from jupyterhub.utils import format_exception

from miglab_api.holders import Liveness, probe_process
from miglab_api.leases import LeaseState, LeaseView
from miglab_api.tickets import TicketState
from miglab_spawner.backends import PoolClient
from miglab_spawner.refusals import SpawnException

from .lab import PoolLab

Hub = Any


async def _waiting(hub: Hub, lab: PoolLab) -> int:
    """Ada holds the whole GPU and bo waits for it; the number of bo's ticket."""
    await hub.start("ada", shape="7g.40gb")
    await hub.begin("bo", shape="7g.40gb")
    await lab.until(lambda: lab.waiting(), "bo waits")
    return lab.waiting()[0].id


async def killed(hub: Hub) -> Any:
    """Ada's server with a slice, which has died without the hub's noticing; its spawner."""
    environment = await hub.start("ada", shape="1g.5gb")
    os.kill(int(environment["PID"]), signal.SIGKILL)
    spawner = hub.spawner("ada")
    await asyncio.to_thread(spawner.proc.wait)
    return spawner


async def test_trap_1_a_dead_server_gives_its_slice_back(hub: Hub, lab: PoolLab):
    """A server that died is never stopped by the hub; its lease is released all the same.

    Trap 9: why it ended stands on the next spawn page, also after a hub restart.
    """
    user, spawner = hub.user("ada"), await killed(hub)
    released = [call for call in lab.way.calls if call[1].endswith("/release")]
    await spawner.poll_and_notify()
    await lab.until_empty()
    now = [call for call in lab.way.calls if call[1].endswith("/release")]
    assert len(now) == len(released) + 1
    after = user._new_spawner("")
    after.load_state(orm.User.find(hub.app.db, "ada").orm_spawners[""].state)
    for spawner_of_hub in (spawner, after):
        assert "ended by signal 9" in await spawner_of_hub.get_options_form()
    await hub.start("ada", shape="cpu")
    assert "ended by signal 9" not in await hub.spawner("ada").get_options_form()


async def test_a_lease_without_a_uuid_starts_nothing(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch
):
    """The pool does not know one of two slices: the start is refused, and both are given back."""
    take = PoolClient.take

    async def take_half_known(client: PoolClient, ticket: int) -> LeaseView:
        lease = await take(client, ticket)
        return lease.model_copy(update={"uuids": lease.uuids[:1]})

    monkeypatch.setattr(PoolClient, "take", take_half_known)
    refusal = await hub.refused("ada", shape="2x1g.5gb")
    assert refusal.reason == "slice-without-uuid"
    assert "does not know the identity" in refusal.jupyterhub_message
    await lab.until_empty()


async def test_a_start_waits_until_the_hub_is_done_with_the_dead_server(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch
):
    """The proxy is slow when a server has died: the next start is not ended with the dead one."""
    dead = await killed(hub)
    pid = dead.pid
    is_asked, answers, delete_user = asyncio.Event(), asyncio.Event(), hub.app.proxy.delete_user

    async def slow(*names: Any) -> None:
        is_asked.set()
        await answers.wait()
        await delete_user(*names)

    monkeypatch.setattr(hub.app.proxy, "delete_user", slow)
    noticed = asyncio.create_task(dead.poll_and_notify())
    await is_asked.wait()
    start = asyncio.create_task(hub.begin("ada", shape="1g.5gb"))
    await lab.until(lambda: dead.pending, "the student starts again")
    answers.set()
    assert (await start).is_success
    await noticed
    await hub.settled("ada")
    assert hub.spawner("ada").ready
    assert (await hub.environment("ada"))["PID"] != str(pid)
    assert lab.held_by("ada").state is LeaseState.RUNNING


async def test_trap_3_a_hub_that_forgot_finds_the_server_by_its_lease(hub: Hub, lab: PoolLab):
    """The hub crashed before it saved the state: the process is ended and the slice goes back."""
    user = hub.user("ada")
    await hub.start("ada", shape="1g.5gb")
    lease = lab.held_by("ada")
    forgetful = user._new_spawner("")
    forgetful.load_state({})
    before = hub.spawner("ada")
    before.stop_polling()
    user.spawners[""] = forgetful
    await user.stop("")
    await lab.until_empty()
    await asyncio.to_thread(before.proc.wait)
    assert probe_process(lease.holder) is Liveness.GONE


async def test_trap_3_an_old_server_that_outlived_its_end_is_ended_again(hub: Hub, lab: PoolLab):
    """The engine was away when a hub that forgot wanted the old server gone: it asks once more."""
    user = hub.user("ada")
    await hub.start("ada", shape="1g.5gb")
    lease = lab.held_by("ada")
    hub.spawner("ada").stop_polling()
    forgetful = user._new_spawner("")
    forgetful.load_state({})
    end_holder, holders = forgetful.end_holder, []

    async def deaf_at_first(holder: str) -> None:
        holders.append(holder)
        if len(holders) > 1:
            await end_holder(holder)

    forgetful.end_holder = deaf_at_first
    async with asyncio.timeout(90):
        await forgetful.end_earlier_servers()
    assert probe_process(lease.holder) is Liveness.GONE


async def test_trap_3_a_hub_restart_keeps_the_lease(hub: Hub, lab: PoolLab):
    """What the hub saved is enough to find process and lease again.

    Trap 1: ``clear_state`` runs at the begin of every start, and asks the pool for nothing.
    """
    user = hub.user("ada")
    await hub.start("ada", shape="1g.5gb")
    before = hub.spawner("ada")
    after = user._new_spawner("")
    after.load_state(before.get_state())
    assert await after.poll() is None
    calls = list(lab.way.calls)
    after.clear_state()
    assert after.grant == before.grant
    assert lab.way.calls == calls
    assert lab.held_by("ada").state is LeaseState.RUNNING


async def test_trap_4_start_timeout_covers_the_wait(hub: Hub, lab: PoolLab):
    """The time-out is derived, and one that would cut the wait short is raised."""
    spawner = hub.user("ada").spawner
    assert spawner.start_timeout >= spawner.longest_wait_s + spawner.create_timeout_s
    spawner.start_timeout = 60
    await hub.start("ada", shape="1g.5gb")
    assert spawner.start_timeout >= spawner.longest_wait_s + spawner.create_timeout_s


async def test_trap_4_a_stop_while_waiting_signals_nobody(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch
):
    """There is no process yet: no signal goes to pid 0, which is the hub and all its siblings."""
    await _waiting(hub, lab)
    signalled: list[int] = []
    with monkeypatch.context() as watched:
        watched.setattr(os, "kill", lambda pid, sign: signalled.append(pid))
        await hub.spawner("bo").stop()
    assert signalled == []


async def test_trap_4_a_cancelled_start_keeps_its_position(hub: Hub, lab: PoolLab):
    """A start that is cancelled stops attending; the ticket stays in the queue."""
    ticket = await _waiting(hub, lab)
    future = hub.spawner("bo")._spawn_future
    future.cancel()
    await asyncio.wait([future])
    attends = len(lab.way.calls)
    assert lab.pool.tickets.find(ticket).state is TicketState.WAITING
    await hub.stop("ada")
    assert all(f"/api/tickets/{ticket}" not in call for call in lab.way.calls[attends:])


async def test_trap_7_a_replaced_hook_loses_nothing(hub: Hub, lab: PoolLab):
    """The choice counts also where a site put its own ``apply_user_options``."""
    spawner = hub.user("ada").spawner
    spawner.apply_user_options = lambda spawner, options: None
    environment = await hub.start("ada", shape="3g.20gb")
    assert environment["MIGLAB_SHAPE"] == "3g.20gb"


async def test_trap_7_empty_options_mean_the_default_shape(hub: Hub, lab: PoolLab):
    """A start through the API without a choice gets no GPU and asks no pool."""
    environment = await hub.start("ada")
    assert environment["MIGLAB_SHAPE"] == "cpu"
    assert lab.way.calls == []


@pytest.mark.parametrize("shape", ["9g.99gb", "3g", "7g.40gb,7g.40gb", ["1g.5gb", "cpu"], {}, 7])
async def test_trap_7_a_hopeless_choice_poisons_no_later_start(
    hub: Hub, lab: PoolLab, shape: object
):
    """Refused for good, the choice is forgotten: the next start without one succeeds."""
    await hub.begin("ada", shape=shape)
    if shape:
        with pytest.raises(SpawnException):
            await hub.settled("ada")
    await hub.start("ada")
    assert lab.lease_of("ada") is None


async def test_trap_7_a_course_that_is_not_mine_is_refused(hub: Hub, lab: PoolLab):
    """Who is in “text” gets nothing from “vision”, however the options are written."""
    hub.user("ada", groups=("text",))
    refused = await hub.refused("ada", shape="3g.20gb", course="vision")
    assert refused.reason == "not-in-course" and "not in the course “vision”" in str(refused)


async def test_trap_8_a_refusal_is_polite(hub: Hub, lab: PoolLab, caplog: pytest.LogCaptureFixture):
    """The student reads the pool's words; no traceback, and not counted as the hub's failure.

    JupyterHub 5 knows no refusals: it counts and logs each as a failure.
    """
    lab.limit(queue_limit=1)
    await lab.stop()
    await lab.start()
    await _waiting(hub, lab)
    caplog.clear()
    refused = await hub.refused("cy", shape="7g.40gb")
    assert refused.reason == "queue-full"
    assert refused.jupyterhub_message == refused.message
    if jupyterhub.version_info >= (6,):
        assert not [record for record in caplog.records if record.exc_info]
        assert hub.app.tornado_settings.get("failure_count", 0) == 0
    message, _ = format_exception(refused, only_jupyterhub=True)
    assert message == refused.message


async def test_trap_8_a_silent_pool_is_said_in_words(hub: Hub, lab: PoolLab):
    """With the pool down a GPU start is refused at once, says so, and a CPU start works."""
    lab.way.is_cut = True
    refused = await hub.refused("ada", shape="1g.5gb")
    assert "does not answer" in refused.message
    assert (refused.reason, refused.status_code) == ("pool-unreachable", 503)
    assert (await hub.start("ada", shape="cpu"))["MIGLAB_SHAPE"] == "cpu"


async def test_trap_10_a_hub_that_dies_before_the_go_runs_nothing(hub: Hub, lab: PoolLab):
    """The process behind the gate ends with its hub, and no line of the student's has run."""
    user = hub.user("ada")
    spawner = user.spawner
    holders: list[str] = []

    async def dies(holder: str) -> None:
        holders.append(holder)
        raise asyncio.CancelledError

    spawner.attach = dies
    await hub.begin("ada", shape="1g.5gb")
    await asyncio.wait([spawner._spawn_future])
    await asyncio.to_thread(spawner.proc.wait)
    assert spawner.proc.returncode == 75
    assert probe_process(holders[0]) is Liveness.GONE
