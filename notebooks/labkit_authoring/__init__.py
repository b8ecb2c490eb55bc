"""For those who write notebooks: rehearse, record, try the controls."""
