"""The end of a lease: the hub is asked to stop the server, and only that server."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime

import httpx
import pytest
from tests.unit.pool.applications.fakes import lease_view

from miglab_api.leases import LeaseState, LeaseView
from miglab_pool.reclaim.server_stopper import UNKNOWN_S, ServerStopper

SEEN_AT = 1_800_000_000.0


@dataclass
class FakeHub:
    """A hub with one running server; counts what it is asked to stop."""

    started_at: float = SEEN_AT - 100
    now: float = SEEN_AT
    server: str = ""
    ahead_s: float = 0.0
    pending: str | None = None
    moves: int = 202
    is_silent: bool = False
    answer: httpx.Response | None = None  # instead of what it knows
    stopped: list[str] = field(default_factory=list)
    moved: list[tuple[str, bytes]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.is_silent:
            raise httpx.ConnectError("no route", request=request)
        if request.method == "DELETE":
            self.stopped.append(request.url.raw_path.decode())
            return httpx.Response(204)
        if request.method == "POST":
            self.moved.append((request.url.raw_path.decode(), request.content))
            return httpx.Response(self.moves)
        started = self._clock(self.started_at).isoformat()
        server = {"started": started, "stopped": False, "pending": self.pending}
        now = format_datetime(self._clock(self.now).replace(microsecond=0), usegmt=True)
        user_model = {"name": "alice", "servers": {self.server: server}}
        return self.answer or httpx.Response(200, json=user_model, headers={"Date": now})

    def _clock(self, at: float) -> datetime:
        return datetime.fromtimestamp(at + self.ahead_s, UTC)


def releasing(**fields: object) -> LeaseView:
    values = {"user": "alice", "state": LeaseState.RELEASING, "attached_at": SEEN_AT, **fields}
    return lease_view(1, **values)  # type: ignore[arg-type]


def stopper_of(hub: FakeHub) -> ServerStopper:
    transport = httpx.MockTransport(hub)
    client = httpx.AsyncClient(transport=transport, base_url="http://hub/hub/api")
    return ServerStopper(client, lambda: hub.now)


async def test_a_releasing_lease_stops_its_server() -> None:
    """Once, and again only after a pause, as when the hub was silent; what is over is forgotten."""
    hub = FakeHub(is_silent=True)
    stopper = stopper_of(hub)
    await stopper.stop_servers([releasing()])
    hub.is_silent = False
    for seconds, stopped in ((1, 0), (4, 0), (6, 1), (7, 1), (60, 2)):
        hub.now = SEEN_AT + seconds
        await stopper.stop_servers([releasing()])
        assert hub.stopped == ["/hub/api/users/alice/server"] * stopped
    await stopper.stop_servers([])
    assert stopper._due_before == set()


@pytest.mark.parametrize(("moves", "stopped"), [(202, 0), (403, 1), (404, 1), (409, 1)])
async def test_who_was_needed_goes_on_without_a_gpu(moves: int, stopped: int) -> None:
    """Started anew as the hub can do it, and stopped where it cannot."""
    hub = FakeHub(moves=moves)
    await stopper_of(hub).stop_servers([releasing(goes_on=True)])
    assert hub.moved == [("/hub/api/miglab/move/alice/", b'{"shape":"cpu"}')]
    assert len(hub.stopped) == stopped


@pytest.mark.parametrize(
    "fields",
    [{"state": state} for state in LeaseState if state is not LeaseState.RELEASING]
    + [{"holder": ""}],
)
async def test_what_stops_no_server(fields: dict[str, object]) -> None:
    """A lease that is not being released, and one that was never attached."""
    hub = FakeHub()
    await stopper_of(hub).stop_servers([releasing(**fields)])
    assert hub.stopped == []


@pytest.mark.parametrize("ahead_s", [-300.0, -0.9, 0.9, 300.0])
@pytest.mark.parametrize(("started_s", "stopped"), [(-0.5, 1), (2, 0), (60, 0), (3000, 0)])
async def test_a_server_is_known_by_when_it_was_attached(
    caplog: pytest.LogCaptureFixture, ahead_s: float, started_s: float, stopped: int
) -> None:
    """A server that was started since is another one, whether before the lease was asked back (as
    when its own start does that) or after; a pool that was restarted has seen neither begin.

    The hub's clock tells the server's age, the pool's the lease's; that they differ is nothing.
    """
    late = SEEN_AT + 3600
    hub = FakeHub(started_at=SEEN_AT + started_s, now=late, ahead_s=ahead_s)
    await stopper_of(hub).stop_servers([releasing(release_requested_at=late - 1800)])
    assert len(hub.stopped) == stopped
    assert ("was started after it was attached: left alone" in caplog.text) is not bool(stopped)


@pytest.mark.parametrize(("later_s", "stopped"), [(0, 1), (0.4, 1), (60, 0), (-60, 0)])
async def test_a_start_is_known_by_the_hubs_own_time_of_it(later_s: float, stopped: int) -> None:
    """Whatever clocks say: they were set back by an hour between its beginning and the attach."""
    started_at = SEEN_AT + 3600
    hub = FakeHub(started_at=started_at + later_s, now=SEEN_AT + 90)
    server_started = datetime.fromtimestamp(started_at, UTC).isoformat().replace("+00:00", "Z")
    await stopper_of(hub).stop_servers([releasing(server_started=server_started)])
    assert len(hub.stopped) == stopped


@pytest.mark.parametrize("attached_at", [SEEN_AT, SEEN_AT + 3600], ids=["", "clock set back"])
async def test_a_start_is_never_interrupted(attached_at: float) -> None:
    """It may be the next server's, whatever the clocks say; once that runs it can be told."""
    hub = FakeHub(started_at=SEEN_AT - 1, pending="spawn")
    stopper = stopper_of(hub)
    await stopper.stop_servers([releasing(attached_at=attached_at)])
    assert (hub.stopped, stopper.unknown) == ([], frozenset())
    hub.pending = None
    hub.now += 6
    await stopper.stop_servers([releasing()])
    assert len(hub.stopped) == 1


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(302, headers={"Location": "/jupyter/hub/users/alice"}),
        httpx.Response(200, text="<h1>Sign in</h1>"),
        httpx.Response(404, text="<h1>nginx</h1>"),
        httpx.Response(200, json=["no object"]),
    ],
    ids=["redirect", "page", "proxy", "list"],
)
async def test_what_is_not_the_hubs_json_is_told_and_ends_nothing(
    caplog: pytest.LogCaptureFixture, answer: httpx.Response
) -> None:
    """The log says what was asked and what came; nobody is known to be gone."""
    hub = FakeHub(answer=answer)
    stopper = stopper_of(hub)
    await stopper.stop_servers([releasing()])
    assert (hub.stopped, stopper.unknown) == ([], frozenset())
    assert "GET http://hub/hub/api/users/alice was answered with HTTP" in caplog.text


