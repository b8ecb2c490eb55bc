"""What lab.toml says: reading it, what follows from it, and what is wrong with it.

Decides only whether a file makes sense; starts nothing, opens no GPU.  `load` is the one entry; the
tables themselves are in `tables`.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from miglab_api.scopes import SERVICE
from miglab_hub.errors import SettingsError
from miglab_hub.plugins import plugin
from miglab_hub.settings.keys import unknown_keys
from miglab_hub.settings.rosters import read_roster
from miglab_hub.settings.state_folder import StateFolder
from miglab_hub.settings.tables import (
    OWN_STAFF,
    SHARED_PASSWORD,
    AcceptRisk,
    Addresses,
    Authentication,
    Lab,
    Limits,
    ServerSettings,
    is_local_only,
    service_origin,
    unproven_identity,
)
from miglab_pool.course_roles import CourseStaff, RoleBook
from miglab_pool.schedule import Schedule, parse_window
from miglab_pool.settings import Course, PoolSettings

ENV_CONFIG = "MIGLAB_CONFIG"
ENV_PORT = "MIGLAB_PORT"
ENV_BRIDGE = "MIGLAB_BRIDGE"
ENV_DOCKER = "DOCKER_HOST"
SCHEDULER = "slurm"
"""The value of `servers.spawner` for which a package of its own brings in tables and service."""
DOCKER = "unix:///var/run/docker.sock"
UNKNOWN = "extra_forbidden"  # told by `unknown_keys`, with what is allowed
OWN_LOGO = Path(__file__).parents[1] / "hub_templates" / "logo.svg"


class Settings(StateFolder, PoolSettings):
    """All of lab.toml: the pool's tables, the lab's own, and what follows from them.

    Attributes:
        file: lab.toml.
        bridge: the host's address on the students' Docker network.
        docker_url: the Docker engine.  Whoever can use its socket is as good as root.
    """

    lab: Lab = Lab()
    addresses: Addresses = Addresses()
    servers: ServerSettings = ServerSettings()
    authentication: Authentication = Authentication()
    accept_risk: AcceptRisk = AcceptRisk()
    limits: dict[str, Limits] = Field(default_factory=dict)
    file: Path = Field(Path("lab.toml"), exclude=True)
    bridge: str = Field("127.0.0.1", exclude=True)
    docker_url: str = Field(DOCKER, exclude=True)

    @model_validator(mode="after")
    def _default_course_exists(self) -> Self:
        if self.servers.default_course not in self.courses:
            raise ValueError(
                f'servers.default_course "{self.servers.default_course}" is not among the '
                f"courses: {', '.join(self.courses)}"
            )
        return self

    @model_validator(mode="after")
    def _logo_exists(self) -> Self:
        if not self.logo.is_file():
            raise ValueError(f"lab.logo: there is no file {self.logo}")
        return self

    @model_validator(mode="after")
    def _real_students_have_origins_of_their_own(self) -> Self:
        if self.lab.subdomain_host or self.accept_risk.students_can_act_as_staff:
            return self
        if self.servers.spawner in ("docker", "slurm"):
            cause = f'servers.spawner = "{self.servers.spawner}"'
        elif self.authentication.class_ != SHARED_PASSWORD:
            cause = f'authentication.class = "{self.authentication.class_}"'
        else:
            return self
        raise ValueError(
            f"{cause} needs lab.subdomain_host (https://lab.example.edu): on one origin a page "
            "that a student publishes can act as the instructor or admin who opens it. To run the "
            "lab all the same, set accept_risk.students_can_act_as_staff = true"
        )

    @model_validator(mode="after")
    def _a_trial_stays_on_this_machine(self) -> Self:
        if is_local_only(self.lab):
            return self
        is_shared = self.authentication.class_ == SHARED_PASSWORD
        if is_shared and not self.accept_risk.anyone_can_be_any_student:
            raise ValueError(unproven_identity(SHARED_PASSWORD))
        if self.servers.spawner == "local" and not self.accept_risk.students_can_read_secrets:
            raise ValueError(
                'other machines reach this lab, and with servers.spawner = "local" every student '
                'can read its secrets and the admin\'s password: choose "docker", or set '
                "accept_risk.students_can_read_secrets = true"
            )
        return self

    # Who hands out the slices.

    @property
    def is_on_slurm(self) -> bool:
        """Whether Slurm hands out the slices, and not the lab's own pool."""
        return self.servers.spawner == SCHEDULER

    @property
    def service_module(self) -> str:
        """The module that runs as the lab's service: the pool, or what stands for it."""
        return "miglab_hub.service"

    @property
    def maintenance_windows(self) -> tuple[Schedule, ...]:
        """When the lab is closed."""
        return tuple(parse_window(text, self.lab.timezone) for text in self.lab.maintenance)

    @property
    def further_databases(self) -> tuple[Path, ...]:
        """What a backup holds beside the lab's own databases."""
        return ()

    @property
    def has_simulated_gpus(self) -> bool:
        """Whether students get simulated slices."""
        return self.gpus.simulated and not self.is_on_slurm

    # Where things lie.

    @property
    def folder(self) -> Path:
        """The folder of lab.toml, from which its paths start."""
        return self.file.parent

    @property
    def state(self) -> Path:
        """The state folder, absolute."""
        return self.folder / self.lab.state_dir

    @property
    def lab_id(self) -> str:
        """What tells this lab's containers, volumes and networks from another's."""
        return self.lab.name

    @property
    def network(self) -> str:
        """The Docker network of the students' containers, unless each has one of its own."""
        return self.lab.name

    @property
    def logo(self) -> Path:
        """The picture at the top of every page."""
        return self.folder / self.lab.logo if self.lab.logo else OWN_LOGO

    @property
    def simulated_state(self) -> Path | None:
        """The simulated machine's folder; None with real GPUs."""
        return self.state / "gpus" if self.has_simulated_gpus else None

    @property
    def shape_limits(self) -> dict[str, dict[str, float]]:
        """What a server of a shape may use of the host, as the spawner has it."""
        return {
            shape: {"mem_gib": limits.memory_gib, **limits.model_dump(exclude={"memory_gib"})}
            for shape, limits in self.limits.items()
        }

    @property
    def has_own_notebooks(self) -> bool:
        """Whether students get the notebooks of this repository, as far as the hub can know."""
        own_image = type(self.servers).model_fields["image"].default
        image, _, _ = self.servers.image.partition(":")  # the one with a compiler is a tag
        is_own = {"local": True, "docker": image == own_image}
        return not self.servers.notebooks and is_own.get(self.servers.spawner, False)

    @property
    def notebooks(self) -> Path:
        """The notebooks that local students get copies of, and the first of which all can read."""
        folder = self.servers.notebooks
        return self.folder / folder if folder else self.state / "notebooks"

    # Who listens where.

    @property
    def service_prefix(self) -> str:
        """The path of the pool's pages and API, without a slash at its end."""
        return f"{self.lab.base_url}services/{SERVICE}"

    @property
    def public_url(self) -> str:
        """What people open."""
        origin = self.lab.subdomain_host
        return f"{origin}{self.lab.base_url}" if origin else self.bind_url

    @property
    def bind_url(self) -> str:
        """Where the proxy listens."""
        scheme = "https" if self.lab.tls_key else "http"
        return f"{scheme}://{_host(self.lab.host)}:{self.lab.port}{self.lab.base_url}"

    @property
    def service_origin(self) -> str:
        """The origin of the pool's pages; empty where all is on one."""
        return service_origin(self.lab.subdomain_host, SERVICE)

    @property
    def proxy_port(self) -> int:
        """The proxy's own API."""
        return self.lab.port + 1

    @property
    def hub_port(self) -> int:
        """The hub, behind the proxy."""
        return self.lab.port + 2

    @property
    def pool_port(self) -> int:
        """The pool's management listener."""
        return self.lab.port + 3

    @property
    def student_port(self) -> int:
        """The pool's student listener."""
        return self.lab.port + 4

    @property
    def hub_bind(self) -> str:
        """The address the hub listens on."""
        return self.addresses.hub_bind or self.bridge

    @property
    def hub_name(self) -> str:
        """The name by which proxy, pool and students reach the hub."""
        return self.addresses.hub or self.hub_bind

    @property
    def hub_url(self) -> str:
        """Where the hub listens, without any path."""
        return f"http://{_host(self.hub_name)}:{self.hub_port}"

    @property
    def hub_api_url(self) -> str:
        """The hub's API, for the pool service."""
        return f"{self.hub_url}{self.lab.base_url}hub/api"

    @property
    def student_bind(self) -> str:
        """The address of the pool's student listener."""
        return self.addresses.student_bind or self.bridge

    @property
    def student_api_url(self) -> str:
        """The student listener, for students' servers (``MIGLAB_API``)."""
        name = self.addresses.student or self.student_bind
        return f"http://{_host(name)}:{self.student_port}"

    @property
    def proxy_api_url(self) -> str:
        """How the hub steers the proxy."""
        name = self.addresses.proxy or self.addresses.proxy_bind
        return f"http://{_host(name)}:{self.proxy_port}"

    @property
    def pool_origin(self) -> str:
        """Where the proxy sends what is below `service_prefix`."""
        name = self.addresses.pool or self.addresses.pool_bind
        return f"http://{_host(name)}:{self.pool_port}"

    @property
    def notices(self) -> tuple[str, ...]:
        """What every page says about this lab."""
        notices = []
        if self.has_simulated_gpus:
            notices.append("simulated GPUs")
        if self.servers.spawner == "local":
            notices.append("no isolation: trial only")
        return tuple(notices)

    @property
    def pool_url(self) -> str:
        """The pool's API, for the spawner and the command line; without the hub's own path."""
        return f"{self.pool_origin}/services/{SERVICE}"

    @property
    def teachers(self) -> set[str]:
        """The instructors and assistants of all courses, by lab.toml and rosters."""
        courses = self.courses.values()
        teachers = {
            name for course in courses for name in (*course.instructors, *course.assistants)
        }
        return teachers | set(self.authentication.instructors)

    def role_book(self) -> RoleBook:
        """The courses and who teaches them, for the pool service."""
        return RoleBook(
            {
                name: CourseStaff(_hub_names(course.instructors), _hub_names(course.assistants))
                for name, course in self.courses.items()
            },
            instructors=_hub_names(self.authentication.instructors),
            admins=_hub_names(self.authentication.admins),
            by_groups=self.authentication.class_ != SHARED_PASSWORD,
        )


