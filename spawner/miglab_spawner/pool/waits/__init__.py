"""How long a wait will last: the pool as it is, carried on many times by dice."""
