"""Whom the spawner asks for slices."""