def settings_model() -> type[Settings]:
    """Return the model of lab.toml, with the tables of a scheduler's own package."""
    model: type[Settings] | None = plugin("settings", SCHEDULER)
    return model or Settings


def load(
    path: Path | None = None, environ: Mapping[str, str] = os.environ, *, running: bool = True
) -> Settings:
    """Read lab.toml.

    Args:
        path: the file; None for the one ``MIGLAB_CONFIG`` names, else ``lab.toml`` here.
        environ: what ``./lab up`` tells the parts: ``MIGLAB_PORT`` takes over from ``lab.port``,
            ``MIGLAB_BRIDGE`` is the host's address on the students' Docker network.  Without
            them, a running lab's are those that ``./lab up`` left in the state folder.
            ``DOCKER_HOST`` is the engine's address, for all programs that use one.
        running: False to leave the port of a running lab aside: for one that is to start.

    Raises:
        SettingsError: the file cannot be read, or what it says makes no sense.
    """
    file = (path or Path(environ.get(ENV_CONFIG) or "lab.toml")).absolute()
    table = _read(file)
    start_facts = {
        "file": file,
        "bridge": environ.get(ENV_BRIDGE) or "127.0.0.1",
        "docker_url": environ.get(ENV_DOCKER) or DOCKER,
    }
    if port := environ.get(ENV_PORT):
        return _build_settings(_at_port(table, port), start_facts)
    settings = _build_settings(table, start_facts)
    port_entries = _read_port_file(settings.port_file) if running else []
    if not port_entries:
        return settings
    if port_entries[1:]:
        start_facts["bridge"] = port_entries[1]
    return _build_settings(_at_port(table, port_entries[0]), start_facts)


