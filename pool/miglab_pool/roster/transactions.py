"""What students' servers tell of their progress: kept for the course's staff, and no longer.

Of each experiment a key, a stage and a minute; who has read the notice is kept as the stage
``told`` of no experiment.  Who is there now is in memory alone.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.dialects.sqlite import insert

from miglab_api.roster import EXPERIMENTS_MAX, ProgressReport, SharedExperiment
from miglab_pool.ledger.tables import progress
from miglab_pool.refused import Refused
from miglab_pool.schedule import DAY_S
from miglab_pool.state.store import Store, Subject, locked

NOTICE, TOLD = "", "told"
LOOK_S = 3600.0  # who watches a class is in the log once an hour


@dataclass(frozen=True, slots=True)
class Heard:
    """A server's last report.

    Attributes:
        at: when it came.
        sign_at: when its student last did something; None if it does not tell.
    """

    at: float
    sign_at: float | None


@dataclass(frozen=True, slots=True)
class SharedProgress:
    """What is known of a course by the reports of its students' servers.

    Attributes:
        is_shared: whether the course asks for reports.
        now: when this was known, by the pool's clock.
        since: from when on somebody listened.
        told: who has read the notice.
        heard: each student's last report.
        experiments: what each has claimed or handed in, the latest first.
    """

    is_shared: bool = False
    now: float = 0.0
    since: float = 0.0
    told: frozenset[str] = frozenset()
    heard: Mapping[str, Heard] = field(default_factory=dict)
    experiments: Mapping[str, tuple[SharedExperiment, ...]] = field(default_factory=dict)


class ClassRoster(Subject):
    """See the module."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._since = store.now()
        self._told: dict[str, set[str]] | None = None  # users by course, as the ledger has them
        self._heard: dict[str, dict[str, Heard]] = defaultdict(dict)
        self._looks: dict[tuple[str, str], float] = {}

    def rename(self, before: str, name: str) -> None:
        """Somebody is called otherwise, in the ledger too; the pool's lock is held."""
        self._told = None
        for heard in self._heard.values():
            if before in heard:
                heard[name] = heard.pop(before)

    @locked
    def sharing(self, user: str, courses: Collection[str]) -> dict[str, bool]:
        """Which of these courses ask for reports, and whether the student has read the notice."""
        shared = [course for course in courses if self._is_shared(course)]
        return {course: user in self._readers(course) for course in shared}

    @locked
    def notice_read(self, user: str, course: str) -> None:
        """The student knows what the course's staff are shown."""
        self._check_shared(course)
        if user not in self._readers(course):
            self._keep(user, course, [(NOTICE, TOLD, int(self.store.now() // 60))])
            self._readers(course).add(user)

    @locked
    def take(self, user: str, report: ProgressReport) -> None:
        """Keep what a student's server tells.

        Raises:
            Refused: the course asks for no reports, or the student has not read the notice.
        """
        self._check_shared(report.course)
        if user not in self._readers(report.course):
            raise Refused("notice-unread", "The student has not read what the staff are shown.")
        now, age_s = self.store.now(), report.sign_age_s
        sign_at = None if age_s is None else now - age_s
        self._heard[report.course][user] = Heard(now, sign_at)
        before = {one.experiment: one for one in self._experiments(report.course, user)[user]}
        new = [one for one in report.experiments if before.get(one.experiment) != one]
        if len(before.keys() | {one.experiment for one in new}) > EXPERIMENTS_MAX:
            raise Refused("too-many-experiments", f"A student has at most {EXPERIMENTS_MAX}.", 422)
        self._keep(
            user, report.course, [(one.experiment, one.stage.value, one.minute) for one in new]
        )

    @locked
    def shared(self, course: str) -> SharedProgress:
        """All that is known of a course."""
        if not self._is_shared(course):
            return SharedProgress()
        return SharedProgress(
            True,
            self.store.now(),
            self._since,
            frozenset(self._readers(course)),
            dict(self._heard[course]),
            {user: tuple(found) for user, found in self._experiments(course).items()},
        )

    @locked
    def looked(self, course: str, by: str, action: str) -> None:
        """Write down that staff read a class, or took it away as a file."""
        now = self.store.now()
        if action == "look" and self._looks.get((course, by), -LOOK_S) > now - LOOK_S:
            return
        self._looks[course, by] = now
        with self.store.write(durable=False) as tx:
            tx.record_action("class", course, by, action)

    @locked
    def drop_old(self, keep_days: float) -> int:
        """Delete what is older than it is to be kept, and all of courses that share no longer."""
        shared = [name for name in self.store.settings.courses if self._is_shared(name)]
        before = (self.store.now() - keep_days * DAY_S) / 60 if keep_days else 0
        is_old = or_(progress.c.course.not_in(shared), progress.c.minute < before)
        old = self.store.ledger.read(select(progress.c.user).where(is_old))
        if old:
            with self.store.write(durable=False) as tx:
                tx.add(delete(progress).where(is_old))
            self._told = None
        return len(old)

    def _is_shared(self, course: str) -> bool:
        found = self.store.settings.courses.get(course)
        return found is not None and found.shares_progress

    def _check_shared(self, course: str) -> None:
        if not self._is_shared(course):
            raise Refused("not-shared", f"The course {course!r} asks for no reports of progress.")

    def _readers(self, course: str) -> set[str]:
        if self._told is None:
            self._told = defaultdict(set)
            query = select(progress.c.user, progress.c.course).where(progress.c.stage == TOLD)
            for row in self.store.ledger.read(query):
                self._told[row["course"]].add(row["user"])
        return self._told[course]

    def _experiments(
        self, course: str, user: str | None = None
    ) -> dict[str, list[SharedExperiment]]:
        columns = progress.c
        is_wanted = and_(columns.course == course, columns.experiment != NOTICE)
        query = select(progress).where(is_wanted).order_by(columns.minute.desc())
        found: dict[str, list[SharedExperiment]] = defaultdict(list)
        for row in self.store.ledger.read(
            query if user is None else query.where(columns.user == user)
        ):
            told = {name: row[name] for name in ("experiment", "stage", "minute")}
            found[row["user"]].append(SharedExperiment(**told))
        return found

    def _keep(self, user: str, course: str, stages: list[tuple[str, str, int]]) -> None:
        if not stages:
            return
        put = insert(progress)
        put = put.on_conflict_do_update(
            index_elements=["user", "course", "experiment"],
            set_={name: put.excluded[name] for name in ("stage", "minute")},
        )
        whose = {"user": user, "course": course}
        with self.store.write(durable=False) as tx:
            tx.add(put, [{**whose, "experiment": e, "stage": s, "minute": m} for e, s, m in stages])
