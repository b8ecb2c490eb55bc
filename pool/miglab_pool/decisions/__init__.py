"""Questions about the pool; answering one changes nothing."""
