"""JupyterHub's configuration in the compose lab: lab.toml, and networks for a hub in a container.

Each server gets a network of its own with proxy, hub and pool joined, so that students' servers
reach neither one another nor the management listener (``enable_icc=false`` would cut off the hub).
"""

from miglab_hub.configure import configure
from miglab_hub.settings.lab_toml import load

configure(c, load())  # noqa: F821 - JupyterHub provides c
c.MIGDockerSpawner.network_per_server = True  # noqa: F821
c.MIGDockerSpawner.joined_containers = ["miglab-proxy", "miglab-hub", "miglab-pool"]  # noqa: F821
# A student called "hub" must not have a server called like the hub's own container.
c.MIGDockerSpawner.prefix = "miglab-student"  # noqa: F821
