"""What doctor looks at on a Slurm site: what the lab asks of it, read from the real daemons.

Reads alone, unless jobs are asked for: `sbatch --test-only` submits nothing.  What does not answer
is told as unknown.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import jupyterhub

from miglab_api.offers import CPU
from miglab_hub.settings.tables import is_loopback
from miglab_pool.views.health_findings import HealthFinding, fine, wrong
from miglab_slurm import node_probe
from miglab_slurm.commands import clean_environment
from miglab_slurm.lab import SlurmSettings
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.reader import as_account
from miglab_slurm.records import (
    JOB_FIELDS,
    NODE_FIELDS,
    Listing,
    jobs_of,
    nodes_of,
)
from miglab_slurm.site import SlurmShape
from miglab_slurm.submissions import Submissions, told_of
from miglab_slurm.unix_accounts import NoAccountError, account_of

OLDEST = (22, 5)
TRIED = ((22, 5), (24, 11))
KILL_WAIT_S = 10
BF_INTERVAL_S = 10
BF_DEFAULT_S = 30
LIMIT_MIN = 480
JOB_S = 180
SHELL_SAYS = (126, 127)
LACKS = {
    node_probe.HUB: "JupyterHub of the hub's version",
    node_probe.LAB: "JupyterLab",
    node_probe.EXTENSION: "miglab-jupyterlab",
    node_probe.PSUTIL: "psutil",
    node_probe.NO_HUB: "a way to the hub (addresses.hub_bind)",
    node_probe.NO_LISTENER: "a way to the reclaimer (addresses.student_bind)",
}

Config = Mapping[str, str]
Check = Callable[[Config], HealthFinding]


class SlurmSilent(Exception):
    """A command could not be run, did not end in time, or failed; the message says how."""


def answer(words: Sequence[str], timeout_s: float) -> str:
    """What a Slurm command says, its complaints included.

    Raises:
        SlurmSilent: it does not answer.
    """
    try:
        done = subprocess.run(
            words,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise SlurmSilent(f"{words[0]} has not ended within {timeout_s:g} s") from None
    except OSError as error:
        raise SlurmSilent(f"{words[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise SlurmSilent((done.stderr or done.stdout).strip() or f"exit {done.returncode}")
    return done.stdout + done.stderr


def examine_slurm(settings: SlurmSettings, *, has_jobs: bool = False) -> Iterator[HealthFinding]:
    """Versions, daemons' settings, partitions, nodes, limits, and whether jobs are accepted.

    Args:
        settings: lab.toml.
        has_jobs: whether a job of a minute in each partition tells what its node lacks.
    """
    if not settings.is_on_slurm:
        return
    limit_s = settings.slurm.command_timeout_s
    try:
        config = settings_in(answer(["scontrol", "show", "config"], limit_s))
        partitions = partitions_in(answer(["scontrol", "-o", "show", "partition"], limit_s))
        picture = picture_of(settings)
    except SlurmSilent as silent:
        do = "start slurmctld and munged, or see SLURM_CONF; nothing else of Slurm was looked at"
        yield wrong("Slurm", f"unknown: {silent}", do)
        return
    yield from (check(config) for check in CHECKS)
    yield from of_partitions(settings, partitions)
    yield from of_shapes(picture)
    yield from of_cpu(picture)
    yield from of_nodes(picture)
    yield of_address(settings, picture)
    yield of_name(settings, picture)
    yield from _submissions(settings, has_jobs)


def picture_of(settings: SlurmSettings) -> ClusterPicture:
    """The lab's jobs and nodes.

    Raises:
        SlurmSilent: Slurm does not answer.
    """
    site, jobs, nodes = settings.slurm_site, Listing(JOB_FIELDS), Listing(NODE_FIELDS)
    where, limit_s = ("-h", "-p", ",".join(site.partitions)), site.command_timeout_s
    found = jobs_of(jobs, answer(["squeue", "-a", *where, "-O", jobs.option], limit_s))
    if settings.slurm_jobs.exists():
        found = Submissions(settings.slurm_jobs, settings.lab_id).recognised(found)
    said = answer(["sinfo", "-N", *where, "-O", nodes.option], limit_s)
    return ClusterPicture(0.0, 0.0, site, found, nodes_of(nodes, said))


# -- the daemons' settings -----------------------------------------------------------------------


def of_version(config: Config) -> HealthFinding:
    """Whether the version is one whose output is understood."""
    said = config.get("SLURM_VERSION", "")
    version = tuple(int(part) for part in said.split(".")[:2] if part.isdecimal())
    if version < OLDEST:
        return wrong("Slurm", f"version {said or 'unknown'}", "upgrade to 22.05 or newer")
    tried = "" if version in TRIED else "; miglab was tried with 22.05 and 24.11"
    return fine("Slurm", f"version {said}{tried}")


def of_tracking(config: Config) -> HealthFinding:
    """Whether a process that ignores SIGTERM ends with its job."""
    said = config.get("ProctrackType", "")
    if said == "proctrack/cgroup":
        return fine("process tracking", said)
    do = "set ProctrackType=proctrack/cgroup: what ignores SIGTERM outlives its job otherwise"
    return wrong("process tracking", said or "unknown", do)


def of_devices(config: Config) -> HealthFinding:
    """Whether a job can open no slice but its own."""
    has_task = "task/cgroup" in config.get("TaskPlugin", "")
    if has_task and config.get("ConstrainDevices", "").lower() == "yes":
        return fine("isolation", "task/cgroup with ConstrainDevices")
    found = f"TaskPlugin={config.get('TaskPlugin', 'unknown')}, ConstrainDevices="
    found += config.get("ConstrainDevices", "unknown")
    do = "set TaskPlugin=task/cgroup and ConstrainDevices=yes: a job can open any slice otherwise"
    return wrong("isolation", found, do)


def of_kill_wait(config: Config) -> HealthFinding:
    """Whether a job that ends blocks its node for a short time only."""
    seconds = _number(config.get("KillWait", ""))
    if seconds is not None and seconds <= KILL_WAIT_S:
        return fine("KillWait", f"{seconds} s")
    do = f"set KillWait={KILL_WAIT_S}: a job that is ending blocks its whole node for new jobs"
    return wrong("KillWait", "unknown" if seconds is None else f"{seconds} s", do)


def of_backfill(config: Config) -> HealthFinding:
    """Whether Slurm's plan for those who wait is fresh."""
    found = re.search(r"\bbf_interval=(\d+)", config.get("SchedulerParameters", ""))
    seconds = int(found[1]) if found else BF_DEFAULT_S
    if seconds <= BF_INTERVAL_S:
        return fine("backfill", f"bf_interval={seconds}")
    do = f"set SchedulerParameters=bf_interval={BF_INTERVAL_S}: starts are planned that rarely"
    return wrong("backfill", f"bf_interval={seconds}", do)


