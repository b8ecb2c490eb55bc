"""Lines about the host: versions, engine, CDI, and the right to make slices.  Reads only."""

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from miglab_hub import __version__
from miglab_hub.mig_capability import CAPABILITY, NODES, missing_rights
from miglab_hub.prove.lines import CannotTry, LineAnswer
from miglab_hub.prove.trial import ContainerSettings, Trial

CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"
NOT_READ = "the lab asks this engine for the hook, which does not read it"
TOOLS = ("nvidia-container-cli", "nvidia-ctk")
ENGINE_S = 10
DAY_S = 86400.0


def check_versions(trial: Trial) -> Iterator[LineAnswer]:
    """Report the versions of driver, engine and packages."""
    host = trial.driver.versions()
    facts = {
        "miglab": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "driver": host.driver,
        "cuda": host.cuda,
        "nvidia-ml-py": _package("nvidia-ml-py"),
        **{tool: _tool_version(tool) for tool in TOOLS if shutil.which(tool)},
    }
    result = f"driver {host.driver}, CUDA {host.cuda}, miglab {__version__}"
    yield LineAnswer.judged("versions", host.driver is not None, result, facts=facts)


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _tool_version(tool: str) -> str:
    tool_run = subprocess.run(
        [tool, "--version"], capture_output=True, text=True, check=False, timeout=ENGINE_S
    )
    return tool_run.stdout.strip().splitlines()[0] if tool_run.stdout.strip() else "unknown"


def check_engine(trial: Trial) -> Iterator[LineAnswer]:
    """Check what the Docker engine reports of itself."""
    info, numbers = _ask_engine(container_settings(trial))
    runtimes = sorted(info.get("Runtimes") or ())
    facts = {
        "version": numbers.get("Version"),
        "api": numbers.get("ApiVersion"),
        "runtimes": runtimes,
        "default_runtime": info.get("DefaultRuntime"),
        "cgroup_driver": info.get("CgroupDriver"),
        "cgroup_version": info.get("CgroupVersion"),
        "live_restore": info.get("LiveRestoreEnabled"),
        "storage": info.get("Driver"),
        "cdi_folders": info.get("CDISpecDirs"),
    }
    has_runtime = "with" if "nvidia" in runtimes else "without"
    result = (
        f"engine {facts['version']} {has_runtime} the runtime nvidia, "
        f"cgroup driver {facts['cgroup_driver']}"
    )
    yield LineAnswer.judged("engine", bool(facts["version"]), result, facts=facts)


def check_cdi(trial: Trial) -> Iterator[LineAnswer]:
    """Check that no CDI specification hides new slices from the engine."""
    specifications = [
        _specification(file) for folder in CDI_FOLDERS for file in sorted(folder.glob("*"))
    ]
    of_gpus = [spec for spec in specifications if spec["is_of_gpus"]]
    facts = {"specifications": of_gpus, "folders_seen": [str(f) for f in CDI_FOLDERS if f.is_dir()]}
    if not of_gpus:
        yield LineAnswer.judged(
            "cdi", True, f"no specification of {CDI_KIND} is visible here", facts=facts
        )
        return
    newest = min(spec["age_days"] for spec in of_gpus)
    result = f"a specification of {CDI_KIND} exists, {newest} days old"
    try:
        info, numbers = _ask_engine(container_settings(trial))
    except CannotTry:
        result += ", and no engine says whether it would use it"
        yield LineAnswer.judged("cdi", False, result, facts=facts)
        return
    problems = _cdi_problems(str(numbers.get("Version")), info)
    result = "; ".join([result, *(problems or [NOT_READ])])
    yield LineAnswer.judged("cdi", not problems, result, facts=facts)


def _cdi_problems(version: str, info: dict[str, Any]) -> list[str]:
    """Return doctor's findings on an engine and CDI."""
    from miglab_hub.engine_findings import (  # Docker's client is installed
        CDI,
        examine_engine_settings,
    )

    findings = examine_engine_settings(version, info)
    return [finding.observation for finding in findings if finding.subject == CDI]


def _specification(file: Path) -> dict[str, Any]:
    try:
        text, age_s = file.read_text(errors="replace"), time.time() - file.stat().st_mtime
    except OSError:
        text, age_s = "", 0.0
    return {
        "folder": str(file.parent),
        "is_of_gpus": CDI_KIND in text,
        "names_mig": "nvidia-cap" in text,
        "age_days": round(age_s / DAY_S, 1),
    }


def check_mig_rights(trial: Trial) -> Iterator[LineAnswer]:
    """Check that this process, like the pool's, may open the capability of MIG."""
    if trial.simulated_state is not None:
        raise CannotTry("simulated GPUs need no capability")
    if not CAPABILITY.exists():
        raise CannotTry(f"{CAPABILITY} is not there: no driver, or no GPU with MIG")
    why_not = missing_rights()
    facts = {"is_root": os.geteuid() == 0, "nodes": sorted(node.name for node in NODES.glob("*"))}
    result = why_not or "its device can be opened"
    yield LineAnswer.judged("mig-rights", not why_not, result, facts=facts)


def container_settings(trial: Trial) -> ContainerSettings:
    """Return how students' containers are started.

    Raises:
        CannotTry: they are none.
    """
    if trial.servers is None:
        raise CannotTry(trial.no_servers)
    return trial.servers


def _ask_engine(servers: ContainerSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        import docker  # noqa: TID251 - a proof asks the Docker engine, as doctor does
    except ImportError:
        raise CannotTry("Docker's Python client is not installed") from None
    from requests import RequestException

    try:
        with closing(docker.APIClient(servers.docker_url, timeout=ENGINE_S, version="auto")) as api:
            return json.loads(json.dumps(api.info())), api.version()
    except (docker.errors.DockerException, RequestException) as error:
        raise CannotTry(f"the Docker engine does not answer ({type(error).__name__})") from error
