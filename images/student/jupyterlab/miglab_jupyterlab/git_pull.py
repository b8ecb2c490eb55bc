"""Which links may bring a repository's files into the home, where to, and the fetching itself.

A link is written by somebody else than the person who opens it, so nothing in it is trusted, and
all is decided before any git: the repository must be one that the lab names, and the folder a plain
one of the home.  In a hidden folder (``.ipython``, ``.jupyter``, ``.ssh``) a file is not read but
run.

The files are fetched in a process of its own (``python -m … LINK`` prints JSON lines), because
nbgitpuller starts git with the environment that it has itself, and what keeps git to the repository
that was agreed to must not reach the student's own git.  Most servers do not have nbgitpuller.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PLAIN_URL = re.compile(r"(https|file)://[\w.:~/+-]+", re.ASCII)  # no user, query, escape or space
PLAIN_BRANCH = re.compile(r"\w[\w./+-]*", re.ASCII)  # neither an option nor a refspec
DEPTHS = re.compile(r"[1-9][0-9]{0,5}", re.ASCII)

Argument = Callable[[str], str]


class LinkRefused(Exception):
    """The link asks for something that no link may do; the message says what."""


@dataclass(frozen=True)
class GitLink:
    """What one link does once its reader has agreed.

    Attributes:
        repo: the repository's URL.
        folder: where its files go, absolute, with all links resolved.
        path: the same as a path in the home.
        branch: empty for the repository's own.
        depth: how many commits; 0 for nbgitpuller's default.
        backup: whether a folder that is there is put aside first.
    """

    repo: str
    folder: Path
    path: str
    branch: str = ""
    depth: int = 0
    backup: bool = False


def read_link(argument: Argument, allowed: Sequence[str], root: Path) -> GitLink:
    """Return what a link asks for.

    Args:
        argument: a parameter of the link by its name; empty if the link does not have it.
        allowed: the lab's ``servers.git_links``.
        root: the home folder.

    Raises:
        LinkRefused: no link may do this.
    """
    repo = argument("repo").rstrip("/")
    _check_repository(repo, allowed)
    target = argument("targetpath") or argument("targetPath") or repo.rsplit("/", 1)[-1]
    branch, depth = argument("branch"), argument("depth")
    if branch and (not PLAIN_BRANCH.fullmatch(branch) or ".." in branch):
        raise LinkRefused(f"{branch!r} is not the name of a branch.")
    if depth and not DEPTHS.fullmatch(depth):
        raise LinkRefused(f"The depth {depth!r} is not a number of commits.")
    if ".." in (argument("urlpath") or argument("urlPath")).split("/"):
        raise LinkRefused("The page to open afterwards (urlpath) must not contain '..'.")
    path = target.rstrip("/")
    folder = _folder_in_home(path, root)
    return GitLink(repo, folder, path, branch, int(depth or 0), bool(argument("backup")))


def _check_repository(repo: str, allowed: Sequence[str]) -> None:
    if not allowed:
        raise LinkRefused(
            "Links to git repositories are switched off in this lab. Whoever runs the lab can "
            "allow repositories with servers.git_links in lab.toml."
        )
    if not PLAIN_URL.fullmatch(repo) or not any(_is_below(repo, prefix) for prefix in allowed):
        raise LinkRefused(
            f"This lab does not fetch files from {repo[:200]!r}, only from {', '.join(allowed)}. "
            "Whoever runs the lab can allow more with servers.git_links in lab.toml."
        )


def _is_below(repo: str, prefix: str) -> bool:
    """Whether a repository lies below a prefix: of the same scheme and host, segment by segment."""
    repo_url, prefix_url = urlsplit(repo), urlsplit(prefix)
    if (repo_url.scheme, repo_url.netloc.lower()) != (prefix_url.scheme, prefix_url.netloc.lower()):
        return False
    path, above = repo_url.path.split("/")[1:], prefix_url.path.rstrip("/").split("/")[1:]
    return not {"", ".", ".."} & set(path) and path[: len(above)] == above


def _folder_in_home(target: str, root: Path) -> Path:
    """The folder, which is inside the home without a hidden part, wherever links in it lead."""
    home = root.resolve()
    try:
        folder = (home / target).resolve()
        parts = (*target.split("/"), *folder.relative_to(home).parts)
    except (ValueError, OSError, RuntimeError):  # outside; a NUL; links in a circle
        parts = ("",)
    if any(not part or part.startswith(".") for part in parts):
        raise LinkRefused(
            f"The folder {target[:200]!r} (targetpath) is not one that a link may fill: it must "
            "be inside the home, and no part of it may begin with a dot."
        )
    return folder


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


def pull_command(link: GitLink) -> list[str]:
    """Return the command that fetches the files; run it in `git_environment`."""
    arguments = asdict(link) | {"folder": str(link.folder)}
    return [sys.executable, "-m", "miglab_jupyterlab.git_pull", json.dumps(arguments)]


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
        _print_event(phase="syncing", output=line)


def _origin(folder: str) -> str:
    """The repository that a folder was cloned from; empty if it is not a clone itself."""
    if not (Path(folder) / ".git").is_dir():
        return ""
    git_config = ["git", "-C", folder, "config", "--local", "--get", "remote.origin.url"]
    return subprocess.run(git_config, capture_output=True, text=True, check=False).stdout.strip()


def _print_event(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    """Fetch the files, and print each step as nbgitpuller's page expects it."""
    from nbgitpuller.errors import GitPullerError

    link = json.loads(sys.argv[1])
    del link["path"]
    try:
        pull(**link)
        _print_event(phase="finished")
    except Exception as error:  # the outer frame: whatever it was, the page says so
        details = GitPullerError.from_exception(error).to_dict()
        _print_event(phase="error", message=str(error), output=f"{error}\n", error=details)


if __name__ == "__main__":
    main()
