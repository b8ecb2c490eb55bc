"""What staff do to the pool by hand; each act is in the ledger, with name and reason.

`words` and `decisions` are pure; `places`, `people`, `notes` and `audit` are the transactions
around them; `desk` is the one door.
"""

from .audit import LIMIT_MAX, Question
from .desk import Desk
from .notes import end_old as end_old_notes

__all__ = ["LIMIT_MAX", "Desk", "Question", "end_old_notes"]
