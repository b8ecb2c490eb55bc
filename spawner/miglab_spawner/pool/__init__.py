"""Tickets, leases and placement: who gets which slice, and when it is free again."""
