"""The Class page over the real pool: who is told what of whom, and from when on."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.unit.pool.conftest import World

from miglab_api.roster import EXPERIMENTS_MAX
from miglab_pool.applications.management_app import management_app
from miglab_pool.applications.metrics import Metrics
from miglab_pool.applications.pool_runner import PoolRunner
from miglab_pool.applications.student_app import student_app
from miglab_pool.http.access.auth import SignIn
from miglab_pool.http.access.hub_tokens import HubTokens
from miglab_pool.ledger import people
from miglab_pool.reclaim.activity import Activity, SignalBoard
from miglab_pool.roster.members import (
    FAILURE_BELIEVED_S,
    PAGE_SIZE,
    CourseMembers,
    CourseMembership,
)
from miglab_pool.settings import Course, PoolSettings
from miglab_pool.settings import Pool as PoolTable
from miglab_pool.staff.log import AuditQuery

from .conftest import as_, visiting
from .fakes import ACCESS, BOOK, OWNERS, SECRET, FakeTokens

MEMBERS = frozenset({"alice", "bob", "carol", "dan", "ilse"})
STAFF, ALICE, BOB, ADMIN = (
    as_(f"{name}-token") for name in ("instructor", "alice", "bob", "admin")
)
SERVER = as_("alice-server")
DONE = {"experiment": "T-1", "stage": "claimed", "minute": 16_000}


class ClassLab:
    """The course ml, whose servers tell how far their students are, or do not."""

    def __init__(self, folder: Path) -> None:
        offers = {"shapes": ("1g.5gb",), "default": "1g.5gb"}
        courses = {
            "ml": Course(title="Machine learning", shares_progress=True, **offers),
            "vision": Course(title="Vision", **offers),
            "everyone": Course(title="Open lab", **offers),
        }
        self.world = World(folder, PoolSettings(courses=courses, pool=PoolTable(keep_days=30)))
        self.members = CourseMembership(MEMBERS, is_complete=True)
        self.groups = {"ml"}
        self.activity_by_lease: dict[int, Activity] = {}
        pool = self.world.pool
        self.runner = PoolRunner(pool, Metrics({"1g.5gb"}))
        self.runner.is_reconciled = True
        self.runner.reclaimer = SimpleNamespace(  # type: ignore[assignment]
            activities=lambda: self.activity_by_lease, explain=lambda _pool, _user: []
        )
        tokens: HubTokens = FakeTokens(ACCESS)
        staff = management_app(
            self.runner,
            SignIn(ACCESS, SECRET, BOOK, tokens),
            default_course="everyone",
            course_titles={"ml": "Machine learning"},
            members=self._members,
        )
        student = student_app(
            self.runner,
            tokens,
            SignalBoard(),
            courses=BOOK.courses,
            default_course="ml",
            roster=pool.roster,
        )
        self.staff = visiting(staff)
        self.student = visiting(student, "http://student")

    def share_nothing(self) -> None:
        """As every course is at first."""
        self.world.pool.store.settings.courses["ml"] = Course(shapes=("1g.5gb",), default="1g.5gb")

    async def _members(self, course: str) -> CourseMembership:
        return self.members if course in self.groups else CourseMembership(is_complete=True)

    async def rows(self, headers: dict[str, str] = STAFF) -> dict[str, dict[str, object]]:
        answer = await self.staff.get("/api/classes/ml", headers=headers)
        assert answer.status_code == 200, answer.text
        return {row["user"]: row for row in answer.json()["rows"]}

    async def report_progress(
        self, *experiments: dict[str, object], **fields: object
    ) -> httpx.Response:
        report = {"course": "ml", "experiments": experiments, "sign_age_s": 30.0, **fields}
        return await self.student.post("/api/progress", json=report, headers=SERVER)

    async def read_the_notice(self) -> dict[str, object]:
        answer = await self.student.post(
            "/api/progress/notice", json={"course": "ml"}, headers=SERVER
        )
        return dict(answer.json())

    def looks(self) -> list[tuple[str, str]]:
        """Who is in the log as having looked, and how."""
        entries = self.world.pool.staff.audit(AuditQuery())
        return [
            (audit_entry.by, audit_entry.action)
            for audit_entry in entries
            if audit_entry.kind == "class"
        ]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ClassLab]:
    lab = ClassLab(tmp_path)
    lab.world.pass_time(3600)
    yield lab
    await lab.runner.stop()
    lab.world.close()


async def test_everybody_of_the_course_has_a_row(lab: ClassLab) -> None:
    """Holding, idle, waiting, absent, not known: by name, without who teaches it."""
    await lab.read_the_notice()  # alice
    lab.world.run("bob", course="ml")
    idle = lab.world.run("carol", course="ml")
    for number in range(5):
        lab.world.run(f"filler{number}", course="vision")
    lab.world.ask("dan", course="ml")
    lab.world.work()
    lab.activity_by_lease[idle.id] = Activity.IDLE_FREE
    presences = {user: row["presence"] for user, row in (await lab.rows()).items()}
    assert presences == {
        "alice": "absent", "bob": "on a slice", "carol": "idle", "dan": "waiting"
    }  # fmt: skip
    dan = (await lab.rows())["dan"]
    assert (dan["shape"], dan["position"], dan["experiments"]) == ("1g.5gb", 1, None)


async def test_nothing_is_taken_before_the_notice_was_read(lab: ClassLab) -> None:
    """The server is told that the course asks; what it sends too early is refused."""
    status = (await lab.student.get("/api/server", headers=SERVER)).json()
    assert status["sharing"] == {"ml": False}
    assert (await lab.report_progress(DONE)).json()["reason"] == "notice-unread"
    assert (await lab.read_the_notice())["sharing"] == {"ml": True}
    assert (await lab.report_progress(DONE)).status_code == 200
    assert (await lab.rows())["alice"]["presence"] == "on CPU"
    assert (await lab.rows())["alice"]["experiments"] == [DONE]


async def test_what_is_told_is_kept_and_ages(lab: ClassLab) -> None:
    """A stage that moves on replaces the one before; a silent server's student is absent."""
    await lab.read_the_notice()
    await lab.report_progress(DONE, {**DONE, "experiment": "T-2", "minute": 16_005})
    await lab.report_progress({**DONE, "stage": "handed in", "minute": 16_010})
    alice = (await lab.rows())["alice"]
    stages = [(progress["experiment"], progress["stage"]) for progress in alice["experiments"]]  # type: ignore[attr-defined]
    assert stages == [("T-1", "handed in"), ("T-2", "claimed")]
    assert alice["last_sign_at"] == lab.world.at - 30
    lab.world.pass_time(181)
    assert (await lab.rows())["alice"]["presence"] == "absent"
    lab.world.crash()  # what was heard is forgotten with the process, what was told is not
    again = lab.world.pool.roster.progress_of("ml")
    assert (again.readers, len(again.experiments["alice"])) == ({"alice"}, 2)


