"""Which leases are idle, warned and reclaimed; a loop beside the pool."""
