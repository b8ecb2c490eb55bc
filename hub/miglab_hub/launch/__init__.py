"""`./lab up`: what it checks, starts and ends."""
