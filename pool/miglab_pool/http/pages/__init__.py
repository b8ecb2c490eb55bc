"""The service's pages; `frame` is what they share."""
