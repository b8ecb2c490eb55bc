"""A server's life with a slice: asked for, waited for, attached, started, given back."""

import asyncio
import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from miglab_api.holders import Liveness, probe_process, process_holder
from miglab_api.leases import LeaseState
from miglab_spawner import mixin
from miglab_spawner.listening import wait_until_listening

from .lab import PoolLab

Hub = Any


async def test_a_students_server(hub: Hub, lab: PoolLab):
    """Environment, holder, start and token are those of its own lease, which ends with it."""
    environment = await hub.start("ada", shape="2x1g.5gb")
    lease = lab.held_by("ada")
    assert lease.state is LeaseState.RUNNING
    assert environment["MIGLAB_SLICES"].split(",") == list(lease.uuids)
    assert len(set(lease.uuids)) == 2
    assert environment["MIGLAB_LEASE"] == str(lease.id)
    assert environment["MIGLAB_SHAPE"] == "2x1g.5gb"
    assert environment["MIGLAB_COURSE"] == "everyone"
    assert "CUDA_VISIBLE_DEVICES" not in environment
    assert lease.holder == process_holder(int(environment["PID"]))  # the process behind the gate
    server = (await hub.ask("ada", "GET", "api/users/ada")).json()["servers"][""]
    assert lease.attached_at is not None  # by which a reclaim tells it from a server begun since
    assert datetime.fromisoformat(server["started"]).timestamp() <= lease.attached_at
    assert server["started"] == lease.server_started
    headers = {"Authorization": f"token {environment['JUPYTERHUB_API_TOKEN']}"}
    scopes = (await hub.http.get("api/user", headers=headers)).json()["scopes"]
    custom_scopes = [scope for scope in scopes if scope.startswith("custom:")]
    assert custom_scopes == ["custom:miglab:lease!server=ada/"]
    await hub.stop("ada")
    await lab.until_empty()
    assert lab.pool.check_invariants() == []


async def test_a_start_ends_once_the_server_listens(
    hub: Hub, lab: PoolLab, monkeypatch: pytest.MonkeyPatch
):
    """While it waits, address and state are saved: a hub that ends then finds the server again."""
    database = os.environ["JUPYTERHUB_TEST_DB_URL"].removeprefix("sqlite:///")
    query = "SELECT port, state FROM spawners JOIN servers ON server_id = servers.id"
    seen: list[tuple[bool, bool, bool]] = []

    async def wait_and_look(host: str, port: int, within_s: float) -> bool:
        with closing(sqlite3.connect(database)) as saved:
            ((saved_port, state),) = saved.execute(query)
        is_listening = await wait_until_listening(host, port, within_s)
        seen.append((saved_port == port, json.loads(state)["pid"] > 0, is_listening))
        return is_listening

    monkeypatch.setattr(mixin, "wait_until_listening", wait_and_look)
    await hub.start("ada", shape="1g.5gb")
    assert seen[-1] == (True, True, True)


async def test_a_server_that_is_not_made_in_time_gives_its_slice_back(hub: Hub, lab: PoolLab):
    """The student reads how long it may take, not how long the whole start may."""
    spawner = hub.user("ada").spawner
    spawner.create_timeout_s = 1
    spawner.prepare = asyncio.Event().wait
    refused = await hub.refused("ada", shape="1g.5gb")
    assert (refused.reason, refused.status_code) == ("create-timeout", 503)
    assert "within 1 s" in refused.jupyterhub_message
    await lab.until_empty()


async def test_who_asks_for_a_page_as_the_server_ends_comes_back_to_it(hub: Hub, lab: PoolLab):
    """From the pending page to the spawn page; not where the start had failed."""
    page = hub.app.tornado_settings["jinja2_env_sync"].get_template("not_running.html")
    page_variables = {"user": hub.user("ada"), "server_name": "", "spawn_url": "/hub/spawn/ada"}
    page_variables["static_url"] = lambda path, **_: path
    assert 'location.replace("/hub/spawn/ada")' in page.render(page_variables)
    assert "location.replace" not in page.render(page_variables, failed=True)


async def test_an_address_without_a_page_leads_to_ones_server(hub: Hub, lab: PoolLab):
    """JupyterHub's own page for it says nothing that helps."""
    page = await hub.http.get("nowhere")
    assert page.status_code == 404
    assert "There is no such page" in page.text and '/hub/home">your server' in page.text


