"""Checks of what students write, and the networks they write it for."""
