"""The pool under seeded faults: real processes and containers over simulated GPUs."""
