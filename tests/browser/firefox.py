"""Debian's Firefox as its own server of WebDriver BiDi: one window, keys, clicks, what is seen."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Self

import websocket

from miglab_bench.harness.student import CheckFailed, wait_for

FIREFOX = Path("/usr/bin/firefox-esr")
LISTENS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")
ANSWERS_WITHIN_S = 60.0
ENTER = "\ue006"
CLICKABLE = """(() => {
  const element = ELEMENT;
  element?.scrollIntoView({block: "center"});
  const box = element?.getBoundingClientRect();
  if (!box?.width) return null;
  const [x, y] = [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
  const wasThere = window.lastCentre === `${x},${y}`;
  window.lastCentre = `${x},${y}`;
  return wasThere && element.contains(document.elementFromPoint(x, y)) ? element : null;
})()"""


class Firefox:
    """A headless Firefox while the block lasts; elements are named by JavaScript.

    Args:
        folder: of its profile and its log.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "firefox.log"
        self._socket: websocket.WebSocket | None = None
        self._asked = 0

    def __enter__(self) -> Self:
        options = ["--headless", "--no-remote", "--remote-debugging-port=0"]
        command = [str(FIREFOX), *options, "--profile", str(self._folder)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            address_match = wait_for(
                lambda: LISTENS.search(self._log.read_text()), "Firefox's address"
            )
            self._socket = websocket.create_connection(
                f"{address_match[1]}/session", suppress_origin=True, timeout=ANSWERS_WITHIN_S
            )
            self._ask("session.new", capabilities={})
            # The window that a headless Firefox opens with never has the focus; a new tab has.
            self._tab = self._ask("browsingContext.create", type="tab")["context"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
        self._process.terminate()
        self._process.wait(ANSWERS_WITHIN_S)

    def go_to(self, url: str) -> None:
        """Open an address, and wait until it has loaded."""
        self._ask("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def seen(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true, over loads of pages; answers its value."""
        return wait_for(lambda: self._now(expression), expression)

    def click(self, element: str) -> None:
        """Click on the middle of an element, once that is in sight, uncovered and at rest.

        It is at rest if two looks find it at the same place.  Firefox looks a last time where it
        is, in the act itself: output of other cells that moves the page just then would take a
        click at known coordinates elsewhere.
        """
        expression = CLICKABLE.replace("ELEMENT", element)
        node = wait_for(lambda: self._evaluate(expression).get("sharedId"), expression)
        origin = {"type": "element", "element": {"sharedId": node}}
        button = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._act("pointer", [{"type": "pointerMove", "x": 0, "y": 0, "origin": origin}, *button])

    def type(self, keys: str) -> None:
        """Press keys, one after the other."""
        strokes = ("keyDown", "keyUp")
        self._act("key", [{"type": stroke, "value": key} for key in keys for stroke in strokes])

    def _now(self, expression: str) -> Any:
        return json.loads(self._evaluate(f"JSON.stringify({expression})").get("value", "null"))

    def _evaluate(self, expression: str) -> dict[str, Any]:
        """What an expression is now, as WebDriver BiDi writes it; empty where it is nothing yet."""
        target = {"context": self._tab}
        try:
            evaluated = self._ask(
                "script.evaluate", expression=expression, target=target, awaitPromise=False
            )
        except CheckFailed:  # the page was just left
            return {}
        return dict(evaluated.get("result", {}))

    def _act(self, kind: str, actions: list[dict[str, Any]]) -> None:
        hand = {"type": kind, "id": kind, "actions": actions}
        self._ask("input.performActions", context=self._tab, actions=[hand])

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self._socket is not None
        self._asked += 1
        self._socket.send(json.dumps({"id": self._asked, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._asked:
            pass  # an event
        if answer["type"] == "error":
            raise CheckFailed(f"{method}: {answer['message']}")
        return dict(answer["result"])
