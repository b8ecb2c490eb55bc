"""Where the checkout is: its hub configuration, its tests."""

import os
from pathlib import Path

ENV_CHECKOUT = "MIGLAB_CHECKOUT"


def checkout() -> Path:
    """The folder of `./lab`, which passes it on; else where this package lies."""
    return Path(os.environ.get(ENV_CHECKOUT) or Path(__file__).parents[2])


def hub_config() -> Path:
    """JupyterHub's configuration file."""
    return checkout() / "jupyterhub_config.py"
