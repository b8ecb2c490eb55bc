"""The base of all images: slim Debian with Python and tini added."""

import subprocess
from pathlib import Path

from building.shell import LABEL, BuildError, digest, image_id, inputs_of, output, run, say

NAME = "miglab-base"
PACKAGES = ("ca-certificates", "python3", "python3-venv", "tini")
PULL_S = 300


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


def make(image: str, dockerfile: Path) -> str:
    """Make the base unless it is there; returns its image id."""
    inputs = inputs_for(image, dockerfile)
    if inputs_of(NAME) == inputs:
        say(f"{NAME}: unchanged")
        return image_id(NAME)
    pull(image)
    say(f"{image} is {digest_of(image)}: as --base-image, that makes the same base again")
    flags = ["--label", f"{LABEL}={inputs}", "--build-arg", f"BASE_IMAGE={image}"]
    flags += ["--build-arg", f"PACKAGES={' '.join(PACKAGES)}"]
    run("docker", "build", "--network", "host", "-t", NAME, *flags, str(dockerfile.parent))
    return image_id(NAME)
