"""JupyterHub's configuration: all of it comes from lab.toml (see miglab_hub.configure)."""

from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load

configure(c, load())  # noqa: F821 -- JupyterHub provides c
