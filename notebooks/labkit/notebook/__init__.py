"""What notebooks share: steps, cards, summaries."""
