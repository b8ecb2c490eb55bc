"""The pool service as it is, with a shorter patience for driver calls: ``service.py --config F``.

A fault of the harness lasts seconds: a call that hangs counts as hung after `STUCK_S` here.
``--without-mends`` takes two mends back, so that a test can see that the harness notices: what a
restored ledger does not know is not told from what it knows, and is given away.
"""

import sys
from pathlib import Path

from miglab_hub.service import __main__ as service
from miglab_hub.settings.lab_toml import load
from miglab_pool.settings import Tuning
from miglab_pool.worker import reconcile

STUCK_S = 2.0
WITHOUT_MENDS = "--without-mends"


def take_mends_back() -> None:
    """A label's number alone says whose a container is, and no slice is claimed by one."""
    reconcile.why_left_alone = lambda identity, lease, stray: "" if lease else "unknown"
    reconcile._claim = lambda worker, stray: None


def main() -> int:
    """Run until told to stop; returns the exit status."""
    if WITHOUT_MENDS in sys.argv:
        take_mends_back()
    file = Path(sys.argv[sys.argv.index("--config") + 1])
    tuning = Tuning(stuck_s=STUCK_S, retry_max_s=5.0)
    service.run(load(file).model_copy(update={"tuning": tuning}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
