"""Buttons and words that pages share."""
