"""The wheelhouse: every Python package an image needs, resolved by the image's own Python.

It is filled in a container of the base, on the host's network, with the host's pip settings and
certificates: what pip reaches on the host, it reaches there.  The build after it needs no network.
"""

import os
import shlex
import shutil
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

from building.shell import digest, output, run, say

PASSED_ON = ("http_proxy", "https_proxy", "no_proxy")
PIP_KEYS = (
    "index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "cert", "timeout",
)  # fmt: skip
NPM_KEYS = ("NODE_EXTRA_CA_CERTS", "NPM_CONFIG_REGISTRY", "npm_config_registry")
FILL = Path(__file__).parent / "fill_wheelhouse.sh"
PINS = Path(__file__).resolve().parents[2] / "requirements"
PIN = Path(__file__).parent / "pin.sh"
PINNED = "pinned"
TORCH_PINS = [PINS / f"{name}.txt" for name in ("torch", "torch-cuda", "notebooks")]


def pip_settings() -> dict[str, str]:
    """The host's pip settings as environment variables; a variable wins over a file, as in pip."""
    found: dict[str, str] = {}
    listed = output(sys.executable, "-m", "pip", "config", "list").splitlines()
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if key.startswith(("global.", "install.", "download.", ":env:")) and name in PIP_KEYS:
            text = value.strip().strip("'\"").replace("\\n", " ")
            found[f"PIP_{name.upper().replace('-', '_')}"] = text
    return found


def certificates() -> str:
    """The host's CA bundle; empty if there is none."""
    wanted = (os.environ.get("PIP_CERT"), ssl.get_default_verify_paths().cafile)
    here = [path for path in (*wanted, "/etc/ssl/certs/ca-certificates.crt") if path]
    return next((path for path in here if Path(path).is_file()), "")


def local_paths(settings: dict[str, str]) -> list[str]:
    """The folders and files of this machine that pip's settings name."""
    words = [word for value in settings.values() for word in value.split()]
    paths = [urlsplit(word).path if word.startswith("file:") else word for word in words]
    there = [Path(path) for path in paths if path.startswith("/")]
    # An index is a folder `simple` that links to its sibling with the files.
    return sorted(
        {str(path.parent if path.name == "simple" else path) for path in there if path.exists()}
    )


def settings_for_container() -> tuple[dict[str, str], list[str]]:
    """The environment and the read-only mounts that give a container this machine's pip and npm."""
    settings = pip_settings()
    bundle = certificates()
    if bundle:
        settings.setdefault("PIP_CERT", bundle)
        settings["NODE_EXTRA_CA_CERTS"] = bundle
    mounts = local_paths(settings)
    for name in (*PASSED_ON, *(name.upper() for name in PASSED_ON), *NPM_KEYS):
        if name in os.environ:
            settings.setdefault(name, os.environ[name])
    npmrc = Path.home() / ".npmrc"
    if npmrc.is_file():
        settings["NPM_CONFIG_USERCONFIG"] = str(npmrc)
        mounts.append(str(npmrc))
    return settings, mounts


def fill(base: str, base_id: str, wanted: Path, into: Path, torch: str) -> None:
    """Fill ``into`` with what the requirement files in ``wanted`` name, unless it is there already.

    Args:
        base: the image whose Python resolves.
        base_id: its id: another base means resolving anew.
        wanted: a folder of ``*.txt`` requirement files (and a package-lock.json for npm).
        into: the wheelhouse; one folder in it per requirement file.
        torch: a requirement for PyTorch, or `PINNED`; empty for an image without.
    """
    names = [*wanted.glob("*.txt"), *wanted.glob("package*.json"), FILL]
    names += TORCH_PINS if torch == PINNED else []
    inputs = digest(base_id, torch, files=names)
    stamp = into / "inputs"
    if stamp.exists() and stamp.read_text() == inputs:
        say(f"wheelhouse of {into.parent.name}: unchanged")
        return
    say(f"wheelhouse of {into.parent.name}: resolving with the base's own Python")
    fresh = into.with_name(f"{into.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    in_container(base, wanted, fresh, FILL, torch)
    (fresh / "inputs").write_text(inputs)
    shutil.rmtree(into, ignore_errors=True)
    fresh.rename(into)


def in_container(base: str, wanted: Path, fresh: Path, script: Path, torch: str) -> None:
    """Run a script that asks pip, as the user who builds, in a container of the base."""
    settings, paths = settings_for_container()
    settings["TORCH"] = torch
    own = {wanted: "/wanted:ro", fresh: "/wheels", script: "/script.sh:ro", PINS: "/pins:ro"}
    mounts = [f"{path}:{path}:ro" for path in paths]
    mounts += [f"{path}:{place}" for path, place in own.items()]
    flags = [flag for mount in mounts for flag in ("-v", mount)]
    flags += [flag for name in settings for flag in ("-e", name)]  # values stay out of `ps`
    who = ("--user", f"{os.getuid()}:{os.getgid()}", "-e", "HOME=/tmp")
    start, script_run = ("docker", "run", "--rm", "--network", "host"), (base, "sh", "-eu")
    say(shlex.join([*start, "…", *script_run, "/script.sh"]))
    run(*start, *who, *flags, *script_run, "/script.sh", env={**os.environ, **settings})
