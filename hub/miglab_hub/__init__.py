"""The miglab teaching lab around the spawner: settings, hub configuration, pool service, commands."""

__version__ = "0.1.0"
