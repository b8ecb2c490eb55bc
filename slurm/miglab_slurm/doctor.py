"""What doctor looks at on a Slurm site: what the lab asks of it, read from the real daemons.

Reads alone, unless jobs are asked for: `sbatch --test-only` submits nothing.  What does not answer
is told as unknown.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import jupyterhub

from miglab_api.offers import CPU
from miglab_hub.settings.tables import is_loopback
from miglab_pool.worker.health_findings import HealthFinding, fine, fine_or_wrong, wrong
from miglab_slurm import node_probe
from miglab_slurm.batch_script import probe_script
from miglab_slurm.commands import CommandFailed, as_account, run
from miglab_slurm.lab import SlurmOptions, SlurmSettings, SlurmShape, SlurmSite
from miglab_slurm.picture import ClusterPicture
from miglab_slurm.reader import read
from miglab_slurm.submissions import Submissions, look_alike_warning
from miglab_slurm.unix_accounts import NoAccountError, account_of, members_of
from miglab_spawner.backends import BackendError

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


def examine_slurm(settings: SlurmSettings, *, has_jobs: bool = False) -> list[HealthFinding]:
    """Versions, daemons' settings, partitions, nodes, limits, and whether jobs are accepted.

    Args:
        settings: lab.toml.
        has_jobs: whether a job of a minute in each partition tells what its node lacks.
    """

    async def examined() -> list[HealthFinding]:
        return [finding async for finding in _findings(settings, has_jobs)]

    return asyncio.run(examined())


async def _findings(settings: SlurmSettings, has_jobs: bool) -> AsyncIterator[HealthFinding]:
    site = settings.slurm_site
    try:
        config = settings_in(await _output_of(site, "scontrol", "show", "config"))
        partitions = partitions_in(await _output_of(site, "scontrol", "-o", "show", "partition"))
        picture = await picture_of(settings)
    except BackendError as silent:
        remedy = (
            "start slurmctld and munged, or see SLURM_CONF; nothing else of Slurm was looked at"
        )
        yield wrong("Slurm", f"unknown: {silent}", remedy)
        return
    for finding in (
        *(check(config) for check in CHECKS),
        *check_partitions(site, partitions),
        *check_shapes(picture),
        *check_cpu(picture),
        *check_nodes(picture),
        check_address(settings, picture),
        check_name(settings, picture),
    ):
        yield finding
    async for finding in _check_submissions(settings, has_jobs):
        yield finding


async def _output_of(site: SlurmSite, *command: str) -> str:
    return await run(command, site.command_timeout_s)


async def picture_of(settings: SlurmSettings) -> ClusterPicture:
    """The lab's jobs and nodes, now.

    Raises:
        BackendError: Slurm does not answer.
    """
    file = settings.slurm_jobs
    picture = await read(settings.slurm_site)
    if not file.exists():
        return picture
    submissions = Submissions(file, settings.lab_id)
    return replace(picture, jobs=submissions.with_tags(picture.jobs))


# -- the daemons' settings -----------------------------------------------------------------------


def check_version(config: Config) -> HealthFinding:
    """Whether the version is one whose output is understood."""
    release = config.get("SLURM_VERSION", "unknown")
    version = tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())
    is_new = version >= OLDEST
    untried = "; miglab was tried with 22.05 and 24.11" if is_new and version not in TRIED else ""
    return fine_or_wrong(
        "Slurm", is_new, f"version {release}{untried}", "upgrade to 22.05 or newer"
    )


def check_tracking(config: Config) -> HealthFinding:
    """Whether a process that ignores SIGTERM ends with its job."""
    plugin = config.get("ProctrackType", "unknown")
    remedy = "set ProctrackType=proctrack/cgroup: what ignores SIGTERM outlives its job otherwise"
    return fine_or_wrong("process tracking", plugin == "proctrack/cgroup", plugin, remedy)


def check_devices(config: Config) -> HealthFinding:
    """Whether a job can open no slice but its own."""
    task, devices = config.get("TaskPlugin", "unknown"), config.get("ConstrainDevices", "unknown")
    is_fine = "task/cgroup" in task and devices.lower() == "yes"
    remedy = (
        "set TaskPlugin=task/cgroup and ConstrainDevices=yes: a job can open any slice otherwise"
    )
    return fine_or_wrong(
        "isolation", is_fine, f"TaskPlugin={task}, ConstrainDevices={devices}", remedy
    )


def check_kill_wait(config: Config) -> HealthFinding:
    """Whether a job that ends blocks its node for a short time only."""
    kill_wait_s = re.match(r"\d+", config.get("KillWait", ""))
    is_fine = kill_wait_s is not None and int(kill_wait_s[0]) <= KILL_WAIT_S
    remedy = f"set KillWait={KILL_WAIT_S}: a job that is ending blocks its whole node for new jobs"
    return fine_or_wrong(
        "KillWait", is_fine, f"{kill_wait_s[0]} s" if kill_wait_s else "unknown", remedy
    )


def check_backfill(config: Config) -> HealthFinding:
    """Whether Slurm's plan for those who wait is fresh."""
    interval = re.search(r"\bbf_interval=(\d+)", config.get("SchedulerParameters", ""))
    seconds = int(interval[1]) if interval else BF_DEFAULT_S
    remedy = f"set SchedulerParameters=bf_interval={BF_INTERVAL_S}: starts are planned that rarely"
    return fine_or_wrong("backfill", seconds <= BF_INTERVAL_S, f"bf_interval={seconds}", remedy)


