"""Reclaim: what a lease does, who is warned, and whose server is stopped."""
