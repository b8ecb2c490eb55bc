"""The base of all images (slim Debian with Python and tini), and one image from its context.

Skipped when nothing that it is made from has changed.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from building.shell import LABEL, BuildError, digest, image_id, inputs_of, output, run, say, tree

BASE = "miglab-base"
PACKAGES = ("ca-certificates", "python3", "python3-venv", "tini")
PULL_S = 300
IGNORED = shutil.ignore_patterns(
    "__pycache__", "*.egg-info", ".ipynb_checkpoints", "*.ipynb", "wanted"
)


def pull(image: str) -> None:
    """Pull ``image`` unless it is here.

    Raises:
        BuildError: no registry gives it.
    """
    if image_id(image):
        return
    command = ["docker", "pull", image]
    try:
        done = subprocess.run(command, timeout=PULL_S, capture_output=True, text=True)
        said = done.stderr.strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        said = f"no answer in {PULL_S} s"
    if not image_id(image):
        raise BuildError(f"cannot pull {image}: {said}; name one that is here: --base-image")


def digest_of(image: str) -> str:
    """A pulled image's name by its digest, which no registry can give to another."""
    template = "{{range .RepoDigests}}{{println .}}{{end}}"
    found = output("docker", "image", "inspect", "--format", template, image)
    return found.partition("\n")[0] or "without a digest, since it was built here"


def inputs_for(image: str, dockerfile: Path) -> str:
    """The hash of what the base is made from."""
    return digest(image, *PACKAGES, files=[dockerfile])


def make_base(image: str, dockerfile: Path) -> str:
    """Make the base unless it is there; returns its image id."""
    inputs = inputs_for(image, dockerfile)
    if inputs_of(BASE) == inputs:
        say(f"{BASE}: unchanged")
        return image_id(BASE)
    pull(image)
    say(f"{image} is {digest_of(image)}: as --base-image, that makes the same base again")
    flags = ["--label", f"{LABEL}={inputs}", "--build-arg", f"BASE_IMAGE={image}"]
    flags += ["--build-arg", f"PACKAGES={' '.join(PACKAGES)}"]
    run("docker", "build", "--network", "host", "-t", BASE, *flags, str(dockerfile.parent))
    return image_id(BASE)


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


def build(name: str, context: Path, base: str, base_id: str) -> None:
    """Build ``name`` from ``context/Dockerfile``; no network is needed."""
    files = [file for file in tree(context) if "wheels" not in file.relative_to(context).parts]
    wheels = (context / "wheels" / "inputs").read_text()
    inputs = digest(base_id, wheels, files=files, below=context)
    if inputs_of(name) == inputs:
        say(f"{name}: unchanged")
        return
    flags = ("--label", f"{LABEL}={inputs}", "--build-arg", f"BASE={base}")
    run("docker", "build", "--network", "none", "-t", name, *flags, str(context))