async def test_a_stop_that_is_redirected_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    """JupyterHub answers a stop with 202 or 204; elsewhere nobody knows whether it was stopped."""
    hub = FakeHub()
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(
            lambda request: (
                hub(request)
                if request.method == "GET"
                else httpx.Response(302, headers={"Location": "/jupyter/hub/"})
            )
        ),
        base_url="http://hub/hub/api",
    )
    await ServerStopper(client, lambda: hub.now).stop_servers([releasing()])
    assert "DELETE http://hub/hub/api/users/alice/server was answered with HTTP 302" in caplog.text


async def test_names_are_quoted() -> None:
    """A name cannot lead to another address of the hub's API."""
    hub = FakeHub(server="../x")
    await stopper_of(hub).stop_servers([releasing(user="a/../b?c", server="../x")])
    assert hub.stopped == ["/hub/api/users/a%2F..%2Fb%3Fc/servers/..%2Fx"]


LOST = httpx.Response(404, json={"status": 404, "message": "User not found"})


@pytest.mark.parametrize(
    "hub_state",
    [{"answer": LOST}, {"server": "another"}, {"started_at": SEEN_AT + 1e9}],
    ids=["no such user", "no such server", "another start"],
)
async def test_a_server_the_hub_does_not_have_is_abandoned(hub_state: dict[str, object]) -> None:
    """With a new hub database nobody would ever end it; said at once, believed after a while."""
    hub = FakeHub(**hub_state)  # type: ignore[arg-type]
    stopper = stopper_of(hub)
    await stopper.stop_servers([releasing()])
    assert (stopper.unknown, stopper.abandoned) == ({1}, frozenset())
    hub.now += UNKNOWN_S + 1
    await stopper.stop_servers([releasing()])
    assert stopper.abandoned == {1}
    await stopper.stop_servers([])
    assert (stopper.unknown, stopper.abandoned) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(502),
        httpx.Response(404, text="no such page"),
        httpx.Response(404, json={"message": "no route matched"}),
        httpx.Response(403),
    ],
    ids=["ill", "a proxy's 404", "a proxy's 404 in JSON", "forbidden"],
)
async def test_what_is_no_answer_of_the_hub_abandons_nothing(answer: httpx.Response) -> None:
    """Unknown never leads to an end; it begins the wait anew."""
    hub = FakeHub(server="another")
    stopper = stopper_of(hub)
    await stopper.stop_servers([releasing()])
    hub.answer = answer
    hub.now += UNKNOWN_S + 1
    await stopper.stop_servers([releasing()])
    assert (stopper.unknown, stopper.abandoned) == (frozenset(), frozenset())
