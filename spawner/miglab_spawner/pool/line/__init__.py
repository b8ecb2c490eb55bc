"""Who waits and who is next: tickets, the order, shares, quotas."""
