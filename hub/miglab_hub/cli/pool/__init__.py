"""`miglab pool`: a file for each group of commands."""
