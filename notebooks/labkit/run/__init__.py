"""Child processes that measure and are gone afterwards."""
