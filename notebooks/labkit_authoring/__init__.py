"""For those who write notebooks: rehearse, record, redraw."""
