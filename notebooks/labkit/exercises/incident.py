"""An incident: a cluster with one worker that lies, an hour of the operator's, and the accusation.

Worker and fault are drawn from who the student is. A measurement costs minutes of the hour,
whatever it really takes here; what was paid for once may be seen again. The acts are kept beside
the notebook, so that a new kernel does not begin the hour anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from labkit import shown
from labkit.arguments import public
from labkit.errors import NotMeasured, WrongArgument
from labkit.exercises.cluster import WORKERS
from labkit.exercises.cluster_faults import FAULTS
from labkit.exercises.cluster_readings import run_cluster
from labkit.measuring.measure import ranks
from labkit.run.borrowed import ON_CPU
from labkit.run.jobs import nobody_is_there
from labkit.student import draw, student_here

BUDGET_MIN = 60
PRICES_MIN: Mapping[str, int] = {
    "times": 5,
    "waits": 5,
    "norms": 10,
    "checksums": 5,
    "losses": 5,
    "samples": 10,
    "numbers": 10,
    "replay": 20,
}
PING_MIN, SWAP_MIN, WRONG_MIN = 3, 15, 30
TIMEOUT_S = 300.0  # eight processes on two busy cores take a minute
SHOWS: Mapping[str, str] = {
    "times": "what a step takes, and how long the worker itself computes",
    "waits": "how long it hands a message over, and waits for others' messages",
    "norms": "the norm of its gradient by layer, before the all-reduce and after it",
    "checksums": "a checksum of its parameters by layer, after the last step",
    "losses": "the loss of its own samples",
    "samples": "checksums of the samples that it read, and of those that its shard has",
    "numbers": "which units have no gradient, and how many numbers bf16 could hold",
    "replay": "loss and distance from the median gradient: shared samples, its own parameters",
}
Acts = tuple[tuple[str, int], ...]


class ClusterReading(dict[str, list[Any]]):
    """What a measurement shows: by row, a list with a value for each worker."""

    def __init__(self, rows: Mapping[str, Sequence[Any]], caption: str) -> None:
        super().__init__({row: list(values) for row, values in rows.items()})
        self.caption = caption

    def _cells(self) -> list[list[str]]:
        return [[row, *(_in_words(value, row) for value in values)] for row, values in self.items()]

    def __repr__(self) -> str:
        rows = [["worker", *map(str, range(WORKERS))], *self._cells()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([self.caption, *lines])

    def _repr_html_(self) -> str:
        return shown.table(self._cells(), self.caption, ["worker", *map(str, range(WORKERS))])


def _in_words(value: Any, row: str) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if row.endswith("ms") else f"{value:.6g}"


class Incident:
    """The cluster of one student, in which one worker lies.

    Args:
        number: 1, or one more than that of an incident that was lost.
        folder: where the acts are kept.

    Raises:
        WrongArgument: the incident before is not over, or was not lost.
    """

    def __init__(self, number: int = 1, folder: Path = Path()) -> None:
        self.number, self._folder = number, folder
        if number != 1 and not (number > 1 and Incident(number - 1, folder).is_lost):
            raise WrongArgument(f"Incident {number} begins when the one before it is lost.")
        seed = f"{student_here()}/incident {number}"
        self._at = draw(f"{seed}/worker", WORKERS)
        self._fault = list(FAULTS)[draw(f"{seed}/fault", len(FAULTS))]
        self._runs: dict[tuple[int, ...], dict[str, Any]] = {}

    @property
    def _file(self) -> Path:
        return self._folder / f"incident-{self.number}.json"

    @property
    def _acts(self) -> Acts:
        """What was done: of the file at each look, since another kernel may act on the incident."""
        try:
            data = json.loads(self._file.read_text(encoding="utf-8"))
            return tuple((str(act), int(minutes)) for act, minutes in data)
        except (OSError, ValueError, TypeError):
            return ()

    def _pay(self, act: str, minutes: int) -> None:
        """Note an act; one that is not affordable is refused.

        Raises:
            NotMeasured: too few minutes are left, or the incident is over.
        """
        if self.is_over:
            raise NotMeasured(self._ended())
        if minutes > self.minutes_left:
            raise NotMeasured(
                f"“{act}” takes {minutes} minutes, and {self.minutes_left} are left: name a worker "
                "and a fault with what you have."
            )
        self._note(act, minutes)

    def _note(self, act: str, minutes: int) -> None:
        acts = (*self._acts, (act, minutes))
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(acts), encoding="utf-8")
        draft.replace(self._file)

    @property
    def minutes_left(self) -> int:
        """The minutes of the hour that are left."""
        return BUDGET_MIN - sum(minutes for _, minutes in self._acts)

    @property
    def accusations(self) -> int:
        """How often somebody was accused."""
        return sum(_accuses(act) for act, _ in self._acts)

    @property
    def is_found(self) -> bool:
        """Whether the worker and its fault were named."""
        return any(act == self._accusation(self._at, self._fault) for act, _ in self._acts)

    @property
    def is_lost(self) -> bool:
        """Whether a wrong accusation took what was left of the hour."""
        accused = [number for number, (act, _) in enumerate(self._acts, 1) if _accuses(act)]
        spent = sum(minutes for _, minutes in self._acts[: accused[-1] if accused else 0])
        return spent >= BUDGET_MIN and not self.is_found

    @property
    def is_over(self) -> bool:
        """Whether nothing can be measured any more."""
        return self.is_found or self.is_lost

    @property
    def _seats(self) -> tuple[int, ...]:
        """The worker at each place, after all swaps."""
        seats = list(range(WORKERS))
        for act, _ in self._acts:
            if act.startswith("swap"):
                a, b = map(int, act.split()[1:])
                i, j = seats.index(a), seats.index(b)
                seats[i], seats[j] = b, a
        return tuple(seats)

    @staticmethod
    def _accusation(worker: int, fault: str) -> str:
        return f"accuse {worker} {fault}"

    def _run(self) -> dict[str, Any]:
        """What the cluster shows as it is seated now; it is trained once for each seating."""
        seats = self._seats
        if seats not in self._runs:
            training = {"fault": self._fault, "at": self._at, "seats": list(seats)}
            outcome = ranks(run_cluster, n=WORKERS, timeout_s=TIMEOUT_S, on=ON_CPU, **training)
            self._runs[seats] = outcome.values[0]
        return self._runs[seats]

    def _pay_once(self, act: str, minutes: int) -> None:
        """Pay for something unless it was paid for since the last swap."""
        swaps = [place for place, (past, _) in enumerate(self._acts) if past.startswith("swap")]
        since_swap = self._acts[swaps[-1] if swaps else 0 :]
        if act not in (past for past, _ in since_swap):
            self._pay(act, minutes)

    @public
    def measure(self, name: str) -> ClusterReading:
        """Measure something of all workers.

        Args:
            name: one of those that the incident lists with their prices.

        Raises:
            NotMeasured: too few minutes are left, or the incident is over.
        """
        if name not in PRICES_MIN:
            raise WrongArgument(f"measure takes one of {', '.join(PRICES_MIN)}, not {name!r:.40}.")
        self._pay_once(name, PRICES_MIN[name])
        rows = self._run()["readings"][name]
        return ClusterReading(rows, f"{name}: {SHOWS[name]}. {self._left()}{self._seating()}")

    @public
    def ping(self, a: int, b: int) -> shown.Showable:
        """Measure the round trip of a small message between two places.

        Raises:
            NotMeasured: too few minutes are left, or the incident is over.
        """
        low, high = sorted(_two_workers("ping", a, b))
        self._pay_once(f"ping {low} {high}", PING_MIN)
        ms = self._run()["pings"][f"{low}-{high}"]
        return _shown(f"between the places {low} and {high}: {ms:.2f} ms. {self._left()}")

    @public
    def swap(self, a: int, b: int) -> shown.Showable:
        """Let two workers change places, and the cluster train anew.

        The shard and the link stay at their place. What is measured from now on is measured anew.

        Raises:
            NotMeasured: too few minutes are left, or the incident is over.
        """
        low, high = sorted(_two_workers("swap", a, b))
        self._pay(f"swap {low} {high}", SWAP_MIN)
        return _shown(f"the cluster was trained anew. {self._left()}{self._seating()}")

    @public
    def accuse(self, worker: int, fault: str) -> shown.Showable:
        """Name the worker that lies, and its fault; a wrong accusation takes 30 minutes.

        Args:
            worker: of 0 to 7; of a slow link the place that it leaves.
            fault: one of those that the incident lists.

        Raises:
            NotMeasured: the incident is over.
        """
        if worker not in range(WORKERS) or fault not in FAULTS:
            raise WrongArgument(
                f"accuse takes a worker from 0 to {WORKERS - 1} and one of {', '.join(FAULTS)}, "
                f"not {worker!r:.20} and {fault!r:.40}."
            )
        is_right = (worker, fault) == (self._at, self._fault)
        if self.is_over:
            raise NotMeasured(self._ended())
        self._note(self._accusation(worker, fault), 0 if is_right else WRONG_MIN)
        if self.is_over:
            return _shown(self._ended())
        return _shown(f"Wrong: it is another worker, or another fault. {self._left()}")

    def _left(self) -> str:
        return f"{self.minutes_left} minutes are left."

    def _seating(self) -> str:
        moved = {place: w for place, w in enumerate(self._seats) if place != w}
        return "".join(f" Worker {worker} is at place {place}." for place, worker in moved.items())

    def _ended(self) -> str:
        name = f"worker {self._at}, {self._fault}"
        if self.is_found:
            spent = BUDGET_MIN - self.minutes_left
            errors = "one wrong accusation" if self.accusations > 1 else "no wrong accusation"
            return f"Found: {name}, after {spent} minutes and {errors}."
        return (
            f"Lost: the hour is over. It was {name}; `look_at` in the optional section shows what "
            "would have told you. Write "
            f"`cluster = labkit.exercises.Incident({self.number + 1})` into the cell that began "
            "this one, and run it and those below it again."
        )

    @public
    def culprit(self) -> tuple[str, int]:
        """The fault and the worker, once they were named, or where no person is there.

        Raises:
            NotMeasured: they were not named yet.
        """
        if self.is_lost:
            raise NotMeasured(self._ended())
        if not self.is_found and not nobody_is_there():
            raise NotMeasured("Name the worker and its fault first: cluster.accuse(worker, fault).")
        return self._fault, self._at

    @property
    def summary(self) -> dict[str, Any]:
        """What was done, as evidence keeps it."""
        return {
            "incident": self.number,
            "minutes": BUDGET_MIN - self.minutes_left,
            "measurements": len(self._acts) - self.accusations,
            "accusations": self.accusations,
            "acts": [act for act, _ in self._acts],
        }

    def _price_rows(self) -> list[list[str]]:
        rows = [[f'measure("{name}")', f"{PRICES_MIN[name]} min", SHOWS[name]] for name in SHOWS]
        return [
            *rows,
            ["ping(a, b)", f"{PING_MIN} min", "a message there and back between two places"],
            ["swap(a, b)", f"{SWAP_MIN} min", "two workers change places; shard and link stay"],
            ["accuse(worker, fault)", f"{WRONG_MIN} min", "only if it is wrong"],
        ]

    def __repr__(self) -> str:
        state = self._ended() if self.is_over else self._left()
        return "\n".join([state, *("  ".join(row) for row in self._price_rows())])

    def _repr_html_(self) -> str:
        caption = self._ended() if self.is_over else self._left()
        table = shown.table(self._price_rows(), caption, ["cluster.…", "costs", "shows"])
        return f"{table}<p>Faults: {escape(', '.join(FAULTS))}.</p>"


def _accuses(act: str) -> bool:
    return act.startswith("accuse")


def _two_workers(name: str, a: int, b: int) -> tuple[int, int]:
    if a == b or not {a, b} <= set(range(WORKERS)):
        raise WrongArgument(f"{name} takes two of 0 to {WORKERS - 1}, not {a!r:.20} and {b!r:.20}.")
    return a, b


def _shown(text: str) -> shown.Showable:
    return shown.Showable(text, f"<p>{escape(text)}</p>")
