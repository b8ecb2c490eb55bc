"""Usage: slice-hours of a period, as a report and a page."""
