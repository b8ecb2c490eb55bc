"""What the hub of the demo lab does differently: some users' servers are simulated."""

import sys
from pathlib import Path
from typing import Any

import jupyterhub

from miglab_hub import lab_secrets
from miglab_hub.demo.plan import plan, token_file
from miglab_hub.settings.lab_toml import Settings

SERVER = Path(__file__).with_name("student_server.py")
SERVICE = "demo"


def add_class(c: Any, settings: Settings) -> None:
    """Give the director its token, and simulated students their servers."""
    token = lab_secrets.read(token_file(settings))
    c.JupyterHub.services.append({"name": SERVICE, "api_token": token})
    c.JupyterHub.load_roles.append(
        {"name": "miglab-demo", "scopes": ["servers", "read:users:name"], "services": [SERVICE]}
    )
    habits = {student.name: student.habit for student in plan(settings.courses)}
    gpus, version = str(settings.simulated_state), jupyterhub.__version__
    told = {"MIGLAB_DEMO_GPUS": gpus, "MIGLAB_DEMO_HUB": version}

    def simulate(spawner: Any) -> None:
        if habit := habits.get(spawner.user.name):
            spawner.cmd = [sys.executable, str(SERVER)]
            spawner.environment = {**spawner.environment, **told, "MIGLAB_DEMO_HABIT": habit}

    c.MIGLocalSpawner.pre_spawn_hook = simulate
