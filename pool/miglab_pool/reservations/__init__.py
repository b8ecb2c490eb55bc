"""Reservations: slots kept for a course at a time."""
