"""The student's slice, in the student's own Jupyter Server and JupyterLab.

The server side tells the pool how the server is used and keeps what the pool answers; the front
end (labextension/) shows it.  Neither can run code in a kernel, and neither imports the pool: the
only thing shared with it is the wire format of ``miglab_api``.
"""

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Where Jupyter Server finds the extension."""
    from miglab_jupyterlab.app import LeaseExtension

    return [{"module": "miglab_jupyterlab.app", "app": LeaseExtension}]
