"""What a student chooses and reads before the server is there."""
