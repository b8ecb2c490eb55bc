"""The service's pages; `frame` is what they share, `router` where they hang."""
