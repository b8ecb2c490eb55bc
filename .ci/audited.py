"""Says in one sentence what pip-audit found; its report is the argument, and may be missing."""

import json
import sys
from pathlib import Path


def sentence(report: Path) -> str:
    """What was found, or that nothing could be asked."""
    if not report.exists():
        return "not audited: pip-audit or its database cannot be reached from here"
    audited = [
        package for package in json.loads(report.read_text())["dependencies"] if "vulns" in package
    ]
    if not audited:
        return "not audited: the database that answers here knows none of these packages"
    holes = [
        f"{package['name']} {package['version']}: {hole['id']}, "
        f"mended in {', '.join(hole['fix_versions'])}"
        for package in audited
        for hole in package["vulns"]
    ]
    return "; ".join(holes) or f"no known hole in {len(audited)} packages"


if __name__ == "__main__":
    print(sentence(Path(sys.argv[1])))
