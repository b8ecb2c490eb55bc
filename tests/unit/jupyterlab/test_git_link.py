"""What a link may fetch and where to, and what git is kept from while it fetches."""

import shutil
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from miglab_jupyterlab.git_pull import GitLink, LinkRefused, git_environment, read_link

ALLOWED = ("https://github.com/example/", "https://git.example.edu:8443/courses/vision")
REPO = "https://github.com/example/exercises"
with_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git: apt-get install git")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    for folder in (".ipython/startup", "notebooks"):
        (home / folder).mkdir(parents=True)
    (home / "hidden").symlink_to(".ipython")
    (home / "outside").symlink_to(tmp_path)
    (home / "circle").symlink_to("circle")
    (home / "short").symlink_to("notebooks")
    return home


def read(home: Path, **parameters: str) -> GitLink:
    return read_link(lambda name: parameters.get(name, ""), ALLOWED, home)


@pytest.mark.parametrize(
    ("repo", "folder"),
    [
        (REPO, "exercises"),
        (f"{REPO}/", "exercises"),
        ("https://GitHub.com/example/week-2.git", "week-2.git"),
        ("https://git.example.edu:8443/courses/vision/a/b", "b"),
        ("https://git.example.edu:8443/courses/vision", "vision"),
    ],
)
def test_repositories_below_a_prefix(home: Path, repo: str, folder: str):
    """Scheme, host and segments are the prefix's; the folder has the repository's name."""
    assert read(home, repo=repo).folder == home / folder


@pytest.mark.parametrize(
    "repo",
    [
        "",
        "example/exercises",
        "https://github.com/example-evil/exercises",
        "https://github.com/examples",
        "https://github.com.evil.example/example/exercises",
        "https://github.com@evil.example/example/exercises",
        "https://ada:secret@github.com/example/exercises",
        "https://github.com:8443/example/exercises",
        "https://github.com/example/../mallory/exercises",
        "https://github.com/example/./../mallory/exercises",
        "https://github.com/example//exercises",
        "https://github.com/example/%2e%2e/mallory",
        "https://github.com\\@evil.example/example/x",
        "https://github.com/example/x?y",
        "https://github.com/example/x#y",
        "https://github.com/example/x\n",
        "http://github.com/example/exercises",
        "ssh://github.com/example/exercises",
        "git@github.com:example/exercises",
        "file:///example/exercises",
        "ext::sh -c touch% PWNED",
        "--upload-pack=touch PWNED",
        "https://git.example.edu/courses/vision",
        "https://git.example.edu:8443/courses/vision2",
    ],
)
def test_any_other_repository_is_refused(home: Path, repo: str):
    """The message says which are allowed, and who can allow more."""
    with pytest.raises(LinkRefused, match=r"github.com/example/.*servers\.git_links"):
        read(home, repo=repo)


@pytest.mark.parametrize("target", ["week1", "notebooks/week1", "a/b/c", "week1/", "short/week1"])
def test_folders_in_the_home(home: Path, target: str):
    """A plain folder, there or not, also through a link that stays inside."""
    link = read(home, repo=REPO, targetpath=target)
    assert link.folder == (home / target).resolve()


@pytest.mark.parametrize(
    "target",
    [
        ".",
        "..",
        ".ipython/profile_default/startup",
        "week1/.git/hooks",
        "../home/week1",
        "a/../../b",
        "/etc",
        "//etc",
        "a//b",
        "hidden",
        "hidden/startup",
        "outside/week1",
        "circle",
        "a\0b",
    ],
)
def test_any_other_folder_is_refused(home: Path, target: str):
    """Neither hidden nor outside, by its name or by where links lead; in both spellings."""
    for name in ("targetpath", "targetPath"):
        with pytest.raises(LinkRefused, match="no part of it may begin with a dot"):
            read(home, repo=REPO, **{name: target})


