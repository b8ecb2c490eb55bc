"""The longest wait by the guarantees that run: when it is told, and that nobody waits longer."""

import contextlib
import datetime as dt
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.pool_settings import changed
from tests.unit.pool.conftest import SHAPES, Keep
from tests.unit.pool.reclaim.test_round import LIMITS, POOL, STEP_S, ReclaimWorld

from miglab_api.leases import LeaseState, WarningKind
from miglab_api.reservations import ReservationRequest
from miglab_api.tickets import TicketState, WaitEstimate
from miglab_api.wording import estimated_wait
from miglab_pool.queue.longest_wait import longest_waits
from miglab_pool.refused import Refused
from miglab_pool.settings import Course, PoolSettings, Quota

LEASE_S, EXTENSION_S, EXTENSIONS = 1800.0, 300.0, 2
WARNING_S, OFFER_S = 120.0, 90.0
HANDOVER_S = 2 * (WARNING_S + 5) + 60
RULES = changed(
    POOL, courses={"everyone": Course(shapes=SHAPES)}, lease_s=LEASE_S, extension_s=EXTENSION_S,
    extensions=EXTENSIONS, ageing_s=600.0, offer_s=OFFER_S, longest_wait_s=1e6, idle_s=1e6,
    idle_wanted_s=1e6, keep_warm=False,
)  # fmt: skip
MakeDay = Callable[..., "FirstDay"]


class FirstDay(ReclaimWorld):
    """An A100 that nobody has used yet; servers end when they are told to."""

    def __init__(self, folder: Path, settings: PoolSettings) -> None:
        idle_wanted_s = settings.reclaim.idle_wanted_s
        limits = LIMITS.model_copy(update={"idle_s": 1e6, "idle_wanted_s": idle_wanted_s})
        super().__init__(folder, settings, limits=limits)
        self.late: set[str] = set()  # who does not take what is offered
        self.promised: dict[int, float] = {}  # by ticket, the earliest end that was told
        self.kept = 0  # how many were told and then offered a slice in time

    def step(self) -> None:
        """Time passes; who is offered a slice takes it; the longest waits are told, and hold."""
        self.live(STEP_S)
        for lease in self.pool.leases.live():
            if lease.state is LeaseState.RELEASING:
                self.holders.present.discard(lease.holder)
        self.attend_all()
        self.work()
        for ticket in self.pool.snapshot().offered:
            if self.promised.pop(ticket.id, None) is not None:
                self.kept += 1
            if ticket.user not in self.late:
                self.start(ticket.id)
        for key, wait in longest_waits(self.pool.view).items():
            if isinstance(key, int):
                until = self.at + wait.high_s
                self.promised[key] = min(until, self.promised.get(key, until))
        for ticket in self.pool.view.queued:
            assert self.at <= self.promised.get(ticket.id, self.at), ticket

    def start(self, ticket: int) -> None:
        lease = self.pool.tickets.take(ticket)
        holder = self.new_holder()
        self.label(holder, lease)
        self.pool.leases.attach(lease.id, lease.generation, holder)
        self.pool.leases.running(lease.id)
        self.busy.add(lease.id)

    def longest_s(self, ticket: int) -> float | None:
        wait = longest_waits(self.pool.view).get(ticket)
        return None if wait is None else wait.high_s


@pytest.fixture
def make_day(tmp_path: Path, keep: Keep[FirstDay]) -> MakeDay:
    def make(settings: PoolSettings = RULES) -> FirstDay:
        return keep(FirstDay(tmp_path, settings))

    return make


@pytest.fixture
def day(make_day: MakeDay) -> FirstDay:
    return make_day()


def fill(day: FirstDay, count: int = 7, shape: str = "1g.5gb") -> None:
    """Leases that began two minutes apart."""
    for number in range(count):
        day.busy.add(day.run(f"s{number}", shape).id)
        day.pass_time(120)


def left_s(day: FirstDay, user: str) -> float:
    (lease,) = day.pool.leases.live(user)
    assert lease.guaranteed_until is not None
    return lease.guaranteed_until - day.at + EXTENSIONS * EXTENSION_S


