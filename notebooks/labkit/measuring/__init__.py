"""Measuring: alone, in turns, side by side, among ranks."""
