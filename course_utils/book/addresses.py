"""Where a section of a lesson is in the book."""

import re
import unicodedata

from course_utils.lessons.catalog import Lesson

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def anchor(heading: str) -> str:
    """The id that a heading, given as Markdown, has on its page: ASCII letters and digits, joined by hyphens,
    the first a letter. It is the one that docutils makes."""
    text = unicodedata.normalize("NFKD", _LINK.sub(r"\1", heading).lower())
    text = text.replace("`", "").replace("*", "").encode("ascii", "ignore").decode()
    return re.sub(r"^[-0-9]+|-+$", "", re.sub(r"[^a-z0-9]+", "-", text))


def link(lesson: Lesson, heading: str, text: str | None = None) -> str:
    """A Markdown link to this section of a lesson, for a page of the book; `text` is Markdown too, and where
    there is none the lesson's number and the heading stand for it. Sphinx warns where it leads nowhere."""
    return f"[{text or f'{lesson.number:02d} {heading}'}]({lesson.slug}.ipynb#{anchor(heading)})"


def cell(cell_id: str) -> str:
    """The id on its page of a cell of code."""
    return f"cell-{cell_id}"
