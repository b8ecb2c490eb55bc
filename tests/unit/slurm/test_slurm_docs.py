"""The example configuration says what the code takes."""

from pathlib import Path

from traitlets.config import Config

from miglab_slurm.site import SlurmSite
from miglab_slurm.spawner import MIGSlurmSpawner

ROOT = Path(__file__).parents[3]


def test_the_example_hub_is_configured():
    """deploy/slurm/jupyterhub_config.py is what the spawner takes."""
    c = Config()
    source = (ROOT / "deploy" / "slurm" / "jupyterhub_config.py").read_text(encoding="utf-8")
    exec(compile(source, "jupyterhub_config.py", "exec"), {"c": c})
    assert c.JupyterHub.spawner_class == "mig-slurm"
    site = SlurmSite.model_validate(MIGSlurmSpawner(config=c).slurm)
    assert set(site.partitions) == {"lab", "lab-cpu"}
