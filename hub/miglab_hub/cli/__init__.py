"""The `miglab` command, which `./lab` runs too.  Bad input gets one message and exit status 2."""

from miglab_hub.cli.root import app, main

__all__ = ["app", "main"]
