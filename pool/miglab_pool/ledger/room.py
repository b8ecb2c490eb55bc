"""Keeps room in the ledger's own files for what has to be written while the disk is full.

A reserve file would be anybody's once it is given back; this room is the ledger's alone.  Pages
that were written and freed stay in the database, which uses them before it grows; and SQLite's log
has then been as long as it ever gets before it is written back and begun anew, and keeps that
length while the ledger is open.  It holds on file systems that overwrite in place (ext4, XFS,
tmpfs); on btrfs and ZFS an overwrite takes new room.
"""

from sqlalchemy import text

from miglab_pool.ledger.ledger import Ledger

NEEDED_BYTES = 16 << 20  # to write the pages twice, to the log and to the database
ROOM_PAGES = 1200  # 4.7 MiB; SQLite writes its log back after 1000 (wal_autocheckpoint)
LEAST_PAGES = 600  # below it, room is made anew
TABLE = "room"


def keep_room(ledger: Ledger, at: float) -> bool:
    """See that the ledger can take some thousand more rows without growing.

    Args:
        ledger: open; the caller holds the pool's lock.
        at: now, seconds since the epoch.

    Returns:
        Whether anything had to be written for it.

    Raises:
        LedgerUnwritable: the disk has no room for it.
    """
    if _pragma(ledger, "freelist_count") >= LEAST_PAGES:
        return False
    size = ROOM_PAGES * _pragma(ledger, "page_size")
    with ledger.write(at, durable=False) as tx:
        tx.add(text(f"DROP TABLE IF EXISTS {TABLE}"))  # of a process that ended in between
        tx.add(text(f"CREATE TABLE {TABLE} (filler BLOB)"))
        tx.add(text(f"INSERT INTO {TABLE} VALUES (zeroblob({size}))"))  # noqa: S608 -- numbers
    with ledger.write(at, durable=False) as tx:
        tx.add(text(f"DROP TABLE {TABLE}"))
    return True


def _pragma(ledger: Ledger, name: str) -> int:
    return int(ledger.read(text(f"PRAGMA {name}"))[0][name])
