"""Refusals: a word for machines, a sentence for the person it concerns.

`REASONS` are the pool's; `http.errors` has those of the service.  The reference lists both, and a
test holds them together.
"""

REASONS = {
    "impossible-shape": "no GPU of this lab can ever hold it",
    "bad-shape": "the shape cannot be read",
    "not-in-course": "the course does not exist here",
    "shape-not-offered": "the course does not offer this shape",
    "over-quota": "a quota is used up",
    "queue-full": "as many wait as may",
    "not-free": "what was asked for at once is not free (any more)",
    "waited-too-long": "nothing became free in the longest time a measurement may wait",
    "not-answered": "nobody answered whether they still wait; the ticket stepped aside",
    "never-made": "the granted slices could not be created; the ticket stepped aside",
    "aside-too-long": "a ticket that had stepped aside was not taken up again",
    "unattended": "nobody asked after the ticket",
    "offer-expired": "the offered slices were not taken in time",
    "passed-on": "staff passed the offered slices to the next; the ticket stepped aside",
    "never-attached": "no server was attached to the lease in time",
    "cancelled": "somebody cancelled it",
    "replaced": "another shape was asked for",
    "unknown-ticket": "no such ticket",
    "unknown-lease": "no such lease",
    "not-offered": "the ticket holds no offer",
    "stale-lease": "the lease is over, or its generation is an old one",
    "bad-holder": "the holder cannot be read or holds another lease",
    "no-extension": "it cannot be extended, or not again",
    "no-keepalive": "“I am still here” does not put this end off, or not again",
    "gpus-unknown": "no GPU has answered yet",
    "paused": "new leases are paused",
    "not-foreign": "only what is foreign can be adopted",
    "not-quarantined": "only what is quarantined can be cleared",
    "unknown-gpu": "no such GPU",
    "unknown-slice": "no such slice",
    "unknown-message": "no such message, or it is not shown any more",
    "too-many-messages": "as many messages are shown as may be",
    "changed-meanwhile": "somebody did something to it since the person looked",
    "already-done": "it stands so already, or is not what this could be done to",
    "still-attached": "an earlier holder of the same server has its lease",
    "still-held": "somebody holds the slice, or the driver is at work on it",
    "no-proof": "no `miglab prove` runs on the host, so no GPU is lent to one",
    "whole-gpu": "a GPU that is leased whole is drained as a GPU",
    "not-waiting": "the ticket is not in the queue (any more)",
    "bad-time": "a reservation's days or times make no sense",
    "in-the-past": "a reservation's time has begun or is over",
    "impossible-reservation": "so many of that shape do not fit on the empty GPUs",
    "in-maintenance": "a reservation's time lies in a maintenance window",
    "breaks-reservation": "it takes slices from a reservation; `anyway` does it even so",
    "reservation-clash": "with what is reserved at the same time it does not fit",
    "unknown-reservation": "no such reservation",
    "too-many-reservations": "a person has made as many for the course as one may",
    "bad-layout": "a layout cannot be read, or no such GPU can be cut so",
    "not-shared": "the course asks for no reports of progress",
    "notice-unread": "the student has not read the notice about progress",
    "too-many-experiments": "more experiments are reported than a course has",
    "reservation-over": "the reservation is over already",
}


WAYS_ON = {"breaks-reservation": "anyway"}
"""The field of the request with which the same request is not refused, by reason."""


class Refused(Exception):
    """The pool says no.

    Attributes:
        reason: one of `REASONS`; the metric's label.
        message: what the person can do about it.
        status: the HTTP status that says it best.
    """

    def __init__(self, reason: str, message: str, status: int = 409) -> None:
        assert reason in REASONS
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.status = status
