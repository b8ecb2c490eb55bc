"""What a student chooses: the spawn page, its form, and the shape and course of the next start."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from traitlets import default

from miglab_api.leases import ServerStatus
from miglab_api.offers import BORROW, CPU, Offers
from miglab_spawner.backends.base import Backend, BackendError, RefusedByBackend
from miglab_spawner.pages import choice, spawn_page
from miglab_spawner.pages.choice import SpawnChoice, is_borrow, is_cpu, needs_slice
from miglab_spawner.refusals import HOPELESS, NotStarted
from miglab_spawner.traits import SpawnerTraits


class ChoiceMixin(SpawnerTraits):
    """Offers what the backend has, and reads what of it a start is to get.

    Attributes:
        backend_name: begins the reasons of failed starts: ``pool-unreachable``.
        silence: what a student reads when the backend does not answer.
    """

    backend_name: str
    silence: str

    log: logging.Logger
    user_options: dict[str, Any]

    _shape = ""
    _lent: tuple[str, ...] = ()
    _news = ""

    @property
    def backend(self) -> Backend:
        """Whoever hands out the slices."""
        raise NotImplementedError

    @property
    def borrows(self) -> bool:
        """Whether this server holds no slice, and its measurements borrow one."""
        return is_borrow(self._shape)

    @property
    def news(self) -> str:
        """Why the last server ended, for the hub's pages; empty if there is nothing to say."""
        return self._news

    def tell_next_time(self, news: str) -> None:
        """Show this on the user's next spawn page: why the server ended."""
        self._news = news
        self.log.warning("%s's server: %s", self.user.name, news)

    def needs_grant(self, shape: str) -> bool:
        """Whether the backend must be asked before a server of this shape may start."""
        return needs_slice(shape)

    # The page and its form.

    @default("options_form")
    def _spawn_page(self) -> Callable[..., Awaitable[str]]:
        return _options_form

    @default("options_from_form")
    def _choice_from_form(self) -> Callable[..., dict[str, Any]]:
        return self.read_form

    @default("apply_user_options")
    def _nothing_to_apply(self) -> Callable[..., None]:
        return _leave_to_start

    def read_form(self, formdata: Mapping[str, list[str]]) -> dict[str, Any]:
        """The options in the spawn page's form; a class with a form of its own adds its own."""
        return dict(choice.from_form(formdata))

    async def form_of_base(self) -> str:
        """The base spawner's own form, shown below ours."""
        return ""

    async def render_spawn_page(self) -> str:
        """The spawn page: what the backend offers now, or why it offers nothing."""
        try:
            offers, status = await self._offers(), await self._server_status()
        except RefusedByBackend as refused:
            page = spawn_page.page_without_pool(refused.message, self._news)
        except BackendError as error:
            self.log.error("Spawn page without the %s: %s", self.backend_name, error)
            held_up = self.silence if self.needs_grant(CPU) else ""
            page = spawn_page.page_without_pool(self.silence, self._news, held_up)
        else:
            page = spawn_page.page_of(offers, self._last_choice(), self._news, status.ticket)
            page = replace(page, simulated=page.simulated and self.says_simulated)
        return spawn_page.render(page) + await self.form_of_base()

    # What the next start is to get.

    async def _wanted(self) -> SpawnChoice:
        try:
            asked = choice.parse(self.user_options)
        except choice.BadChoice as error:
            raise self._not_started(str(error), "bad-options") from None
        shape = asked.shape or self.default_shape
        if is_borrow(shape):
            return await self._borrowing(asked.course)
        if is_cpu(shape):
            known = asked.course in self._groups()
            return SpawnChoice(CPU, asked.course if known else self.default_course)
        return SpawnChoice(shape, await self._course_for(shape, asked.course))

    async def _borrowing(self, asked: str) -> SpawnChoice:
        """A course that lends: the one that was asked for, or the first of the user's."""
        lending = [course for course in (await self._offers()).courses if course.borrow]
        found = [course for course in lending if asked in ("", course.course)]
        if not found:
            where = f"The course “{asked}”" if asked else "None of your courses"
            message = f"{where} lends no slices. Choose another shape."
            raise self._not_started(message, "shape-not-offered")
        self._lent = found[0].borrow
        return SpawnChoice(BORROW, found[0].course)

    async def _course_for(self, shape: str, asked: str) -> str:
        courses = (await self._offers()).courses if self._groups() else ()
        names = [each.course for each in courses] or [self.default_course]
        if asked in names:
            return asked
        if asked:
            raise self._not_started(
                f"You are not in the course “{asked}”. Yours: {', '.join(names)}.", "not-in-course"
            )
        offering = [c.course for c in courses if shape in {offer.shape for offer in c.shapes}]
        return [*offering, *names][0]

    async def _offers(self) -> Offers:
        groups = self._groups()
        if groups:
            offers = await self.backend.offers(self.user.name, groups)
            if offers.courses:
                return offers
        return await self.backend.offers(self.user.name, [self.default_course])

    def _groups(self) -> list[str]:
        return sorted(group.name for group in self.user.groups)

    async def _server_status(self) -> ServerStatus:
        return await self.backend.server_status(self.user.name, self.name)

    def _last_choice(self) -> SpawnChoice:
        """What this user chose last; empty if nothing was, or nothing that can be read."""
        try:
            return choice.parse(self.user_options)
        except choice.BadChoice:
            return SpawnChoice()

    def _saved_choice(self) -> SpawnChoice:
        last = self._last_choice()
        return SpawnChoice(last.shape or self.default_shape, last.course)

    def _forget_choice(self) -> None:
        """Keep a choice that cannot be met out of the next start; JupyterHub saves it otherwise."""
        self._choose(choice.forgotten(self.user_options))

    def _choose(self, options: Mapping[str, Any]) -> None:
        """Save other options than the start began with."""
        self.user_options = dict(options)
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = dict(options)
            self.user.db.commit()

    def _not_started(self, message: str, reason: str, status: int = 400) -> NotStarted:
        if reason in HOPELESS:
            self._forget_choice()
        return NotStarted(message, reason=reason, status_code=status)


async def _options_form(spawner: ChoiceMixin) -> str:
    return await spawner.render_spawn_page()


def _leave_to_start(_spawner: ChoiceMixin, _options: Mapping[str, Any]) -> None:
    """Options are read in ``start()``: a site may replace this hook, and nothing is lost."""
