"""What was used: from the ledger to a report."""
