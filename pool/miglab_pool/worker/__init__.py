"""What is done to GPUs and holders, and what is read from them."""
