"""Measurements on borrowed slices: the queue, the runner, and what passes between it and a server.

Knows a `LeaseBackend` and runners, and nothing of JupyterHub: run_handler.py is the door.
"""
