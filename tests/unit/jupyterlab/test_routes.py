"""The server extension in a real Jupyter Server, against a stand-in for the student listener."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_server.serverapp import ServerApp
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.websocket import WebSocketClientConnection, websocket_connect

from miglab_api.base import Refusal
from miglab_api.line import LeaseEnd
from miglab_api.tickets import Purpose, TicketState
from miglab_jupyterlab.app import ACTIONS, LAST_LOOK

from .standin import NOW, StandIn, lease_view, ticket_view, warning
from .standin import message as message_of

TOKEN = "only-for-this-test"
BASE = "/user/ada/lab%202/"
PATIENCE_S = 20.0  # a message that never comes fails the test
MINE = {"Authorization": f"token {TOKEN}"}
CPU = {"MIGLAB_LEASE": "", "MIGLAB_SHAPE": "cpu"}
NOT_NOW = Refusal(reason="not-offered", message="Not taken in time. Ask again.")


@pytest.fixture
async def pool() -> AsyncIterator[StandIn]:
    pool = StandIn()
    await pool.start()
    yield pool
    await pool.stop()


class JupyterServer:
    """A Jupyter Server with the extension, on a port."""

    def __init__(self, app: ServerApp) -> None:
        self.app = app
        self.tabs: list[WebSocketClientConnection] = []
        (self.extension,) = app.extension_manager.extension_apps["miglab_jupyterlab"]
        place, self.port = bind_unused_port()
        self.http = HTTPServer(app.web_app)
        self.http.add_socket(place)
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}{BASE}", timeout=60, trust_env=False
        )

    @property
    def keeper(self) -> Any:
        return self.extension.keeper

    async def post(self, button: str, **body: object) -> httpx.Response:
        """What a button does."""
        return await self.client.post(f"miglab/api/{button}", json=body, headers=MINE)

    async def lease(self) -> dict[str, Any]:
        """What a page that was just opened shows."""
        answer = await self.client.get("miglab/api/lease", headers=MINE)
        return dict(answer.json())

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let what was sent arrive."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                await self.lease()

    async def watch(self, headers: dict[str, str]) -> WebSocketClientConnection:
        url = f"ws://127.0.0.1:{self.port}{BASE}miglab/api/watch"
        self.tabs.append(await websocket_connect(HTTPRequest(url, headers=headers)))
        return self.tabs[-1]

    async def close(self) -> None:
        for tab in self.tabs:
            tab.close()
            while await tab.read_message() is not None:
                pass
        await self.client.aclose()
        await self.extension.stop_extension()
        self.http.stop()
        await self.http.close_all_connections()
        await self.app.kernel_manager.shutdown_all()


Start = Callable[..., JupyterServer]


@pytest.fixture
async def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: StandIn
) -> AsyncIterator[Start]:
    """Makes a server with the environment a spawner would give it; its loop is not started."""
    servers: list[JupyterServer] = []
    for name in ("JUPYTER_CONFIG_PATH", "MIGLAB_API", "MIGLAB_LEASE", "MIGLAB_SHAPE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "servers-own-token")
    monkeypatch.setenv("JUPYTERHUB_API_URL", f"{pool.url}/hub/api")
    monkeypatch.setenv("JUPYTERHUB_USER", "ada ß")
    monkeypatch.setenv("JUPYTERHUB_SERVER_NAME", "lab 2")

    def make(**variables: str) -> JupyterServer:
        env = {"MIGLAB_API": pool.url, "MIGLAB_LEASE": "7", "MIGLAB_SHAPE": "1g.5gb"} | variables
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        app = ServerApp(
            base_url=BASE,
            root_dir=str(tmp_path),
            jpserver_extensions={"miglab_jupyterlab": True},
            open_browser=False,
            allow_root=True,
            log_level="ERROR",
        )
        app.config.IdentityProvider.token = TOKEN
        app.initialize(argv=[], new_httpserver=False)
        servers.append(JupyterServer(app))
        return servers[-1]

    yield make
    for server in servers:
        await server.close()
    ServerApp.clear_instance()


@pytest.fixture
async def server(start: Start) -> JupyterServer:
    """A server with a slice, of which it has heard."""
    jupyter_server = start()
    await jupyter_server.keeper.round()
    return jupyter_server


async def received(tab: WebSocketClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        message = await tab.read_message()
    assert message is not None
    view: dict[str, Any] = json.loads(message)
    return view


async def test_a_round_tells_and_learns(server: JupyterServer, pool: StandIn):
    """The pool hears of this server, by its own token; the front end hears of the lease."""
    assert pool.requests == [("/api/server/signals", "Bearer servers-own-token")]
    assert (pool.reported_signals[0].kernels, pool.reported_signals[0].terminals) == ((), 0)
    assert pool.reported_signals[0].cpu_s is not None
    status = await server.lease()
    assert (status["state"], status["shape"]) == ("held", "1g.5gb")
    assert status["lease"]["others_wait"] == 3
    assert 0 < status["lease"]["left_s"] <= 600


async def test_nobody_else_gets_in(start: Start, pool: StandIn):
    """Without the server's own authentication no route answers, and nothing is asked."""
    server = start()
    assert (await server.client.get("miglab/api/lease")).status_code == 403
    for button in ACTIONS:
        assert (await server.client.post(f"miglab/api/{button}", json={})).status_code == 403
    with pytest.raises(HTTPClientError, match="403"):
        await server.watch({})
    assert pool.requests == []


