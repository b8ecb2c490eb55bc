"""A real Slurm on this machine: munged, slurmctld and one slurmd a node, all in one folder.

Starts in about a second as root, on loopback, with fake device files for its slices; another Slurm
of this machine is neither seen nor disturbed.  Debian's packages `slurmctld slurmd munge
slurm-client` are enough; nothing is daemonised.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil
import typer

from miglab_bench.harness.processes import Process, free_ports, log_ends, start
from miglab_bench.harness.student import CheckFailed

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scancel", "scontrol")
START_S = 180.0
STOP_S = 2.0
PAUSE_S = 0.01
DEVICE_MAJOR = 195  # of NVIDIA's files; no driver answers here
FIRST_MINOR = 200
GRES = {"1g.5gb": 4, "3g.20gb": 1}
HARDWARE = "CPUs=64 RealMemory=64000"
CGROUP = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("devices", "freezer", "cpuset", "memory", "cpuacct")


class ClusterError(CheckFailed):
    """A part of the cluster did not start; the message holds the end of its log."""


def missing() -> str:
    """What must be installed before a cluster can be started; empty if nothing."""
    if os.geteuid() != 0:
        return "root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return " ".join(name for name in PROGRAMS if shutil.which(name, path=path) is None)


def require_slurm(name: str) -> None:
    """End the benchmark of that name with status 2 where it lacks something."""
    if absent := missing():
        typer.echo(f"{name} needs {absent}", err=True)
        raise typer.Exit(2)


def confines_devices() -> bool:
    """Whether jobs can be kept to their own device files here: cgroup v1, writable."""
    return all(os.access(CGROUP / name, os.W_OK) for name in V1_CONTROLLERS)


class SlurmCluster:
    """One cluster; use it as a context manager.

    Args:
        nodes: how many.
        gres: fake slices of every node, type to count; a sequence has one such table for each node.
        partitions: lines of slurm.conf; ``{nodes}`` stands for all nodes.
        settings: further settings of slurm.conf, which take over from our own.
        hardware: what slurm.conf says of every node's cores and memory.

    Attributes:
        folder: everything the cluster writes; its name is new each time.
        nodes: their names.
        environment: in which commands find this cluster.
    """

    further_parts: tuple[str, ...] = ()
    """What runs beside the daemons that every cluster has, in the order of its end."""

    def __init__(
        self,
        nodes: int = 2,
        gres: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
        partitions: tuple[str, ...] = ("PartitionName=lab Nodes={nodes} Default=YES MaxTime=240",),
        settings: Mapping[str, str] | None = None,
        hardware: str = HARDWARE,
    ) -> None:
        self._hardware = hardware
        self.folder = Path(tempfile.mkdtemp(prefix="miglab-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)  # munged refuses a socket below a folder that is closed to others
        prefix = f"s{secrets.token_hex(2)}n"
        self.nodes = [f"{prefix}{number}" for number in range(1, nodes + 1)]
        self._gres = dict(zip(self.nodes, _gres_of_nodes(gres, nodes), strict=True))
        self._partitions = partitions
        self._settings = dict(settings or {})
        self._daemons: dict[str, Process] = {}
        first = free_ports(nodes + 1)
        self.ports = list(range(first, first + nodes + 1))
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.environment["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

    def __enter__(self) -> Self:
        try:
            self.write_configuration()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Its parts.

    def start(self) -> None:
        """Start all that does not run, and wait until every node takes jobs."""
        self.start_daemons()
        self.until(self._are_nodes_idle, "nodes idle")

    def start_daemons(self) -> None:
        """Start all that does not run."""
        self.start_munged()
        self._run("slurmctld", "slurmctld", "-D")
        self._start_nodes()

    def start_munged(self) -> None:
        """Start the munge daemon, and wait for its socket."""
        munge = self.folder / "munge"
        self._run(
            "munged", "munged", "-F", "--force", f"--key-file={self.folder / 'munge.key'}",
            f"--socket={munge / 'munge.sock'}", f"--pid-file={munge / 'munged.pid'}",
            f"--seed-file={munge / 'munged.seed'}", f"--log-file={munge / 'munged.log'}",
        )  # fmt: skip
        self.until((munge / "munge.sock").exists, "munged's socket")

    def kill(self, part: str) -> None:
        """SIGKILL ``munged``, ``slurmctld`` or a node's slurmd; its jobs' processes live on."""
        self._end(part, signal.SIGKILL)
        if part == "munged":
            (self.folder / "munge" / "munge.sock").unlink(missing_ok=True)

    @contextlib.contextmanager
    def stopped(self, part: str) -> Iterator[None]:
        """A part that is alive and does nothing; its jobs go on, and none of them can be ended."""
        daemon = self._daemons[part]
        daemon.send_signal(signal.SIGSTOP)
        process = psutil.Process(daemon.pid)
        self.until(lambda: process.status() == psutil.STATUS_STOPPED, f"{part} to stand still")
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGCONT)

    def until_saved(self, within_s: float = START_S) -> int:
        """Wait until slurmctld has saved its state, which it does every few seconds.

        A job that it started and has not saved is unknown to the next one, which has it killed.
        It saves nothing where nothing has changed, so a job comes and goes first.

        Returns:
            That job: what is saved may have it as one that waits, which has to go once more.
        """
        now = time.time()
        job = self.submit("true", "--hold")
        self.command("scancel", str(job))
        state = self.folder / "state" / "job_state"
        self.until(lambda: state.exists() and state.stat().st_mtime > now, "its state", within_s)
        return job

    def lose_state(self) -> None:
        """Kill slurmctld and start one that knows no job: it gives the same job numbers again."""
        self.kill("slurmctld")
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir()
        self.start()

    def is_up(self, part: str) -> bool:
        """Whether a part runs."""
        daemon = self._daemons.get(part)
        return daemon is not None and daemon.poll() is None

    def close(self) -> None:
        """End every process of the cluster, its jobs' included, and remove what it wrote."""
        if self.is_up("slurmctld"):
            with contextlib.suppress(subprocess.SubprocessError, ClusterError):
                for line in self._partitions:
                    partition = line.split()[0].partition("=")[2]
                    self.command("scancel", "--partition", partition, timeout=5, check=False)
                self.until(lambda: not self.command("squeue", "-h", timeout=5), "jobs over", 8)
        for part in (*self.nodes, "slurmctld", *self.further_parts, "munged"):
            self._end(part, signal.SIGTERM)
        self._end_jobs()
        for controller in V1_CONTROLLERS:
            for node in self.nodes:
                _remove_cgroups(CGROUP / controller / f"slurm_{node}")
        shutil.rmtree(self.folder, ignore_errors=True)

    # What a test asks of it.

    def command(
        self, *arguments: str, timeout: float = 30, stdin: str = "", check: bool = True
    ) -> str:
        """Run a Slurm command as root; its output.

        Raises:
            subprocess.CalledProcessError: it failed, and ``check`` is true.
        """
        completed = subprocess.run(
            arguments,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )
        return completed.stdout.strip()

    def submit(self, script: str, *options: str) -> int:
        """Submit a job of somebody else; its id."""
        text = f"#!/bin/bash\n{script}\n"
        folders = ("--output", "/dev/null", "--chdir", "/")
        return int(self.command("sbatch", "--parsable", *folders, *options, stdin=text))

    def job(self, job: int) -> dict[str, str]:
        """What slurmctld says of a job, field by field; empty if it knows none."""
        try:
            output = self.command("scontrol", "-o", "show", "job", str(job))
        except subprocess.CalledProcessError:
            return {}
        return dict(field.partition("=")[::2] for field in output.split() if "=" in field)

    def until(self, holds: Callable[[], object], event: str, within_s: float = START_S) -> None:
        """Wait until something holds.

        Raises:
            ClusterError: it does not in time, or a part of the cluster ended meanwhile.
        """
        deadline = time.monotonic() + within_s
        while not holds():
            dead = [part for part in self._daemons if not self.is_up(part)]
            if dead or time.monotonic() > deadline:
                raise ClusterError(f"{event}: not within {within_s:g} s\n{self.logs()}")
            time.sleep(PAUSE_S)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"== {title}\n{lines}" for title, lines in log_ends(self.folder))

    def write_configuration(self) -> None:
        """The configuration files and all folders; also again, after a change of `settings`."""
        for name in ("munge", "state", "dev", *(f"spool/{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key = self.folder / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(1024))
        for number, file in enumerate(self.devices()):
            if not file.exists():
                mode = 0o666 | 0o020000
                os.mknod(file, mode, os.makedev(DEVICE_MAJOR, FIRST_MINOR + number))
                file.chmod(0o666)
        (self.folder / "slurm.conf").write_text("\n".join(self._slurm_conf()) + "\n")
        (self.folder / "gres.conf").write_text("\n".join(self._gres_conf()) + "\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n")

    def devices(self) -> list[Path]:
        """The device files of all slices, node by node."""
        return [
            self.folder / "dev" / f"{node}-{type_}-{number}"
            for node in self.nodes
            for type_, count in self._gres[node].items()
            for number in range(count)
        ]

    # How it is done.

    def _slurm_conf(self) -> Iterator[str]:
        cgroup = confines_devices()
        host, folder = socket.gethostname().partition(".")[0], self.folder
        nodes = ",".join(self.nodes)
        settings = {
            "ClusterName": "miglabtest",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": str(self.ports[0]),
            "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder}/munge/munge.sock",
            "CredType": "cred/munge",
            "StateSaveLocation": f"{folder}/state",
            "SlurmdSpoolDir": f"{folder}/spool/%n",
            "SlurmctldPidFile": f"{folder}/slurmctld.pid",
            "SlurmdPidFile": f"{folder}/slurmd-%n.pid",
            "SlurmctldLogFile": f"{folder}/slurmctld.log",
            "SlurmdLogFile": f"{folder}/slurmd-%n.log",
            "ProctrackType": "proctrack/cgroup" if cgroup else "proctrack/linuxproc",
            "TaskPlugin": "task/cgroup" if cgroup else "task/none",
            "MpiDefault": "none",
            "JobAcctGatherType": "jobacct_gather/none",
            "SwitchType": "switch/none",
            "ReturnToService": "2",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "bf_interval=2,sched_interval=5,bf_window=2880",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "SlurmdParameters": "config_overrides",
            "GresTypes": "gpu",
            "DefMemPerCPU": "100",
            "KillWait": "5",
            "MinJobAge": "300",
            "TCPTimeout": "2",
            **self._settings,
        }
        yield from (f"{key}={value}" for key, value in settings.items() if value)
        for node, port in zip(self.nodes, self.ports[1:], strict=True):
            gres = ",".join(f"gpu:{type_}:{count}" for type_, count in self._gres[node].items())
            yield (
                f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
                f"{self._hardware} Gres={gres}"
            )
        yield from (line.format(nodes=nodes) for line in self._partitions)

    def _gres_conf(self) -> Iterator[str]:
        for node in self.nodes:
            for type_, count in self._gres[node].items():
                last = f"[0-{count - 1}]" if count > 1 else "0"
                files = f"{self.folder}/dev/{node}-{type_}-{last}"
                yield f"NodeName={node} Name=gpu Type={type_} File={files}"

    def _are_nodes_idle(self) -> bool:
        try:
            output = self.command("sinfo", "-h", "-N", "-o", "%N %t", timeout=5)
        except subprocess.SubprocessError:
            return False
        states = {line.split()[0]: line.split()[1].rstrip("~") for line in output.splitlines()}
        return all(states.get(node) in ("idle", "mix", "alloc") for node in self.nodes)

    def _start_nodes(self) -> None:
        for node in self.nodes:
            self._run(node, "slurmd", "-D", "-N", node)

    def _run(self, part: str, *arguments: str) -> None:
        if self.is_up(part):
            return
        log = self.folder / f"{part}.out.log"
        self._daemons[part] = start(log, arguments, self.environment, start_new_session=True)

    def _end(self, part: str, sign: signal.Signals) -> None:
        daemon = self._daemons.pop(part, None)
        if daemon is None:
            return
        daemon.send_signal(sign)
        try:
            daemon.wait(STOP_S)
        except subprocess.TimeoutExpired:  # a slurmd that reaches no slurmctld ignores SIGTERM
            daemon.kill()
            daemon.wait()

    def _end_jobs(self) -> None:
        """Kill what outlived its slurmd: step daemons, and whatever a job had started."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                conf = process.environ().get("SLURM_CONF", "")
                if conf.startswith(str(self.folder)) and process.pid != os.getpid():
                    process.kill()


def _gres_of_nodes(
    gres: Mapping[str, int] | Sequence[Mapping[str, int]] | None, nodes: int
) -> list[dict[str, int]]:
    """The slices of each node."""
    tables = GRES if gres is None else gres
    if isinstance(tables, Mapping):
        return [dict(tables)] * nodes
    return [dict(table) for table in tables]


def _remove_cgroups(folder: Path) -> None:
    """Remove a node's cgroups, which Slurm leaves behind."""
    for child in (*sorted(folder.rglob("*"), reverse=True), folder):
        with contextlib.suppress(OSError):
            child.rmdir()