def check_limits(config: Config) -> HealthFinding:
    """Whether Slurm refuses what can never run."""
    enforcement = config.get("EnforcePartLimits", "NO")
    remedy = (
        "set EnforcePartLimits=ALL: jobs above a partition's limits are accepted, and never run"
    )
    return fine_or_wrong(
        "EnforcePartLimits", enforcement.upper() in ("ALL", "ANY", "YES"), enforcement, remedy
    )


def check_accounts(config: Config) -> HealthFinding:
    """Whether Slurm's accounts say whose a job was, for usage by course."""
    kind = config.get("AccountingStorageType", "unknown")
    flags = config.get("AccountingStoreFlags", "unknown")
    if "slurmdbd" not in kind and kind != "unknown":
        return fine("accounts", "no slurmdbd: usage is from the lab's own log")
    remedy = (
        "set AccountingStoreFlags=job_comment: sacct knows no course otherwise, and usage is from "
        "the lab's own log"
    )
    observed = f"{kind}, AccountingStoreFlags={flags}"
    return fine_or_wrong("accounts", "job_comment" in flags, observed, remedy)


CHECKS: tuple[Check, ...] = (
    check_version, check_tracking, check_devices, check_kill_wait, check_backfill,
    check_limits, check_accounts,
)  # fmt: skip


# -- partitions, shapes, nodes -------------------------------------------------------------------


def check_partitions(
    site: SlurmSite, partitions: Mapping[str, Mapping[str, str]]
) -> Iterator[HealthFinding]:
    """Each partition of the lab: there, open, with limits that fit, and shared with nobody."""
    for name in site.partitions:
        partition = partitions.get(name)
        if partition is None:
            remedy = f"correct [slurm]; Slurm has {', '.join(sorted(partitions))}"
            yield wrong(f"partition {name}", "Slurm has none of this name", remedy)
            continue
        yield _check_state(name, partition)
        shapes = {
            shape_name: shape.time_limit_min
            for shape_name, shape in site.shapes.items()
            if site.partition_of(shape) == name
        }
        yield _check_limits(name, partition, shapes)
        sharing = sorted(
            other_name
            for other_name, other in partitions.items()
            if other_name not in site.partitions and other.get("Nodes") == partition.get("Nodes")
        )
        if sharing:
            remedy = (
                "give the lab nodes of its own: backfill plans whole nodes, and others' jobs with "
                "long limits make every wait long"
            )
            yield wrong(
                f"partition {name}", f"its nodes are {', '.join(sharing)}'s as well", remedy
            )


def _check_state(name: str, partition: Mapping[str, str]) -> HealthFinding:
    if partition.get("State") == "UP":
        return fine(f"partition {name}", f"up, {partition.get('TotalNodes', '?')} nodes")
    remedy = f"open it: scontrol update partition={name} state=up"
    return wrong(f"partition {name}", f"state {partition.get('State', 'unknown')}", remedy)


