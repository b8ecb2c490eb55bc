"""Signing in to the embedded default: one printed password for students, other ones for staff.

JupyterHub's `SharedPasswordAuthenticator` knows users and admins; with it the students' password
would open the instructors' accounts too.  This one adds the third kind.
"""

from hmac import compare_digest
from typing import Any

from jupyterhub.authenticators.shared import SharedPasswordAuthenticator
from traitlets import Set, Unicode

LONGEST_NAME = 128


class LabAuthenticator(SharedPasswordAuthenticator):  # type: ignore[misc]  # base is untyped
    """A password each for admins, for instructors and for all others."""

    instructor_users = Set(
        Unicode(),
        config=True,
        help="Who signs in with `instructor_password` and no other: instructors and assistants.",
    )
    instructor_password = Unicode(
        "", config=True, help="Opens the accounts of `instructor_users`. Empty: none of them opens."
    )

    def validate_username(self, username: str) -> bool:
        """Accept any name that can be shown and stored, since people choose theirs."""
        is_usable = username.isprintable() and len(username) <= LONGEST_NAME
        return is_usable and bool(super().validate_username(username))

    async def authenticate(self, handler: Any, data: dict[str, str]) -> dict[str, Any] | None:
        """Check the password against the one of the account's kind."""
        name = self.normalize_username(data["username"])
        password = data["password"]
        if not password.isascii():  # compare_digest takes no other text, and none of ours has any
            return None
        staff = {self.normalize_username(name) for name in self.instructor_users}
        if name in staff and name not in self.admin_users:
            right = self.instructor_password
            is_right = bool(right) and compare_digest(password, right)
            return {"name": name, "admin": False, "groups": []} if is_right else None
        account: dict[str, Any] | None = await super().authenticate(handler, data)
        return account
