"""A simulated student's server: it reports to the pool as JupyterLab would, and loads its slice.

The only process that writes what runs on its slices, so that nothing is left there when it ends.
"""

import json
import os
import random
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from miglab_pool.gpu.simulated.machine import SimulatedMachine

WORKS_S = 30.0  # one who idles has done something first
PAGE = b"""<!doctype html><html lang="en"><title>Simulated student</title>
<p>This server belongs to a simulated student of the demo lab.
Sign in under a name of your own to get a JupyterLab.</p>"""


class SimulatedServerHandler(BaseHTTPRequestHandler):
    """Answers requests with one page."""

    def do_GET(self) -> None:
        """Answer with the page."""
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", os.environ["MIGLAB_DEMO_HUB"])
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def signals(habit: str, ran_s: float) -> dict[str, Any]:
    """Return the report after a running time (`miglab_api.leases.Signals`)."""
    is_busy = habit != "idles" or ran_s < WORKS_S
    idle_s = 0.0 if is_busy else ran_s - WORKS_S
    return {
        "kernels": [{"busy": is_busy, "last_execution_age_s": idle_s}],
        "terminals": 0,
        "browsers": 1,
        "browser_age_s": idle_s,
        "unsaved": 0,
        "cpu_s": ran_s - idle_s,
    }


def report(url: str, token: str, habit: str, started_at: float) -> None:
    """Report activity to the pool for ever."""
    pause_s = float(os.environ.get("MIGLAB_REPORT_S") or 15.0)
    while True:
        body = json.dumps(signals(habit, time.monotonic() - started_at)).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/api/server/signals", body, headers)  # noqa: S310
        try:
            urllib.request.urlopen(request, timeout=pause_s).close()  # noqa: S310 -- the lab's own
        except (urllib.error.URLError, TimeoutError) as error:
            print(f"the pool did not take a report: {error}", file=sys.stderr)
        time.sleep(pause_s)


def load_slices(machine: SimulatedMachine, slices: list[str]) -> None:
    """Put a process on each slice, with the same memory for a user each time."""
    draw = random.Random(os.environ.get("JUPYTERHUB_USER"))  # noqa: S311 -- no secret
    for uuid in slices:
        machine.add_process(uuid, os.getpid(), draw.randrange(600, 4400), draw.randrange(20, 95))


def serve_until_terminated() -> None:
    """Serve until SIGTERM."""
    habit, started_at = os.environ["MIGLAB_DEMO_HABIT"], time.monotonic()
    machine = SimulatedMachine(Path(os.environ["MIGLAB_DEMO_GPUS"]))
    slices = [uuid for uuid in os.environ.get("MIGLAB_SLICES", "").split(",") if uuid]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        load_slices(machine, slices)
        to = (os.environ["MIGLAB_API"], os.environ["JUPYTERHUB_API_TOKEN"])
        threading.Thread(target=report, args=(*to, habit, started_at), daemon=True).start()
        service_url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
        address = (service_url.hostname or "", service_url.port or 0)
        ThreadingHTTPServer(address, SimulatedServerHandler).serve_forever()
    finally:
        if slices:
            machine.remove_process(os.getpid())


if __name__ == "__main__":
    serve_until_terminated()
