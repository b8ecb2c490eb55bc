"""Temporary labs, their processes, and the students who use them."""
