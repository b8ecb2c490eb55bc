"""The student's choice: the spawn page with its form, and which shape and course a start gets."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from traitlets import Dict, default

from miglab_api.leases import ServerStatus
from miglab_api.offers import BORROW, CPU, Offers
from miglab_spawner.backend_hooks import BackendHooks
from miglab_spawner.backends import BackendError, RefusedByBackend
from miglab_spawner.pages import choosing, spawn_page
from miglab_spawner.pages.spawn_page import SpawnChoice, is_borrow, is_cpu, needs_slice
from miglab_spawner.refusals import PERMANENT_REFUSALS, NotStarted

HOLDS_SLICE = "This server holds a slice; release it first."
STOP_FIRST = (
    "Here a running server cannot join the queue. Save your work, stop this server on the hub’s "
    "home page, and start it again with a slice."
)


class ChoiceMixin(BackendHooks):
    """Shows the spawn page, and turns what was chosen into a shape and a course."""

    log: logging.Logger
    user_options: dict[str, Any]

    _lent_shapes: tuple[str, ...] = ()
    _news = ""
    _shape = ""
    _compute_slices = Dict()  # by shape, of the GPUs that have it

    # The spawn page and its form.

    @default("options_form")
    def _spawn_page(self) -> Callable[..., Awaitable[str]]:
        return lambda spawner: spawner.render_spawn_page()

    @default("options_from_form")
    def _choice_from_form(self) -> Callable[..., dict[str, Any]]:
        return self.read_form

    @default("apply_user_options")
    def _apply_no_options(self) -> Callable[..., None]:
        # Options are read in `start`: a site may replace this hook, and nothing is lost.
        return lambda _spawner, _options: None

    def read_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """Return the options of the spawn page's form; subclasses add those of their own form."""
        return dict(spawn_page.from_form(formdata))

    async def base_form(self) -> str:
        """Return the base spawner's own form, which is shown below ours."""
        return ""

    async def render_spawn_page(self) -> str:
        """Return the spawn page: what the backend offers now, or why it offers nothing."""
        try:
            offers = await self._offers(self.name)
        except RefusedByBackend as refused:
            page = spawn_page.page_without_pool(refused.message, self._news)
        except BackendError as error:
            self.log.error("Spawn page without the %s: %s", self.backend_name, error)
            held_up = self.silence if self.needs_grant(CPU) else ""
            page = spawn_page.page_without_pool(self.silence, self._news, held_up)
        else:
            page = spawn_page.build_page(offers, self._last_choice(), self._news, offers.ticket)
            page = replace(page, simulated=page.simulated and self.says_simulated)
        return spawn_page.render(page) + await self.base_form()

    async def slice_choices(self) -> dict[str, Any]:
        """Return what JupyterLab's dialog shows (`choosing.choices_data`).

        Raises:
            RefusedByBackend: this server cannot ask while it runs.
            BackendError: the backend does not answer.
        """
        self._require_can_ask()
        offers = await self._offers()
        return choosing.choices_data(spawn_page.build_page(offers, self._last_choice()))

    def _require_can_ask(self) -> None:
        """Refuse a request of a running server that holds a slice, or whose backend takes none.

        Raises:
            RefusedByBackend: it is one of the two.
        """
        if needs_slice(self._shape or CPU):
            raise RefusedByBackend("already-done", HOLDS_SLICE, 409)
        if not self.can_ask_while_running:
            raise RefusedByBackend("stop-first", STOP_FIRST, 409)

    # What the next start is to get.

    async def _resolve_choice(self) -> SpawnChoice:
        try:
            choice = spawn_page.parse_choice(self.user_options)
        except spawn_page.BadChoice as error:
            raise self._not_started(str(error), "bad-options") from None
        shape = choice.shape or self.default_shape
        if is_borrow(shape):
            return await self._borrow_choice(choice.course)
        if is_cpu(shape):
            is_member = choice.course in self._groups()
            return SpawnChoice(CPU, choice.course if is_member else self.default_course)
        return SpawnChoice(shape, await self._course_for(shape, choice.course))

    async def _borrow_choice(self, course_name: str) -> SpawnChoice:
        """Return the choice to borrow, in the requested course or the first that lends slices."""
        lending = [course for course in (await self._offers()).courses if course.borrow]
        candidates = [course for course in lending if course_name in ("", course.course)]
        if not candidates:
            subject = f"The course “{course_name}”" if course_name else "None of your courses"
            message = f"{subject} lends no slices. Choose another shape."
            raise self._not_started(message, "shape-not-offered")
        self._lent_shapes = candidates[0].borrow
        return SpawnChoice(BORROW, candidates[0].course)

    async def _course_for(self, shape: str, course_name: str) -> str:
        courses = (await self._offers()).courses if self._groups() else ()
        names = [offer.course for offer in courses] or [self.default_course]
        if course_name in names:
            return course_name
        if course_name:
            raise self._not_started(
                f"You are not in the course “{course_name}”. Yours: {', '.join(names)}.",
                "not-in-course",
            )
        offering = [c.course for c in courses if shape in {offer.shape for offer in c.shapes}]
        return [*offering, *names][0]

    async def _offers(self, server: str | None = None) -> Offers:
        """Return what the user's courses offer; with a server also what it waits for."""
        user, groups = self.user.name, self._groups()
        offers = await self.backend.offers(user, groups, server) if groups else None
        if offers is None or not offers.courses:
            offers = await self.backend.offers(user, [self.default_course], server)
        shapes = [offer for course in offers.courses for offer in course.shapes]
        self._compute_slices = {offer.shape: offer.compute_slices for offer in shapes}
        return offers

    def _groups(self) -> list[str]:
        return sorted(group.name for group in self.user.groups)

    def _is_in_course(self, course: str) -> bool:
        """Whether the user is in a course now."""
        return course in (*self._groups(), self.default_course)

    async def _server_status(self) -> ServerStatus:
        return await self.backend.server_status(self.user.name, self.name)

    def _last_choice(self) -> SpawnChoice:
        """Return the user's last choice; empty if there is none, or it cannot be read."""
        try:
            return spawn_page.parse_choice(self.user_options)
        except spawn_page.BadChoice:
            return SpawnChoice()

    def _next_shape(self) -> str:
        """Return the shape that the next start requests, if nothing else is chosen."""
        return self._last_choice().shape or self.default_shape

    def _save_choice(self, options: Mapping[str, Any]) -> None:
        """Save options in place of those that the start began with."""
        self.user_options = dict(options)
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = dict(options)
            self.user.db.commit()

    def _not_started(self, message: str, reason: str, status: int = 400) -> NotStarted:
        if reason in PERMANENT_REFUSALS:
            # JupyterHub saves the choice otherwise, and the next start fails as well.
            self._save_choice(spawn_page.without_choice(self.user_options))
        return NotStarted(message, reason=reason, status_code=status)
