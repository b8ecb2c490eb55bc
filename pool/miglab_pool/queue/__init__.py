"""The queue: tickets, their order, fair share, quotas, offers, and estimates of the wait."""
