"""How the pool refuses: a sentence for the person, a reason for the code."""

from miglab_api.base import WireModel


class Refusal(WireModel):
    """The body of every answer that is an error: a word for machines, a sentence for people."""

    reason: str
    message: str
