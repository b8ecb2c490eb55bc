"""`./lab bench ledger`: what years of a lab's history cost the pool.

A real pool service, first with an empty ledger, then with a million transitions, and the leases and
tickets that made them, over the last 180 days.  Timed are its start, a lease from asking to having,
and the pages and answers that read the history.
"""

import asyncio
import itertools
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from miglab_bench.harness.ports import free_ports
from miglab_bench.measures.pool import LAB, Client, running_pool
from miglab_hub.lab_secrets import read
from miglab_hub.settings.lab_toml import Settings, load

GPUS = 2
PER_LEASE = 10  # transitions of a lease with its ticket and slice
DAYS, DAY_S = 180, 86_400.0
LEASES = 20  # whose grant is timed
PAGES = {
    "pool": "/",
    "log": "/log",
    "audit_api": "/api/audit?limit=100",
    "usage_4_weeks": "/usage",
    "own_leases": "/api/leases?user=student7",
}
LEASE_COLUMNS = (
    "id, ticket, generation, user, server, course, shape, state, granted_at, holder, taken_at, "
    "attached_at, releasing_at, ended_at, extensions, reason"
)


@dataclass(frozen=True)
class LedgerRow:
    """What a ledger of one length costs.

    Attributes:
        transitions: rows in its log.
        file_mib: size of its file.
        start_s: from the process's start to its first answer.
        lease_ms: from asking for a free slice to having it, median.
        pages_ms: an answer by page, median.
    """

    transitions: int
    file_mib: float
    start_s: float
    lease_ms: float
    pages_ms: dict[str, float]


def bench_ledger(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    transitions: Annotated[int, typer.Option(min=PER_LEASE, help="Rows in the log.")] = 1_000_000,
    samples: Annotated[int, typer.Option(min=1, help="Answers of each kind.")] = 10,
) -> None:
    """Ledger: start, decision and pages with an empty ledger and with a long one."""
    with temporary_settings() as settings:
        rows = [measure(settings, 0, samples)]
        fill(settings.ledger, transitions, time.time())
        rows.append(measure(settings, transitions, samples))
    how = (
        f"a service of its own each, {GPUS} simulated GPUs without delays; {LEASES} leases and "
        f"{samples} answers of each kind, one after the other; history over {DAYS} days"
    )
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "how": how}))
        return
    Console().print(_table(rows), how)


@contextmanager
def temporary_settings() -> Iterator[Settings]:
    """A lab of its own in a folder of its own, which keeps its history for ever."""
    with tempfile.TemporaryDirectory(prefix="miglab-bench-") as name:
        file = Path(name, "lab.toml")
        file.write_text(
            LAB.format(port=free_ports(), gpus=GPUS)
            + "[pool]\nkeep_days = 0\nkeep_staff_days = 0\n"
        )
        yield load(file, {})


def fill(ledger: Path, transitions: int, now: float) -> None:
    """Write a history into a ledger that nobody has open."""
    leases = transitions // PER_LEASE
    with closing(sqlite3.connect(ledger)) as file, file:
        first = {
            table: file.execute(f"SELECT COALESCE(MAX(id), 0) + 1 FROM {table}").fetchone()[0]  # noqa: S608
            for table in ("tickets", "leases")
        }
        spans = [(n, now - DAYS * DAY_S * (1 - n / leases)) for n in range(leases)]
        file.executemany(
            "INSERT INTO tickets (id, user, server, course, shape, asked, state, created_at, "
            "attended_at, offered_at, lease, reason, message) "
            "VALUES (?, ?, '', 'everyone', '1g.5gb', '1g.5gb', 'taken', ?, ?, ?, ?, '', '')",
            [(first["tickets"] + n, _user(n), at, at, at, first["leases"] + n) for n, at in spans],
        )
        file.executemany(
            f"INSERT INTO leases ({LEASE_COLUMNS}) VALUES (?, ?, 1, ?, '', 'everyone', "  # noqa: S608
            "'1g.5gb', 'released', ?, ?, ?, ?, ?, ?, 0, 'the server ended')",
            [
                (
                    first["leases"] + n,
                    first["tickets"] + n,
                    _user(n),
                    at,
                    f"process:{n},1,boot",
                    *(at + after for after in (1, 2, 3600, 3601)),
                )
                for n, at in spans
            ],
        )
        file.executemany(
            "INSERT INTO transitions (at, kind, target, from_state, to_state, by, reason, course, "
            'action) VALUES (?, ?, ?, ?, ?, ?, ?, "everyone", ?)',
            (row for n, at in spans for row in _transitions(first, n, at)),
        )


def _user(number: int) -> str:
    return f"student{number % 500}"


def _transitions(first: dict[str, int], number: int, at: float) -> Iterator[tuple[object, ...]]:
    """The log of one lease; one of its lines is an act of its student."""
    ticket, lease, by = (
        first["tickets"] + number,
        first["leases"] + number,
        f"person:{_user(number)}",
    )
    yield (at, "ticket", ticket, "", "waiting", "spawner", "asked", "")
    for before, after in (("waiting", "offered"), ("offered", "taken")):
        yield (at, "ticket", ticket, before, after, "pool", "", "")
    states = ("", "granted", "attached", "running", "releasing", "released")
    for before, after in itertools.pairwise(states):
        yield (at, "lease", lease, before, after, "spawner", "", "")
    yield (at, "lease", lease, "running", "running", by, "I am still here", "keepalive")
    yield (at, "slice", 1 + number % 14, "free", "leased", "pool", "", "")


def measure(settings: Settings, transitions: int, samples: int) -> LedgerRow:
    """Start the service, lease, and look at everything."""
    began = time.perf_counter()
    with running_pool(settings):
        start_s = time.perf_counter() - began
        lease_ms = asyncio.run(_lease_ms(settings))
        size_mib = sum(file.stat().st_size for file in _files(settings.ledger)) / 2**20
        headers = {"Authorization": f"Bearer {read(settings.pool_secret)}"}
        with httpx.Client(headers=headers, timeout=120, trust_env=False) as http:
            pages = {
                name: round(_median_ms(partial(_get, http, settings, path), samples), 1)
                for name, path in PAGES.items()
            }
    return LedgerRow(transitions, round(size_mib, 1), round(start_s, 2), round(lease_ms, 1), pages)


def _files(ledger: Path) -> Iterator[Path]:
    """The ledger, and its write-ahead log."""
    return ledger.parent.glob(f"{ledger.name}*")


async def _lease_ms(settings: Settings) -> float:
    async with Client(settings) as client:
        for _ in range(LEASES):
            await client.come(0, 0)
        return median(client.leases_s) * 1000


def _get(http: httpx.Client, settings: Settings, path: str) -> None:
    http.get(f"{settings.pool_url}{path}").raise_for_status()


def _median_ms(work: Callable[[], None], samples: int) -> float:
    took = []
    for _ in range(samples):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


def _table(rows: Sequence[LedgerRow]) -> Table:
    table = Table(title="what history costs the pool")
    for column in ("transitions", "MiB", "start, s", "lease, ms", *PAGES):
        table.add_column(column, justify="right")
    for row in rows:
        cells = (row.transitions, row.file_mib, row.start_s, row.lease_ms, *row.pages_ms.values())
        table.add_row(*(str(cell) for cell in cells))
    return table
