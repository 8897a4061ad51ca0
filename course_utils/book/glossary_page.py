"""The page of the glossary: the terms of the lessons, each with the sentence that introduces it."""

from course_utils.book import addresses
from course_utils.lessons.catalog import Course
from course_utils.lessons.glossary import terms

_ABOUT = "The terms of the course, each with the sentence that introduces it, and a link to that place."


def page(course: Course) -> str:
    """The page as Markdown. Sphinx gives each term an address, and its search leads to it."""
    parts, letter = ["# Glossary", _ABOUT], ""
    for term in terms(course):
        first = term.word[0].upper() if term.word[0].isalpha() else letter
        if first != letter:
            letter = first
            parts += [f"## {letter}"]
        where = addresses.link(term.lesson, term.heading)
        parts += [f"```{{glossary}}\n{term.word}\n  {term.sentence} → {where}\n```"]
    return "\n\n".join(parts) + "\n"
