"""The pool service's two applications over one pool, put together from the routes of all subjects.

*Management* is for the spawner, for instructors and for a student's browser; *student* is for a
student's own server and knows nothing but that server's lease.  Nothing here decides who gets a
slice or touches a GPU.
"""