async def test_a_forged_report_is_bounded_and_ages(lab: ClassLab) -> None:
    """Any experiment can be reported: so many, none of the future, and staff read whose word it is.

    A report of the future was the latest for ever, and was never deleted.
    """
    await lab.read_the_notice()
    forged = [{**DONE, "experiment": f"FAKE-{n}", "minute": 10**9} for n in range(EXPERIMENTS_MAX)]
    assert (await lab.report_progress(*forged)).status_code == 200
    refusal = await lab.report_progress(DONE)
    assert (refusal.status_code, refusal.json()["reason"]) == (422, "too-many-experiments")
    alice = (await lab.rows())["alice"]
    minutes = {progress["minute"] for progress in alice["experiments"]}  # type: ignore[attr-defined]
    assert minutes == {lab.world.at // 60}
    page = await lab.staff.get("/class?course=ml", headers=STAFF)
    assert "nobody has checked it, and it counts for no mark" in page.text
    lab.world.pass_time(31 * 86_400)
    assert lab.world.pool.roster.delete_old(30) == EXPERIMENTS_MAX + 1


@pytest.mark.parametrize(
    "extra",
    [{"prediction": 3.0}, {"text": "because"}, {"verdict": "supported"}, {"code": "x = 1"}],
)
async def test_nothing_else_can_be_told(lab: ClassLab, extra: dict[str, object]) -> None:
    """The message has no room for predictions, texts, verdicts or code."""
    await lab.read_the_notice()
    assert (await lab.report_progress({**DONE, **extra})).status_code == 422
    assert (await lab.report_progress(DONE, **extra)).status_code == 422


async def test_off_by_default(lab: ClassLab) -> None:
    """Who neither holds a slice nor waits is not known, which is not absent; nothing is kept."""
    lab.share_nothing()
    lab.world.run("bob", course="ml")
    rows = await lab.rows()
    assert (rows["bob"]["presence"], rows["dan"]["presence"]) == ("on a slice", "not known")
    assert (await lab.student.get("/api/server", headers=SERVER)).json()["sharing"] == {}
    assert (await lab.report_progress(DONE)).json()["reason"] == "not-shared"
    page = await lab.staff.get("/class?course=ml", headers=STAFF)
    assert "which does not mean absent" in page.text
    assert "Handed in" not in page.text


async def test_students_see_their_own_row(lab: ClassLab) -> None:
    """And nobody else's, on the page as in the API; of no course that is not theirs.

    Who is in no course is in the default one.  A guest, who holds a slice in a course without being
    on its roster, sees their own there; a course that the lab does not have is no empty class.
    """
    lab.members = CourseMembership(MEMBERS - {"bob"}, is_complete=True)
    assert 'data-user="bob"' in (await lab.staff.get("/class", headers=BOB)).text
    lab.world.run("bob", course="ml")
    assert list(await lab.rows(ALICE)) == ["alice"]
    page = (await lab.staff.get("/class", headers=ALICE)).text
    assert "alice" in page and "bob" not in page and 'id="tell"' not in page
    guests = (await lab.staff.get("/class", headers=BOB)).text
    assert 'data-user="bob"' in guests and "on a slice" in guests and "lab.toml" not in guests
    assert await lab.rows(as_("vision-token")) == {}
    assert lab.looks() == []
    page = await lab.staff.get("/class?course=mll", headers=ADMIN)
    assert (page.status_code, "This lab has no course “mll”." in page.text) == (404, True)


async def test_who_was_taken_out_of_the_course_is_marked(lab: ClassLab) -> None:
    """With what they still hold, for staff alone; nobody is while the hub is silent."""
    lab.world.run("bob", course="ml")
    lab.members = CourseMembership(MEMBERS - {"bob"}, is_complete=True)
    marks = {user: row["is_outside"] for user, row in (await lab.rows()).items()}
    assert marks == {"alice": False, "bob": True, "carol": False, "dan": False}
    assert "not in the course</span>" in (await lab.staff.get("/class", headers=STAFF)).text
    sheet = await lab.staff.get("/api/classes/ml?format=csv", headers=STAFF)
    assert [line.endswith('"yes"') for line in sheet.text.splitlines()[1:3]] == [False, True]
    assert "not in the course</span>" not in (await lab.staff.get("/class", headers=BOB)).text
    lab.members = CourseMembership(MEMBERS - {"bob"})
    assert not (await lab.rows())["bob"]["is_outside"]


async def test_a_message_to_the_default_course_counts_whom_it_reaches(lab: ClassLab) -> None:
    """Who holds a slice there and is in another course is marked, and is not counted."""
    lab.members, lab.groups = CourseMembership(frozenset({"dora"}), is_complete=True), {"everyone"}
    for user in ("alice", "dora"):
        lab.world.run(user, course="everyone")
    page = (await lab.staff.get("/class?course=everyone", headers=ADMIN)).text
    rows = re.findall(r'<tr data-user="(\w+)"[^>]*?( data-outside)?>', page)
    assert rows == [("alice", " data-outside"), ("dora", "")]
    assert "They are in another course" in page and "They get no new slice" not in page


async def test_looking_and_exporting_are_in_the_log(lab: ClassLab) -> None:
    """A page that refreshes itself is one look an hour; each export counts."""
    await lab.rows()
    await lab.rows()
    sheet = await lab.staff.get("/api/classes/ml?format=csv", headers=STAFF)
    assert sheet.text.splitlines()[1].startswith('"alice","not known","",""')
    assert lab.looks() == [("person:ilse", "export"), ("person:ilse", "look")]
    lab.world.pass_time(3601)
    await lab.rows()
    assert len(lab.looks()) == 3


async def test_messages_reach_students_without_a_slice(lab: ClassLab) -> None:
    """Those of the class, each by themselves; whoever is not of it is refused."""
    message = {"users": ["alice", "dan"], "text": "Room 2."}
    answer = await lab.staff.post("/api/classes/ml/messages", json=message, headers=STAFF)
    assert [sent_message["to_user"] for sent_message in answer.json()] == ["alice", "dan"]
    messages = (await lab.student.get("/api/server", headers=SERVER)).json()["messages"]
    assert [message["text"] for message in messages] == ["Room 2."]
    for users in (["eve"], ["ilse"]):
        message["users"] = users
        answer = await lab.staff.post("/api/classes/ml/messages", json=message, headers=STAFF)
        assert answer.status_code == 403


async def test_more_messages_than_there_is_room_for_are_refused_in_words(
    lab: ClassLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of any size can be selected; the page shows what can be done instead."""
    monkeypatch.setattr("miglab_pool.staff.actions.MESSAGES_MAX", 1)
    message = {"users": ["alice", "dan"], "text": "Room 2."}
    answer = await lab.staff.post("/api/classes/ml/messages", json=message, headers=STAFF)
    assert (answer.status_code, answer.json()["reason"]) == (429, "too-many-messages")
    assert answer.json()["message"].startswith("2 students are selected")
    long = {"users": [f"student{number}" for number in range(300)], "text": "Room 2."}
    answer = await lab.staff.post("/api/classes/ml/messages", json=long, headers=STAFF)
    assert answer.status_code == 403  # it is read, and these are nobody of this class


@pytest.mark.parametrize(
    ("groups", "is_member"), [(["chess-club"], True), (["chess-club", "vision"], False)]
)
async def test_a_group_that_is_no_course_puts_nobody_elsewhere(
    lab: ClassLab, monkeypatch: pytest.MonkeyPatch, groups: list[str], is_member: bool
) -> None:
    """Its members are in the default course: they read its messages and its notice of progress."""
    monkeypatch.setitem(OWNERS, "alice-server", {**OWNERS["alice-server"], "groups": groups})
    message = {"to_course": "ml", "text": "Room 2."}
    assert (await lab.staff.post("/api/messages", json=message, headers=STAFF)).is_success
    status = (await lab.student.get("/api/server", headers=SERVER)).json()
    texts = [shown_message["text"] for shown_message in status["messages"]]
    assert texts == ["Room 2."] * is_member
    assert status["sharing"] == ({"ml": False} if is_member else {})
    await lab.read_the_notice()
    assert (await lab.report_progress(DONE)).is_success is is_member


async def test_a_silent_hub_leaves_who_holds_or_waits(lab: ClassLab) -> None:
    """The page says that the list is not whole, also if the hub names some."""
    lab.members = CourseMembership()
    lab.world.run("bob", course="ml")
    assert list(await lab.rows()) == ["bob"]
    lab.members = CourseMembership(frozenset({"dan"}))
    assert list(await lab.rows()) == ["bob", "dan"]
    page = await lab.staff.get("/class?course=ml", headers=STAFF)
    assert "The hub does not say now who is in this course" in page.text


async def test_what_is_old_or_shared_no_longer_goes(lab: ClassLab) -> None:
    """By `keep_days`, and with the course."""
    await lab.read_the_notice()
    await lab.report_progress({**DONE, "minute": int(lab.world.at // 60)})
    lab.world.pass_time(29 * 86_400)
    assert lab.world.pool.roster.delete_old(30) == 0
    lab.world.pass_time(2 * 86_400)
    assert lab.world.pool.roster.delete_old(30) == 2
    assert (await lab.rows())["alice"]["experiments"] is None
    await lab.read_the_notice()
    lab.share_nothing()
    assert lab.world.pool.delete_old() > 0
    assert lab.world.pool.roster.progress_of("ml").readers == frozenset()


def hub_api(
    hub: Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]],
) -> httpx.AsyncClient:
    """A client of a hub that answers so."""
    return httpx.AsyncClient(base_url="http://hub/hub/api", transport=httpx.MockTransport(hub))


async def test_the_default_course_is_whoever_is_in_no_other_and_teaches_none() -> None:
    """Of all pages of the hub's users: neither staff nor those of another course.

    A hub that does not say the users' groups says nothing: its role is from an older miglab.
    """
    users = [
        {"name": "ada", "admin": False, "groups": []},
        {"name": "chess", "admin": False, "groups": ["chess-club"]},
        {"name": "alice", "admin": False, "groups": ["ml"]},
        {"name": "ilse", "admin": False, "groups": []},
        {"name": "veit", "admin": False, "groups": ["vision-instructors"]},
        {"name": "root", "admin": True, "groups": []},
        *({"name": f"s{n}", "admin": False, "groups": []} for n in range(PAGE_SIZE)),
    ]

    def hub(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/groups/everyone"):
            return httpx.Response(404, json={"status": 404, "message": "No such group"})
        offset, limit = (int(request.url.params[name]) for name in ("offset", "limit"))
        end = offset + limit
        following = {"offset": end, "limit": limit} if end < len(users) else None
        page = {"items": users[offset:end], "_pagination": {"next": following}}
        return httpx.Response(200, json=page)

    members = await CourseMembers(hub_api(hub), BOOK, "everyone").of("everyone")
    assert members == ({"ada", "chess", *(f"s{n}" for n in range(PAGE_SIZE))}, True)
    for user in users:
        user.pop("groups")
    assert await CourseMembers(hub_api(hub), BOOK, "everyone").of("everyone") == (set(), False)


async def test_a_hub_that_lists_no_users_leaves_the_group(caplog: pytest.LogCaptureFixture) -> None:
    """Its members are shown; the log has what was asked and what came.

    Viewers at once share one attempt, and the next one comes after `FAILURE_BELIEVED_S`.
    """
    paths, clock = [], [0.0]

    async def hub(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        await asyncio.sleep(0)  # the other viewers ask meanwhile
        if request.url.path.endswith("/groups/everyone"):
            return httpx.Response(200, json={"users": ["ada"]})
        return httpx.Response(403, json={"status": 403, "message": "Missing required scopes"})

    members = CourseMembers(hub_api(hub), BOOK, "everyone", lambda: clock[0])
    with caplog.at_level(logging.WARNING):
        answers = await asyncio.gather(*(members.of("everyone") for _ in range(5)))
    assert answers == [({"ada"}, False)] * 5
    assert paths == ["/hub/api/groups/everyone", "/hub/api/users"]
    [message] = caplog.messages
    assert "GET http://hub/hub/api/users?" in message and "HTTP 403" in message
    clock[0] = FAILURE_BELIEVED_S
    assert await members.of("everyone") == ({"ada"}, False)
    assert len(paths) == 4


async def test_a_projector_is_shown_figures_and_no_name(lab: ClassLab) -> None:
    """How many do what, and how far the class is with each experiment; students get their row."""
    await lab.read_the_notice()
    await lab.report_progress({**DONE, "stage": "handed in"}, {**DONE, "experiment": "T-2"})
    lab.world.run("bob", course="ml")
    page = (await lab.staff.get("/class?course=ml&names=no", headers=STAFF)).text
    assert not [name for name in MEMBERS - {"ilse"} if name in page]
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd>(\d+)</dd>", page))
    assert figures == {
        "students": "4", "on a slice": "1", "on CPU": "1", "not known": "2", "handed in": "1"
    }  # fmt: skip
    counts = re.findall(r'row">([\w-]+)</th><td class="num">(\d)</td><td class="num">(\d)', page)
    assert counts == [("T-1", "1", "1"), ("T-2", "1", "0")]
    assert 'data-user="alice"' in (await lab.staff.get("/class?names=no", headers=ALICE)).text


async def test_a_class_without_rows_has_the_form_of_messages(lab: ClassLab) -> None:
    """The first row may come while the page is open; until then it sends nothing.

    It does if the hub does not say who is in the course.
    """
    for is_complete in (True, False):
        lab.members = CourseMembership(is_complete=is_complete)
        page = (await lab.staff.get("/class?course=ml", headers=STAFF)).text
        assert "Nobody is in this course yet." in page or not is_complete
        assert ('id="send" disabled' in page) is is_complete and 'id="tell"' in page
    projected = (await lab.staff.get("/class?course=ml&names=no", headers=STAFF)).text
    assert 'id="tell"' not in projected


async def test_a_row_leads_to_what_may_be_done(lab: ClassLab) -> None:
    """To the lease that is held, or the ticket that waits: the forms of the pool's page."""
    lease = lab.world.run("bob", course="ml")
    for number in range(6):
        lab.world.run(f"filler{number}", course="vision")
    ticket = lab.world.ask("dan", course="ml")
    page = (await lab.staff.get("/class?course=ml", headers=STAFF)).text
    for address in (f"lease/{lease.id}", f"ticket/{ticket.id}"):
        assert f'data-details="{address}"' in page
        dialog = await lab.staff.get(f"/details/{address}", headers=STAFF)
        assert "<form" in dialog.text
    assert page.count("data-details=") == 2


async def test_the_hub_is_asked_once_a_minute() -> None:
    """Its last answer holds while it is silent; a group that does not exist has nobody.

    A silent hub is asked again before a minute is over.
    """
    paths, clock, users = [], [0.0], {"ml": ["ada"]}

    def hub(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        name = request.url.path.rsplit("/", 1)[-1]
        if not users:
            return httpx.Response(503, text="<h1>The proxy finds no hub</h1>")
        if name not in users:
            return httpx.Response(404, json={"status": 404, "message": "No such group"})
        return httpx.Response(200, json={"users": users[name]})

    members = CourseMembers(hub_api(hub), BOOK, "everyone", lambda: clock[0])
    assert await members.of("ml") == await members.of("ml") == ({"ada"}, True)
    assert await members.of("chess") == (set(), True)
    users.clear()
    clock[0] = 61.0
    assert await members.of("ml") == await members.of("ml") == ({"ada"}, True)
    assert await members.of("vision") == (set(), False)
    assert paths.count("/hub/api/groups/ml") == 2
    users["ml"] = ["ada", "bo"]
    clock[0] += FAILURE_BELIEVED_S
    assert await members.of("ml") == ({"ada", "bo"}, True)


async def test_progress_goes_with_the_person(lab: ClassLab) -> None:
    """It is told to whoever asks what is kept of them, and erased, not made nobody's."""
    await lab.read_the_notice()
    await lab.report_progress(DONE)
    with people.open_ledger(lab.world.folder / "ledger.sqlite") as ledger:
        people.register_targets(ledger, set())
        assert [row["experiment"] for row in people.personal_rows(ledger, "alice")["progress"]] == [
            "", "T-1"
        ]  # fmt: skip
        assert people.forget(ledger, "alice", "forgotten-1")["progress"] == 2
        assert "progress" not in people.personal_rows(ledger, "forgotten-1")
