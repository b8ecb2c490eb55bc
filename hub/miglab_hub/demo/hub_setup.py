"""What the hub of the demo lab does differently: some users' servers are simulated."""

import sys
from pathlib import Path
from typing import Any

import jupyterhub

from miglab_hub import lab_secrets
from miglab_hub.demo.plan import Habit, plan, token_file
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
    gpus = str(settings.simulated_state)

    def simulate(spawner: Any) -> None:
        if habit := habits.get(spawner.user.name):
            spawner.cmd = [sys.executable, str(SERVER)]
            spawner.environment = {**spawner.environment, **environment(habit, gpus)}

    c.MIGLocalSpawner.pre_spawn_hook = simulate


def environment(habit: Habit, gpus: str) -> dict[str, str]:
    """What a simulated student's server is told."""
    return {
        "MIGLAB_DEMO_HABIT": habit,
        "MIGLAB_DEMO_GPUS": gpus,
        "MIGLAB_DEMO_HUB": jupyterhub.__version__,
    }
