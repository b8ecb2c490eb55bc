"""What a backend's own mixin, or the spawner beside it, overrides: no behaviour of its own."""

from collections.abc import Mapping
from typing import Any

from miglab_api.leases import LeaseView
from miglab_spawner import home_size
from miglab_spawner.backends import Backend
from miglab_spawner.pages.spawn_page import needs_slice
from miglab_spawner.traits import SpawnerTraits


class BackendHooks(SpawnerTraits):
    """What differs between backends, and between kinds of servers.

    Attributes:
        backend_name: begins the reasons of failed starts: ``pool-unreachable``.
        silence: what a student reads when the backend does not answer.
    """

    backend_name: str
    silence: str

    @property
    def backend(self) -> Backend:
        """Whoever hands out the slices."""
        raise NotImplementedError

    @property
    def patience_s(self) -> float:
        """How long a start that already waits bears a backend that does not answer, seconds."""
        raise NotImplementedError

    @property
    def keeps_ticket(self) -> bool:
        """Whether the ticket can wait on while a server without a GPU runs."""
        raise NotImplementedError

    @property
    def can_ask_while_running(self) -> bool:
        """Whether a running server without a slice can join the queue; by default it cannot."""
        return False

    def needs_grant(self, shape: str) -> bool:
        """Whether the backend must be asked before a server of this shape may start."""
        return needs_slice(shape)

    async def remember_lease(self, lease: LeaseView) -> None:
        """Remember what this server holds from now on."""
        raise NotImplementedError

    async def give_back(self) -> None:
        """Give back what this server holds; called after every end and every failed start.

        Raises:
            BackendError: the backend does not answer; what is held is forgotten here all the same.
        """
        raise NotImplementedError

    def saved_grant(self) -> dict[str, Any]:
        """What this server holds, as JSON that outlives the hub; empty if it holds nothing."""
        raise NotImplementedError

    def restore_grant(self, saved: Mapping[str, Any]) -> None:
        """Take over what `saved` said before the hub ended."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Make ready for the base's ``start()``; the grant is known, the server not yet there.

        By default nothing: a job of Slurm exists by now.
        """

    async def measure_home(self) -> home_size.HomeUse | None:
        """What lies in the home, where a class can tell; None where measuring it took too long.

        Only asked with `home_gib`.
        """
        return home_size.HomeUse()

    def rename_refusal(self) -> str:
        """Return why the server's user can have no other name now; empty where they can.

        By default that is never refused: the pool knows people by an id that a rename keeps.
        """
        return ""
