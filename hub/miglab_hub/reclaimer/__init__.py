"""Taking slices back: what a lease's end means for the server that holds it."""
