"""The end of a lease: the hub is asked to stop the server, and only that server."""

from datetime import UTC, datetime
from email.utils import format_datetime

import httpx
import pytest

from miglab_api.leases import LeaseState, LeaseView
from miglab_pool.reclaim.server_stopper import UNKNOWN_S, ServerEnder

from .fakes import lease_view

SEEN_AT = 1_800_000_000.0


class FakeHub:
    """A hub with one running server; counts what it is asked to stop."""

    def __init__(self, started_at: float | None = SEEN_AT - 100, status: int = 204) -> None:
        self.started_at = started_at
        self.status = status
        self.stopped: list[str] = []
        self.moved: list[tuple[str, bytes]] = []
        self.moves = 202
        self.silent = False
        self.server = ""
        self.pending: str | None = None
        self.at = [SEEN_AT]
        self.ahead_s = 0.0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.silent:
            raise httpx.ConnectError("no route", request=request)
        if request.method == "DELETE":
            self.stopped.append(request.url.raw_path.decode())
            return httpx.Response(self.status)
        if request.method == "POST":
            self.moved.append((request.url.raw_path.decode(), request.content))
            return httpx.Response(self.moves)
        started = self.started_at and self._clock(self.started_at).isoformat()
        server = {"started": started, "stopped": False, "pending": self.pending}
        servers = {} if started is None else {self.server: server}
        now = format_datetime(self._clock(self.at[0]).replace(microsecond=0), usegmt=True)
        said = {"name": "alice", "servers": servers}
        return httpx.Response(200, json=said, headers={"Date": now})

    def _clock(self, at: float) -> datetime:
        return datetime.fromtimestamp(at + self.ahead_s, UTC)


def releasing(**more: object) -> LeaseView:
    values = {"user": "alice", "state": LeaseState.RELEASING, "attached_at": SEEN_AT, **more}
    return lease_view(1, **values)  # type: ignore[arg-type]


def ender(hub: FakeHub, at: list[float]) -> ServerEnder:
    hub.at = at
    transport = httpx.MockTransport(hub)
    client = httpx.AsyncClient(transport=transport, base_url="http://hub/hub/api")
    return ServerEnder(client, lambda: at[0])


async def test_a_releasing_lease_stops_its_server() -> None:
    """Once, and again only after a pause."""
    hub, at = FakeHub(), [SEEN_AT]
    one = ender(hub, at)
    for seconds in (0, 1, 4):
        at[0] = SEEN_AT + seconds
        await one.ask([releasing()])
    assert hub.stopped == ["/hub/api/users/alice/server"]
    at[0] = SEEN_AT + 6
    await one.ask([releasing()])
    assert len(hub.stopped) == 2


@pytest.mark.parametrize(("moves", "stopped"), [(202, 0), (403, 1), (404, 1), (409, 1)])
async def test_who_was_needed_goes_on_without_a_gpu(moves: int, stopped: int) -> None:
    """Started anew as the hub can do it, and stopped where it cannot."""
    hub = FakeHub()
    hub.moves = moves
    await ender(hub, [SEEN_AT]).ask([releasing(goes_on=True)])
    assert hub.moved == [("/hub/api/miglab/move/alice/", b'{"shape":"cpu"}')]
    assert len(hub.stopped) == stopped


@pytest.mark.parametrize(
    "more",
    [{"state": state} for state in LeaseState if state is not LeaseState.RELEASING]
    + [{"holder": ""}],
)
async def test_what_stops_no_server(more: dict[str, object]) -> None:
    """A lease that is not being released, and one that was never attached."""
    hub = FakeHub()
    await ender(hub, [SEEN_AT]).ask([releasing(**more)])
    assert hub.stopped == []


@pytest.mark.parametrize("ahead_s", [-300.0, -0.9, 0.9, 300.0])
async def test_clocks_that_differ_change_nothing(ahead_s: float) -> None:
    """The hub's clock tells the server's age, the pool's the lease's."""
    for started_s, stopped in ((-1, 1), (60, 0)):
        hub = FakeHub(started_at=SEEN_AT + started_s)
        hub.ahead_s = ahead_s
        await ender(hub, [SEEN_AT + 3600]).ask([releasing()])
        assert len(hub.stopped) == stopped


@pytest.mark.parametrize(("later_s", "stopped"), [(0, 1), (0.4, 1), (60, 0), (-60, 0)])
async def test_a_start_is_known_by_the_hubs_own_time_of_it(later_s: float, stopped: int) -> None:
    """Whatever clocks say: they were set back by an hour between its beginning and the attach."""
    began = SEEN_AT + 3600
    hub = FakeHub(started_at=began + later_s)
    said = datetime.fromtimestamp(began, UTC).isoformat().replace("+00:00", "Z")
    await ender(hub, [SEEN_AT + 90]).ask([releasing(server_started=said)])
    assert len(hub.stopped) == stopped


