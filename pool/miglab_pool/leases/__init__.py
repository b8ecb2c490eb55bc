"""Tickets and leases: requested, granted, attached, extended, released."""
