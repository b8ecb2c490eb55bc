"""The queue: the order of tickets, quotas, offers, and estimates of the wait."""
