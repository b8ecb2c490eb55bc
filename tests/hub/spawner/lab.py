"""A pool as it is, over simulated GPUs, reached without a socket; how to break the way to it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx
from tests.empty import empty_ledger
from tests.pool_settings import changed

from miglab_api.leases import LeaseView
from miglab_api.tickets import TicketView
from miglab_bench.harness.student import STEP_S
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner, Times
from miglab_pool.course_roles import RoleBook
from miglab_pool.gpu.simulated.machine import SimulatedMachine
from miglab_pool.gpu.watched import open_gpus
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.hub_tokens import HubAccess
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.pool import Pool
from miglab_pool.settings import Course, PoolSettings
from miglab_pool.worker.holders import HostHolders

PREFIX = "/services/pool"
URL = f"http://pool{PREFIX}"
SECRET = "the-spawners-own-secret"
SHAPES = ("1g.5gb", "2x1g.5gb", "3g.20gb", "7g.40gb", "cpu")
COURSES = {
    "everyone": Course(
        title="Everyone",
        shapes=SHAPES,
        lends=("1g.5gb", "2g.10gb", "3g.20gb", "2x1g.5gb"),
        default="1g.5gb",
    ),
    "vision": Course(title="Computer vision", shapes=("3g.20gb",), default="3g.20gb"),
    "text": Course(title="Text", shapes=("1g.5gb",), default="cpu"),
}
SETTINGS = changed(
    PoolSettings(courses=COURSES),
    probe_s=0.05,
    longest_wait_s=60.0,
    offer_s=120.0,
    attach_s=120.0,
    borrow_s=3600.0,
)


class CuttableTransport(httpx.AsyncBaseTransport):
    """The way to the pool; can be cut, and can be listened to.

    Attributes:
        is_cut: no connection is made.
        calls: method and path of every request, in order.
    """

    def __init__(self) -> None:
        self.app: httpx.ASGITransport | None = None
        self.is_cut = False
        self.calls: list[tuple[str, str]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut or self.app is None:
            raise httpx.ConnectError("connection refused", request=request)
        self.calls.append((request.method, request.url.path.removeprefix(PREFIX)))
        try:
            return await self.app.handle_async_request(request)
        except RuntimeError as error:  # the service ended in the middle of an answer
            raise httpx.ReadError(str(error), request=request) from error


class PoolLab:
    """A simulated A100, a ledger, the pool and its management application."""

    def __init__(
        self, folder: Path, holders: HostHolders | None = None, sign_in: SignIn | None = None
    ) -> None:
        self.folder = folder
        self.holders = holders or HostHolders()
        access = HubAccess("http://hub/hub/api", "/hub/", PREFIX, "pool", "service-token")
        self.sign_in = sign_in or SignIn(access, SECRET, RoleBook())
        self.settings = SETTINGS
        self.secret_file = folder / "pool.secret"
        self.secret_file.write_text(SECRET)
        (folder / "ledger.sqlite").write_bytes(empty_ledger())
        self.machine = SimulatedMachine.create(folder / "gpus", gpus=1)
        self.way = CuttableTransport()
        self.http = httpx.AsyncClient(transport=self.way)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.way.app is not None:
            await self.stop()
        await self.http.aclose()

    async def start(self) -> None:
        """Start the service; also again, over the same ledger and GPUs."""
        self.driver = open_gpus(simulated_state=self.folder / "gpus")
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.pool = Pool(self.settings, self.ledger, self.driver, self.holders)
        self.runner = PoolRunner(self.pool, Metrics(), Times(turn_s=0.05, reconcile_s=3600))
        app = management_app(self.runner, self.sign_in, default_course="everyone")
        await self.runner.start()
        self.way.app = httpx.ASGITransport(app)

    async def stop(self) -> None:
        """Stop the service; ledger and GPUs stay as they are."""
        self.way.app = None
        await self.runner.stop()
        self.ledger.close()
        self.driver.close()

    def limit(self, **settings: object) -> None:
        """Change the pool's settings; takes effect with the next start."""
        self.settings = changed(self.settings, **settings)

    def lease_of(self, user: str, server: str = "") -> LeaseView | None:
        return self.pool.leases.lease_of_server(user, server)

    def held_by(self, user: str, server: str = "") -> LeaseView:
        """The lease that there is."""
        lease = self.lease_of(user, server)
        assert lease is not None
        return lease

    def waiting(self) -> list[TicketView]:
        return list(self.pool.snapshot().waiting)

    async def until(self, true: Callable[[], object], reason: str) -> None:
        """Until something is true of the pool; it wakes us at each change, so nothing sleeps."""
        async with asyncio.timeout(STEP_S):
            while not true():
                await self.runner.notifier.beyond(self.runner.notifier.version, 0.2)
        assert true(), reason

    async def until_empty(self) -> None:
        """Until nobody holds anything."""
        await self.until(lambda: not self.pool.leases.live(), "every lease is over")
