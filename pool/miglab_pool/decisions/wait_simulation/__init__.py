"""How long a wait is likely to last: simulated futures of the queue."""
