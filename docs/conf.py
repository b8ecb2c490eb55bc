"""The documentation site: Sphinx over the pages here, with the theme of Jupyter's projects.

Build it offline, warnings as errors: ``.venv/bin/python -m sphinx -W -b html docs OUT``.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402 -- beside this file

generate.write()

project = "miglab"
author = "the miglab developers"
project_copyright = author
release = tomllib.loads((ROOT / "hub/pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_substitutions = {"version": release}
# Headings have the anchors that the same pages have on a forge, so a link works in both.
myst_heading_anchors = 4
# Files outside this folder (lab.toml, a module) are offered for download.
exclude_patterns = ["**/_*.md"]  # generated tables that pages include
nitpicky = True  # what is linked and is not there is an error

html_theme = "pydata_sphinx_theme"
html_title = "miglab"
html_static_path = ["_static"]
html_css_files = ["phone.css"]
html_favicon = html_logo = "../pool/miglab_pool/http/static/icon.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "logo": {"text": "miglab"},
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
copybutton_exclude = ".linenos, .gp, .go"