def _read_port_file(file: Path) -> list[str]:
    """Return port and bridge of a running lab; empty without one of this account."""
    try:
        return file.read_text(encoding="utf-8").split()
    except (FileNotFoundError, PermissionError):
        return []


def _at_port(table: dict[str, Any], port: str) -> dict[str, Any]:
    lab = table.get("lab", {})
    if not isinstance(lab, dict):
        return table
    return {**table, "lab": {**lab, "port": int(port) if port.isdecimal() else port}}


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: not TOML: {error}") from error


def _check_scheduler(file: Path, table: Mapping[str, Any]) -> None:
    servers = table.get("servers")
    spawner = servers.get("spawner") if isinstance(servers, dict) else ""
    if SCHEDULER in (spawner, *table) and settings_model() is Settings:
        raise SettingsError(
            f"{file}: {SCHEDULER}: a lab on Slurm needs the package miglab-slurm beside the hub: "
            "pip install miglab-slurm"
        )


def _build_settings(table: dict[str, Any], start_facts: Mapping[str, Any]) -> Settings:
    file = start_facts["file"]
    _check_scheduler(file, table)
    testing = table.get("testing", {})
    if not isinstance(testing, dict) or not all(isinstance(of, dict) for of in testing.values()):
        raise SettingsError(f"{file}: [testing] holds keys of other tables: pool.reconcile_s = 2")
    table = {name: value for name, value in table.items() if name != "testing"}
    wrong = list(unknown_keys(settings_model(), table))
    for name, values in testing.items():
        if isinstance(table.setdefault(name, {}), dict):  # else the model says what is wrong
            table[name] = table[name] | values
    try:
        settings = settings_model().model_validate({**table, **start_facts})
    except ValidationError as error:
        problems = [dict(problem) for problem in error.errors()]
        wrong += [_describe_problem(problem) for problem in problems if problem["type"] != UNKNOWN]
        wrong = wrong or [
            _describe_problem(problem) for problem in problems
        ]  # an unknown key of [testing]
    if wrong:
        raise SettingsError("\n".join(f"{file}: {line}" for line in wrong))
    if testing and not is_local_only(settings.lab):
        raise SettingsError(f"{file}: [testing] is for tests on this machine alone: leave it out")
    courses = {
        name: _with_roster(course, settings.folder) if course.roster else course
        for name, course in settings.courses.items()
    }
    if settings.authentication.class_ != SHARED_PASSWORD:
        _refuse_own_staff(file, settings.authentication, courses)
    return settings.model_copy(update={"courses": courses})