def test_each_waits_for_a_guarantee_of_its_own(day: FirstDay) -> None:
    """The first for the one that ends first, with all its extensions; the third for the third."""
    fill(day)
    tickets = [day.ask(f"w{number}").id for number in range(3)]
    for number, ticket in enumerate(tickets):
        expected_s = left_s(day, f"s{number}") + (number + 1) * HANDOVER_S
        assert day.longest_s(ticket) == pytest.approx(expected_s)
    newcomer = longest_waits(day.pool.view)["1g.5gb",]
    assert newcomer.high_s == pytest.approx(left_s(day, "s3") + 4 * HANDOVER_S)
    assert newcomer.is_longest and newcomer.low_s == 0.0


def test_it_is_told_on_the_first_day(day: FirstDay) -> None:
    """Ticket and spawn page have it while there is no history; a heavy user is told nothing."""
    fill(day)
    ticket = day.ask("ada")
    day.pool.estimate()
    told = day.pool.tickets.find(ticket.id).estimate
    assert told is not None and told.is_longest
    assert told.high_s == pytest.approx(left_s(day, "s0") + HANDOVER_S)

    def offered_wait(user: str) -> WaitEstimate | None:
        (course,) = day.pool.offers(["everyone"], user).courses
        return next(offer.wait for offer in course.shapes if offer.shape == "1g.5gb")

    light, heavy = offered_wait("bo"), offered_wait("s0")
    assert light is not None and light.is_longest
    assert heavy is None, "who has used much can be passed"
    day.pass_time(60)
    later = day.pool.tickets.find(ticket.id).estimate
    assert later is not None and later.high_s == pytest.approx(told.high_s - 60)


def pause(day: FirstDay) -> None:
    day.pool.staff.pause("fire", "root")


def reserve(day: FirstDay) -> None:
    at = dt.datetime.fromtimestamp(day.at + 3600, dt.UTC)
    request = ReservationRequest(
        course="everyone", shape="1g.5gb", count=1, date=at.date(), from_time=f"{at:%H:%M}",
        to_time=f"{at + dt.timedelta(minutes=30):%H:%M}", tz="UTC",
    )  # fmt: skip
    day.pool.reservations.make(request, "root")


def ask_for_a_pair_first(day: FirstDay) -> None:
    day.pool.staff.put_in_front(day.ask("pair", "2x1g.5gb").id, "exam", "root")


def wait_for_more_than_there_are(day: FirstDay) -> None:
    for number in range(7):
        day.pool.staff.put_in_front(day.ask(f"more{number}").id, "exam", "root")


NOT_CERTAIN = {"paused": pause, "reserved": reserve, "several slices ahead": ask_for_a_pair_first,
               "more ahead than leases": wait_for_more_than_there_are}  # fmt: skip


@pytest.mark.parametrize("happen", NOT_CERTAIN.values(), ids=NOT_CERTAIN)
def test_nothing_is_told_that_is_not_certain(
    day: FirstDay, happen: Callable[[FirstDay], None]
) -> None:
    """What may hold a grant up, or whoever is ahead of more than the leases give, ends it."""
    fill(day)
    ticket = day.ask("ada").id
    assert day.longest_s(ticket) is not None
    happen(day)
    assert day.longest_s(ticket) is None


RULES_OF_OTHERS = {
    "who may be passed, until they have aged": (
        changed(RULES, courses={name: Course(shapes=("1g.5gb",)) for name in ("everyone", "ml")}),
        True,
    ),
    "a course that may hold only so much": (
        changed(RULES, quotas={"all": Quota(memory_slices=7, shared=True)}),
        False,
    ),
    "nothing is reclaimed": (changed(RULES, enabled=False), False),
}


@pytest.mark.parametrize(("settings", "once_aged"), RULES_OF_OTHERS.values(), ids=RULES_OF_OTHERS)
def test_some_labs_rules_make_nothing_certain(
    make_day: MakeDay, settings: PoolSettings, once_aged: bool
) -> None:
    """Several courses take turns; a shared quota holds tickets; without reclaims no lease ends."""
    day = make_day(settings)
    fill(day)
    ticket = day.ask("ada").id
    assert day.longest_s(ticket) is None
    day.pass_time(600)
    assert (day.longest_s(ticket) is not None) == once_aged


def test_words() -> None:
    """It is rounded up to ten minutes, and called what it is."""
    wait = WaitEstimate(low_s=0, likely_s=13_500, high_s=13_500, basis="", is_longest=True)
    assert estimated_wait(wait) == "at most 3 hours 50 minutes, likely sooner"


