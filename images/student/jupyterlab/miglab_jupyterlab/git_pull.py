"""Fetches the files of one link, in a process of its own: ``python -m … LINK`` prints JSON lines.

A process of its own, because nbgitpuller starts git with the environment that it has itself, and
what keeps git to the repository that was agreed to must not reach the student's own git.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from miglab_jupyterlab.git_link import GitLink


def git_environment(repo: str) -> dict[str, str]:
    """The environment in which git speaks to this repository's kind of server and runs nothing.

    A redirect could lead to a repository that the lab does not allow, a submodule is one, and a
    link in a checkout could lead git's or nbgitpuller's next write to another folder.
    """
    settings = {
        "protocol.allow": "never",
        f"protocol.{urlsplit(repo).scheme}.allow": "always",
        "http.followRedirects": "false",
        "submodule.recurse": "false",
        "fetch.recurseSubmodules": "false",
        "core.symlinks": "false",
        "core.hooksPath": os.devnull,
        "core.fsmonitor": "false",
    }
    pairs = enumerate(settings.items())
    numbered = {
        name: value
        for at, (key, setting) in pairs
        for name, value in ((f"GIT_CONFIG_KEY_{at}", key), (f"GIT_CONFIG_VALUE_{at}", setting))
    }
    count = {"GIT_CONFIG_COUNT": str(len(settings))}
    return {**os.environ, **numbered, **count, "GIT_TERMINAL_PROMPT": "0"}


def command(link: GitLink) -> list[str]:
    """What fetches the files; `git_environment` goes with it."""
    given = asdict(link) | {"folder": str(link.folder)}
    return [sys.executable, "-m", "miglab_jupyterlab.git_pull", json.dumps(given)]


def pull(repo: str, folder: str, branch: str, depth: int, backup: bool) -> None:
    """Clone into the folder, or bring what is new into it.

    Raises:
        ValueError: the folder holds something else.
    """
    from nbgitpuller.pull import GitPuller

    if Path(folder).exists() and _origin(folder) != repo:
        raise ValueError(
            f"The folder {folder} is there already and does not hold this repository: rename or "
            "delete it, then open the link again."
        )
    depths = {"depth": depth} if depth else {}
    for line in GitPuller(repo, folder, branch=branch or None, backup=backup, **depths).pull():
        _tell(phase="syncing", output=line)


def _origin(folder: str) -> str:
    """The repository that a folder was cloned from; empty if it is not a clone itself."""
    if not (Path(folder) / ".git").is_dir():
        return ""
    asked = ["git", "-C", folder, "config", "--local", "--get", "remote.origin.url"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    """Fetch, and tell each step as nbgitpuller's page expects it."""
    from nbgitpuller.errors import GitPullerError

    link = json.loads(sys.argv[1])
    del link["shown"]
    try:
        pull(**link)
        _tell(phase="finished")
    except Exception as error:  # the outer frame: whatever it was, the page says so
        found = GitPullerError.from_exception(error).to_dict()
        _tell(phase="error", message=str(error), output=f"{error}\n", error=found)


if __name__ == "__main__":
    main()
