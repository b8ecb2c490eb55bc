"""Experiments as panels in a notebook, and their plots."""