def _refuse_own_staff(
    file: Path, authentication: Authentication, courses: Mapping[str, Course]
) -> None:
    """Refuse the lab's own account names as staff of an outside authenticator."""
    staff = {
        "authentication.admins": authentication.admins,
        "authentication.instructors": authentication.instructors,
    }
    for name, course in courses.items():
        staff[f"courses.{name}.instructors"] = course.instructors
        staff[f"courses.{name}.assistants"] = course.assistants
    for key, names in staff.items():
        for name in names:
            if name.lower() in OWN_STAFF:
                raise SettingsError(
                    f'{file}: {key}: with class "{authentication.class_}" whoever has registered '
                    f'the name "{name}" would be staff of this lab: write the names that your own '
                    f'staff have after sign-in, such as "ada@example.edu", or none; a roster counts'
                )


def _with_roster(course: Course, folder: Path) -> Course:
    """Return the course with the people of its roster added."""
    roster = read_roster(folder / course.roster)
    people = {
        "members": (*course.members, *roster.students),
        "instructors": (*course.instructors, *roster.instructors),
        "assistants": (*course.assistants, *roster.assistants),
    }
    return course.model_copy(update={k: tuple(dict.fromkeys(v)) for k, v in people.items()})


def _hub_names(names: Iterable[str]) -> frozenset[str]:
    """Return names as given and in lower case, which most authenticators use."""
    return frozenset(form for name in names for form in (name, name.lower()))


def _describe_problem(problem: Mapping[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    prefix = f"{key}: " if key else ""
    if problem["type"] == "value_error":  # our own: it says what was given
        return f"{prefix}{problem['ctx']['error']}"
    suffix = "" if problem["type"] == "missing" else f" (it is {problem['input']!r:.60})"
    return f"{prefix}{problem['msg']}{suffix}"


def _host(name: str) -> str:
    """Return an address for a URL: IPv6 in brackets."""
    return f"[{name}]" if ":" in name else name
