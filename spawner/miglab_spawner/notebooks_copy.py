"""Brings new notebooks into a student's home and never overwrites an edited one.

Runs at each start of a server, in the image (``notebooks_copy.py SOURCE TARGET``) and for local
servers.  A manifest in the target remembers what was delivered: a file that still has those bytes
is replaced by a newer version, any other is the student's.  Standard library only: the image copies
this one file.
"""

import contextlib
import errno
import hashlib
import json
import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MANIFEST = ".delivered.json"
LARGEST = 64 * 2**20  # a notebook with its pictures; what is larger is the student's own


@dataclass(frozen=True)
class CopyResult:
    """The result of a copy, as paths relative to the target."""

    new: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    preserved: tuple[str, ...] = ()


def copy_new(source: Path, target: Path) -> CopyResult:
    """Copy what is new or was never edited from ``source`` to ``target``.

    A notebook the student deleted comes back: deleting it is how to get a fresh one.  Nothing is
    written through a link: where one leads is not this run's to change.  Each file
    appears whole or not at all.  The manifest comes last: after an interruption the next run finds
    the new bytes in place and writes down that it delivered them.

    Raises:
        OSError: the target cannot be written; nothing of the student's was changed.
    """
    if not target.is_symlink():
        target.mkdir(parents=True, exist_ok=True)
    before = read_manifest(target)
    delivered = dict(before)
    copied: dict[str, list[str]] = {"new": [], "updated": [], "kept": []}
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        name = file.relative_to(source).as_posix()
        content = file.read_bytes()
        outcome = decide_outcome(target, name, digest(content), delivered.get(name))
        if outcome in ("new", "updated"):
            write_atomically(target / name, content)
        if outcome in ("new", "updated", "same"):
            delivered[name] = digest(content)
        if outcome in copied:
            copied[outcome].append(name)
    if delivered != before:
        write_atomically(
            target / MANIFEST, json.dumps(delivered, indent=1, sort_keys=True).encode()
        )
    return CopyResult(*(tuple(copied[outcome]) for outcome in ("new", "updated", "kept")))


def decide_outcome(target: Path, name: str, new_digest: str, delivered: str | None) -> str:
    """Return ``new``, ``same``, ``updated``, or ``kept`` for a student's own version.

    Args:
        target: the folder of the notebooks.
        name: where the notebook would go, below that.
        new_digest: the hash of the version to deliver.
        delivered: the hash of the version delivered last; None if never.
    """
    notebook = target / name
    if any((target / folder).is_symlink() for folder in Path(name).parents):
        return "kept"
    if not os.path.lexists(notebook):
        return "new"
    content = read_regular_file(notebook)
    if content is None:
        return "kept"
    current_digest = digest(content)
    if current_digest == new_digest:
        return "same"
    return "updated" if current_digest == delivered else "kept"


def digest(content: bytes) -> str:
    """Return the hash that reveals an edit."""
    return hashlib.sha256(content).hexdigest()


def read_manifest(target: Path) -> dict[str, str]:
    """Return the hashes of delivered files; empty if the manifest cannot be read."""
    try:
        manifest = json.loads(read_regular_file(target / MANIFEST) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def read_regular_file(path: Path) -> bytes | None:
    """Return a regular file's content; None for a link, pipe, device, or a huge file.

    A pipe that nobody writes to would hold up the start for ever, a device never end.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:
                return None
            return file.read(LARGEST)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR):
            return None
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def main() -> int:
    """Copy, and print what was done; exit status 1 if the home cannot be written."""
    try:
        copied = copy_new(Path(sys.argv[1]), Path(sys.argv[2]))
    except OSError as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return 1
    for outcome, names in (
        ("new", copied.new),
        ("updated", copied.updated),
        ("kept", copied.preserved),
    ):
        if names:
            print(f"notebooks {outcome}: {', '.join(names)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
