"""What notebooks share: steps, windows, cards, summaries."""
