"""lab.toml: its tables, its rosters, and what is wrong in it."""
