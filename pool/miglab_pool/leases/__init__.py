"""Leases: granted, attached, extended, released."""
