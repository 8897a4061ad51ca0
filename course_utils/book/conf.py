"""How Sphinx is set for the book, and what it is told of cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.book import addresses

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

SETTINGS: dict[str, Any] = {
    "project": "PyTorch Inside Out",
    "author": "",
    "extensions": ["myst_nb", "course_utils.book.conf"],
    "html_theme": "sphinx_book_theme",
    "html_title": "PyTorch Inside Out",
    "html_static_path": ["_static"],
    "html_js_files": [(name, {"defer": "defer"}) for name in ("explorers.js", "search.js")],
    "html_css_files": ["book.css", "explorers.css", "icons.css", "print.css", "search.css"],
    "html_favicon": "_static/icon.svg",
    "html_context": {"default_mode": "auto"},
    "html_sidebars": {"**": ["home.html", "search-button-field.html", "sbt-sidebar-nav.html"]},
    "templates_path": [str(Path(__file__).parent / "templates")],
    "smartquotes": False,  # what is said is what can be searched for
    "html_copy_source": False,
    "html_use_index": False,
    "html_show_sourcelink": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_theme_options": {
        "use_download_button": False,
        "use_fullscreen_button": False,
        "navbar_persistent": [],  # the search stands in the sidebar
        "max_navbar_depth": 1,
        "pygments_light_style": "a11y-high-contrast-light",
        "pygments_dark_style": "a11y-high-contrast-dark",
    },
    "myst_enable_extensions": [],
    "myst_heading_anchors": 6,
    "myst_heading_slug_func": "course_utils.book.addresses.anchor",
    "nb_execution_mode": "off",
    "nb_code_prompt_show": "What it needs",
    "nb_code_prompt_hide": "What it needs",
    # A task stands one level below the heading above it, whatever that one is.
    "suppress_warnings": ["myst.header"],
}


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx, of which this module is an extension."""
    app.connect("doctree-read", _name_cells)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _name_cells(app: Sphinx, page: nodes.document) -> None:
    """Gives each cell of code the id on its page by which it can be linked to."""
    path = Path(page["source"])
    if path.suffix != ".ipynb":
        return
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for node in page.findall(lambda node: "cell_index" in getattr(node, "attributes", {})):
        node["ids"].append(addresses.cell(cells[node["cell_index"]]["id"]))
