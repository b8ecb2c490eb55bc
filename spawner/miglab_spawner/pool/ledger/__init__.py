"""The pool's memory: rows, tables, the file, and how older ones are brought up to date."""
