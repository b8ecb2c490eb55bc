"""The tables of lab.toml: every key with its type, its default, its unit and its limits.

What a key means is written once, in its ``description``: the docs' page of settings is made of it.

What a lab for real people needs is checked here, by what its hosts are called: pages of one origin
can act as each other, whatever cookies and tokens there are.  A student's server serves pages that
the student wrote, so it must not share an origin with hub and pool.
"""

import ipaddress
import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from miglab_pool.schedule import is_zone, parse_window
from miglab_pool.settings import NOT_A_SETTING, Name, Seconds, Section, TomlTuple

PublicPort = Annotated[int, Field(ge=1, le=65531)]  # four more follow it
GIT_LINK = re.compile(r"(https://[a-z0-9.-]+(:[0-9]{1,5})?|file://)(/[\w.~+-]+)+/?", re.ASCII)
OWN_STAFF = ("admin", "instructor")  # the accounts of `./lab up`
SHARED_PASSWORD = "shared-password"  # noqa: S105 -- the name of an authenticator
OWN_NAMES = (".localhost", ".test")  # never found by a name server (RFC 6761)


class Lab(Section):
    """[lab]: where the lab lives and where people reach it."""

    name: str = Field(
        "miglab",
        pattern=r"^[a-z0-9][a-z0-9-]{0,40}$",
        description="The lab's name in the labels and names of containers, volumes and networks. "
        "Two labs on one Docker engine need different names, because each lab removes everything "
        "that carries its name and has no lease. On one Slurm cluster each leaves the other's jobs "
        "alone, and tells of them.",
    )
    title: str = Field(
        "miglab",
        min_length=1,
        max_length=60,
        description="The name that people see on every page and in the browser's tab.",
    )
    logo: str = Field(
        "",
        description="The picture at the top of every page: an SVG or PNG file, about 30 pixels "
        "high. If it is empty, miglab's own logo is shown.",
    )
    state_dir: str = Field(
        ".lab",
        description="Folder for everything that the lab writes: ledger, hub database, secrets, "
        "simulated GPUs, homes, logs. A relative path starts at the folder of lab.toml.",
    )
    host: str = Field("127.0.0.1", description="Address at which people reach the lab.")
    port: PublicPort = Field(
        8000,
        description="Port at which people reach the lab; `--port` overrides it. The lab also uses "
        "the next four ports: for the proxy's own API, the hub, the pool's management listener "
        "and its student listener.",
    )
    base_url: str = Field(
        "/",
        pattern=r"^/([\w.~-]+/)*$",
        description="Path below which the lab is served. In a hub of your own, the pool takes it "
        "from the hub.",
    )
    tls_certificate: str = Field("", description="PEM file of the TLS certificate; empty for none.")
    tls_key: str = Field("", description="PEM file of the certificate's key; empty for none.")
    plain_http: bool = Field(
        False,
        description="Whether to allow plain HTTP on an address other than loopback. Set it only "
        "behind a front end that ends TLS.",
    )

    subdomain_host: str = Field(
        "",
        pattern=r"^(https?://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?)?$",
        description="Per-user domains: the origin that people open, such as "
        "`https://lab.example.edu`, with the port if it is not 443. Each student's server and the "
        "pool then have a host name of their own below it, so `lab.example.edu` and "
        "`*.lab.example.edu` need DNS entries and a certificate. It is required with containers "
        "or an outside authenticator.",
    )
    timezone: str = Field(
        "UTC",
        description="Time zone of `maintenance` and of the weeks in usage reports, for example "
        "`Europe/Berlin`.",
    )
    maintenance: TomlTuple[str] = Field(
        (),
        description='When the lab is closed, for example `"tue 06:00-08:00"` or `"2026-11-24 '
        '06:00-08:00"`. All leases are reclaimed when it begins, and none is granted until it '
        "ends.",
    )

    @model_validator(mode="after")
    def _times_are_known(self) -> Self:
        if not is_zone(self.timezone):
            raise ValueError(f'timezone "{self.timezone}" is not known; write "Europe/Berlin"')
        for text in self.maintenance:
            parse_window(text, self.timezone)
        return self

    @model_validator(mode="after")
    def _no_open_http(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key go together: set both or none")
        if not (self.tls_key or self.plain_http or is_loopback(self.host)):
            raise ValueError(
                f"plain HTTP on {self.host} would send passwords in the clear: set tls_certificate "
                "and tls_key, or plain_http = true behind a front end that ends TLS"
            )
        return self

    @model_validator(mode="after")
    def _domains_over_tls(self) -> Self:
        if not self.subdomain_host.startswith("http://"):
            return self
        if self.tls_key or not is_loopback(self.host):
            raise ValueError(
                f"subdomain_host {self.subdomain_host} must be https: people reach the lab by TLS, "
                "its own or that of the front end"
            )
        return self


class Addresses(Section):
    """[addresses]: addresses and names of the parts, when they are not all on one host."""

    hub_bind: str = Field(
        "",
        description="Address on which the hub listens. If it is empty, the lab chooses one that "
        "students' servers can reach.",
    )
    hub: str = Field(
        "",
        description="Name by which the proxy, the pool and students' servers reach the hub. If it "
        "is empty, `hub_bind` is used.",
    )
    proxy_bind: str = Field("127.0.0.1", description="Address of the proxy's own API.")
    proxy: str = Field(
        "",
        description="Name by which the hub reaches the proxy's API. If it is empty, `proxy_bind` "
        "is used.",
    )
    pool_bind: str = Field(
        "127.0.0.1",
        description="Address of the pool's management listener. Students' servers must never "
        "reach it.",
    )
    pool: str = Field(
        "",
        description="Name by which the hub and the proxy reach the pool. If it is empty, "
        "`pool_bind` is used.",
    )
    student_bind: str = Field(
        "",
        description="Address of the pool's student listener. If it is empty, the lab chooses one "
        "that students' servers can reach.",
    )
    student: str = Field(
        "",
        description="Name by which students' servers reach the student listener. If it is empty, "
        "`student_bind` is used.",
    )


class AcceptRisk(Section):
    """[accept_risk]: what a lab that other machines reach is refused, unless you accept it here."""

    students_can_act_as_staff: bool = Field(
        False,
        description="Whether a lab with containers or an outside authenticator may run without "
        "`subdomain_host`. **Any student can then publish a page that acts as whoever opens it**: "
        "as an instructor in the pool, as an admin everywhere. Set it only in a lab where "
        "everybody trusts everybody.",
    )
    students_can_read_secrets: bool = Field(
        False,
        description="Whether to allow local processes, or Slurm jobs of one account, in a lab "
        "that other machines can reach. "
        "**Every student can then read the lab's secrets and the admin's password**, and all "
        "other students' files.",
    )
    anyone_can_be_any_student: bool = Field(
        False,
        description="Whether to allow `shared-password`, and any subclass of JupyterHub's dummy, "
        "null and shared-password authenticators, in a lab that other machines can reach. **Every "
        "student can then sign in as any other**, and under a thousand names, so that quotas and "
        "fair shares mean nothing.",
    )


class ServerSettings(Section):
    """[servers]: how students' servers are started."""

    spawner: Literal["local", "docker", "slurm"] = Field(
        "local",
        description="`local` starts servers as processes of this machine, without isolation, for "
        "trials only; `docker` starts containers, on the engine that the environment variable "
        "`DOCKER_HOST` names, else at `/var/run/docker.sock`: set it for every `miglab` command; "
        "`slurm` submits jobs to a Slurm cluster, which `[slurm]` describes.",
    )
    image: str = Field(
        "miglab-student",
        description="Image of the containers; `images/build` builds it. An image of your own says "
        "where its home directory is, by `HOME` or by a working directory below `/home`: only the "
        "home outlives a container.",
    )
    disk_gib: float = Field(
        0,
        ge=0,
        description="How many GiB a container may write outside its home volume; 0 for no limit. "
        "It needs an engine on overlay2 over XFS mounted with `pquota`, or on ZFS; other engines "
        "refuse to create containers, and Btrfs keeps no limit. `miglab doctor` checks it.",
    )
    home_gib: float = Field(
        0,
        ge=0,
        description="How large a student's home may be, in GiB; 0 for no limit. A student with a "
        "larger home, or with more than 65,536 files for each GiB, is given no slice, and is told "
        "what to delete; a server without a GPU still starts. Measuring a home volume before each "
        "wait for a slice takes a few seconds.",
    )
    notebooks: str = Field(
        "",
        description="Folder of notebooks that are copied to students with local servers; "
        "containers have the image's. If it is empty, the lab's own notebooks are used. Students "
        "who wait can read the first one: with an image of your own, name the folder for that.",
    )
    git_links: TomlTuple[str] = Field(
        (),
        description="Repositories whose files a [link](../howto/git-links.md) may bring into a "
        "student's home: where they lie, such as `https://github.com/example/`, or one of them. "
        "If it is empty, no link may. Their authors' code runs as whoever opens the notebooks.",
    )
    default_course: Name = Field(
        "everyone", description="Course of users who are in no group that is a course."
    )
    # To create and start a server once its slices exist; then the start fails, and gives them back.
    create_timeout_s: Annotated[Seconds, NOT_A_SETTING] = 120

    @model_validator(mode="after")
    def _git_links_name_owners(self) -> Self:
        for prefix in self.git_links:
            if not GIT_LINK.fullmatch(prefix) or "/../" in f"{prefix}/" or "/./" in f"{prefix}/":
                raise ValueError(
                    f'git_links: "{prefix}" does not say whose repositories: write an https or '
                    'file address with an owner or folder, such as "https://github.com/example/"'
                )
        return self


class Authentication(Section):
    """[authentication]: who may log in, and as what."""

    class_: str = Field(
        "shared-password",
        alias="class",
        description="`shared-password`, or any JupyterHub authenticator, by its entry point or "
        "full class name.",
    )
    admins: TomlTuple[Name] = Field(
        (),
        description="Site admins, by the names that they have after sign-in. With "
        '`shared-password` the default is `["admin"]`; with any other authenticator that name is '
        "refused, because it belongs to whoever has registered it.",
    )
    instructors: TomlTuple[Name] = Field(
        (),
        description="Instructors of every course. With `shared-password` the default is "
        '`["instructor"]`, which any other authenticator refuses as it refuses "admin".',
    )
    config: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Traits of the authenticator: a table for each of its classes, passed on "
        "unchanged.",
    )

    @model_validator(mode="after")
    def _is_chosen(self) -> Self:
        if not self.class_:
            raise ValueError(
                "class is empty: choose how people sign in, such as "
                '"oauthenticator.generic.GenericOAuthenticator"'
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _add_own_staff(cls, table: Any) -> Any:
        """The accounts whose passwords the lab itself makes; an outside one has none of them."""
        if isinstance(table, dict) and table.get("class", SHARED_PASSWORD) == SHARED_PASSWORD:
            return {"admins": OWN_STAFF[:1], "instructors": OWN_STAFF[1:], **table}
        return table

    @property
    def manages_groups(self) -> bool:
        """Whether the authenticator says who is in a course; then a roster does not."""
        return any(traits.get("manage_groups") for traits in self.config.values())


class Limits(Section):
    """[limits."SHAPE"]: what a container with this shape may use; ``default`` is for all others."""

    memory_gib: float = Field(
        8,
        gt=0,
        le=4096,
        description="Memory in GiB; a process that needs more is killed as out of memory.",
    )
    cpus: float = Field(
        2, gt=0, le=1024, description="CPU cores; a container that needs more is slowed down."
    )
    pids: int = Field(1024, ge=16, le=4_194_304, description="Processes and threads.")
    shm_gib: float = Field(
        1,
        gt=0,
        le=4096,
        description="Shared memory (/dev/shm) in GiB; PyTorch's data loaders need it.",
    )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unproven_identity(class_: str) -> str:
    """Return why an authenticator without identity checks is for this machine alone."""
    return (
        f'other machines reach this lab, and with authentication.class "{class_}" every student '
        "can sign in as any other: choose another authenticator, or set "
        "accept_risk.anyone_can_be_any_student = true"
    )


def is_local_only(lab: Lab) -> bool:
    """Whether only this machine reaches the lab; a public domain implies a front end."""
    name = urlsplit(lab.subdomain_host).hostname or "localhost"
    return is_loopback(lab.host) and f".{name}".endswith(OWN_NAMES)


def service_origin(subdomain_host: str, service: str) -> str:
    """Return the origin of a service by JupyterHub's hook ``idna``; empty without domains.

    Args:
        subdomain_host: ``https://lab.example.edu``, or empty.
        service: its name at the hub, of letters and digits.
    """
    if not subdomain_host:
        return ""
    scheme, host = subdomain_host.split("://")
    return f"{scheme}://{service}--service.{host}"


def host_of(origin: str) -> str:
    """Return the Host header of requests to an origin."""
    return urlsplit(origin).netloc
