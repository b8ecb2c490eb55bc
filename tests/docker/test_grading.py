"""`labkit grade --run-code` where bubblewrap cannot run: students' code in containers."""

import ipaddress
import json
import time
from pathlib import Path

import pytest

import docker
from labkit_grading import grade_code
from labkit_grading.container import LABEL, ContainerSandbox

from .conftest import listening

pytestmark = [pytest.mark.docker, pytest.mark.long]

KEY = """# %%
def answer():
    # <solution>
    return 42
    # </solution>

# %%
def check_answer():
    found = answer()
    return "right" if found == 42 else f"not yet right: {found}"

answer_verdict = check_answer()
"""
LOOK = """
def answer():
    import os, pathlib, socket
    found = []
    def tries(what, act):
        try:
            act()
        except OSError:
            return
        found.append(what)
    tries("network", lambda: socket.create_connection((HOST, PORT), 2))
    tries("a write", lambda: pathlib.Path("/opt/miglab/forged").write_text(""))
    tries("labkit", lambda: pathlib.Path(os.environ["PYTHONPATH"], "labkit/forged").write_text(""))
    tries("Docker", lambda: os.stat("/var/run/docker.sock"))
    tries("root", lambda: os.setuid(0))
    pathlib.Path("/tmp/scratch").write_text("")
    found += [name for name, value in os.environ.items() if "secret" in value]
    return f"reached {found}"
"""
STAY = "def answer():\n    import time\n    time.sleep(3600)"
GONE_S = 90.0


def test_code_is_judged_in_a_container_and_reaches_nothing(
    engine: docker.DockerClient,
    student_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Honest code is right; no network, file, token or time is had; and no container stays."""
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret-token")
    monkeypatch.setattr(grade_code, "beyond", lambda text: "")  # nobody has read the code
    (tmp_path / "source.py").write_text(KEY)
    key = grade_code.answer_key(tmp_path / "source.py")
    sandbox = ContainerSandbox(student_image)
    assert sandbox.why_not() == ""

    def said(code: str, limit_s: float = 90.0) -> str:
        text = json.dumps({"cells": [{"cell_type": "code", "source": code}]})
        (found,) = grade_code.mark(text, key, limit_s=limit_s, start=sandbox.start)
        return found.said

    assert said("def answer():\n    return 42") == "right"
    gateway = address_of_the_bridge(engine)
    with listening("0.0.0.0") as port:
        look = LOOK.replace("HOST", repr(gateway)).replace("PORT", str(port))
        assert said(look) == "not yet right: reached []"
    assert "no answer within" in said(STAY, limit_s=8.0)
    assert are_gone(engine)
    assert "No such image" in ContainerSandbox("miglab-no-such-image").why_not()


def address_of_the_bridge(engine: docker.DockerClient) -> str:
    """The host's on the default bridge, which an engine's first start does not say.

    See https://github.com/moby/moby/issues/26799.
    """
    (config,) = engine.networks.get("bridge").attrs["IPAM"]["Config"]
    return str(config.get("Gateway") or next(ipaddress.ip_network(config["Subnet"]).hosts()))


def are_gone(engine: docker.DockerClient) -> bool:
    """Whether every container of a grader's goes; the engine takes its time to remove one."""
    ends = time.monotonic() + GONE_S
    while engine.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
        if time.monotonic() > ends:
            return False
        time.sleep(0.2)
    return True
