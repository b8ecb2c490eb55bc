"""The pool process, put together from lab.toml."""
