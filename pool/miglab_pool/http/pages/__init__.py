"""What pages share: their frame, the drawing of a GPU, and the buttons of staff's actions."""
