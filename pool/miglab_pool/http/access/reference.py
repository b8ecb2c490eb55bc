"""Prints the table of docs/reference/roles.md from the table of rights; a test compares them.

python -m miglab_pool.http.access.reference
"""

import sys

from miglab_pool.http.access.rights import DOES, Reach, Right, Role, reach

SIGNS = {
    Reach.SITE: "yes",
    Reach.COURSE: "in own courses",
    Reach.ASSIGNED: "on GPUs assigned to own courses",
    Reach.OWN: "their own",
    None: "no",
}


def table() -> str:
    """Every right with what it allows, and how far it reaches for each role, in Markdown."""
    head = f"| right | may | {' | '.join(role.value for role in Role)} |"
    rule = "|" + "---|" * (len(Role) + 2)
    return "\n".join([head, rule, *(_row(right) for right in Right), ""])


def _row(right: Right) -> str:
    cells = " | ".join(SIGNS[reach(right, role)] for role in Role)
    return f"| `{right.value}` | {DOES[right]} | {cells} |"


if __name__ == "__main__":
    sys.stdout.write(table())