async def test_a_cookie_alone_changes_nothing(start: Start, pool: StandIn):
    """Another site's form, sent with the browser's cookie, lacks the XSRF token."""
    server = start()
    await server.client.get(f"lab?token={TOKEN}")  # now there is a cookie
    assert (await server.client.get("miglab/api/lease")).status_code == 200
    assert (await server.client.post("miglab/api/release", json={})).status_code == 403
    assert pool.requests == []
    xsrf = {"X-XSRFToken": server.client.cookies["_xsrf"]}
    answer = await server.client.post("miglab/api/release", json={}, headers=xsrf)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("button", "body", "state"),
    [("keepalive", {}, "held"), ("extend", {"by_s": 1800}, "held"), ("release", {}, "ending")],
)
async def test_what_a_button_does_is_seen_in_every_tab(
    start: Start, pool: StandIn, button: str, body: dict[str, Any], state: str
):
    """One acts; the others are told at once, and in the words of a line that is as new."""
    pool.lease = lease_view(warned=warning())
    server = start()
    await server.keeper.round()
    first_tab, second_tab = await server.watch(MINE), await server.watch(MINE)
    assert (await received(first_tab))["warning"]["kind"] == "idle"
    await received(second_tab)
    answer = await server.post(button, **body)
    for status in (answer.json(), await received(first_tab), await received(second_tab)):
        assert (status["state"], status["warning"]) == (state, None)
        (standing,) = status["line"]["standings"]
        assert standing["state"] == {"held": "holding", "ending": "releasing"}[state]
    acted, looked = pool.requests[-2:]
    assert (acted[0], looked[0]) == (f"/api/lease/{button}", "/api/server/signals")


@pytest.mark.parametrize("button", ["extend", "move"])
async def test_a_refusal_comes_through_in_the_pools_words(start: Start, pool: StandIn, button: str):
    """The person who pressed the button reads why, and nothing goes anywhere."""
    pool.refuses, server = NOT_NOW, start()
    answer = await server.post(button, by_s=60)
    assert answer.status_code == 409
    assert answer.json() == {"reason": NOT_NOW.reason, "message": NOT_NOW.message}
    assert server.keeper.status()["moving"] == ""


@pytest.mark.parametrize("value", ["3", True, None])
async def test_nonsense_is_not_passed_on(start: Start, pool: StandIn, value: object):
    """400, and the pool is not asked."""
    server = start()
    for button, body in (("extend", {"by_s": value}), ("read", {"message": value})):
        answer = await server.post(button, **body)
        assert (answer.status_code, pool.requests) == (400, [])


