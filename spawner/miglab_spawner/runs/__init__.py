"""Measurements on borrowed slices: the queue, the runner, and what passes between it and a server.

Knows the pool's client and runners, and nothing of JupyterHub: hub_pages.py has the route.
"""