def _check_limits(
    name: str, partition: Mapping[str, str], limits_min: Mapping[str, int]
) -> HealthFinding:
    max_time_min = minutes(partition.get("MaxTime", ""))
    longest = max(limits_min.values())
    subject = f"limits in {name}"
    if max_time_min is not None and longest > max_time_min:
        above = ", ".join(
            shape for shape, limit_min in limits_min.items() if limit_min > max_time_min
        )
        remedy = f"lower time_limit_min of {above}, or raise MaxTime: such a job never starts"
        return wrong(
            subject, f"MaxTime is {max_time_min} minutes, time_limit_min {longest}", remedy
        )
    if longest > LIMIT_MIN:
        remedy = "lower time_limit_min: every wait is planned as if all stayed until their limit"
        return wrong(subject, f"time_limit_min is {longest}, above {LIMIT_MIN}", remedy)
    return fine(subject, f"at most {longest} minutes")


def check_shapes(picture: ClusterPicture) -> Iterator[HealthFinding]:
    """Each shape that some node has."""
    for name, shape in picture.site.shapes.items():
        if reason := picture.why_never(shape):
            remedy = f"compare gres of [slurm.shapes.{name}] with `sinfo -N -o '%N %G'`"
            yield wrong(f"shape {name}", reason, remedy)
        elif shape.gres:
            yield fine(f"shape {name}", f"{picture.total(shape)} in {shape.gres_type}")


def check_cpu(picture: ClusterPicture) -> Iterator[HealthFinding]:
    """Whether who waits for a slice can start without a GPU meanwhile."""
    site = picture.site
    cpu = site.shapes.get(CPU)
    if cpu is None:
        return
    cpu_nodes = {node.name for node in picture.nodes_of(cpu)}
    limits = [
        shape.time_limit_min
        for shape in site.shapes.values()
        if shape.gres and cpu_nodes & {node.name for node in picture.nodes_of(shape)}
    ]
    if limits and cpu.time_limit_min >= min(limits):
        remedy = (
            f"give {CPU} a partition of other nodes, or a much shorter time_limit_min: backfill "
            "plans whole nodes, so that it waits behind those who wait for slices"
        )
        yield wrong(
            f"shape {CPU}", f"shares nodes with slices, {cpu.time_limit_min} minutes", remedy
        )


def check_nodes(picture: ClusterPicture) -> Iterator[HealthFinding]:
    """Each node that takes no jobs."""
    for node in picture.nodes.values():
        if not node.will_take_jobs:
            state = ", ".join(sorted(node.state)) + (f": {node.reason}" if node.reason else "")
            remedy = "see that its slurmd runs and is reached, then scontrol update "
            yield wrong(f"node {node.name}", state, f"{remedy}nodename={node.name} state=resume")


def check_address(settings: SlurmSettings, picture: ClusterPicture) -> HealthFinding:
    """Whether jobs can reach the hub."""
    nodes = {node.address for node in picture.nodes.values()}
    elsewhere = sorted(address for address in nodes if not is_loopback(address))
    if elsewhere and is_loopback(settings.hub_name):
        remedy = "set addresses.hub_bind to an address of this machine that the nodes reach"
        return wrong("hub", f"{settings.hub_name} is not reached from {elsewhere[0]}", remedy)
    return fine("hub", f"jobs ask it at {settings.hub_name}")


def check_name(settings: SlurmSettings, picture: ClusterPicture) -> HealthFinding:
    """Whether another lab of this name uses the cluster, or this one has lost its identity."""
    look_alikes = look_alike_warning(settings.lab_id, picture.jobs.values())
    remedy = (
        "give each lab a lab.name of its own, or `miglab restore` a backup; cancel by hand "
        "(scancel) what nobody needs"
    )
    alone = f"no other lab's job bears the name {settings.lab_id}"
    return fine_or_wrong("lab.name", not look_alikes, look_alikes or alone, remedy)


# -- submitting ----------------------------------------------------------------------------------


