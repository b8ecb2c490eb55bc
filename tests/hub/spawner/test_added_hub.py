"""`set_up` on hubs with roles, scopes, services and limits of their own: it takes none away."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jupyterhub
import pytest
from jupyterhub import orm
from jupyterhub.app import JupyterHub
from jupyterhub.scopes import get_scopes_for
from tests.hubs import Hub
from traitlets.config import Config, LazyConfigValue

from miglab_api.scopes import LEASE_SCOPE, SERVICE_SCOPE
from miglab_spawner.hub_setup import NO_INTERNAL_SSL, POOL_ROLE, set_up

from .lab import PoolLab

Site = Callable[[Config], None]
ADA_LEASE = f"{LEASE_SCOPE}!server=ada/"
CULLER = {"name": "culler", "scopes": ["list:users", "delete:servers"], "services": ["culler"]}
TOKEN = "service-token-of-the-pool"
POOL = "http://127.0.0.1:8003"


def assigned(c: Config) -> None:
    """A site that assigns its roles, its services, and what users may do."""
    c.JupyterHub.load_roles = [CULLER, {"name": "user", "scopes": ["self", "list:groups"]}]
    c.JupyterHub.services = [{"name": "culler", "api_token": "culler-token"}]
    c.JupyterHub.custom_scopes = {"custom:site:print": {"description": "Print."}}
    c.JupyterHub.extra_handlers = []
    c.JupyterHub.template_paths = []


def appended(c: Config) -> None:
    """A site that adds to JupyterHub's own lists, which are not there yet."""
    c.JupyterHub.load_roles.append(CULLER)
    c.JupyterHub.load_roles.extend([{"name": "user", "scopes": ["self", "list:groups"]}])
    c.JupyterHub.services.append({"name": "culler", "api_token": "culler-token"})
    c.JupyterHub.custom_scopes.update({"custom:site:print": {"description": "Print."}})
    assert isinstance(c.JupyterHub.load_roles, LazyConfigValue)


def granted_to_all(c: Config) -> None:
    """A site that grants every user more in the way of JupyterHub 6."""
    c.JupyterHub.extra_user_scopes = {"list:groups"}
    c.JupyterHub.load_roles = [CULLER, {"name": "user", "description": "Everybody"}]
    c.JupyterHub.services = [{"name": "culler", "api_token": "culler-token"}]
    c.JupyterHub.custom_scopes = {"custom:site:print": {"description": "Print."}}


SITES = [assigned, appended]
if jupyterhub.version_info >= (6,):
    SITES.append(granted_to_all)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "service.token"
    file.write_text(f"{TOKEN}\n")
    return file


class _Answering(BaseHTTPRequestHandler):
    """Answers the look that JupyterHub takes at each service when it starts."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def pool() -> Iterator[str]:
    """The address of a service that answers: JupyterHub 6 waits 30 s for one that does not."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["before", "after"])
def order(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest) -> Site:
    added: Site = request.param
    return added


@pytest.fixture
def hub_config(hub_config: Config, pool: str, token_file: Path, site: Site, order: str) -> Config:
    """The hub of a site, which says what it has before our line or after it."""
    del hub_config["MIGLab"]
    if order == "before":
        site(hub_config)
    set_up(hub_config, pool=pool, token_file=token_file)
    if order == "after":
        site(hub_config)
    return hub_config


def scopes_of_role(hub: Hub, name: str) -> set[str]:
    return set(orm.Role.find(hub.app.db, name).scopes)


async def test_nothing_that_the_site_has_is_lost(hub: Hub, lab: PoolLab) -> None:
    """Its roles, services and scopes are there beside ours, whenever and however it sets them."""
    assert {"self", "list:groups", f"{LEASE_SCOPE}!user", SERVICE_SCOPE} == scopes_of_role(
        hub, "user"
    )
    assert scopes_of_role(hub, "culler") == set(CULLER["scopes"])
    assert scopes_of_role(hub, "miglab-pool") == set(POOL_ROLE["scopes"])
    assert {service["name"] for service in hub.app.services} >= {"culler", "pool"}
    assert "custom:site:print" in hub.app.custom_scopes
    answer = await hub.ask("ada", "GET", "api/miglab/waiting/ada/")
    assert answer.status_code == 200, answer.text
    assert (await hub.start("ada", shape="1g.5gb"))["MIGLAB_SHAPE"] == "1g.5gb"


