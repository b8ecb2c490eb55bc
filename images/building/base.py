"""The base of all images: slim Debian with Python and tini, pulled, or made by debootstrap.

Where a registry answers, the ordinary base (BASE_IMAGE) is pulled and the packages are added; where
none does, debootstrap makes the same from Debian's archive.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from building.shell import LABEL, BuildError, digest, image_id, inputs_of, output, run, say

NAME = "miglab-base"
PACKAGES = ("ca-certificates", "python3", "python3-venv", "tini")
SUITE = "bookworm"
PULL_S = 300
# What Debian's own slim images leave out, and what only building the base needs.
LEFT_OUT = (
    "./usr/share/doc",
    "./usr/share/man",
    "./usr/share/info",
    "./usr/share/locale",
    "./usr/share/lintian",
    "./var/cache/apt/*",
    "./var/lib/apt/lists/*",
    "./var/log/*.log",
    "./dev/*",
    "./proc/*",
    "./sys/*",
)


def pull(image: str) -> bool:
    """Whether ``image`` is here, or could be pulled."""
    if image_id(image):
        return True
    try:
        done = subprocess.run(
            ["docker", "pull", image], timeout=PULL_S, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode:
        say(f"cannot pull {image}: {done.stderr.strip().splitlines()[-1]}")
    return done.returncode == 0


def digest_of(image: str) -> str:
    """A pulled image's name by its digest, which no registry can give to another."""
    template = "{{range .RepoDigests}}{{println .}}{{end}}"
    found = output("docker", "image", "inspect", "--format", template, image)
    return found.partition("\n")[0] or "without a digest, since it was built here"


def on_pulled(image: str, dockerfile: Path, inputs: str) -> None:
    """Add the packages to an ordinary base."""
    arguments = [f"BASE_IMAGE={image}", f"PACKAGES={' '.join(PACKAGES)}"]
    flags = [flag for argument in arguments for flag in ("--build-arg", argument)]
    label = f"{LABEL}={inputs}"
    where = str(dockerfile.parent)
    run("docker", "build", "--network", "host", "-t", NAME, "--label", label, *flags, where)


def by_debootstrap(inputs: str) -> None:
    """Make the base from Debian's archive; needs root, debootstrap, and no registry."""
    if not shutil.which("debootstrap"):
        raise BuildError(
            "no registry answers and debootstrap is missing: "
            "apt-get install --no-install-recommends debootstrap, or name a local --base-image"
        )
    with tempfile.TemporaryDirectory(prefix="miglab-base-") as folder:
        include = f"--include={','.join(PACKAGES)}"
        run("debootstrap", "--variant=minbase", include, SUITE, folder)
        import_folder(Path(folder), inputs)


def import_folder(folder: Path, inputs: str) -> None:
    """Make a folder an image, less what slim images leave out."""
    without = [f"--exclude={pattern}" for pattern in LEFT_OUT]
    changes = ("--change", f"LABEL {LABEL}={inputs}", "--change", "ENV LANG=C.UTF-8")
    with subprocess.Popen(
        ["tar", "-C", str(folder), *without, "-c", "."], stdout=subprocess.PIPE
    ) as tar:
        done = subprocess.run(
            ["docker", "import", *changes, "-", NAME], stdin=tar.stdout, capture_output=True
        )
    if done.returncode or tar.returncode:
        raise BuildError(f"docker import of {folder} failed: {done.stderr.decode().strip()}")


def make(image: str, dockerfile: Path) -> str:
    """Make the base unless it is there; returns its image id."""
    inputs = digest(image, SUITE, *PACKAGES, *LEFT_OUT, files=[dockerfile])
    if inputs_of(NAME) == inputs:
        say(f"{NAME}: unchanged")
        return image_id(NAME)
    if pull(image):
        say(f"{image} is {digest_of(image)}: as --base-image, that makes the same base again")
        on_pulled(image, dockerfile, inputs)
    else:
        say(f"no registry answers for {image}: making {NAME} by debootstrap ({SUITE}) instead")
        by_debootstrap(inputs)
    return image_id(NAME)