def of_limits(config: Config) -> HealthFinding:
    """Whether Slurm refuses what can never run."""
    said = config.get("EnforcePartLimits", "NO")
    if said.upper() in ("ALL", "ANY", "YES"):
        return fine("EnforcePartLimits", said)
    do = "set EnforcePartLimits=ALL: jobs above a partition's limits are accepted, and never run"
    return wrong("EnforcePartLimits", said, do)


def of_accounts(config: Config) -> HealthFinding:
    """Whether Slurm's accounts say whose a job was, for usage by course."""
    kind, flags = config.get("AccountingStorageType", ""), config.get("AccountingStoreFlags", "")
    if kind and "slurmdbd" not in kind:
        return fine("accounts", "no slurmdbd: usage is from the lab's own log")
    if "job_comment" in flags:
        return fine("accounts", f"slurmdbd, AccountingStoreFlags={flags}")
    do = "set AccountingStoreFlags=job_comment: sacct knows no course otherwise, and usage is from "
    found = f"{kind or 'unknown'}, AccountingStoreFlags={flags or 'unknown'}"
    return wrong("accounts", found, f"{do}the lab's own log")


CHECKS: tuple[Check, ...] = (
    of_version, of_tracking, of_devices, of_kill_wait, of_backfill, of_limits, of_accounts,
)  # fmt: skip


# -- partitions, shapes, nodes -------------------------------------------------------------------


def of_partitions(
    settings: SlurmSettings, partitions: Mapping[str, Mapping[str, str]]
) -> Iterator[HealthFinding]:
    """Each partition of the lab: there, open, with limits that fit, and shared with nobody."""
    site = settings.slurm_site
    for name in site.partitions:
        said = partitions.get(name)
        if said is None:
            do = f"correct [slurm]; Slurm has {', '.join(sorted(partitions))}"
            yield wrong(f"partition {name}", "Slurm has none of this name", do)
            continue
        yield _state(name, said)
        shapes = {
            shape: each.time_limit_min
            for shape, each in site.shapes.items()
            if site.partition_of(each) == name
        }
        yield _limits(name, said, shapes)
        others = sorted(
            other
            for other, each in partitions.items()
            if other not in site.partitions and each.get("Nodes") == said.get("Nodes")
        )
        if others:
            do = "give the lab nodes of its own: backfill plans whole nodes, and others' jobs with "
            do += "long limits make every wait long"
            yield wrong(f"partition {name}", f"its nodes are {', '.join(others)}'s as well", do)


