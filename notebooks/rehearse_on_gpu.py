"""Rehearses and records the notebooks on a machine with GPUs, within some minutes; it can go on.

`PYTHONPATH=notebooks python3 notebooks/rehearse_on_gpu.py OUT --minutes 8` runs every notebook that
has not yet run whole in OUT, until the time is up; the same command again goes on with the rest.
OUT/MACHINE is then that machine's gallery. `--only 4 5` are the ones with several ranks, for two
and four GPUs; `--recorded notebooks/labkit/recorded` also keeps what students may replay.
Exit status 0 once every notebook asked for has run whole.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from labkit.measuring.place import where
from labkit_authoring import gallery, record
from labkit_authoring.rehearse import Rehearsal, rehearse

SOURCES = Path(__file__).parent / "src"
LEAST_S = 30  # less is not worth starting a notebook
DONE = "whole.json"


def asked():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--only", nargs="*", default=[], help="how the notebooks' names begin")
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--emulate-slice", action="store_true")
    return parser.parse_args()


def went(folder):
    """How a notebook went that has run whole; None if it has not."""
    file = folder / DONE
    if not file.is_file():
        return None
    name, total_s = json.loads(file.read_text())
    report = json.loads((folder / "report.json").read_text())
    return Rehearsal(name, folder, **report, total_s=total_s)


def run(source, folder, limit_s, emulate):
    found = rehearse(source, folder, emulate=emulate, limit_s=limit_s)
    print(found, flush=True)
    if not found.failed:
        (folder / DONE).write_text(json.dumps([found.notebook, found.total_s]))
    return found


def keep(out, runs, recorded, emulate):
    """What has been measured so far, as `labkit record` keeps it."""
    place = where()
    name = record.machine_name(place) + ("-emulated" if emulate else "")
    (out / name).mkdir(parents=True, exist_ok=True)
    kept = [item for one in runs for item in record._keep(one, out / name)]
    for item in kept:
        if recorded and record._is_replayable(item, ["*"]):
            record._copy(out / name / f"{item.experiment}.json", recorded)
    gallery.write_note(out / name, place, kept, runs)
    false = [one for one in kept if one.judgement and one.judgement.verdict == "contradicted"]
    print(f"{len(kept)} experiments in {out / name}, {len(false)} claims contradicted")


def main():
    given = asked()
    ends, runs = time.monotonic() + 60 * given.minutes, []
    names = tuple(given.only) or ("",)
    sources = [one for one in sorted(SOURCES.glob("[1-9]*_*.py")) if one.name.startswith(names)]
    for source in sources:
        folder = given.out / ".work" / source.stem
        left = ends - time.monotonic()
        found = went(folder)
        if found is None and left > LEAST_S:
            found = run(source, folder, left, given.emulate_slice)
        runs += [found] if found else []
    keep(given.out, runs, given.recorded, given.emulate_slice)
    return 0 if len(runs) == len(sources) and not any(one.failed for one in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
