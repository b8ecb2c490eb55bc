"""A student's server: what it has done, and what can be told of it from outside."""

from dataclasses import dataclass

from miglab_api.leases import KernelSignal, Signals

AT_REST = 0.003  # CPU seconds per second of a server that does nothing


@dataclass(slots=True)
class DayServer:
    """A running server; times are seconds since midnight.

    Attributes:
        lease: what it holds.
        uuids: the slices.
        started_at: when.
        ran_at: when a kernel last ran something; None if none ever did.
        is_busy: whether one runs something now.
        told_at: when anything last came from it or its pages that a hub can see.
        touched_at: when a person last did something in its page.
        is_open: whether a page is connected.
        closes_at: when a page that was left open loses its connection.
        run_left_s: what is left of a run that nobody looks at.
        is_silent: whether that run prints nothing.
        cpu_s: what its processes used.
    """

    lease: int
    uuids: tuple[str, ...]
    started_at: float
    told_at: float
    touched_at: float
    ran_at: float | None = None
    is_busy: bool = False
    is_open: bool = True
    closes_at: float | None = None
    run_left_s: float = 0.0
    is_silent: bool = False
    cpu_s: float = 0.0

    def ran(self, until: float, seconds: float, *, prints: bool = True) -> None:
        """A kernel has run until then, for so long."""
        self.is_busy = True
        self.ran_at = until
        self.cpu_s += seconds
        if prints:
            self.told_at = until

    def rest(self, until: float) -> None:
        """Time has passed; an open page's connection is traffic, whoever looks at it."""
        if self.closes_at is not None and until >= self.closes_at:
            self.told_at = max(self.told_at, self.closes_at)
            self.is_open, self.closes_at = False, None
        if self.is_open:
            self.told_at = until

    def leave_page(self, at: float, open_s: float) -> None:
        """Nobody looks any more; the connection lasts on for a while."""
        self.is_open = open_s > 0
        self.closes_at = at + open_s if open_s > 0 else None

    def open_page(self) -> None:
        """Somebody is back."""
        self.is_open, self.closes_at = True, None

    def signals(self, at: float) -> Signals:
        """What its extension reports."""
        kernels: tuple[KernelSignal, ...] = ()
        if self.ran_at is not None:
            age_s = 0.0 if self.is_busy else at - self.ran_at
            kernels = (KernelSignal(busy=self.is_busy, last_execution_age_s=age_s),)
        return Signals(
            kernels=kernels,
            terminals=0,
            browsers=int(self.is_open),
            browser_age_s=at - self.touched_at if self.is_open else None,
            unsaved=0,
            cpu_s=self.cpu_s + AT_REST * (at - self.started_at),
        )
