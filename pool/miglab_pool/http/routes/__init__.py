"""The management application's routes, a file for each subject."""