class TestTokens:
    """What a server's own token may do."""

    @pytest.fixture
    def order(self) -> str:
        return "after"

    @pytest.fixture(params=["list", "callable", "role"])
    def site(self, request: pytest.FixtureRequest) -> Site:
        """A site that lets its servers read the names of groups, in one of three ways."""

        def add(c: Config) -> None:
            further_scopes = ["users:activity!user", "access:servers!server", "list:groups"]
            c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "list:groups"]}]
            if request.param == "list":
                c.Spawner.server_token_scopes = further_scopes
            elif request.param == "callable":
                c.Spawner.server_token_scopes = lambda _spawner: further_scopes
            else:
                c.JupyterHub.load_roles.append({"name": "server", "scopes": further_scopes})

        return add

    async def test_a_server_may_see_its_lease_and_what_the_site_lets_it(
        self, hub: Hub, lab: PoolLab
    ) -> None:
        """`server_token_scopes` and a role ``server`` of the site's hold; the lease is added."""
        await hub.start("ada", shape="1g.5gb")
        token = orm.APIToken.find(hub.app.db, hub.spawner("ada").api_token)
        scopes = get_scopes_for(token)
        assert {ADA_LEASE, "list:groups", "access:servers!server=ada/"} <= scopes
        assert not {scope for scope in scopes if scope.startswith("servers")}


class TestTokensThatInherit:
    """A token that may do all that its user may does not say whose server has it."""

    @pytest.fixture
    def order(self) -> str:
        return "after"

    @pytest.fixture
    def site(self) -> Site:
        def add(c: Config) -> None:
            c.Spawner.server_token_scopes = ["inherit"]

        return add

    async def test_is_refused_by_the_scopes_name(self, hub: Hub, lab: PoolLab) -> None:
        """With a slice the start is refused, in a sentence; without one it goes on."""
        refused = await hub.refused("ada", shape="1g.5gb")
        assert refused.reason == "token-lacks-scope"
        assert f"{LEASE_SCOPE}!server" in refused.message
        assert lab.waiting() == [] and lab.lease_of("ada") is None
        assert (await hub.start("bo", shape="cpu"))["MIGLAB_SHAPE"] == "cpu"


class TestLimits:
    """Students who wait hold no place that others could use."""

    @pytest.fixture
    def order(self) -> str:
        return "after"

    @pytest.fixture(params=["active_server_limit", "concurrent_spawn_limit"])
    def site(self, request: pytest.FixtureRequest) -> Site:
        """Two servers at once; or one start."""
        limit = 2 if request.param == "active_server_limit" else 1
        return lambda c: c.JupyterHub.update({request.param: limit})

    async def test_one_who_waits_keeps_nobody_out(self, hub: Hub, lab: PoolLab) -> None:
        """Ada has the whole GPU, bo waits for it, cy's server without a GPU starts; dan's not."""
        await hub.start("ada", shape="7g.40gb")
        await hub.begin("bo", shape="7g.40gb")
        await lab.until(lambda: lab.waiting(), "bo waits")
        assert (await hub.start("cy", shape="cpu"))["MIGLAB_SHAPE"] == "cpu"
        if hub.app.active_server_limit:
            assert (await hub.begin("dan", shape="cpu")).status_code == 429
        await hub.stop("ada")
        await hub.settled("bo")
        assert lab.held_by("bo").shape == "7g.40gb"


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        ({"internal_ssl": True}, NO_INTERNAL_SSL),
        ({"services": [{"name": "pool", "url": "http://127.0.0.1:9"}]}, "another service called"),
    ],
)
def test_a_hub_that_cannot_have_it_does_not_start(
    site: dict[str, object], reason: str, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log says in a sentence what does not go together, before anything is opened."""
    c = Config()
    set_up(c, pool=POOL, token_file=token_file)
    c.JupyterHub.update(site)
    app = JupyterHub(config=c)
    app.log.propagate = True
    with pytest.raises(SystemExit):
        app.init_internal_ssl()
    assert reason in caplog.text


def test_a_token_that_cannot_be_read_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool service writes it; the hub's log says so."""
    c = Config()
    set_up(c, pool=POOL, token_file=tmp_path / "service.token")
    app = JupyterHub(config=c)
    app.log.propagate = True
    with pytest.raises(SystemExit):
        app.init_internal_ssl()
    assert "Start the pool service once" in caplog.text
