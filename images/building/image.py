"""One image from its context: skipped when nothing it is made from has changed."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from building.shell import LABEL, digest, inputs_of, run, say, tree

IGNORED = shutil.ignore_patterns(
    "__pycache__", "*.egg-info", ".ipynb_checkpoints", "*.ipynb", "wanted"
)


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
