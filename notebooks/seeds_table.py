"""Where every published figure is drawn or printed, or why not.

`python3 notebooks/seeds_table.py` brings `published.json` up to date, and the docs show it.
A figure is drawn where the catalogue places it over a panel, and printed where a notebook names it.
"""

import json
import re
from pathlib import Path

from labkit.evidence import published
from labkit.notebook.catalogue import EXPERIMENTS

HERE = Path(__file__).parent
DATA = HERE / "labkit" / "published.json"
NAMED = re.compile(
    r"f?\"((?:cern5|cern6|dettmers|habr)\.[^\"]+|(?:nvidia\.)?(?:finetune|infer)\.[^\"]+)\""
)


def drawn():
    """The panels over which the catalogue draws each figure."""
    found = {}
    for key, experiment in EXPERIMENTS.items():
        row = experiment.published
        for name in [*row.places, row.base] if row else []:
            found.setdefault(name, []).append(key)
    return found


def printed():
    """The notebooks whose text or code names each figure; braces stand for any part of a name."""
    found = {}
    for source in sorted((HERE / "src").glob("[1-9]*_*.py")):
        for name in set(NAMED.findall(source.read_text())):
            whole = name if name.split(".")[0] in published.SHORT else f"nvidia.{name}"
            pattern = re.sub(r"\\{[^}]*\\}", r"[^.]+", re.escape(whole))
            for figure in published.figures():
                if re.fullmatch(pattern, figure):
                    found.setdefault(figure, []).append(f"{source.name[0]}: printed")
    return found


def shown(name, on_panels, in_text):
    """Where a figure is shown: panels first, then notebooks."""
    return [key for key in on_panels.get(name, ()) if key] + in_text.get(name, [])


def refreshed(text):
    """`published.json` with `drawn_in` where a figure is shown, and its reason where it is not."""
    on_panels, in_text, lines = drawn(), printed(), []
    for line in text.splitlines():
        if (found := re.match(r'\s*{"id": "([^"]+)"', line)) is not None:
            row = json.loads(line.rstrip().rstrip(","))
            places = shown(found[1], on_panels, in_text)
            why = row.pop("left_out_because", "")
            row.pop("drawn_in", None)
            row |= {"drawn_in": places} if places else {"left_out_because": why}
            comma = "," if line.rstrip().endswith(",") else ""
            line = f"  {json.dumps(row, ensure_ascii=False)}{comma}"
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DATA.write_text(refreshed(DATA.read_text()))
