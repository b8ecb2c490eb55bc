"""Whatever NVML answers to whichever call: start and reconcile go on, and other GPUs lease on."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.nvml_errors import FUNCTIONS, TABLES, FailingLibrary
from tests.pool_settings import changed

from miglab_api.tickets import TicketState
from miglab_pool.gpu.driver import Driver
from miglab_pool.gpu.readings import DriverMissing
from miglab_pool.gpu.simulated.nvml import SimulatedNvml
from miglab_pool.gpu.watched import WatchedDriver
from miglab_pool.ledger.ledger import Ledger
from miglab_pool.pool import Pool
from miglab_pool.refused import Refused
from miglab_pool.settings import Course, Gpus

from .conftest import SETTINGS, World

SHAPE = "1g.10gb"
COURSES = {"everyone": Course(title="Everyone", shapes=(SHAPE, "full"))}
GOOD = 1
MODELS = ["H100", "A100-80GB", "H100"]
OPENING = {"nvmlInit"}


class WatchedLab(World):
    """A pool over three GPUs as the service opens them: one is cut and good, two fail as told."""

    def __init__(self, folder: Path) -> None:
        nvml = SimulatedNvml(folder / "gpus", sleep=lambda _s: None, now=lambda: self.at)
        self.nvml, self.library = nvml, FailingLibrary(nvml)
        settings = changed(SETTINGS, courses=COURSES, gpus=Gpus(simulate=MODELS, whole=(2,)))
        super().__init__(folder, settings, models=MODELS)
        self.uuids = [gpu.uuid for gpu in self.machine.state().gpus]
        self.machine.set_mig(False, self.uuids[-1])

    def open(self) -> None:
        """As the service does."""
        self.ledger = Ledger(self.folder / "ledger.sqlite")
        self.driver = WatchedDriver(
            lambda gpus, remembered: Driver(self.nvml, gpus, remembered),
            [gpu.uuid for gpu in self.machine.state().gpus],
            simulated=True,
            limit_s=60.0,
        )
        self.pool = Pool(self.settings, self.ledger, self.driver, self.holders, lambda: self.at)

    def start_anew(self) -> bool:
        """Whether the service starts: not without a driver."""
        self.driver.close()
        self.crash()
        try:
            self.driver.check(60.0)
            self.driver.gpus()
        except DriverMissing:
            return False
        self.pool.reconcile()
        return True

    def serve(self, user: str) -> str:
        """Look, lease to a student and end it: how far the ticket came, or why it was refused."""
        self.pool.sample()
        try:
            ticket = self.wait(user, SHAPE)
        except Refused as refused:
            return refused.reason
        self.pool.sample()
        self.pool.tickets.cancel(ticket.id, user)
        self.work()
        return ticket.state

    def recover(self) -> None:
        """Nothing fails any more; after the longest pause everything was looked at again."""
        self.library.fail("")
        for _ in range(2):
            self.work_after(self.settings.tuning.retry_max_s)
            self.pool.reconcile()
        self.work()

    def gpus(self) -> list[str]:
        return [gpu.state for gpu in self.pool.snapshot().gpus]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[WatchedLab]:
    lab = WatchedLab(tmp_path)
    lab.pool.reconcile()
    yield lab
    lab.check()
    lab.driver.close()
    lab.close()


@pytest.mark.parametrize("codes", TABLES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_answer_that_nobody_expects_concerns_one_gpu(
    lab: WatchedLab, function: str, codes: Mapping[str, int]
) -> None:
    """The service starts, the other GPU serves whoever asks, and all recover by themselves."""
    for code in codes.values():
        lab.library.fail(function, code, but={GOOD})
        is_started = lab.start_anew()
        assert is_started or function in OPENING, code
        served = lab.serve("ada")
        if not lab.library.is_asked_of_none:
            assert (lab.gpus()[GOOD], served) == ("ok", TicketState.OFFERED), code
        lab.recover()
        assert lab.gpus() == ["ok"] * 3, code
