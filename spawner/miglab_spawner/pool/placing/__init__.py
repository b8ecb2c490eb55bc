"""Where slices go on a GPU."""
