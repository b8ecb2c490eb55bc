"""What the hub's pages and the pool's both serve: the palette, and the switch of light and dark."""

from pathlib import Path

FOLDER = Path(__file__).parent