@pytest.mark.parametrize("status", [429, 502, 503])
async def test_a_pool_that_restarts_is_said_and_survived(
    server: JupyterServer, pool: StandIn, status: int
):
    """What was known stays shown with its age; a button says to try again; then all is well."""
    pool.broken = status
    await server.keeper.round()
    keeper_status = server.keeper.status()
    assert (keeper_status["state"], keeper_status["problem"]) == ("held", "silent")
    for button in ("keepalive", "move"):
        answer = await server.post(button)
        assert (answer.status_code, answer.json()["reason"]) == (503, "pool-silent")
    pool.broken = 0
    await server.keeper.round()
    assert (server.keeper.status()["problem"], server.keeper.status()["moving"]) == ("", "")


async def test_a_pool_that_never_answered(start: Start, pool: StandIn):
    """Nobody at the address is silence; that the token is not accepted is said as such."""
    pool.broken = 403
    for url, problem in (("http://127.0.0.1:9", "silent"), (pool.url, "refused")):
        server = start(MIGLAB_API=url)
        await server.keeper.round()
        status = server.keeper.status()
        assert (status["state"], status["problem"]) == ("unknown", problem)


async def test_silent_without_a_pool(start: Start, pool: StandIn):
    """Nothing is sent, nothing is shown, nothing fails; a button says that there is nobody."""
    server = start(MIGLAB_API="", **CPU)
    await server.extension._start_jupyter_server_extension(server.app)
    assert ((await server.lease())["state"], pool.requests) == ("none", [])
    assert server.keeper._task is None
    for button in ("release", "cancel", "requeue"):
        assert (await server.post(button)).status_code in (404, 409)


async def test_what_a_tab_reports_reaches_the_pool(start: Start, pool: StandIn):
    """Unsaved documents and the last key press; what cannot be read is passed over.

    A tab that is closed is not counted: nobody is there any more, and nobody is written to.
    """
    server = start()
    tab = await server.watch(MINE)
    await received(tab)
    for message in ("not json", "[1]", "x" * 2000, '{"unsaved": 2, "active_age_s": 4.0}'):
        await tab.write_message(message)
    await server.until(lambda: server.keeper.tabs.summary(0.0).unsaved is not None)
    await server.keeper.round()
    report = pool.reported_signals[-1]
    assert (report.browsers, report.unsaved) == (1, 2)
    assert report.browser_age_s is not None
    assert report.browser_age_s >= 4.0
    tab.close()
    await server.until(lambda: not server.keeper.tabs.summary(0.0).open)
    await server.keeper.round()
    assert pool.reported_signals[-1].browsers == 0


# -- a server without a slice ------------------------------------------------------------------


@pytest.fixture
async def waiting(start: Start, pool: StandIn) -> JupyterServer:
    """A server without a slice whose ticket waits."""
    pool.lease, pool.ticket = None, ticket_view()
    server = start(**CPU)
    await server.keeper.round()
    return server


async def test_the_position_is_shown_and_kept(waiting: JupyterServer, pool: StandIn):
    """Each report attends the ticket, and brings the place and the likely wait."""
    status = waiting.keeper.status()
    assert (status["state"], status["lease"]) == ("none", None)
    place = status["ticket"]
    assert (place["state"], place["position"], place["waiting"]) == ("waiting", 2, 5)
    assert place["estimate"]["high_s"] == 900
    assert pool.requests[-1] == ("/api/server/signals", "Bearer servers-own-token")
    await waiting.keeper.round()
    assert pool.reported_tickets == [None, 5]


async def test_an_offer_comes_to_every_tab(waiting: JupyterServer, pool: StandIn):
    """With how long it is held; the loop starts with the server, without anybody asking."""
    tab = await waiting.watch(MINE)
    await received(tab)
    pool.ticket = ticket_view(TicketState.OFFERED)
    await waiting.extension._start_jupyter_server_extension(waiting.app)
    place = (await received(tab))["ticket"]
    assert place["state"] == "offered"
    assert 200 < place["left_s"] <= 300


@pytest.mark.parametrize(("button", "shape"), [("move", ""), ("to-cpu", "cpu")])
async def test_one_click_asks_the_hub(
    waiting: JupyterServer, pool: StandIn, button: str, shape: str
):
    """For this very server, to what is offered or without a slice; every tab learns where to go."""
    pool.ticket = ticket_view(TicketState.OFFERED)
    tab = await waiting.watch(MINE)
    await received(tab)
    answer = await waiting.post(button)
    assert answer.json()["moving"] == "/hub/miglab/moving/ada/"
    assert pool.moved == [("ada ß", "lab 2", shape)]
    assert pool.requests[-1][1] == "Bearer servers-own-token"
    views = [await received(tab) for _ in range(2)]
    assert [view["moving"] for view in views] == ["saving", answer.json()["moving"]]
    assert {view["moving_to"] for view in views} == {shape or "1g.5gb"}


