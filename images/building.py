"""How an image is made: the base (slim Debian with Python and tini), the wheelhouse, the image.

The wheelhouse has every Python package that the image needs, resolved by the image's own Python.
It is filled in a container of the base, on the host's network, with the host's pip settings and
certificates: what pip reaches on the host, it reaches there.  The build after it needs no network.

Whatever was made from the same inputs is left as it is.  Standard library only.
"""

import hashlib
import os
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

IMAGES = Path(__file__).resolve().parent
PINS = IMAGES.parent / "requirements"
BASE = "miglab-base"
STUDENT, COMPILER = "miglab-student", "miglab-student:compiler"
FILL, PIN = IMAGES / "base/fill_wheelhouse.sh", IMAGES / "base/pin.sh"
PACKAGES = ("ca-certificates", "python3", "python3-venv", "tini")
COMPILER_PACKAGES = ("g++", "libpython3-dev")
PULL_S = 300
LABEL = "miglab.inputs"
IGNORED = shutil.ignore_patterns(
    "__pycache__", "*.egg-info", ".ipynb_checkpoints", "*.ipynb", "wanted"
)
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy")
PIP_KEYS = (
    "index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "cert", "timeout",
)  # fmt: skip
NPM_KEYS = ("NODE_EXTRA_CA_CERTS", "NPM_CONFIG_REGISTRY", "npm_config_registry")
PINNED = "pinned"
TORCH_PINS = [PINS / f"{name}.txt" for name in ("torch", "torch-cuda", "notebooks")]


class BuildError(Exception):
    """The build cannot go on; the message says what failed, on what, and what to do."""


# -- the base --------------------------------------------------------------------------------------


def make_base(image: str) -> str:
    """Make the base from ``image`` unless it is there; returns its image id."""
    if inputs_of(BASE) != base_inputs(image):
        pull(image)
        say(f"{image} is {_digest_of(image)}: as --base-image, that makes the same base again")
    return build_with_packages(
        BASE, IMAGES / "base", base_inputs(image), PACKAGES, BASE_IMAGE=image
    )


def base_inputs(image: str) -> str:
    """The hash of what the base is made from."""
    return digest(image, *PACKAGES, files=[IMAGES / "base/Dockerfile"])


def make_compiler() -> str:
    """Make the student's image with a compiler, over the one without; returns its image id."""
    home, below = IMAGES / "compiler", image_id(STUDENT)
    inputs = digest(below, *COMPILER_PACKAGES, files=[home / "Dockerfile"])
    return build_with_packages(COMPILER, home, inputs, COMPILER_PACKAGES, STUDENT=STUDENT)


def build_with_packages(
    name: str, home: Path, inputs: str, packages: Iterable[str], **arguments: str
) -> str:
    """Build an image that gets packages of its distribution, unless it is there.

    Args:
        name: of the image.
        home: the folder with its Dockerfile.
        inputs: the hash of what it is made from.
        packages: their names.
        arguments: of the Dockerfile.

    Returns:
        Its image id.
    """
    if inputs_of(name) == inputs:
        say(f"{name}: unchanged")
        return image_id(name)
    arguments["PACKAGES"] = " ".join(packages)
    flags = ["--label", f"{LABEL}={inputs}"]
    for key, value in arguments.items():
        flags += ["--build-arg", f"{key}={value}"]
    run("docker", "build", "--network", "host", "-t", name, *flags, str(home))
    return image_id(name)


def pull(image: str) -> None:
    """Pull ``image`` unless it is here.

    Raises:
        BuildError: no registry gives it.
    """
    if image_id(image):
        return
    command = ["docker", "pull", image]
    try:
        pulled = subprocess.run(command, timeout=PULL_S, capture_output=True, text=True)
        problem = pulled.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        problem = f"no answer in {PULL_S} s"
    if not image_id(image):
        raise BuildError(f"cannot pull {image}: {problem}; name one that is here: --base-image")


def _digest_of(image: str) -> str:
    """A pulled image's name by its digest, which no registry can give to another."""
    digests = inspect_image(image, "{{range .RepoDigests}}{{println .}}{{end}}")
    return digests.partition("\n")[0] or "without a digest, since it was built here"


# -- the wheelhouse --------------------------------------------------------------------------------


def fill_wheelhouse(base_id: str, requirements: Path, into: Path, torch: str) -> None:
    """Fill the wheelhouse ``into`` with what the requirement files name, unless it is up to date.

    Args:
        base_id: the base's id: another base means resolving anew.
        requirements: a folder of ``*.txt`` requirement files (and a package-lock.json for npm).
        into: the wheelhouse; one folder in it per requirement file.
        torch: a requirement for PyTorch, or `PINNED`; empty for an image without.
    """
    names = [*requirements.glob("*.txt"), *requirements.glob("package*.json"), FILL]
    names += TORCH_PINS if torch == PINNED else []
    inputs = digest(base_id, torch, files=names)
    stamp = into / "inputs"
    if stamp.exists() and stamp.read_text() == inputs:
        say(f"wheelhouse of {into.parent.name}: unchanged")
        return
    say(f"wheelhouse of {into.parent.name}: resolving with the base's own Python")
    fresh = into.with_name(f"{into.name}.new")
    in_container(FILL, requirements, fresh, torch)
    (fresh / "inputs").write_text(inputs)
    shutil.rmtree(into, ignore_errors=True)
    fresh.rename(into)