@pytest.mark.parametrize(
    "parameters",
    [
        {"branch": "--upload-pack=x"},
        {"branch": "+main:other"},
        {"branch": "a..b"},
        {"branch": "a b"},
        {"depth": "-1"},
        {"depth": "1; x"},
        {"urlpath": "../mallory/lab"},
        {"urlPath": "lab/../../mallory"},
    ],
)
def test_odd_parameters_are_refused(home: Path, parameters: dict[str, str]):
    """A branch is no option and no refspec, a depth a number, the next page one of this server."""
    with pytest.raises(LinkRefused):
        read(home, repo=REPO, **parameters)


def test_plain_parameters_are_kept(home: Path):
    """Branch, depth and backup go on to nbgitpuller; but not where links are switched off."""
    parameters = {"repo": REPO, "branch": "feature/x-1.2", "depth": "3", "backup": "true"}
    link = read(home, **parameters)
    assert (link.branch, link.depth, link.backup) == ("feature/x-1.2", 3, True)
    with pytest.raises(LinkRefused, match="switched off"):
        read_link(lambda name: parameters.get(name, ""), (), home)


class Redirect(BaseHTTPRequestHandler):
    """Sends everybody somewhere else."""

    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        self.send_response(302)
        self.send_header("Location", f"/elsewhere{self.path}")
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def redirecting() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Redirect)
    server.paths = []  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def git(repo: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = git_environment(repo) | {"no_proxy": "*"} | variables
    return subprocess.run(["git", *arguments], env=env, capture_output=True, text=True, check=False)


@with_git
def test_a_redirect_is_not_followed(redirecting: HTTPServer):
    """It could lead to a repository that the lab does not allow."""
    repo = f"http://127.0.0.1:{redirecting.server_port}/example/x"
    assert git(repo, "ls-remote", "--", repo).returncode != 0
    assert [path.startswith("/elsewhere") for path in redirecting.paths] == [False]  # type: ignore[attr-defined]


@with_git
def test_git_speaks_no_other_protocol(tmp_path: Path):
    """Neither files nor commands, where the repository's server speaks https."""
    subprocess.run(["git", "init", "--quiet", tmp_path / "x"], check=True)
    for other in ((tmp_path / "x").as_uri(), f"ext::touch {tmp_path}/PWNED"):
        assert "not allowed" in git(REPO, "ls-remote", "--", other).stderr
    assert not (tmp_path / "PWNED").exists()


@with_git
def test_neither_submodules_nor_links_nor_hooks(tmp_path: Path):
    """Whatever the student's own git does with them."""
    config = tmp_path / "gitconfig"
    config.write_text("[user]\nname = x\nemail = x@x\n[submodule]\nrecurse = true\n")
    upstream, repo = tmp_path / "made", (tmp_path / "made").as_uri()
    student_environment = {"GIT_CONFIG_GLOBAL": str(config)}

    def upstream_git(*arguments: str, folder: Path = upstream) -> None:
        command = ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *arguments]
        subprocess.run(
            command,
            env=student_environment | {"PATH": "/usr/bin:/bin"},
            check=True,
            capture_output=True,
        )

    for folder in (upstream, tmp_path / "inner"):
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        (folder / "file").write_text("x")
        upstream_git("add", "file", folder=folder)
        upstream_git("commit", "-m", "x", folder=folder)
    upstream_git("submodule", "add", (tmp_path / "inner").as_uri(), "inner")
    (upstream / "link").symlink_to("/etc")
    upstream_git("add", "link")
    upstream_git("commit", "-m", "link")
    copy = tmp_path / "copy"
    assert git(repo, "clone", "--", repo, str(copy), **student_environment).returncode == 0
    assert not list((copy / "inner").iterdir())
    assert not (copy / "link").is_symlink()
    hook = copy / ".git/hooks/post-merge"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
    hook.chmod(0o755)
    (upstream / "file").write_text("y")
    upstream_git("commit", "-am", "y")
    assert git(repo, "-C", str(copy), "pull", **student_environment).returncode == 0
    assert (copy / "file").read_text() == "y"
    assert not (tmp_path / "PWNED").exists()
