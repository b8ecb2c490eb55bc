"""Where on a GPU a slice goes."""
