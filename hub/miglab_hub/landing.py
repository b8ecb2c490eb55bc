"""Where people land when they have signed in: staff on the pool's page, others on their server."""

from collections.abc import Callable
from typing import Any

from miglab_hub.settings.lab_toml import Settings


def landing_page(settings: Settings) -> Callable[[Any], str]:
    """JupyterHub's ``default_url``: a function of the request, empty for the hub's own choice.

    A link that somebody followed before signing in still leads where it says; this is for whoever
    just signs in, or opens the lab's address.
    """
    pool_page = f"{settings.service_origin}{settings.service_prefix}/"
    book = settings.role_book()
    named = set(settings.authentication.instructors) | set(settings.authentication.admins)

    def is_staff(user: Any) -> bool:
        groups = [group.name for group in user.groups]
        in_all = user.admin or user.name in named
        return bool(in_all or book.instructed(user.name, groups, in_all=False)) or bool(
            book.assisted(user.name, groups)
        )

    def default_url(handler: Any) -> str:
        user = handler.current_user
        return pool_page if user is not None and is_staff(user) else ""

    return default_url
