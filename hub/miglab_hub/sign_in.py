"""The chosen authenticator: whether it is there, checks who signs in, and whom it lets have slices.

Apart from the settings, which import no authenticator.  JupyterHub is loaded when one is looked
at: doctor works without it.
"""

from typing import Any

from miglab_hub.errors import SettingsError, StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_hub.settings.tables import SHARED_PASSWORD, is_this_machines, who_is_who

LETS_ALL_IN = "miglab_hub.lti.CourseLTIAuthenticator"  # unless its traits say otherwise


def check_installed(settings: Settings) -> None:
    """Check that the authenticator is installed; JupyterHub would say so in a long traceback.

    Raises:
        StartError: it is not, or is no authenticator.
    """
    wanted = settings.authentication.class_
    if wanted == SHARED_PASSWORD:
        return
    try:
        _find(wanted)
    except ImportError as error:
        raise StartError(
            f"{settings.file}: authentication.class: the authenticator {wanted!r} cannot be "
            f"imported ({error}): install its package in the lab's environment, or correct the name"
        ) from error


def check_identity(settings: Settings) -> None:
    """Check that people prove who they are, in a lab that other machines reach.

    What is not installed here (the pool's container needs no authenticator) lets nobody in here.

    Raises:
        SettingsError: they do not, by whatever name the authenticator goes, and nobody has accepted
            what follows from that.
    """
    wanted = settings.authentication
    if is_this_machines(settings.lab) or settings.accept_risk.anyone_can_be_any_student:
        return
    try:
        found = _find(wanted.class_)
    except ImportError:
        return
    if _checks_nobody(found):
        raise SettingsError(f"{settings.file}: {who_is_who(wanted.class_)}")


def _find(name: str) -> Any:
    """The class of an authenticator, as JupyterHub finds it: by entry point or import path.

    Raises:
        ImportError: there is none of that name.
    """
    from jupyterhub.auth import Authenticator
    from jupyterhub.traitlets import EntryPointType
    from traitlets import TraitError

    group = "jupyterhub.authenticators"
    try:
        return EntryPointType(klass=Authenticator, entry_point_group=group).validate(None, name)
    except (TraitError, AttributeError) as error:
        raise ImportError(str(error)) from error


def _checks_nobody(authenticator: Any) -> bool:
    from jupyterhub.auth import DummyAuthenticator, NullAuthenticator
    from jupyterhub.authenticators.shared import SharedPasswordAuthenticator

    nobody = (DummyAuthenticator, NullAuthenticator, SharedPasswordAuthenticator)
    return issubclass(authenticator, nobody)


def open_to_all(settings: Settings) -> str:
    """Who may take slices without being in a course, as a sentence; empty if nobody may."""
    wanted, course = settings.authentication, settings.servers.default_course
    said = {"allow_all": wanted.class_ == LETS_ALL_IN}
    for traits in wanted.config.values():
        said |= traits
    slices = [shape for shape in settings.courses[course].shapes if shape != "cpu"]
    if wanted.class_ == SHARED_PASSWORD or not said["allow_all"] or not slices:
        return ""
    return (
        f"allow_all: everybody whom {wanted.class_} signs in may take slices "
        f"({', '.join(slices)}), in the course {course!r} (servers.default_course); to give "
        f'slices only to the people of your courses, set courses.{course}.shapes = ["cpu"]'
    )
