"""The program of a student's process: it answers with values, and holds nothing of the judge's.

It is put into the sandbox by itself: import nothing but Python's library (and torch, if there).
"""
