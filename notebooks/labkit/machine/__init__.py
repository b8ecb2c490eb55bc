"""The GPU or slice at hand: what it is, parts of it, and what a training step does on it."""
