"""Temporary labs, students and visitors."""
