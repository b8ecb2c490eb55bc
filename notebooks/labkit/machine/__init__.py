"""The GPU or slice at hand: its readings, lease and memory, and parts of it."""
