"""What the pool can be asked to do, by what it concerns: the parts of `Pool`.

Each method is one transaction under the pool's lock, answered with a wire model; any thread may
call it.  What only reads the pool as a whole asks `Pool.view` and takes no lock.
"""
