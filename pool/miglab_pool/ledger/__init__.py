"""The rows on disk, and how an older file becomes a newer one."""