class ComingAndGoing:
    """Who comes, goes, extends, and does not take what is offered, by chance, until it is over.

    Where they ``rest``, servers stand idle for a while, and their students come back when warned.
    """

    def __init__(self, day: FirstDay, seed: int, *, rest: bool = False) -> None:
        self.day, self.dice, self.comers, self.rest = day, random.Random(seed), 0, rest

    def act(self) -> None:
        if self.dice.random() < 0.35:
            self.come()
        if self.dice.random() < 0.05:
            self.go()
        if self.dice.random() < 0.5:
            self.extend()
        if self.dice.random() < 0.02:
            self.leave_queue()
        if self.rest:
            self.rest_and_come_back()

    def rest_and_come_back(self) -> None:
        for lease in self.day.pool.leases.live():
            if lease.warning is not None and lease.warning.kind is WarningKind.IDLE:
                if self.dice.random() < 0.1:
                    with contextlib.suppress(Refused):
                        self.day.pool.leases.keepalive(lease.id, lease.user)
            elif self.dice.random() < 0.03:
                self.day.busy ^= {lease.id}

    def come(self) -> None:
        if len(self.day.pool.view.queued) > 8:
            return
        self.comers += 1
        again = self.dice.random() < 0.3  # who has used something before
        user = f"u{self.dice.randrange(6)}" if again else f"n{self.comers}"
        if self.dice.random() < 0.1:
            self.day.late.add(user)
        shape = self.dice.choice(("1g.5gb",) * 8 + ("2g.10gb",))
        with contextlib.suppress(Refused):
            self.day.ask(user, shape)

    def go(self) -> None:
        if running := self.running():
            self.day.end(self.dice.choice(running))

    def extend(self) -> None:
        """As late as possible: whoever is open and not warned yet."""
        for lease in self.running():
            if lease.guaranteed_until is not None and lease.guaranteed_until <= self.day.at:
                with contextlib.suppress(Refused):
                    self.day.pool.leases.extend(lease.id, EXTENSION_S, lease.user)

    def leave_queue(self) -> None:
        if queued := self.day.pool.view.queued:
            self.day.pool.tickets.cancel(self.dice.choice(queued).id, "person:somebody")

    def running(self) -> list:  # type: ignore[type-arg]
        leases = self.day.pool.leases.live()
        return [lease for lease in leases if lease.state is LeaseState.RUNNING]


@pytest.mark.parametrize("rest", [False, True], ids=["all work", "some rest"])
@pytest.mark.parametrize(
    ("seed", "hours"),
    [(0, 1), *(pytest.param(seed, 2, marks=pytest.mark.long) for seed in range(1, 10))],
)
def test_nobody_waits_longer_than_at_most(
    make_day: MakeDay, seed: int, hours: int, rest: bool
) -> None:
    """Whoever comes, goes, rests, extends late and lets offers lapse; told at each step."""
    day = make_day(changed(RULES, idle_wanted_s=400.0) if rest else RULES)
    people = ComingAndGoing(day, seed, rest=rest)
    fill(day)
    for _ in range(int(hours * 3600 / STEP_S)):
        people.act()
        day.step()
    assert day.kept, "nobody was told and served"


def test_who_is_idle_and_comes_back_keeps_nobody_waiting(make_day: MakeDay) -> None:
    """A lease that ends for who waits ends for them, also if another is warned as idle meanwhile.

    The idle one may be kept in its last seconds by "I am still here", and then the next is idle.
    """
    day = make_day(changed(RULES, idle_wanted_s=400.0, lease_s=900.0, extensions=0))
    leases = [day.run(f"s{number}") for number in range(7)]
    day.busy |= {lease.id for lease in leases}
    began_at = day.at
    day.live(870)
    ticket = day.ask("ada").id
    while day.pool.tickets.find(ticket).state is TicketState.WAITING:
        for number, lease in enumerate(leases):
            if day.at - began_at >= 605 + 105 * number:
                day.busy.discard(lease.id)
            warning = day.pool.leases.find(lease.id).warning
            is_idle = warning is not None and warning.kind is WarningKind.IDLE
            if is_idle and warning.reclaim_at - day.at <= STEP_S:
                day.pool.leases.keepalive(lease.id, lease.user)
        day.step()
    assert day.kept == 1
