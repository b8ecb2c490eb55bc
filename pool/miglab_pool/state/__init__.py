"""The pool in memory: its rows, what was read from its GPUs, its invariants."""
