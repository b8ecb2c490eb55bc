"""What is done to GPUs and holders, and what they say: acts, reconcile, readings."""
