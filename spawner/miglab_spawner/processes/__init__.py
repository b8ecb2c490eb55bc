"""What a student's local process is started through."""
