"""The lab put together: lab.toml, the hub's configuration, the launcher, the command line."""

__version__ = "0.1.0"
