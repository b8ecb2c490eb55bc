"""What staff do: actions on GPUs, slices, leases and tickets, messages, and the log."""
