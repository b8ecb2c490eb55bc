"""From lab.toml to JupyterHub's configuration: small functions that only set.

`jupyterhub_config.py` calls `configure`.  Nothing here starts, opens or asks anything; what the
spawner does with its traits is the spawner's affair.  Two things are no traits of JupyterHub's:
what its web server reads of strangers (`limit_bodies`), and its clock (`wait_by_a_steady_clock`).

After signing in, staff land on the pool's page, and everybody else on their server.

JupyterHub's own database is SQLite with a write-ahead log.  JupyterHub commits a dozen times for
each sign-in and start, in the thread that answers everybody.  SQLite's default writes to the disk
several times for each: 24 ms against 4 ms with a write-ahead log, measured on a virtual disk, and
less than 1 ms without waiting for the disk.  A hub that is killed loses nothing; a loss of power
may lose the last commits, as sign-ins.  Who holds which slice is in the pool's ledger, which does
wait.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from jupyterhub.apihandlers.base import APIHandler
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.ioloop import IOLoop
from traitlets.config import LazyConfigValue

from miglab_api import WEB
from miglab_api.scopes import (
    ADMIN_SCOPE,
    CUSTOM_SCOPES,
    LEASE_SCOPE,
    SERVICE_SCOPE,
    STAFF_SCOPE,
)
from miglab_hub import lab_secrets
from miglab_hub.home_volumes import home_prefix
from miglab_hub.plugins import plugin
from miglab_hub.settings.lab_toml import SCHEDULER, Settings
from miglab_hub.settings.tables import SHARED_PASSWORD
from miglab_hub.sign_in import check_identity, open_sign_in_notice
from miglab_hub.static_files import HubStaticFiles
from miglab_spawner import hub_pages
from miglab_spawner.hub_setup import POOL_ROLE, pool_service

ROSTER = "roster"  # the name at the hub under which `miglab roster` changes groups
NOTEBOOKS_URL = "/lab/tree/notebooks"  # where both spawners put the notebooks
# JupyterLab's settings of local servers; the student image has the same file.
JUPYTER_CONFIG = Path(__file__).parent / "jupyter"
TEMPLATES = Path(__file__).with_name("hub_templates")
log = logging.getLogger(__name__)
SPAWNERS = {"local": "mig-local", "docker": "mig-docker", "slurm": "mig-slurm"}
PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")
STRANGERS_BYTES, STRANGERS_S = 64 * 1024, 10.0
KNOWN_BYTES, KNOWN_S = 104_857_600, 3600.0  # tornado's, and longer than any proxy waits


def configure(c: Any, settings: Settings) -> None:
    """Set all that lab.toml decides.

    Args:
        c: JupyterHub's configuration object.
        settings: lab.toml; its secrets have been made (`lab_secrets.make_all`).
    """
    for update in (
        update_addresses,
        update_domains,
        update_pages,
        update_proxy,
        update_lifetime,
        update_authenticator,
        update_groups,
        update_service,
        update_roles,
        update_spawner,
        update_docker,
        update_local,
        update_scheduler,
    ):
        update(c, settings)
    limit_bodies()
    wait_by_a_steady_clock()


def update_addresses(c: Any, settings: Settings) -> None:
    """Set where people reach the lab, and where the hub listens."""
    c.JupyterHub.bind_url = settings.bind_url
    c.JupyterHub.hub_ip = settings.hub_bind
    c.JupyterHub.hub_port = settings.hub_port
    c.JupyterHub.hub_connect_ip = settings.hub_name


def update_domains(c: Any, settings: Settings) -> None:
    """Set per-user domains; over TLS with cookies that no other host of the domain can plant.

    Without domains such cookies would make things worse: their path is ``/``, so every student's
    server would be sent the hub's.
    """
    origin = settings.lab.subdomain_host
    c.JupyterHub.subdomain_host = origin
    c.JupyterHub.cookie_host_prefix_enabled = origin.startswith("https://")
    c.JupyterHub.setdefault("template_paths", []).extend([str(TEMPLATES), str(WEB)])


def _serve_static_files(c: Any) -> None:
    """Compress the hub's static files, beside whatever a site has set, and however it says it."""
    tornado_settings = c.JupyterHub.tornado_settings
    if isinstance(tornado_settings, LazyConfigValue):
        c.JupyterHub.tornado_settings = tornado_settings.get_value({})
    c.JupyterHub.tornado_settings.setdefault("static_handler_class", HubStaticFiles)


