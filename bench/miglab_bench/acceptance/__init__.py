"""`./lab check`: an acceptance run of a whole lab."""
