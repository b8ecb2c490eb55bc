"""Layout files: YAML read, and resolved against the GPUs at hand."""