@pytest.mark.parametrize(("started_s", "stopped"), [(-1, 1), (2, 0), (3000, 0)])
async def test_a_server_is_known_by_when_it_was_attached(
    caplog: pytest.LogCaptureFixture, started_s: float, stopped: int
) -> None:
    """A server that was started since is another one, whether before the lease was asked back (as
    when its own start does that) or after; a pool that was restarted has seen neither begin."""
    hub = FakeHub(started_at=SEEN_AT + started_s)
    late = SEEN_AT + 3600
    await ender(hub, [late]).ask([releasing(attached_at=SEEN_AT, release_requested_at=late - 1800)])
    assert len(hub.stopped) == stopped
    assert ("was started after it was attached: left alone" in caplog.text) is not bool(stopped)


@pytest.mark.parametrize("attached_at", [SEEN_AT, SEEN_AT + 3600], ids=["", "clock set back"])
async def test_a_start_is_never_interrupted(attached_at: float) -> None:
    """It may be the next server's, whatever the clocks say; once that runs it can be told."""
    hub, at = FakeHub(started_at=SEEN_AT - 1), [SEEN_AT]
    hub.pending = "spawn"
    one = ender(hub, at)
    await one.ask([releasing(attached_at=attached_at)])
    assert (hub.stopped, one.unknown) == ([], frozenset())
    hub.pending = None
    at[0] += 6
    await one.ask([releasing()])
    assert len(hub.stopped) == 1


async def test_a_silent_hub_is_asked_again() -> None:
    """An unreachable hub raises nothing and ends nothing; it is asked again after a pause."""
    hub, at = FakeHub(), [SEEN_AT]
    one = ender(hub, at)
    hub.silent = True
    await one.ask([releasing()])
    hub.silent = False
    at[0] += 6
    await one.ask([releasing()])
    assert len(hub.stopped) == 1


async def test_names_are_quoted() -> None:
    """A name cannot lead to another address of the hub's API."""
    hub = FakeHub()
    hub.server = "../x"
    await ender(hub, [SEEN_AT]).ask([releasing(user="a/../b?c", server="../x")])
    assert hub.stopped == ["/hub/api/users/a%2F..%2Fb%3Fc/servers/..%2Fx"]


async def test_what_is_over_is_forgotten() -> None:
    """Only leases that are still releasing are remembered."""
    one = ender(FakeHub(), [SEEN_AT])
    await one.ask([releasing()])
    await one.ask([])
    assert one._asked == set()


def told(*answers: httpx.Response) -> tuple[ServerEnder, list[float]]:
    """An ender whose hub answers one after another, the last for ever."""
    at, left = [SEEN_AT], list(answers)
    transport = httpx.MockTransport(lambda _: left.pop(0) if len(left) > 1 else left[0])
    client = httpx.AsyncClient(transport=transport, base_url="http://hub/hub/api")
    return ServerEnder(client, lambda: at[0]), at


LOST = httpx.Response(404, json={"status": 404, "message": "User not found"})
NO_SERVER = httpx.Response(200, json={"name": "alice", "servers": {}})


ANOTHER = httpx.Response(
    200,
    headers={"Date": format_datetime(datetime.fromtimestamp(SEEN_AT, UTC), usegmt=True)},
    json={"servers": {"": {"started": "2100-01-01T00:00:00Z"}}},
)


@pytest.mark.parametrize(
    "answer", [LOST, NO_SERVER, ANOTHER], ids=["no such user", "no such server", "another start"]
)
async def test_a_server_the_hub_does_not_have_is_abandoned(answer: httpx.Response) -> None:
    """With a new hub database nobody would ever end it; said at once, believed after a while."""
    one, at = told(answer)
    await one.ask([releasing()])
    assert (one.unknown, one.abandoned) == ({1}, frozenset())
    at[0] += UNKNOWN_S + 1
    await one.ask([releasing()])
    assert one.abandoned == {1}
    await one.ask([])
    assert (one.unknown, one.abandoned) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(502), httpx.Response(404, text="no such page"), httpx.Response(403)],
    ids=["ill", "a proxy's 404", "forbidden"],
)
async def test_what_is_no_answer_of_the_hub_abandons_nothing(answer: httpx.Response) -> None:
    """Unknown never leads to an end; it begins the wait anew."""
    one, at = told(NO_SERVER, answer)
    await one.ask([releasing()])
    at[0] += UNKNOWN_S + 1
    await one.ask([releasing()])
    assert (one.unknown, one.abandoned) == (frozenset(), frozenset())
