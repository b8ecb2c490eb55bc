"""The lab's secrets: made at the first start, kept in files that only their owner may read."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from miglab_hub.errors import StartError
from miglab_hub.settings.lab_toml import Settings

# Letters and digits that are not mistaken for one another when read from a projector.
ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
GROUPS = 3
GROUP_LENGTH = 4


@dataclass(frozen=True)
class Passwords:
    """The embedded default's passwords: who has one opens accounts of that kind, and no others."""

    student: str
    instructor: str
    admin: str


def make_all(settings: Settings) -> None:
    """Make every secret that is missing; those that are there stay."""
    settings.make_private_folder()
    settings.state.chmod(0o700)  # of one that was there
    settings.proxy_token.parent.mkdir(mode=0o700, exist_ok=True)
    for file in (
        settings.pool_secret,
        settings.service_token,
        settings.proxy_token,
        settings.roster_token,
    ):
        make_token(file)
    _make_once(settings.passwords, _passwords)


def make_token(file: Path) -> None:
    """Make a random secret, unless the file is there."""
    _make_once(file, lambda: secrets.token_hex(32) + "\n")


def read(file: Path) -> str:
    """Return the secret in a file."""
    return file.read_text(encoding="utf-8").strip()


def read_passwords(settings: Settings) -> Passwords:
    """Return the passwords of the embedded default.

    Raises:
        StartError: the file does not say them.
    """
    lines = read(settings.passwords).splitlines()
    try:
        return Passwords(**dict(line.split() for line in lines))
    except (TypeError, ValueError) as error:
        raise StartError(
            f"{settings.passwords} must have a line each for student, instructor and admin, with "
            "a password behind the word: delete the file, and new ones are made"
        ) from error


def _passwords() -> str:
    """Return new passwords; the students' can be read aloud and has 58 bits."""
    groups = ("".join(secrets.choice(ALPHABET) for _ in range(GROUP_LENGTH)) for _ in range(GROUPS))
    staff = f"instructor {secrets.token_hex(16)}\nadmin {secrets.token_hex(16)}\n"
    return f"student {'-'.join(groups)}\n{staff}"


def _make_once(file: Path, text: Callable[[], str]) -> None:
    """Write a private file atomically, unless it exists."""
    if file.exists():
        return
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text())
    unfinished.replace(file)
