"""Which leases each server holds."""

from miglab_pool.state.store import Store


def servers(store: Store) -> set[tuple[str, str]]:
    """The servers, each with its user, whose last lease is not over: none ever holds two."""
    return {(lease.user, lease.server) for lease in store.state.leases.values()}
