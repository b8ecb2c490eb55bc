"""Which links may bring a repository's files into the home, and where to: decided before any git.

A link is written by somebody else than the person who opens it, so nothing in it is trusted: the
repository must be one that the lab names, and the folder a plain one of the home.  In a hidden
folder (``.ipython``, ``.jupyter``, ``.ssh``) a file is not read but run.  Must not import
nbgitpuller, which most servers do not have.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
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
        shown: the same as a path in the home.
        branch: empty for the repository's own.
        depth: how many commits; 0 for nbgitpuller's default.
        backup: whether a folder that is there is put aside first.
    """

    repo: str
    folder: Path
    shown: str
    branch: str = ""
    depth: int = 0
    backup: bool = False


def read_link(argument: Argument, allowed: Sequence[str], root: Path) -> GitLink:
    """What a link asks for.

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
    shown = target.rstrip("/")
    folder = _folder_in_home(shown, root)
    return GitLink(repo, folder, shown, branch, int(depth or 0), bool(argument("backup")))


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
    given, wanted = urlsplit(repo), urlsplit(prefix)
    if (given.scheme, given.netloc.lower()) != (wanted.scheme, wanted.netloc.lower()):
        return False
    path, above = given.path.split("/")[1:], wanted.path.rstrip("/").split("/")[1:]
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
