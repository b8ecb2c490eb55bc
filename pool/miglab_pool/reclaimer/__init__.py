"""Which leases are idle, warned and taken back; a loop beside the pool."""
