"""Layouts: which slices a GPU is cut into, from a file in mig-parted's manner."""
