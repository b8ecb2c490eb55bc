"""Layouts: how GPUs should be cut, when, and how they come to be so without cutting anybody off."""
