"""Runs on a node, in the job: asks the hub for the server's environment, then becomes the server.

The standard library alone: its text is part of the job's script.  The hub answers once a start
attends this job; until then, or while the hub is down, it asks again.
"""

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import Any

PAUSE_S = 0.3
ANSWER_S = 45
FINAL = (400, 403, 404, 410)


def main() -> None:
    """Ask until the hub answers, then execute the server's command."""
    ticket = json.loads(os.environ.pop("MIGLAB_TICKET"))
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    report = {
        **ticket["report"],
        "job": int(os.environ["SLURM_JOB_ID"]),
        "port": port,
    }
    handover = ask(ticket["url"], report, time.monotonic() + ticket["patience_s"])
    os.environ.update(handover["environment"])
    os.execvp(handover["command"][0], handover["command"])  # noqa: S606 -- the hub's own command


def ask(url: str, report: dict[str, object], deadline: float) -> Any:
    """The hub's answer; ends the job where there will be none."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(  # noqa: S310 -- the hub's own address
        url, json.dumps(report).encode(), {"Content-Type": "application/json"}
    )
    while True:
        try:
            with opener.open(request, timeout=ANSWER_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in FINAL:
                sys.exit(f"miglab: the hub does not want this job (any more): {error.code}")
        except (OSError, ValueError) as error:
            print(f"miglab: the hub does not answer: {error}", file=sys.stderr)
        if time.monotonic() > deadline:
            sys.exit("miglab: nobody came for this job")
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