@pytest.mark.parametrize(
    ("actor", "reason", "news"),
    [
        ("server:ada/", "released in JupyterLab", "You released your GPU slice"),
        ("instructor", "The lesson is over.", "The lesson is over."),
    ],
)
async def test_the_end_of_a_slice_is_told_to_its_student(
    hub: Hub, lab: PoolLab, actor: str, reason: str, news: str
):
    """On the next spawn page, and as what it was, until the next server starts."""
    await hub.start("ada", shape="1g.5gb")
    lab.pool.leases.release(lab.held_by("ada").id, actor=actor, reason=reason)
    await hub.stop("ada")
    page = await hub.spawner("ada").render_spawn_page()
    assert news in page and ("reclaimed" in page) is (actor == "instructor")
    await hub.start("ada", shape="1g.5gb")
    await hub.stop("ada")
    assert 'miglab-news"' not in await hub.spawner("ada").render_spawn_page()


async def test_what_a_server_asks_of_the_pool(hub: Hub, lab: PoolLab):
    """A spawn page, the lease of a free slice and the end of a server take one request each.

    Each costs pool and hub time.
    """
    await hub.start("ada", shape="1g.5gb")
    lease = lab.held_by("ada")
    lab.way.calls.clear()
    await hub.stop("ada")
    assert lab.way.calls == [("POST", f"/api/leases/{lease.id}/release")]
    lab.way.calls.clear()
    await hub.spawner("ada").render_spawn_page()
    assert lab.way.calls == [("GET", "/api/offers")]
    slices = lab.pool.store.state.slices.values
    await lab.until(lambda: [row.state for row in slices()] == ["free"], "the slice is free again")
    lab.way.calls.clear()
    await hub.start("ada", shape="1g.5gb")
    path = f"/api/leases/{lab.held_by('ada').id}"
    assert [call for call in lab.way.calls if call[0] == "POST"] == [
        ("POST", "/api/leases"),
        ("POST", f"{path}/attach"),
        ("POST", f"{path}/running"),
    ]


async def test_a_grant_of_another_ledger_releases_what_the_pool_has(hub: Hub, lab: PoolLab):
    """The pool refuses the hub's own lease, so the end releases the server's lease that it has."""
    await hub.start("ada", shape="1g.5gb")
    spawner = hub.spawner("ada")
    spawner.grant = replace(spawner.grant, generation=spawner.grant.generation + 1)
    await hub.stop("ada")
    await lab.until_empty()


async def test_named_servers_have_leases_of_their_own(hub: Hub, lab: PoolLab):
    """Two servers of one user hold two slices, and ending one leaves the other."""
    first = await hub.start("ada", "one", shape="1g.5gb")
    second = await hub.start("ada", "two", shape="1g.5gb")
    assert first["MIGLAB_SLICES"] != second["MIGLAB_SLICES"]
    await hub.stop("ada", "one")
    await lab.until(lambda: lab.lease_of("ada", "one") is None, "the first is over")
    assert lab.held_by("ada", "two").state is LeaseState.RUNNING


async def test_without_a_choice_the_courses_default_is_preselected(hub: Hub, lab: PoolLab):
    """The spawn page proposes what the course does, although a bare API start gets no GPU."""
    assert await _preselected(hub, "ada") == "1g.5gb"
    await hub.start("ada")
    await hub.stop("ada")
    assert await _preselected(hub, "ada") == "1g.5gb"
    await hub.start("ada", shape="cpu")
    await hub.stop("ada")
    assert await _preselected(hub, "ada") == "cpu"


@pytest.mark.parametrize("says_simulated", [True, False])
async def test_simulated_gpus_are_said_once(hub: Hub, lab: PoolLab, says_simulated: bool):
    """The spawn page says that GPUs are simulated, unless the hub's announcement does."""
    spawner = hub.user("ada").spawner
    spawner.says_simulated = says_simulated
    page = await spawner.render_spawn_page()
    assert ("GPUs of this lab are simulated" in page) is says_simulated


