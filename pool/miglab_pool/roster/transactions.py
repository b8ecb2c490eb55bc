"""The progress that students' servers report to the staff of a course.

The ledger keeps a key, a stage and a minute of each experiment.  The stage ``told`` of no
experiment records that a student has read the notice.  Who is present now is in memory alone.
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

NO_EXPERIMENT, NOTICE_READ = "", "told"
LOG_LOOK_AFTER_S = 3600.0  # reading a class page again is in the audit once an hour


@dataclass(frozen=True, slots=True)
class LastReport:
    """A server's last report.

    Attributes:
        at: when it came.
        sign_at: when its student last did something; None if the report does not say.
    """

    at: float
    sign_at: float | None


@dataclass(frozen=True, slots=True)
class SharedProgress:
    """What the reports of its students' servers say of a course.

    Attributes:
        is_shared: whether the course asks for reports.
        now: when this was read, by the pool's clock.
        since: from when on the pool has listened for reports.
        readers: the students who have read the notice.
        reports: the last report of each student's server.
        experiments: what each student has claimed or handed in, the latest first.
    """

    is_shared: bool = False
    now: float = 0.0
    since: float = 0.0
    readers: frozenset[str] = frozenset()
    reports: Mapping[str, LastReport] = field(default_factory=dict)
    experiments: Mapping[str, tuple[SharedExperiment, ...]] = field(default_factory=dict)


class ClassRoster(Subject):
    """See the module."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._since = store.now()
        self._known_readers: dict[str, set[str]] | None = (
            None  # users by course, as the ledger has them
        )
        self._reports: dict[str, dict[str, LastReport]] = defaultdict(dict)
        self._looks: dict[tuple[str, str], float] = {}

    def rename(self, before: str, name: str) -> None:
        """Follow the rename of a user, which the ledger has already; the pool's lock is held."""
        self._known_readers = None
        for reports in self._reports.values():
            if before in reports:
                reports[name] = reports.pop(before)

    @locked
    def sharing_courses(self, user: str, courses: Collection[str]) -> dict[str, bool]:
        """Return which courses ask for reports, and whether the student has read each notice."""
        shared = [course for course in courses if self._is_shared(course)]
        return {course: user in self._readers(course) for course in shared}

    @locked
    def record_notice_read(self, user: str, course: str) -> None:
        """Record that a student has read what the course's staff see."""
        self._check_shared(course)
        if user not in self._readers(course):
            self._keep(user, course, [(NO_EXPERIMENT, NOTICE_READ, int(self.store.now() // 60))])
            self._readers(course).add(user)

    @locked
    def record_report(self, user: str, report: ProgressReport) -> None:
        """Record the report of a student's server, which may say anything of its student.

        What it dates later than now counts as of now: else it would be the latest, and be kept, for
        ever.

        Raises:
            Refused: the course asks for no reports, the student has not read the notice, or the
                reports name more experiments than a course has.
        """
        self._check_shared(report.course)
        if user not in self._readers(report.course):
            raise Refused("notice-unread", "The student has not read what the staff are shown.")
        now, age_s = self.store.now(), report.sign_age_s
        sign_at = None if age_s is None else now - age_s
        self._reports[report.course][user] = LastReport(now, sign_at)
        known_experiments = {
            experiment.experiment: experiment
            for experiment in self._experiments(report.course, user)[user]
        }
        minute = int(now // 60)
        reported = (
            experiment.model_copy(update={"minute": min(experiment.minute, minute)})
            for experiment in report.experiments
        )
        changed = [
            experiment
            for experiment in reported
            if known_experiments.get(experiment.experiment) != experiment
        ]
        if (
            len(known_experiments.keys() | {experiment.experiment for experiment in changed})
            > EXPERIMENTS_MAX
        ):
            raise Refused("too-many-experiments", f"A student has at most {EXPERIMENTS_MAX}.", 422)
        self._keep(
            user,
            report.course,
            [
                (experiment.experiment, experiment.stage.value, experiment.minute)
                for experiment in changed
            ],
        )

    @locked
    def progress_of(self, course: str) -> SharedProgress:
        """Return all that is known of the progress in a course."""
        if not self._is_shared(course):
            return SharedProgress()
        return SharedProgress(
            True,
            self.store.now(),
            self._since,
            frozenset(self._readers(course)),
            dict(self._reports[course]),
            {user: tuple(experiments) for user, experiments in self._experiments(course).items()},
        )

    @locked
    def record_look(self, course: str, actor: str, action: str) -> None:
        """Record in the audit that staff read or exported a class."""
        now = self.store.now()
        if (
            action == "look"
            and self._looks.get((course, actor), -LOG_LOOK_AFTER_S) > now - LOG_LOOK_AFTER_S
        ):
            return
        self._looks[course, actor] = now
        with self.store.write(durable=False) as tx:
            tx.record_action("class", course, actor, action)

    @locked
    def delete_old(self, keep_days: float) -> int:
        """Delete old progress and that of courses that stopped sharing; return how many rows."""
        shared = [name for name in self.store.settings.courses if self._is_shared(name)]
        before = (self.store.now() - keep_days * DAY_S) / 60 if keep_days else 0
        is_old = or_(progress.c.course.not_in(shared), progress.c.minute < before)
        old = self.store.ledger.read(select(progress.c.user).where(is_old))
        if old:
            with self.store.write(durable=False) as tx:
                tx.add(delete(progress).where(is_old))
            self._known_readers = None
        return len(old)

    def _is_shared(self, course: str) -> bool:
        settings = self.store.settings.courses.get(course)
        return settings is not None and settings.shares_progress

    def _check_shared(self, course: str) -> None:
        if not self._is_shared(course):
            raise Refused("not-shared", f"The course {course!r} asks for no reports of progress.")

    def _readers(self, course: str) -> set[str]:
        if self._known_readers is None:
            self._known_readers = defaultdict(set)
            query = select(progress.c.user, progress.c.course).where(
                progress.c.stage == NOTICE_READ
            )
            for row in self.store.ledger.read(query):
                self._known_readers[row["course"]].add(row["user"])
        return self._known_readers[course]

    def _experiments(
        self, course: str, user: str | None = None
    ) -> dict[str, list[SharedExperiment]]:
        columns = progress.c
        is_wanted = and_(columns.course == course, columns.experiment != NO_EXPERIMENT)
        query = select(progress).where(is_wanted).order_by(columns.minute.desc())
        experiments: dict[str, list[SharedExperiment]] = defaultdict(list)
        for row in self.store.ledger.read(
            query if user is None else query.where(columns.user == user)
        ):
            fields = {name: row[name] for name in ("experiment", "stage", "minute")}
            experiments[row["user"]].append(SharedExperiment(**fields))
        return experiments

    def _keep(self, user: str, course: str, stages: list[tuple[str, str, int]]) -> None:
        if not stages:
            return
        put = insert(progress)
        put = put.on_conflict_do_update(
            index_elements=["user", "course", "experiment"],
            set_={name: put.excluded[name] for name in ("stage", "minute")},
        )
        owner = {"user": user, "course": course}
        with self.store.write(durable=False) as tx:
            tx.add(put, [{**owner, "experiment": e, "stage": s, "minute": m} for e, s, m in stages])