async def _check_submissions(
    settings: SlurmSettings, has_jobs: bool
) -> AsyncIterator[HealthFinding]:
    """Whether `sbatch` would take a job of each shape, as the first student that is named."""
    site, user = settings.slurm_site, first_named_user(settings)
    if site.run_as and not user:
        yield fine(
            "sbatch", "not tried: neither a course nor slurm.unix_group has a member to try it as"
        )
        return
    try:
        prefix = as_account(site.run_as, account_of(site, user).pw_name)
    except NoAccountError as error:
        remedy = "see slurm.unix_group, unix_accounts and least_uid"
        yield wrong("accounts", f"{user} may run no server: {error.cause}", remedy)
        return
    course, as_user = settings.servers.default_course, f" as {user}" if prefix else ""
    for name, shape in site.shapes.items():
        options = site.options_of(shape, course)
        try:
            await _output_of(site, *prefix, "sbatch", "--test-only", *options, "--wrap=true")
        except BackendError as refused:
            remedy = (
                "see account, partition and QOS in [slurm], the student's association "
                "(sacctmgr show assoc), and run_as"
            )
            last = str(refused).splitlines()[-1]
            yield wrong(f"sbatch for {name}", f"refused{as_user}: {last}", remedy)
        else:
            yield fine(f"sbatch for {name}", f"accepted{as_user}")
    for name in site.partitions if has_jobs else ():
        shape = next(
            candidate for candidate in site.shapes.values() if site.partition_of(candidate) == name
        )
        yield await _check_node(settings, name, shape, prefix)


async def _check_node(
    settings: SlurmSettings, name: str, shape: SlurmShape, prefix: Sequence[str]
) -> HealthFinding:
    """What a node of a partition says in a job of a minute; `sbatch` ends as the job does."""
    site, subject = settings.slurm_site, f"nodes of {name}"
    options = site.further_options(shape).model_copy(update={"reservation": ""})
    unreserved = site.model_copy(update={"options": SlurmOptions()})
    bare = shape.model_copy(update={"gres": "", "options": options, "time_limit_min": 1})
    command = [
        *prefix, "sbatch", "--wait", f"--deadline=now+{JOB_S}", "--job-name=miglab-doctor",
        "--chdir=/", "--output=/dev/null",
        *unreserved.options_of(bare, settings.servers.default_course),
    ]  # fmt: skip
    urls = settings.hub_api_url, f"{settings.student_api_url}/api/health"
    version = ".".join(jupyterhub.__version__.split(".")[:2])
    script = probe_script(site, shape, node_probe, version, *urls)
    try:
        await run(command, JOB_S + site.command_timeout_s, script)
    except CommandFailed as failed:
        return wrong(subject, *_missing_on_node(site, failed))
    except BackendError as silent:
        remedy = "see squeue, and scancel the job called miglab-doctor"
        return wrong(subject, f"unknown: {silent}", remedy)
    return fine(subject, "have what a server needs, and reach hub and reclaimer")


def _missing_on_node(site: SlurmSite, failed: CommandFailed) -> tuple[str, str]:
    """What a job of a minute found missing by its exit status, and what to do."""
    if failed.status in SHELL_SAYS:
        return f"cannot run {site.python}", "see slurm.python, prologue and launch"
    if lacks := [component for bit, component in LACKS.items() if failed.status & bit]:
        return f"lack {', '.join(lacks)}", "see “Nodes” in docs/howto/slurm.md"
    last = str(failed).splitlines()[-1]
    return f"the job of a minute failed: {last}", "see the account, its home and the node"


def first_named_user(settings: SlurmSettings) -> str:
    """Who is named as one who may run servers, a student of the default course first; or empty."""
    default = settings.courses[settings.servers.default_course]
    rosters = [course.members for course in (default, *settings.courses.values())]
    groups = (*rosters, tuple(settings.slurm.unix_accounts), members_of(settings.slurm.unix_group))
    return next((names[0] for names in groups if names), "")


# -- reading -------------------------------------------------------------------------------------


def settings_in(text: str) -> dict[str, str]:
    """`scontrol show config` as settings to values."""
    lines = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, sign, value in lines if sign}


def partitions_in(text: str) -> dict[str, dict[str, str]]:
    """`scontrol -o show partition`: each partition's settings, by its name."""
    partitions = [
        dict(pair.partition("=")[::2] for pair in line.split())
        for line in text.splitlines()
        if line.startswith("PartitionName=")
    ]
    return {fields["PartitionName"]: fields for fields in partitions}


def minutes(text: str) -> int | None:
    """A time limit of Slurm, ``1-02:00:00``, in minutes; None for none."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, mins, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + mins