async def test_the_second_waits_and_is_served(hub: Hub, lab: PoolLab):
    """Told the position, which a restart of the pool keeps; served when the first one leaves."""
    await hub.start("ada", shape="7g.40gb")
    await hub.begin("bo", shape="7g.40gb")
    await lab.until(lambda: lab.waiting(), "bo waits")
    (before,) = lab.waiting()
    assert before.position == 1
    assert await hub.spawner("bo").poll() is None  # anything else would count as a dead server
    events = hub.spawner("bo")._generate_progress()
    async for event in events:
        if "1st of 1 in the queue, waiting for 7g.40gb" in event["message"]:
            break
    await events.aclose()
    await lab.stop()
    await lab.start()
    assert [ticket.id for ticket in lab.waiting()] == [before.id]
    await hub.stop("ada")
    await hub.settled("bo")
    environment = await hub.environment("bo")
    lease = lab.held_by("bo")
    assert environment["MIGLAB_SLICES"] == lease.uuids[0]


async def test_a_lease_refused_at_the_fence_is_never_run(hub: Hub, lab: PoolLab):
    """If the pool refuses the attach, the process ends and no line of the student's has run."""
    spawner = hub.user("ada").spawner
    holders: list[str] = []
    attach: Callable[[str], Any] = spawner.attach

    async def too_late(holder: str) -> None:
        holders.append(holder)
        lab.pool.leases.release(spawner.grant.lease, "an instructor", "the lesson is over")
        await attach(holder)

    spawner.attach = too_late
    await hub.begin("ada", shape="1g.5gb")
    with pytest.raises(Exception, match="stale-lease"):
        await hub.settled("ada")
    await lab.until_empty()
    assert probe_process(holders[0]) is Liveness.GONE


async def test_any_name_gets_a_home(hub: Hub, lab: PoolLab, tmp_path: Path):
    """A user name with dots, slashes and umlauts gets a folder inside the homes, and only its."""
    name = "o'brien@uni.example"
    environment = await hub.start(name, shape="cpu")
    home = Path(environment["HOME"])
    assert home.parent == tmp_path / "homes"
    assert home.stat().st_mode & 0o777 == 0o700
    assert Path(f"/proc/{environment['PID']}/cwd").samefile(home)


async def test_new_notebooks_come_at_each_start(hub: Hub, lab: PoolLab, tmp_path: Path):
    """A notebook added to the lab is there after the next start; an edited one is kept."""
    source = tmp_path / "notebooks"
    source.mkdir()
    (source / "first.ipynb").write_text("first")
    hub.user("ada").spawner.notebooks_dir = str(source)
    home = Path((await hub.start("ada"))["HOME"]) / "notebooks"
    await hub.stop("ada")
    (home / "first.ipynb").write_text("my work")
    (source / "first.ipynb").write_text("first, better")
    (source / "second.ipynb").write_text("second")
    hub.user("ada").spawner.notebooks_dir = str(source)
    await hub.start("ada")
    assert (home / "first.ipynb").read_text() == "my work"
    assert (home / "second.ipynb").read_text() == "second"


async def _preselected(hub: Hub, name: str) -> str:
    page = await hub.spawner(name).render_spawn_page()
    (checked,) = re.findall(r'value="([^"]*)" required checked', page)
    return str(checked)


@pytest.mark.parametrize(
    ("home_gib", "is_slow", "reason", "message"),
    [
        (1 / 1024, False, "home-too-large", "The largest: data (0.0 GiB)"),
        (1, True, "home-not-measured", "could not be measured in time"),
    ],
)
async def test_a_home_that_is_too_large_gets_no_slice(
    hub: Hub,
    lab: PoolLab,
    tmp_path: Path,
    home_gib: float,
    is_slow: bool,
    reason: str,
    message: str,
):
    """Nor one that takes too long to measure: refused before any wait; without a GPU it starts."""
    spawner = hub.user("ada").spawner
    spawner.home_gib = home_gib
    (tmp_path / "homes" / "ada" / "data").mkdir(parents=True)
    (tmp_path / "homes" / "ada" / "data" / "set").write_bytes(bytes(2**21))

    async def slow() -> None:
        """It took too long."""

    spawner.measure_home = slow if is_slow else spawner.measure_home
    refused = await hub.refused("ada", shape="1g.5gb")
    assert refused.reason == reason and message in refused.jupyterhub_message
    assert not lab.waiting() and lab.lease_of("ada") is None
    assert "MIGLAB_LEASE" not in await hub.start("ada", shape="cpu")
