"""What the routes and pages of all subjects stand on: sign-in, rights, limits, refusals, frame.

Nothing here imports a subject; the templates, scripts and buttons of all pages are here.
"""