def _state(name: str, said: Mapping[str, str]) -> HealthFinding:
    if said.get("State") == "UP":
        return fine(f"partition {name}", f"up, {said.get('TotalNodes', '?')} nodes")
    do = f"open it: scontrol update partition={name} state=up"
    return wrong(f"partition {name}", f"state {said.get('State', 'unknown')}", do)


def _limits(name: str, said: Mapping[str, str], shapes: Mapping[str, int]) -> HealthFinding:
    most = minutes(said.get("MaxTime", ""))
    longest = max(shapes.values())
    what = f"limits in {name}"
    if most is not None and longest > most:
        above = ", ".join(shape for shape, each in shapes.items() if each > most)
        do = f"lower time_limit_min of {above}, or raise MaxTime: such a job never starts"
        return wrong(what, f"MaxTime is {most} minutes, time_limit_min {longest}", do)
    if longest > LIMIT_MIN:
        do = "lower time_limit_min: every wait is planned as if all stayed until their limit"
        return wrong(what, f"time_limit_min is {longest}, above {LIMIT_MIN}", do)
    return fine(what, f"at most {longest} minutes")


def of_shapes(picture: ClusterPicture) -> Iterator[HealthFinding]:
    """Each shape that some node has."""
    for name, shape in picture.site.shapes.items():
        if reason := picture.why_never(shape):
            do = f"compare gres of [slurm.shapes.{name}] with `sinfo -N -o '%N %G'`"
            yield wrong(f"shape {name}", reason, do)
        elif shape.gres:
            yield fine(f"shape {name}", f"{picture.total(shape)} in {shape.gres_type}")


def of_cpu(picture: ClusterPicture) -> Iterator[HealthFinding]:
    """Whether who waits for a slice can start without a GPU meanwhile."""
    site = picture.site
    cpu = site.shapes.get(CPU)
    if cpu is None:
        return
    ours = {node.name for node in picture.nodes_of(cpu)}
    limits = [
        shape.time_limit_min
        for shape in site.shapes.values()
        if shape.gres and ours & {node.name for node in picture.nodes_of(shape)}
    ]
    if limits and cpu.time_limit_min >= min(limits):
        do = f"give {CPU} a partition of other nodes, or a much shorter time_limit_min: backfill "
        do += "plans whole nodes, so that it waits behind those who wait for slices"
        yield wrong(f"shape {CPU}", f"shares nodes with slices, {cpu.time_limit_min} minutes", do)


def of_nodes(picture: ClusterPicture) -> Iterator[HealthFinding]:
    """Each node that takes no jobs."""
    for node in picture.nodes.values():
        if not node.will_take_jobs:
            found = ", ".join(sorted(node.state)) + (f": {node.reason}" if node.reason else "")
            do = "see that its slurmd runs and is reached, then scontrol update "
            yield wrong(f"node {node.name}", found, f"{do}nodename={node.name} state=resume")


def of_address(settings: SlurmSettings, picture: ClusterPicture) -> HealthFinding:
    """Whether jobs can reach the hub."""
    nodes = {node.address for node in picture.nodes.values()}
    elsewhere = sorted(address for address in nodes if not is_loopback(address))
    if elsewhere and is_loopback(settings.hub_name):
        do = "set addresses.hub_bind to an address of this machine that the nodes reach"
        return wrong("hub", f"{settings.hub_name} is not reached from {elsewhere[0]}", do)
    return fine("hub", f"jobs ask it at {settings.hub_name}")


def of_name(settings: SlurmSettings, picture: ClusterPicture) -> HealthFinding:
    """Whether another lab of this name uses the cluster, or this one has lost its identity."""
    if told := told_of(settings.lab_id, picture.jobs.values()):
        do = "give each lab a lab.name of its own, or `miglab restore` a backup; cancel by hand "
        do += "(scancel) what nobody needs"
        return wrong("lab.name", told, do)
    return fine("lab.name", f"no other lab's job bears the name {settings.lab_id}")


# -- submitting ----------------------------------------------------------------------------------


