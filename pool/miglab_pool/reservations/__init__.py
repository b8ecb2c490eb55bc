"""Reservations: slots kept for a course at a time, and what is promised to others."""
