"""A student as a browser would be one: forms, cookies, redirects, a kernel over its websocket."""

import json
import logging
import re
import ssl
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from html import unescape
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import websocket

from miglab_hub.errors import StartError

log = logging.getLogger(__name__)

STEP_S = 180.0
PAUSE_S = 0.25
SERVICE_PATH = "/services/pool"
ENDLESS = "import time; time.sleep(86400)"
TLS = ssl.create_default_context()  # made once, because it takes 20 ms
Seen = TypeVar("Seen")


class CheckFailed(StartError):
    """A check failed; the message says what was observed."""


class Student:
    """One browser of one student.

    Args:
        url: the lab's public address.
        name: whom to sign in as.
        password: the students' password.
        way: how requests travel; None for the network as it is.
    """

    def __init__(
        self, url: str, name: str, password: str, way: httpx.BaseTransport | None = None
    ) -> None:
        self.name = name
        self._quoted = quote(name, safe="")
        self._url = url.rstrip("/")
        self._password = password
        self._http = httpx.Client(
            follow_redirects=True, timeout=60, trust_env=False, verify=TLS, transport=way
        )
        self._computing: list[str] = []

    def close(self) -> None:
        """Close the browser; the server goes on running."""
        self._http.close()

    def sign_in(self) -> None:
        """Fill in the login form."""
        self._http.get(f"{self._url}/hub/login")
        form = {"username": self.name, "password": self._password, "_xsrf": self._xsrf()}
        answer = self._http.post(f"{self._url}/hub/login", data=form)
        if answer.status_code != 200 or "/hub/login" in answer.url.path:
            raise CheckFailed(f"{self.name} could not sign in: HTTP {answer.status_code}")

    def ask(self, shape: str) -> None:
        """Fill in the spawn form."""
        page = self._http.get(f"{self._url}/hub/spawn/{self._quoted}")
        offered = re.search(f'name="shape" value="({re.escape(shape)}(@[^"]*)?)"', page.text)
        if offered is None:
            raise CheckFailed(f"the spawn page of {self.name} does not offer {shape}")
        form = {"shape": offered[1], "_xsrf": self._xsrf()}
        answer = self._http.post(f"{self._url}/hub/spawn/{self._quoted}", data=form)
        _expect(answer, f"{self.name} asked for {shape}")

    def ask_by_api(self, **options: object) -> int:
        """Ask for a server through the hub's API; return the status code."""
        return self._api("POST", f"/hub/api/users/{self._quoted}/server", options).status_code

    def start_alternative(self, shape: str) -> None:
        """While waiting for a slice, start with another shape."""
        answer = self._api("POST", f"/hub/api/miglab/waiting/{self._quoted}/", {"shape": shape})
        _expect(answer, f"{self.name} asked for {shape} instead of waiting")

    def waiting(self) -> dict[str, Any]:
        """Return what the waiting page gets; empty while the student waits for no slice."""
        answer = self._api("GET", f"/hub/api/miglab/waiting/{self._quoted}/")
        return dict(answer.json() or {}) if answer.is_success else {}

    def is_ready(self) -> bool:
        """Whether the hub says that the server runs."""
        answer = self._api("GET", f"/hub/api/users/{self._quoted}")
        servers = answer.json().get("servers", {}) if answer.is_success else {}
        return bool(servers.get("", {}).get("ready"))

    def wait_until_ready(self) -> None:
        """Wait for the server, as the spawn-pending page does."""
        wait_for(self.is_ready, f"the server of {self.name} to be ready")

    def leave(self) -> None:
        """Stop the server, and wait until the hub has none."""
        answer = self._api("DELETE", f"/hub/api/users/{self._quoted}/server")
        _expect(answer, f"{self.name} stopped the server")
        wait_for(self.has_no_server, f"the server of {self.name} to stop")

    def stop(self) -> None:
        """Ask the hub to stop the server, and do not wait."""
        self._api("DELETE", f"/hub/api/users/{self._quoted}/server")

    def has_no_server(self) -> bool:
        """Whether the hub has none for this student, not even one that is stopping."""
        answer = self._api("GET", f"/hub/api/users/{self._quoted}")
        return answer.is_success and not answer.json().get("servers")

    def page(self, path: str) -> str:
        """Return the HTML of a page of the lab."""
        return self._http.get(self._url + path).text

    def press(self, path: str, **body: object) -> int:
        """Press a button of the lab's service as this student; return the HTTP status."""
        page = self.page(f"{SERVICE_PATH}/")
        match = re.search(r'name="miglab-xsrf" content="([^"]*)"', page)
        headers = {"X-XSRFToken": unescape(match[1]) if match else "", "Referer": self._url}
        url = f"{self._url}{SERVICE_PATH}/api/{path}"
        return self._http.post(url, headers=headers, json=body).status_code

    def news(self) -> str:
        """Return what the hub's page says about the end of the last server; may be empty."""
        page = self.page(f"/hub/spawn/{self._quoted}")
        match = re.search(r'id="miglab-news">([^<]*)<', page)
        return unescape(match[1]) if match else ""

    # In JupyterLab.

    def run_cell(self, code: str) -> str:
        """Open JupyterLab, start a kernel, run a cell, and return what it printed."""
        with closing(self._kernel_channel(self._kernel())) as channel:
            return _printed(channel, _send(channel, code))

    def run_in_terminal(self, command: str) -> str:
        """Open JupyterLab and a terminal, run a command there, and return what it printed.

        Raises:
            CheckFailed: its exit status is not 0.
        """
        self._open_lab()
        terminal = self._server("POST", "api/terminals", {})["name"]
        with closing(self._channel(f"terminals/websocket/{terminal}")) as channel:
            return _typed(channel, command)

    def run_notebook(self, path: str) -> None:
        """Open a notebook of the student's home, and run it from top to bottom."""
        cells = self._server("GET", f"api/contents/{path}")["content"]["cells"]
        session = {"path": path, "name": "", "type": "notebook", "kernel": {"name": "python3"}}
        kernel = self._server("POST", "api/sessions", session)["kernel"]["id"]
        with closing(self._kernel_channel(kernel)) as channel:
            for cell in cells:
                if cell["cell_type"] == "code":
                    _printed(channel, _send(channel, cell["source"]))

    def compute_on(self) -> None:
        """Start a kernel with a cell that does not end, and go away."""
        kernel = self._kernel()
        self._computing.append(kernel)
        with closing(self._kernel_channel(kernel)) as channel:
            _send(channel, ENDLESS)
            path = f"api/kernels/{kernel}"
            wait_for(lambda: self._server("GET", path)["execution_state"] == "busy", self.name)

    def compute_no_more(self) -> None:
        """Shut down the kernels that `compute_on` has started; what runs in others goes on."""
        while self._computing:
            path = f"/user/{self._quoted}/api/kernels/{self._computing.pop()}"
            _expect(self._api("DELETE", path), f"{self.name} shut down a kernel")

    def lease(self) -> dict[str, Any]:
        """Return the status that JupyterLab shows."""
        return self._server("GET", "miglab/api/lease")

    def is_warned(self) -> bool:
        """Whether it shows a warning."""
        return self.lease()["warning"] is not None

    def is_offered(self) -> bool:
        """Whether it offers the slice that the student waits for."""
        ticket = self.lease()["ticket"]
        return ticket is not None and ticket["state"] == "offered"

    def keepalive(self) -> dict[str, Any]:
        """Press "I am still here"."""
        return self._server("POST", "miglab/api/keepalive", {})

    def move(self) -> dict[str, Any]:
        """Press "restart with it": the server ends and comes back with the slice it is offered."""
        return self._server("POST", "miglab/api/move", {})

    def _server(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Return the JSON answer of the student's own server."""
        answer = self._api(method, f"/user/{self._quoted}/{path}", body)
        _expect(answer, f"{method} {path} at the server of {self.name}")
        content: dict[str, Any] = answer.json()
        return content

    def _open_lab(self) -> None:
        """Open JupyterLab: a new server knows no cookie before one of its pages is opened."""
        page = self._http.get(f"{self._url}/user/{self._quoted}/lab")
        _expect(page, f"{self.name} opened JupyterLab")

    def _kernel(self) -> str:
        """Open JupyterLab, start a kernel and return its id."""
        self._open_lab()
        return str(self._server("POST", "api/kernels", {"name": "python3"})["id"])

    def _kernel_channel(self, kernel: str) -> websocket.WebSocket:
        return self._channel(f"api/kernels/{kernel}/channels")

    def _channel(self, of_server: str) -> websocket.WebSocket:
        path = f"/user/{self._quoted}/{of_server}"
        origin = urlsplit(self._url)
        scheme = "wss" if origin.scheme == "https" else "ws"
        return websocket.create_connection(
            f"{scheme}://{origin.netloc}{origin.path}{path}",
            cookie=self._cookies(path),
            origin=f"{origin.scheme}://{origin.netloc}",
            timeout=STEP_S,
            http_no_proxy=["*"],
        )

    # Requests as a browser makes them.

    def _api(self, method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"X-XSRFToken": self._cookie("_xsrf", path), "Referer": f"{self._url}/hub/home"}
        return self._http.request(method, self._url + path, headers=headers, json=body)

    def _xsrf(self) -> str:
        """Return the XSRF token of the hub's forms."""
        return self._cookie("_xsrf", "/hub/")

    def _cookie(self, name: str, path: str) -> str:
        """Return the cookie of that name whose path fits best, as a browser chooses."""
        target = urlsplit(self._url).path + path
        fitting = [
            c for c in self._http.cookies.jar if c.name == name and target.startswith(c.path)
        ]
        return max(fitting, key=lambda cookie: len(cookie.path)).value or "" if fitting else ""

    def _cookies(self, path: str) -> str:
        request = self._http.build_request("GET", self._url + path)
        return str(request.headers.get("Cookie", ""))


def wait_for(
    look: Callable[[], Seen | None],
    event: str,
    patience_s: float = STEP_S,
    pause_s: float = PAUSE_S,
) -> Seen:
    """Call ``look`` until it returns something true.

    Returns:
        What it returned.

    Raises:
        CheckFailed: it never is.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if result := look():
                return result
        except httpx.TransportError as error:  # what is restarting does not answer
            log.debug("while waiting for %s: %s", event, error)
        if time.monotonic() > deadline:
            raise CheckFailed(f"waited {patience_s:g} s in vain for {event}")
        time.sleep(pause_s)


def _expect(answer: httpx.Response, event: str) -> None:
    """Raise `CheckFailed` with the answer, unless it is a success."""
    if not answer.is_success:
        raise CheckFailed(f"{event}: HTTP {answer.status_code}: {answer.text[:200]}")


def _send(channel: websocket.WebSocket, code: str) -> str:
    """Ask a kernel to run code; return the message id to which its answers refer."""
    number = uuid.uuid4().hex
    header = {"msg_id": number, "msg_type": "execute_request", "session": uuid.uuid4().hex}
    request = {
        "header": {**header, "username": "", "version": "5.3"},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False, "store_history": False},
        "channel": "shell",
    }
    channel.send(json.dumps(request))
    return number


def _printed(channel: "websocket.WebSocket", request: str) -> str:
    """Return what the kernel prints for a request, until it is idle again."""
    text = ""
    while True:
        message = json.loads(channel.recv())
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            text += content["text"]
        elif message["msg_type"] == "error":
            raise CheckFailed(f"the cell failed: {content['ename']}: {content['evalue']}")
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            return text


def _typed(channel: websocket.WebSocket, command: str) -> str:
    """What a terminal prints for a command, without the echo of what was typed."""
    mark = uuid.uuid4().hex
    line = f"echo {mark}''-; {command}; echo {mark}'-'$?"  # whose echo holds neither mark whole
    text, begin, end = "", f"{mark}-\r\n", re.compile(rf"{mark}-(\d+)\r\n")
    channel.send(json.dumps(["stdin", f"{line}\r"]))
    while (ended := end.search(text)) is None:
        kind, *content = json.loads(channel.recv())
        text += content[0] if kind == "stdout" else ""
    if ended[1] != "0":
        raise CheckFailed(f"{command}: exit {ended[1]}: {text}")
    return text[text.index(begin) + len(begin) : ended.start()].replace("\r\n", "\n")
