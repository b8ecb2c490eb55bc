"""GPUs, layouts, weeks and usage, drawn as SVG and tables."""