async def test_other_tabs_save_first(
    waiting: JupyterServer, pool: StandIn, monkeypatch: pytest.MonkeyPatch
):
    """The hub is asked only when every tab has saved; a tab that cannot is asked about.

    That is refused with what to do; who then says so goes without it.
    """
    tab = await waiting.watch(MINE)
    await received(tab)
    await tab.write_message('{"unsaved": 1}')
    await waiting.until(lambda: waiting.keeper.tabs.summary(0.0).unsaved == 1)
    click = asyncio.create_task(waiting.post("move"))
    assert (await received(tab))["moving"] == "saving"
    assert pool.moved == []
    await tab.write_message('{"unsaved": 0}')
    assert (await click).status_code == 200
    await tab.write_message('{"unsaved": 1}')
    await waiting.until(lambda: waiting.keeper.tabs.summary(0.0).unsaved == 1)
    monkeypatch.setattr("miglab_jupyterlab.keeper.SAVE_S", 0.0)
    answer = await waiting.post("move")
    assert (answer.status_code, answer.json()["reason"], len(pool.moved)) == (409, "unsaved", 1)
    answer = await waiting.post("move", leave_unsaved=True)
    assert (answer.status_code, len(pool.moved)) == (200, 2)


async def test_a_hub_that_could_not_end_the_server(
    waiting: JupyterServer, pool: StandIn, monkeypatch: pytest.MonkeyPatch
):
    """After a while the server stops saying that it is about to restart."""
    monkeypatch.setattr("miglab_jupyterlab.keeper.MOVE_S", 0.0)
    tab = await waiting.watch(MINE)
    await received(tab)
    await waiting.post("move")
    async with asyncio.timeout(PATIENCE_S):
        while (await received(tab))["moving"] != "":
            pass
    assert waiting.keeper.status()["moving"] == ""


async def test_a_ticket_given_up(waiting: JupyterServer, pool: StandIn):
    """Nothing is left of it, and nothing is said of how it ended: the person knows."""
    answer = await waiting.post("cancel")
    assert (answer.json()["ticket"], answer.json()["line"]["standings"]) == (None, [])
    pool.ticket = ticket_view(TicketState.CANCELLED)  # the answer to a report under way
    await waiting.keeper.round()
    assert waiting.keeper.status()["ticket"] is None


async def test_a_ticket_that_ended_is_told_until_read(waiting: JupyterServer, pool: StandIn):
    """Why, in the pool's words; and one may ask again."""
    pool.ticket = ticket_view(TicketState.EXPIRED, message="Not taken in time.")
    await waiting.keeper.round()
    ended = waiting.keeper.status()["ticket"]
    assert (ended["state"], ended["message"]) == ("over", "Not taken in time.")
    answer = await waiting.post("requeue")
    assert (answer.json()["ticket"]["id"], answer.json()["ticket"]["position"]) == (6, 5)
    pool.ticket = ticket_view(TicketState.REFUSED, id=6)
    await waiting.keeper.round()
    answer = await waiting.post("forget")
    assert answer.json()["ticket"] is None
    await waiting.keeper.round()
    assert waiting.keeper.status()["ticket"] is None


# -- what staff say ----------------------------------------------------------------------------


async def test_messages_are_shown_until_read(start: Start, pool: StandIn):
    """With and without a slice, the oldest first, as they were written; reading is for all tabs."""
    script = "<script>alert(1)</script>"
    pool.messages = (message_of(4, script), message_of(3), message_of(2, left_s=-1))
    server = start()
    await server.keeper.round()
    tab = await server.watch(MINE)
    messages = (await received(tab))["messages"]
    assert [(message["id"], message["text"]) for message in messages] == [
        (3, "Ten minutes left."),
        (4, script),
    ]
    await server.post("read", message=3)
    assert [message["id"] for message in (await received(tab))["messages"]] == [4]
    await server.keeper.round()
    assert [message["id"] for message in server.keeper.status()["messages"]] == [4]


