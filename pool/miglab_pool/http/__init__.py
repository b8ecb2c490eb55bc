"""What the routes and pages of all subjects stand on: sign-in, rights, limits, refusals, frame.

Nothing here knows a subject of the pool.
"""
