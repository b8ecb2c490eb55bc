"""Reservations: when they are, what is kept for them, who draws on them."""
