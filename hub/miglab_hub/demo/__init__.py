"""The trial lab of `./lab up --demo`: a class of simulated students, for rehearsals and for a look.

Their accounts, tickets and leases are real ones, and so are the processes that hold the leases;
only what runs in those is simulated.  `prepare` makes the lab's folder, `hub_setup` tells the hub
who is simulated, `student_server` is such a student's server, `plan` decides who does what, and
`director` lets it happen.
"""
