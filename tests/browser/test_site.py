"""The docs' site on a phone, in Chromium."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

CHECKOUT = Path(__file__).parents[2]
SPHINX = (sys.executable, "-m", "sphinx", "-q", "-b", "html")
PHONE = {"width": 390, "height": 844}
TOO_WIDE = """() => [...document.querySelectorAll("article table, article img")]
    .filter((one) => one.getBoundingClientRect().width > document.documentElement.clientWidth
        || one.parentElement.scrollWidth > one.parentElement.clientWidth)
    .map((one) => one.innerText || one.src)"""


@pytest.mark.long
def test_no_table_is_wider_than_a_phone(chromium: Browser, tmp_path: Path):
    """Nor is a picture, on any page."""
    command = [*SPHINX, "-d", str(tmp_path / "doctrees"), str(CHECKOUT / "docs"), str(tmp_path)]
    subprocess.run(command, check=True)
    page = chromium.new_page(viewport=PHONE)
    wide = {}
    for file in tmp_path.rglob("*.html"):
        page.goto(file.as_uri())
        if found := page.evaluate(TOO_WIDE):
            wide[file.name] = found
    assert not wide
