"""What changes the pool; each is in the ledger before the act that it announces."""
