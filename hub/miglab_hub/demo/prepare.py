"""The demo lab's folder: made at its first start, and left as it is afterwards."""

import shutil
from pathlib import Path

from miglab_hub import lab_secrets
from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings

FOLDER = ".lab-demo"
HUB_CONFIG = Path(__file__).with_name("jupyterhub_config.py")
FILES = ("lab.toml", "deep-learning.csv", "vision.csv")


def make_folder(beside: Path) -> Path:
    """Make the demo lab's folder, unless it is there.

    Args:
        beside: the file beside which it lies: the lab.toml of the lab that is not the demo's.

    Returns:
        The demo's own lab.toml.
    """
    folder = beside.absolute().parent / FOLDER
    if not folder.exists():
        unfinished = folder.with_name(f"{FOLDER}.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name in FILES:
            shutil.copyfile(Path(__file__).with_name(name), unfinished / name)
        unfinished.rename(folder)
    return folder / "lab.toml"


def check_fits(settings: Settings) -> None:
    """Check that simulated students can live in this lab.

    Raises:
        StartError: its GPUs are real, or its students' servers are containers.
    """
    if not settings.gpus.simulated or settings.servers.spawner != "local":
        raise StartError(
            f'{settings.file}: simulated students need simulated GPUs and servers.spawner = "local"'
        )


def token_file(settings: Settings) -> Path:
    """The file with the hub token by which the director starts and stops their servers."""
    return settings.state / "demo.token"


def make_token(settings: Settings) -> None:
    """Make that token, before hub and director read it."""
    lab_secrets.make_token(token_file(settings))
