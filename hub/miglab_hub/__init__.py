"""The miglab teaching lab: settings, hub configuration, pool service, commands."""

__version__ = "0.1.0"
