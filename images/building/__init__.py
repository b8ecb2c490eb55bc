"""How the images are made: base, wheelhouse, image.  Standard library only."""