def _submissions(settings: SlurmSettings, has_jobs: bool) -> Iterator[HealthFinding]:
    """Whether `sbatch` would take a job of each shape, as the first student that is named."""
    who = _somebody(settings)
    if settings.slurm.run_as and not who:
        yield fine("sbatch", "not tried: lab.toml names no member of a course to try it as")
        return
    site = settings.slurm_site
    try:
        account = account_of(site, who).pw_name
    except NoAccountError as error:
        do = "see slurm.unix_group, unix_accounts and least_uid"
        yield wrong("accounts", f"{who} may run no server: {error.why}", do)
        return
    prefix = as_account(site, account)
    for name, shape in site.shapes.items():
        words = [*prefix, "sbatch", "--test-only", *_options(settings, shape), "--wrap=true"]
        as_whom = f" as {who}" if prefix else ""
        try:
            answer(words, settings.slurm.command_timeout_s)
        except SlurmSilent as refused:
            do = "see account, partition and QOS in [slurm], the student's association "
            do += "(sacctmgr show assoc), and run_as"
            last = str(refused).splitlines()[-1]
            yield wrong(f"sbatch for {name}", f"refused{as_whom}: {last}", do)
        else:
            yield fine(f"sbatch for {name}", f"accepted{as_whom}")
    for name in site.partitions if has_jobs else ():
        shape = next(one for one in site.shapes.values() if site.partition_of(one) == name)
        yield _of_a_node(settings, name, shape, prefix)


def _of_a_node(
    settings: SlurmSettings, name: str, shape: SlurmShape, prefix: Sequence[str]
) -> HealthFinding:
    """What a node of a partition says in a job of a minute; `sbatch` ends as the job does."""
    site = settings.slurm_site
    bare = shape.model_copy(update={"gres": "", "reservation": "", "time_limit_min": 1})
    words = [
        *prefix, "sbatch", "--wait", f"--deadline=now+{JOB_S}", "--nodes=1", "--ntasks=1",
        "--job-name=miglab-doctor", "--chdir=/", "--output=/dev/null", *_options(settings, bare),
    ]  # fmt: skip
    program = shlex.quote(Path(node_probe.__file__).read_text(encoding="utf-8"))
    urls = f"{settings.hub_api_url} {settings.student_api_url}/api/health"
    version = ".".join(jupyterhub.__version__.split(".")[:2])
    command = f"{shape.launch or site.launch} {site.python} -c {program} {version} {urls}"
    script = f"#!/bin/bash\n{site.prologue}\nexec {command}\n"
    try:
        done = subprocess.run(words, env=clean_environment(), input=script, capture_output=True,
                              text=True, timeout=JOB_S + site.command_timeout_s)  # fmt: skip
    except subprocess.TimeoutExpired:
        do = "see squeue, and scancel the job called miglab-doctor"
        return wrong(f"nodes of {name}", f"no job has ended within {JOB_S} s", do)
    if not done.returncode:
        return fine(f"nodes of {name}", "have what a server needs, and reach hub and reclaimer")
    if done.returncode in SHELL_SAYS:
        found, do = f"cannot run {site.python}", "see slurm.python, prologue and launch"
    elif lacks := [what for bit, what in LACKS.items() if done.returncode & bit]:
        found, do = f"lack {', '.join(lacks)}", "see “Nodes” in docs/howto/slurm.md"
    else:
        last = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        found, do = f"the job of a minute failed: {last}", "see the account, its home and the node"
    return wrong(f"nodes of {name}", found, do)


def _options(settings: SlurmSettings, shape: SlurmShape) -> list[str]:
    site = settings.slurm_site
    account = shape.account or site.accounts.get(settings.students.default_course, "")
    values = {
        "partition": site.partition_of(shape),
        "gres": shape.gres,
        "account": account or site.account,
        "qos": shape.qos,
        "reservation": shape.reservation,
        "time": str(shape.time_limit_min),
    }
    return [f"--{name}={value}" for name, value in values.items() if value]


def _somebody(settings: SlurmSettings) -> str:
    """A student of the default course, or else of any."""
    default = settings.courses[settings.students.default_course]
    courses = (default, *settings.courses.values())
    return next((course.members[0] for course in courses if course.members), "")


# -- reading -------------------------------------------------------------------------------------


def settings_in(text: str) -> dict[str, str]:
    """`scontrol show config` as settings to values."""
    lines = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, sign, value in lines if sign}


def partitions_in(text: str) -> dict[str, dict[str, str]]:
    """`scontrol -o show partition`: each partition's settings, by its name."""
    found = [
        dict(word.partition("=")[::2] for word in line.split())
        for line in text.splitlines()
        if line.startswith("PartitionName=")
    ]
    return {each["PartitionName"]: each for each in found}


def minutes(text: str) -> int | None:
    """A time limit of Slurm, ``1-02:00:00``, in minutes; None for none."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, mins, _ = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + mins


def _number(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None