async def test_progress_is_told_once_the_notice_was_read(start: Start, pool: StandIn):
    """Not a word of it before; then at once, and once a minute; without a course nothing."""
    pool.sharing = {"ml": False, "vision": True}
    server = start(MIGLAB_COURSE="")
    await server.keeper.round()
    assert server.keeper.status()["sharing"] is None
    assert (await server.post("notice-read")).is_error
    server = start(MIGLAB_COURSE="ml")
    await server.keeper.round()
    assert ((await server.lease())["sharing"], pool.reports) == (False, [])
    assert (await server.post("notice-read")).json()["sharing"] is True
    await server.keeper.round()
    await server.keeper.round()
    assert [(report.course, report.experiments) for report in pool.reports] == [("ml", ())]


async def test_a_slice_is_chosen_without_leaving_the_server(start: Start, pool: StandIn):
    """The hub's choices come through as they are; the ticket is there at once, in every tab."""
    pool.lease = None
    server = start(**CPU)
    await server.keeper.round()
    assert (await server.lease())["can_choose"] is True
    tab = await server.watch(MINE)
    await received(tab)
    choices = (await server.client.get("miglab/api/choices", headers=MINE)).json()
    assert choices["sections"][0]["shapes"] == [{"value": "1g.5gb"}]
    answer = await server.post("choose", choice="1g.5gb", only_if_free=True)
    assert pool.chosen == [("ada ß", "lab 2", {"choice": "1g.5gb", "only_if_free": True})]
    for status in (answer.json(), await received(tab)):
        assert (status["ticket"]["position"], status["can_choose"]) == (2, True)
    assert (await server.post("choose", choice=7)).status_code == 400


async def test_a_refused_choice_is_passed_on_in_the_same_words(start: Start, pool: StandIn):
    """Of what can be chosen, too; nothing waits afterwards."""
    pool.lease, pool.refuses = None, NOT_NOW
    server = start(**CPU)
    choices = await server.client.get("miglab/api/choices", headers=MINE)
    for answer in (choices, await server.post("choose", choice="1g.5gb")):
        assert answer.status_code == 409
        assert answer.json() == {"reason": NOT_NOW.reason, "message": NOT_NOW.message}
    assert (await server.lease())["ticket"] is None


async def test_who_holds_a_slice_chooses_none(server: JupyterServer):
    """Release it first."""
    assert (await server.lease())["can_choose"] is False


async def test_who_comes_back_is_told_once(start: Start, pool: StandIn, tmp_path: Path):
    """What ended since the last look, with what was measured; put away in every tab."""
    file = tmp_path / "jupyter_data_dir" / LAST_LOOK
    file.parent.mkdir()
    file.write_text(json.dumps({"looked_at": NOW - 3600}))
    evidence = {"points": [1], "prediction": 2, "explanation": ""}
    (tmp_path / "notebooks/evidence").mkdir(parents=True)
    (tmp_path / "notebooks/evidence/occupancy.json").write_text(json.dumps(evidence))
    end = LeaseEnd(
        shape="3g.20gb", server="", ended_at=NOW - 1800, reason="Nothing ran for 20 min.",
        is_given_back=False, purpose=Purpose.SERVER,
    )  # fmt: skip
    pool.ends = (end, end.model_copy(update={"ended_at": NOW - 7200}))
    server = start(MIGLAB_COURSE="ml")
    await server.keeper.round()
    assert (await server.lease())["away"] is None  # nobody looks
    server.keeper.take_report(object(), {"active_age_s": 1.0})
    await server.keeper.round()
    away = (await server.lease())["away"]
    assert away["since"] == NOW - 3600 and away["is_new_server"]
    lease, measured = away["events"]
    assert (lease["shape"], lease["reason"]) == ("3g.20gb", end.reason)
    assert measured["experiment"] == "occupancy"
    assert (await server.post("away-read")).json()["away"] is None
    await server.keeper.round()
    assert (await server.lease())["away"] is None
