"""What passes between the lab's processes: pydantic models, and the words that go with them.

The pool service, the spawner, the hub and the command line all import it; it imports none of them.
"""

from pathlib import Path

__version__ = "0.1.0"
WEB = Path(__file__).with_name("web")
"""What hub's and pool's pages both serve: the palette, and the switch of light and dark."""