def in_container(script: Path, inputs: Path, fresh: Path, torch: str = "") -> None:
    """Run a script that asks pip, as the user who builds, in a container of the base.

    Args:
        script: `FILL` or `PIN`.
        inputs: the folder that it reads.
        fresh: where it writes, an empty folder then.
        torch: as for `fill_wheelhouse`.
    """
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    settings, paths = _settings_for_container()
    settings["TORCH"] = torch
    folders = {inputs: "/wanted:ro", fresh: "/wheels", script: "/script.sh:ro", PINS: "/pins:ro"}
    mounts = [f"{path}:{path}:ro" for path in paths]
    mounts += [f"{path}:{place}" for path, place in folders.items()]
    flags = [flag for mount in mounts for flag in ("-v", mount)]
    flags += [flag for name in settings for flag in ("-e", name)]  # values stay out of `ps`
    identity = ("--user", f"{os.getuid()}:{os.getgid()}", "-e", "HOME=/tmp")
    start, script_run = ("docker", "run", "--rm", "--network", "host"), (BASE, "sh", "-eu")
    say(shlex.join([*start, "…", *script_run, "/script.sh"]))
    run(*start, *identity, *flags, *script_run, "/script.sh", env={**os.environ, **settings})


def _settings_for_container() -> tuple[dict[str, str], list[str]]:
    """The environment and the read-only mounts that give a container this machine's pip and npm."""
    settings = _pip_settings()
    if bundle := _certificates():
        settings.setdefault("PIP_CERT", bundle)
        settings["NODE_EXTRA_CA_CERTS"] = bundle
    mounts = _local_paths(settings)
    for name in (*PASSED_ON, *(name.upper() for name in PASSED_ON), *NPM_KEYS):
        if name in os.environ:
            settings.setdefault(name, os.environ[name])
    npmrc = Path.home() / ".npmrc"
    if npmrc.is_file():
        settings["NPM_CONFIG_USERCONFIG"] = str(npmrc)
        mounts.append(str(npmrc))
    return settings, mounts


def _pip_settings() -> dict[str, str]:
    """The host's pip settings as environment variables; a variable wins over a file, as in pip."""
    settings: dict[str, str] = {}
    listed = output(sys.executable, "-m", "pip", "config", "list").splitlines()
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if key.startswith(("global.", "install.", "download.", ":env:")) and name in PIP_KEYS:
            text = value.strip().strip("'\"").replace("\\n", " ")
            settings[f"PIP_{name.upper().replace('-', '_')}"] = text
    return settings


def _certificates() -> str:
    """The host's CA bundle; empty if there is none."""
    configured = (os.environ.get("PIP_CERT"), ssl.get_default_verify_paths().cafile)
    candidates = [path for path in (*configured, "/etc/ssl/certs/ca-certificates.crt") if path]
    return next((path for path in candidates if Path(path).is_file()), "")


def _local_paths(settings: dict[str, str]) -> list[str]:
    """The folders and files of this machine that pip's settings name."""
    tokens = [token for value in settings.values() for token in value.split()]
    paths = [urlsplit(token).path if token.startswith("file:") else token for token in tokens]
    local_paths = [Path(path) for path in paths if path.startswith("/")]
    # An index is a folder `simple` that links to its sibling with the files.
    return sorted(
        {
            str(path.parent if path.name == "simple" else path)
            for path in local_paths
            if path.exists()
        }
    )


# -- the image -------------------------------------------------------------------------------------


def assemble(context: Path, parts: Mapping[str, Path]) -> None:
    """Copy the repository's parts into the build context; what was there before goes.

    Args:
        context: the folder sent to the engine; it keeps its ``wheels``.
        parts: name in the context -> file or folder in the repository.
    """
    for name, source in parts.items():
        target = context / name
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=IGNORED)
        else:
            shutil.copy2(source, target)


def build_image(name: str, context: Path, base_id: str) -> None:
    """Build ``name`` from ``context/Dockerfile``; no network is needed."""
    files = [
        path
        for path in context.rglob("*")
        if path.is_file() and not {"__pycache__", "wheels"} & {*path.relative_to(context).parts}
    ]
    wheels = (context / "wheels" / "inputs").read_text()
    inputs = digest(base_id, wheels, files=files, below=context)
    if inputs_of(name) == inputs:
        say(f"{name}: unchanged")
        return
    flags = ("--label", f"{LABEL}={inputs}", "--build-arg", f"BASE={BASE}")
    run("docker", "build", "--network", "none", "-t", name, *flags, str(context))


# -- programs, and the hashes by which it is known what has not changed ----------------------------


def say(line: str) -> None:
    """Print a line of progress, at once."""
    print(f"images: {line}", file=sys.stderr, flush=True)


def run(*command: str, env: Mapping[str, str] | None = None) -> None:
    """Run a program with its output shown; `BuildError` if it fails."""
    try:
        subprocess.run(command, env=env, check=True, stdout=sys.stderr)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise BuildError(f"{command[0]} failed: {error}") from error


def output(*command: str) -> str:
    """Return what a program prints; empty if it fails or is not there."""
    try:
        completed = subprocess.run(command, check=True, capture_output=True, text=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        return ""
    return completed.stdout.strip()


def inspect_image(image: str, template: str) -> str:
    """Return what the engine knows of a local image; empty if there is none."""
    return output("docker", "image", "inspect", "--format", template, image)


def image_id(name: str) -> str:
    """The id of a local image; empty if it is not there."""
    return inspect_image(name, "{{.Id}}")


def inputs_of(name: str) -> str:
    """The inputs' hash a local image was built from; empty if there is none."""
    return inspect_image(name, f'{{{{index .Config.Labels "{LABEL}"}}}}')


def digest(*parts: str, files: Iterable[Path] = (), below: Path | None = None) -> str:
    """One short hash over texts and files (their names, relative to ``below``, and contents)."""
    sha256 = hashlib.sha256("\0".join(parts).encode())
    for file in sorted(files):
        name = file.relative_to(below) if below else file.name
        sha256.update(f"\0{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return sha256.hexdigest()[:24]
