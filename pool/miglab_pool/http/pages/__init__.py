"""What pages share: their frame, and the actions that they offer, with their forms."""