def update_pages(c: Any, settings: Settings) -> None:
    """Show on every page of the hub which lab this is, and of what kind.

    The spawn page need not repeat that the GPUs are simulated.
    """
    c.JupyterHub.template_vars = {
        "lab_title": settings.lab.title,
        "lab_notices": list(settings.notices),
    }
    _serve_static_files(c)
    c.JupyterHub.logo_file = str(settings.logo)
    c.JupyterHub.default_url = landing_page(settings)
    for spawner in (c.MIGDockerSpawner, c.MIGLocalSpawner, c.MIGSlurmSpawner):
        spawner.says_simulated = False
    hub_pages.add_hub_pages(c)


def update_proxy(c: Any, settings: Settings) -> None:
    """Use a proxy that the hub neither starts nor stops."""
    c.JupyterHub.proxy_class = "configurable-http-proxy"
    c.ConfigurableHTTPProxy.should_start = False
    c.ConfigurableHTTPProxy.api_url = settings.proxy_api_url
    c.ConfigurableHTTPProxy.auth_token = lab_secrets.read(settings.proxy_token)


def update_lifetime(c: Any, settings: Settings) -> None:
    """Let servers outlive the hub, and keep its files in the state folder."""
    c.JupyterHub.cleanup_servers = False
    c.JupyterHub.cleanup_proxy = False
    c.JupyterHub.db_url = f"sqlite:///{settings.hub_database}"
    c.JupyterHub.db_kwargs = {"pool_events": [(set_pragmas, "connect")]}
    c.JupyterHub.cookie_secret_file = str(settings.cookie_secret)
    # Students who wait for a slice count as starting: the pool's queue is the limit, not this one.
    c.JupyterHub.concurrent_spawn_limit = 0


def update_authenticator(c: Any, settings: Settings) -> None:
    """Set who may sign in: by the lab's own passwords, or any JupyterHub authenticator."""
    check_identity(settings)
    if notice := open_sign_in_notice(settings):
        log.warning(notice)
    authentication = settings.authentication
    c.Authenticator.admin_users = set(authentication.admins)
    members = {name for course in settings.courses.values() for name in course.members}
    c.Authenticator.allowed_users = members | set(authentication.admins) | settings.teachers
    if authentication.class_ == SHARED_PASSWORD:
        _update_passwords(c, settings)
    else:
        c.JupyterHub.authenticator_class = authentication.class_
    for name, traits in authentication.config.items():
        c[name].update(traits)


def _update_passwords(c: Any, settings: Settings) -> None:
    passwords = lab_secrets.read_passwords(settings)
    c.JupyterHub.authenticator_class = "miglab_hub.authenticator.LabAuthenticator"
    c.LabAuthenticator.allow_all = True
    c.LabAuthenticator.user_password = passwords.student
    c.LabAuthenticator.instructor_users = settings.teachers
    c.LabAuthenticator.instructor_password = passwords.instructor
    c.LabAuthenticator.admin_password = passwords.admin


def update_groups(c: Any, settings: Settings) -> None:
    """Make a group of each course, unless the authenticator manages groups.

    Who teaches a course is in its group too, to try what the students get.  The role does not come
    of that: see `miglab_pool.course_roles`.
    """
    if settings.authentication.manages_groups:
        return
    c.JupyterHub.load_groups = {
        name: {"users": list(course.people)} for name, course in settings.courses.items()
    }


