"""The pool's rows as messages and reports."""
