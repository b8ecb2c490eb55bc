"""The chosen authenticator: whether it is there, checks who signs in, and whom it lets have slices.

Apart from the settings, which import no authenticator.  JupyterHub is loaded when one is looked
at: doctor works without it.
"""

from typing import Any

from miglab_hub.errors import SettingsError, StartError
from miglab_hub.settings.lab_toml import Settings
from miglab_hub.settings.tables import SHARED_PASSWORD, is_local_only, unproven_identity

LETS_ALL_IN = "miglab_hub.lti.CourseLTIAuthenticator"  # unless its traits say otherwise


def check_installed(settings: Settings) -> None:
    """Check that the authenticator is installed; JupyterHub would say so in a long traceback.

    Raises:
        StartError: it is not, or is no authenticator.
    """
    class_name = settings.authentication.class_
    if class_name == SHARED_PASSWORD:
        return
    try:
        _import_authenticator(class_name)
    except ImportError as error:
        raise StartError(
            f"{settings.file}: authentication.class: the authenticator {class_name!r} cannot be "
            f"imported ({error}): install its package in the lab's environment, or correct the name"
        ) from error


def check_identity(settings: Settings) -> None:
    """Check that people prove who they are, in a lab that other machines reach.

    What is not installed here (the pool's container needs no authenticator) lets nobody in here.

    Raises:
        SettingsError: they do not, by whatever name the authenticator goes, and nobody has accepted
            what follows from that.
    """
    authentication = settings.authentication
    if is_local_only(settings.lab) or settings.accept_risk.anyone_can_be_any_student:
        return
    try:
        authenticator = _import_authenticator(authentication.class_)
    except ImportError:
        return
    if _accepts_anybody(authenticator):
        raise SettingsError(f"{settings.file}: {unproven_identity(authentication.class_)}")


def _import_authenticator(name: str) -> Any:
    """Import an authenticator's class as JupyterHub does: by entry point or path.

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


def _accepts_anybody(authenticator: Any) -> bool:
    from jupyterhub.auth import DummyAuthenticator, NullAuthenticator
    from jupyterhub.authenticators.shared import SharedPasswordAuthenticator

    nobody = (DummyAuthenticator, NullAuthenticator, SharedPasswordAuthenticator)
    return issubclass(authenticator, nobody)


def open_sign_in_notice(settings: Settings) -> str:
    """Return a sentence on who may take slices outside a course; empty if nobody may."""
    authentication, course = settings.authentication, settings.servers.default_course
    traits = {"allow_all": authentication.class_ == LETS_ALL_IN}
    for class_traits in authentication.config.values():
        traits |= class_traits
    slices = [shape for shape in settings.courses[course].shapes if shape != "cpu"]
    if authentication.class_ == SHARED_PASSWORD or not traits["allow_all"] or not slices:
        return ""
    return (
        f"allow_all: everybody whom {authentication.class_} signs in may take slices "
        f"({', '.join(slices)}), in the course {course!r} (servers.default_course); to give "
        f'slices only to the people of your courses, set courses.{course}.shapes = ["cpu"]'
    )
