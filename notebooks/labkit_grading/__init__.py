"""Handing in, and grading what was handed in."""