def update_service(c: Any, settings: Settings) -> None:
    """Add the pool as an external service, behind the proxy and with OAuth."""
    c.JupyterHub.services = [
        pool_service(settings.pool_origin, lab_secrets.read(settings.service_token)),
        {"name": ROSTER, "api_token": lab_secrets.read(settings.roster_token), "display": False},
    ]


def update_roles(c: Any, settings: Settings) -> None:
    """Give the least scopes: servers their lease, people the pool's pages, staff the names."""
    c.JupyterHub.custom_scopes = CUSTOM_SCOPES
    c.JupyterHub.extra_user_scopes = {SERVICE_SCOPE, f"{LEASE_SCOPE}!user"}
    authentication = settings.authentication
    c.JupyterHub.load_roles = [
        dict(POOL_ROLE),
        {"name": "miglab-roster", "scopes": ["admin:users", "groups"], "services": [ROSTER]},
        {
            "name": "miglab-staff",
            "scopes": [STAFF_SCOPE, SERVICE_SCOPE],
            "users": sorted(authentication.instructors),
        },
        {
            "name": "miglab-admin",
            "scopes": [ADMIN_SCOPE, SERVICE_SCOPE],
            "users": sorted(authentication.admins),
        },
    ]


def update_spawner(c: Any, settings: Settings) -> None:
    """Set what all spawners share, and the pool for those that have one."""
    c.JupyterHub.spawner_class = SPAWNERS[settings.servers.spawner]
    for spawner in (c.MIGDockerSpawner, c.MIGLocalSpawner):
        spawner.pool_url = settings.pool_url
        spawner.pool_secret_file = str(settings.pool_secret)
        spawner.borrow_linger_s = settings.pool.borrow_linger_s
        spawner.home_gib = settings.servers.home_gib
        spawner.home_names_file = str(settings.home_names)
        spawner.default_url = NOTEBOOKS_URL
    for spawner in (c.MIGDockerSpawner, c.MIGLocalSpawner, c.MIGSlurmSpawner):
        spawner.lab_id = settings.lab_id
        spawner.student_api_url = settings.student_api_url
        spawner.default_course = settings.servers.default_course
        spawner.course_titles = {n: course.title for n, course in settings.courses.items()}
        spawner.create_timeout_s = settings.servers.create_timeout_s
        spawner.simulated = settings.has_simulated_gpus
        has_notebooks = settings.has_own_notebooks or settings.servers.notebooks
        spawner.reading_dir = str(settings.notebooks) if has_notebooks else ""
        # A class that starts at once on few cores needs longer than JupyterHub's 30 s.
        spawner.http_timeout = math.ceil(settings.servers.create_timeout_s)
        spawner.environment = _students_environment(settings)


def _students_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of every student's server, beside its lease."""
    return {
        "MIGLAB_REPORT_S": f"{settings.reclaim.report_s:g}",
        "MIGLAB_GIT_LINKS": " ".join(settings.servers.git_links),
    }


def update_docker(c: Any, settings: Settings) -> None:
    """Set image, network and limits of containers.

    A stopped container goes.  JupyterHub would keep the token of one that stays, for its next
    start, and its image and limits would be those of its first.
    """
    c.MIGDockerSpawner.remove = True
    c.MIGDockerSpawner.image = settings.servers.image
    c.MIGDockerSpawner.home_volume = f"{home_prefix(settings)}{{username}}"
    c.MIGDockerSpawner.prefix = settings.lab_id
    c.MIGDockerSpawner.network_name = settings.network
    c.MIGDockerSpawner.use_internal_ip = True
    c.MIGDockerSpawner.disk_gib = settings.servers.disk_gib
    c.MIGDockerSpawner.client_kwargs = {"base_url": settings.docker_url}
    c.MIGDockerSpawner.shape_limits = settings.shape_limits


def update_local(c: Any, settings: Settings) -> None:
    """Set homes and notebooks of local processes."""
    c.MIGLocalSpawner.homes_dir = str(settings.homes)
    c.MIGLocalSpawner.notebooks_dir = str(settings.notebooks)
    c.MIGLocalSpawner.environment = {
        **_students_environment(settings),
        "JUPYTER_CONFIG_PATH": str(JUPYTER_CONFIG),
        "MIGLAB_NOTEBOOKS": str(settings.notebooks),  # where labkit.fresh_copy looks
    }


