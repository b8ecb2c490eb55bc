"""The guide and the example configuration say what the code takes."""

from pathlib import Path

import pytest
from traitlets.config import Config

from miglab_api.slurm_site import SlurmShape, SlurmTables, site_of
from miglab_spawner.slurm import MIGSlurmSpawner

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "howto" / "slurm.md").read_text(encoding="utf-8")
FIELDS = {
    f"{model.__name__}.{name}": field
    for model in (SlurmTables, SlurmShape)
    for name, field in model.model_fields.items()
    if name != "shapes"
}


@pytest.mark.parametrize("key", FIELDS)
def test_every_key_is_in_the_guide(key: str):
    """With its default and in the words of its description."""
    field, name = FIELDS[key], key.partition(".")[2]
    shown = f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
    assert f"| `{name}` | `{shown}` | {field.description} |" in GUIDE


def test_the_example_hub_is_configured():
    """deploy/slurm/jupyterhub_config.py is what the spawner takes."""
    c = Config()
    source = (ROOT / "deploy" / "slurm" / "jupyterhub_config.py").read_text(encoding="utf-8")
    exec(compile(source, "jupyterhub_config.py", "exec"), {"c": c})
    assert c.JupyterHub.spawner_class == "mig-slurm"
    spawner = MIGSlurmSpawner(config=c)
    site = site_of(spawner.slurm)
    assert set(site.partitions) == {"lab", "lab-cpu"}
