"""What a module of tests needs to be installed; it is looked for, and not imported.

`pytest.importorskip` imports it while tests are collected, in every process that collects them:
JupyterLab and torch take seconds, though most of these processes run no test that uses them.
"""

from importlib.util import find_spec

import pytest


def needs(package: str, reason: str) -> None:
    """Skip the calling module where the package is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"no {package}: {reason}", allow_module_level=True)
