"""Simulated GPUs: pynvml's functions over a state file that processes share."""
