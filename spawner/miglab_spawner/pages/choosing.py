"""What JupyterLab's dialog “Choose a slice” shows: the spawn page's own choices, as JSON.  Pure.

The words are those of the spawn page, because the data is made from the same `Page`.
"""

from dataclasses import asdict
from typing import Any

from miglab_spawner.pages.spawn_page import CourseSection, Page, needs_slice


def choices_data(page: Page) -> dict[str, Any]:
    """Return the slices on a spawn page, by course; no GPU and borrowing are left out."""
    return {
        "trouble": page.trouble,
        "people": page.people,
        "unknown_wait": page.unknown_wait,
        "sections": [_section_data(section) for section in page.sections],
    }


def _section_data(section: CourseSection) -> dict[str, Any]:
    cards = [card for card in section.cards if needs_slice(card.value.partition("@")[0])]
    return {
        "title": section.title,
        "conditions": list(section.conditions),
        "shapes": [asdict(card) for card in cards],
    }
