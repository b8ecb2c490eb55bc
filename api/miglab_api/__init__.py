"""What passes between the lab's processes: pydantic models, and the words that go with them.

The pool service, the spawner, the hub and the command line all import it; it imports none of them.
"""

__version__ = "0.1.0"
