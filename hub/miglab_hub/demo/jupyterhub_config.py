"""JupyterHub's configuration in the demo lab: as in every lab, and the simulated students."""

from miglab_hub.configure import configure
from miglab_hub.demo.simulated_class import add_class
from miglab_hub.settings.lab_toml import load

settings = load()
configure(c, settings)  # type: ignore[name-defined]  # noqa: F821 -- JupyterHub provides c
add_class(c, settings)  # type: ignore[name-defined]  # noqa: F821 -- as above
