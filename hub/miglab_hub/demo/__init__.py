"""The trial lab of `./lab up --demo`: a class of simulated students, for rehearsals and for a look.

Their accounts, tickets and leases are real ones, and so are the processes that hold the leases;
only what runs in those is simulated.  `simulated_class` decides who does what, makes the lab's
folder and tells the hub; `student_server` is such a student's server; `director` lets it happen.
"""