def update_scheduler(c: Any, settings: Settings) -> None:
    """Let a scheduler's own package add its spawner's traits and its routes."""
    if settings.is_on_slurm:
        plugin("hub", SCHEDULER)(c, settings)


def landing_page(settings: Settings) -> Callable[[Any], str]:
    """Return JupyterHub's ``default_url``: a function of the request, empty for its default.

    A link that somebody followed before signing in still leads where it says; this is for whoever
    just signs in, or opens the lab's address.
    """
    pool_page = f"{settings.service_origin}{settings.service_prefix}/"
    book = settings.role_book()

    def is_staff(user: Any) -> bool:
        groups = [group.name for group in user.groups]
        is_admin = user.admin or user.name in book.admins
        return bool(is_admin or book.courses_instructed(user.name, groups, in_all=False)) or bool(
            book.courses_assisted(user.name, groups)
        )

    def default_url(handler: Any) -> str:
        user = handler.current_user
        return pool_page if user is not None and is_staff(user) else ""

    return default_url


def set_pragmas(connection: Connection, _record: object) -> None:
    """Set SQLite's pragmas for a new connection of SQLAlchemy's pool."""
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").close()


def limit_bodies() -> None:
    """Limit request bodies of the web servers that this process makes from now on."""
    HTTPServer.configure(LimitedServer, max_body_size=STRANGERS_BYTES, body_timeout=STRANGERS_S)


def wait_by_a_steady_clock() -> None:
    """Make tornado wait by the monotonic clock, whatever happens to the wall clock.

    JupyterHub 6.1.1 waits until a moment of tornado's clock, which is the wall clock (6.6.1).  A
    server that it looked for when it started, in vain, kept its student out ("pending check") for
    the hour by which the clock had been set back.
    """
    IOLoop.time = lambda self: time.monotonic()  # type: ignore[method-assign]


class LimitedServer(HTTPServer):
    """A web server that reads long bodies only of signed-in users."""

    def start_request(self, server_conn: object, request_conn: Any) -> HTTPMessageDelegate:
        """Wrap each request in a `HeadReader`."""
        delegate = super().start_request(server_conn, request_conn)
        return HeadReader(delegate, self.request_callback, request_conn)


class HeadReader(HTTPMessageDelegate):
    """Passes a request on, and lifts its limits if the hub knows the user."""

    def __init__(self, delegate: HTTPMessageDelegate, app: Any, connection: Any) -> None:
        self._delegate, self._app, self._connection = delegate, app, connection
        self.data_received = delegate.data_received  # type: ignore[method-assign]
        self.finish = delegate.finish  # type: ignore[method-assign]
        self.on_connection_close = delegate.on_connection_close  # type: ignore[method-assign]

    async def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> None:
        """Set the limits of the body by whether the user is known."""
        is_known = False
        if _is_long(headers):
            is_known = await self._is_known(start_line, headers)
        self._connection.set_max_body_size(KNOWN_BYTES if is_known else STRANGERS_BYTES)
        self._connection.set_body_timeout(KNOWN_S if is_known else STRANGERS_S)
        passed: Awaitable[None] | None = self._delegate.headers_received(start_line, headers)
        if passed is not None:
            await passed

    async def _is_known(self, start_line: Any, headers: HTTPHeaders) -> bool:
        request = HTTPServerRequest(
            connection=self._connection, start_line=start_line, headers=headers
        )
        return await APIHandler(self._app, request).get_current_user() is not None


def _is_long(headers: HTTPHeaders) -> bool:
    """Whether a body is, or may be, longer than the limit for strangers."""
    length = headers.get("Content-Length", "0").partition(",")[0].strip()
    return "Transfer-Encoding" in headers or not length.isdecimal() or int(length) > STRANGERS_BYTES
