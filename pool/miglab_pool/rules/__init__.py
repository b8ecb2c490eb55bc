"""Pure functions over plain values and a time; they know neither ledger nor GPU driver."""
