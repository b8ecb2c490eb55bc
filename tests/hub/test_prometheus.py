"""A real Prometheus reads a running lab with the job and the rules of deploy/, and alerts fire."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from miglab_bench.harness.processes import free_ports
from miglab_bench.harness.student import wait_for
from miglab_bench.harness.temporary import TemporaryLab, temporary_lab
from miglab_pool.gpu.simulated.machine import Break, SimulatedMachine

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMETHEUS = shutil.which("prometheus")

pytestmark = [
    pytest.mark.long,
    pytest.mark.promtool,  # the same package has both
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: apt-get install prometheus"),
]


class RunningPrometheus:
    """What it knows, by its own API."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def value(self, query: str) -> float | None:
        """The first value of an instant query."""
        samples = self._ask("query", query=query)["result"]
        return float(samples[0]["value"][1]) if samples else None

    def alerts(self) -> dict[str, str]:
        """The state of each alert that is pending or firing."""
        alerts = self._ask("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert["state"] for alert in alerts}

    def _ask(self, path: str, **parameters: str) -> Any:
        answer = self._http.get(f"/api/v1/{path}", params=parameters).raise_for_status()
        return answer.json()["data"]


@contextmanager
def prometheus(folder: Path, lab: TemporaryLab) -> Iterator[RunningPrometheus]:
    """Debian's Prometheus with deploy/'s files; only the lab's port and the pace are other."""
    shutil.copy(DEPLOY / "alerts.yaml", folder)
    text = (DEPLOY / "prometheus.yaml").read_text(encoding="utf-8")
    text = text.replace("127.0.0.1:8003", lab.settings.pool_url.split("/")[2]).replace("15s", "1s")
    config = folder / "prometheus.yaml"
    config.write_text(text)
    address = f"127.0.0.1:{free_ports()}"
    command = [
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=20, trust_env=False) as http:
            running = RunningPrometheus(http)
            wait_for(running.is_ready, "Prometheus")
            yield running
    finally:
        process.terminate()
        process.wait(60)


def test_alerts_of_a_running_lab(tmp_path: Path) -> None:
    """A sound lab raises none; an Xid fires, and a lab that ends is about to."""
    with ExitStack() as after_the_lab:
        with temporary_lab(docker=False) as lab:
            watching = after_the_lab.enter_context(prometheus(tmp_path, lab))
            wait_for(lambda: watching.value('up{job="miglab"}') == 1, "a scrape")
            wait_for(lambda: watching.value('miglab_gpus{state="ok"}') == 1, "the GPU")
            wait_for(lambda: not watching.alerts(), "no alert, nor one because it began")
            machine = SimulatedMachine(lab.settings.simulated_state)
            machine.break_gpu(Break.XID, machine.state().gpus[0].uuid, 79)
            wait_for(lambda: watching.alerts().get("MiglabGpuFault") == "firing", "the alert")
        wait_for(lambda: watching.alerts().get("MiglabDown") == "pending", "the other alert")
