"""What a lab for real people needs, and what its hosts are called.

Pages of one origin can act as each other, whatever cookies and tokens there are.  A student's
server serves pages that the student wrote, so it must not share an origin with hub and pool.
"""

from urllib.parse import urlsplit

from miglab_hub.settings.tables import (
    SHARED_PASSWORD,
    AcceptRisk,
    Authentication,
    Lab,
    ServerSettings,
    is_loopback,
)

OWN_NAMES = (".localhost", ".test")  # never found by a name server (RFC 6761)


def check_origins(
    lab: Lab, servers: ServerSettings, authentication: Authentication, accepted: AcceptRisk
) -> None:
    """Check that a lab for real people gives each student's server an origin of its own.

    Raises:
        ValueError: it does not, and nobody has accepted what follows from that.
    """
    if lab.subdomain_host or accepted.students_can_act_as_staff:
        return
    if servers.spawner in ("docker", "slurm"):
        cause = f'servers.spawner = "{servers.spawner}"'
    elif authentication.class_ != SHARED_PASSWORD:
        cause = f'authentication.class = "{authentication.class_}"'
    else:
        return
    raise ValueError(
        f"{cause} needs lab.subdomain_host (https://lab.example.edu): on one origin a page that a "
        "student publishes can act as the instructor or admin who opens it. To run the lab all "
        "the same, set accept_risk.students_can_act_as_staff = true"
    )


def check_exposure(
    lab: Lab, servers: ServerSettings, authentication: Authentication, accepted: AcceptRisk
) -> None:
    """Check that what is for trial only stays on this machine.

    Raises:
        ValueError: it does not, and nobody has accepted what follows from that.
    """
    if is_this_machines(lab):
        return
    if authentication.class_ == SHARED_PASSWORD and not accepted.anyone_can_be_any_student:
        raise ValueError(who_is_who(SHARED_PASSWORD))
    if servers.spawner == "local" and not accepted.students_can_read_secrets:
        raise ValueError(
            'other machines reach this lab, and with servers.spawner = "local" every student can '
            'read its secrets and the admin\'s password: choose "docker", or set '
            "accept_risk.students_can_read_secrets = true"
        )


def who_is_who(class_: str) -> str:
    """Why an authenticator that does not check who signs in is for this machine alone."""
    return (
        f'other machines reach this lab, and with authentication.class "{class_}" every student '
        "can sign in as any other: choose another authenticator, or set "
        "accept_risk.anyone_can_be_any_student = true"
    )


def is_this_machines(lab: Lab) -> bool:
    """Whether only this machine reaches the lab; a public domain means a front end before it."""
    name = urlsplit(lab.subdomain_host).hostname or "localhost"
    return is_loopback(lab.host) and f".{name}".endswith(OWN_NAMES)


def service_origin(subdomain_host: str, service: str) -> str:
    """The origin that JupyterHub's subdomain hook ``idna`` gives a service; empty without domains.

    Args:
        subdomain_host: ``https://lab.example.edu``, or empty.
        service: its name at the hub, of letters and digits.
    """
    if not subdomain_host:
        return ""
    scheme, host = subdomain_host.split("://")
    return f"{scheme}://{service}--service.{host}"


def host_of(origin: str) -> str:
    """What a request to an origin says in its Host header."""
    return urlsplit(origin).netloc
