"""A real JupyterHub in this process, for tests: its configuration, and what they do with it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from jupyterhub import orm, roles, scopes
from jupyterhub.tests.mocking import MockHub
from traitlets.config import Config

from miglab_bench.harness import student_server
from miglab_bench.harness.hub_here import NoProxy
from miglab_bench.harness.student import STEP_S
from miglab_spawner.hub_setup import set_up
from miglab_spawner.refusals import SpawnException

STUDENT = Path(student_server.__file__)


def hub_config_for(spawner: str, set_up: Callable[[Config], None] = set_up) -> Config:
    """A hub without a proxy, on a free port, that everybody may enter.

    Args:
        spawner: the entry point's name, as "mig-local".
        set_up: what its package sets of the hub.
    """
    c = Config()
    set_up(c)
    c.JupyterHub.authenticator_class = "dummy"
    c.Authenticator.allow_all = True
    c.JupyterHub.spawner_class = spawner
    c.JupyterHub.proxy_class = NoProxy
    c.JupyterHub.bind_url = "http://127.0.0.1:0/"
    c.JupyterHub.allow_named_servers = True
    c.JupyterHub.cookie_secret = secrets.token_bytes(32)  # else a file in whatever folder this is
    c.JupyterHub.log_level = "DEBUG"
    c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0, "slow_stop_timeout": 0}
    return c


@asynccontextmanager
async def running_hub(config: Config) -> AsyncIterator["Hub"]:
    """A hub that runs; its servers, itself and its scopes, which are the process's, end with it."""
    with patch.dict(scopes.scope_definitions):
        async with _running_app(config) as hub:
            yield hub


@asynccontextmanager
async def _running_app(config: Config) -> AsyncIterator["Hub"]:
    app = MockHub.instance(config=config)
    await app.initialize([])
    await app.start()
    hub = Hub(app)
    yield hub
    try:
        await hub.close()
    finally:
        app.log.handlers = []
        MockHub.clear_instance()
        await _end(app)


class Hub:
    """What a test does with a hub: people, their servers, its pages."""

    def __init__(self, app: MockHub) -> None:
        self.app = app
        self.http = httpx.AsyncClient(base_url=app.hub.url, timeout=STEP_S, verify=False)

    def user(self, name: str, groups: tuple[str, ...] | None = None) -> Any:
        """A person, made if need be; with these groups, None for those that there are."""
        db = self.app.db
        person = orm.User.find(db, name)
        if person is None:
            person = orm.User(name=name)
            db.add(person)
            roles.assign_default_roles(db, entity=person)
        if groups is not None:
            person.groups = [self._group(group) for group in groups]
        db.commit()
        return self.app.users[person]

    def spawner(self, name: str, server: str = "") -> Any:
        """The spawner of a person's server."""
        return self.user(name).spawners[server]

    async def ask(self, name: str, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """A request of this person to the hub, by token."""
        token = self.user(name).new_api_token()
        headers = {"Authorization": f"token {token}"}
        return await self.http.request(method, path, headers=headers, **kwargs)

    async def ask_as_admin(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """A request of a hub admin, who is called root."""
        admin = self.user("root")
        admin.admin = True
        roles.assign_default_roles(self.app.db, entity=admin.orm_user)
        self.app.db.commit()
        return await self.ask("root", method, path, **kwargs)

    async def rename(self, name: str, new_name: str) -> None:
        """Call a user otherwise, through the API."""
        answer = await self.ask_as_admin("PATCH", f"api/users/{name}", json={"name": new_name})
        assert answer.status_code == 200, answer.text

    async def sign_in(self, browser: httpx.AsyncClient, name: str) -> None:
        """Past the login form, as a person does."""
        await browser.get(f"{self.app.hub.url}login")
        form = {"username": name, "password": "x", "_xsrf": browser.cookies["_xsrf"]}
        answer = await browser.post(f"{self.app.hub.url}login", data=form)
        assert answer.status_code == 302, answer.text

    async def begin(self, name: str, server: str = "", **options: Any) -> httpx.Response:
        """Ask for a server through the API; 202 while it starts."""
        return await self.ask(name, "POST", _path(name, server), json=options or None)

    async def start(self, name: str, server: str = "", **options: Any) -> dict[str, str]:
        """Start a server and wait until it answers.

        Returns:
            Its environment.
        """
        answer = await self.begin(name, server, **options)
        assert answer.status_code in (201, 202), answer.text
        await self.settled(name, server)
        return await self.environment(name, server)

    async def settled(self, name: str, server: str = "") -> None:
        """Wait for a start under way; raises what it raised."""
        future = self.spawner(name, server)._spawn_future
        if future is not None:
            await asyncio.wait_for(asyncio.shield(future), STEP_S)

    async def refused(self, name: str, **options: Any) -> SpawnException:
        """How a start is refused."""
        await self.begin(name, **options)
        with pytest.raises(SpawnException) as refused:
            await self.settled(name)
        return refused.value

    async def environment(self, name: str, server: str = "") -> dict[str, str]:
        """What a server says of its own environment."""
        answer = await self.http.get(f"{self.spawner(name, server).server.url}environment")
        environment: dict[str, str] = answer.json()
        return environment

    async def stop(self, name: str, server: str = "") -> None:
        """Stop a server through the API, and wait."""
        spawner = self.spawner(name, server)  # the hub forgets it once it has stopped
        answer = await self.ask(name, "DELETE", _path(name, server))
        assert answer.status_code in (202, 204), answer.text
        await _stopped(spawner)

    async def close(self) -> None:
        for user in list(self.app.users.values()):
            for name, spawner in list(user.spawners.items()):
                await _end_start(spawner)
                await _stopped(spawner)
                if spawner.active:
                    await user.stop(name)
        await self.http.aclose()

    def _group(self, name: str) -> orm.Group:
        group = orm.Group.find(self.app.db, name)
        if group is None:
            group = orm.Group(name=name)
            self.app.db.add(group)
        return group


async def _stopped(spawner: Any) -> None:
    """Wait for a stop under way; the pool may have the slice back before the hub is done."""
    future = getattr(spawner, "_stop_future", None)
    if future is not None:
        await asyncio.wait_for(asyncio.shield(future), STEP_S)


async def _end_start(spawner: Any) -> None:
    """Cancel a start under way, and wait for its end."""
    start = spawner._spawn_future
    if start is not None and not start.done():
        start.cancel()
        await asyncio.wait([start])
        spawner._spawn_future = None  # User.stop asks for its exception; a cancelled one has none


def _path(name: str, server: str) -> str:
    return f"api/users/{name}/servers/{server}" if server else f"api/users/{name}/server"


async def _end(app: MockHub) -> None:
    """End a hub without its own last step, which cancels every task of the loop, ours too."""
    app._atexit_ran = True
    for callback in app._periodic_callbacks.values():
        callback.stop()
    app.http_server.stop()
    await app.http_server.close_all_connections()
    app.metrics_collector.stop()
    await app.cleanup()
    app.db.close()
    app.db_file.close()
