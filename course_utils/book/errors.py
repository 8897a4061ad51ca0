"""The page of the errors: what torch says when lessons make it raise or warn, from the stored outputs.

What a message means stands in `notebooks/book/errors.md`, below its beginning or another part that tells it
from all others; `…` stands for what differs. A message that has no such entry, and an entry that no lesson
shows, are told to the author.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from course_utils.book import addresses
from course_utils.book.stored import Place, entries, mark, path_of, places, printed, tools
from course_utils.lessons.catalog import Course, CourseError

# How an output begins a message. What lessons print in other ways is found by its entry alone.
_BEGINS = re.compile(
    r"^.{0,60}?(?<![\w.`])([A-Z][A-Za-z]+(?:Error|Warning|Exception|SymNode)(?!\w)|WARNING|Error|warning|raises)"
    r"(?:: | · |\(| (?=Could ))(.+)"
)
_FILLS = re.compile(r"show_error|refus|textwrap\.fill")  # in a cell's code
_WIDTH = re.compile(r"textwrap\.fill\(.*?, (\d+)\)", re.DOTALL)
_LEFT_OUT = "left out: "
_ABOUT = """\
What torch says when it refuses or warns, as the lessons make it do so: each message as the lesson's cell \
printed it, what it means, and where that is shown. Sizes and names in a message are those of the lesson."""


@dataclass(eq=False)
class Message:
    """The words that a message is known by, what it means, the kinds of error that say it, texts, places."""

    words: str
    cause: str
    kinds: dict[str, None] = field(default_factory=dict)
    texts: dict[str, None] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(".+?".join(map(re.escape, self.words.split("…"))))


def messages(course: Course) -> list[Message]:
    """All messages, as lessons show them in their order. Raises `CourseError` where one has no entry, or an
    entry no message."""
    known = [Message(words, cause) for words, cause in entries(course, "errors").items()]
    found: dict[int, Message] = {}
    for place, kind, text in _said(course, known):
        message = next((one for one in known if one.pattern.search(text)), None)
        if message is None:
            raise CourseError(
                f"{path_of(course, 'errors')}: {place.lesson.slug} shows a message that has no entry: {text}"
            )
        found[id(message)] = message
        begins = _BEGINS.match(text)
        message.kinds[kind] = None
        message.texts[begins[2] if begins else text[message.pattern.search(text).start() :]] = None
        if place.heading not in [one.heading for one in message.places if one.lesson == place.lesson]:
            message.places.append(place)
    listed = [message for message in known if not message.cause.startswith(_LEFT_OUT)]
    if left := [message.words for message in listed if id(message) not in found]:
        raise CourseError(f"{path_of(course, 'errors')}: no lesson shows {'; '.join(left)}")
    return [message for message in found.values() if message in listed]


def _said(course: Course, known: list[Message]) -> Iterator[tuple[Place, str, str]]:
    """Each message: where, the kind of error ("" where the lesson doesn't print it), the text in one line."""
    for place in (one for lesson in course.lessons for one in places(lesson) if one.cell):
        code = "".join(place.cell["source"])
        fills = place.cell["cell_type"] != "code" or _FILLS.search(code)
        width = int(found[1]) if (found := _WIDTH.search(code)) else 72
        lines = printed(place.cell).splitlines()
        for line in _unwrapped(lines, known, width) if fills else lines:
            begins, line = _BEGINS.match(line), " ".join(line.split())
            if begins or any(one.pattern.search(line) for one in known):
                yield place, begins[1] if begins else "", line


def _unwrapped(lines: list[str], known: list[Message], width: int) -> Iterator[str]:
    """The lines as they were before `textwrap.fill` cut them: where the next word had no room, and nowhere
    else. A line that happens to end there is taken for cut, unless the next one looks like a beginning."""
    whole = last = ""
    for line in lines:
        first, _, rest = line.partition(" ")
        new = first.startswith("b'") or first.endswith(":") and rest.startswith(" ") or _BEGINS.match(line)
        new = new or last.endswith("!") or any(one.pattern.match(line) for one in known)
        if first and not new and len(last) <= width < len(last) + 1 + len(first):
            whole += line if re.search(r"\w-$", whole) else " " + line
        else:
            yield whole
            whole = line
        last = line
    yield whole


def page(course: Course) -> str:
    """The page as Markdown."""
    parts = ["# The errors", _ABOUT, tools({"lesson": "lesson", "message": "message"})]
    for message in messages(course):
        kinds = ", ".join(f"`{kind}`" for kind in message.kinds if re.match(r"[A-Z]\w+[a-z]{5}", kind))
        links = ", ".join(addresses.link(place.lesson, place.heading) for place in message.places)
        by = re.sub(r"[^a-z ]", "", message.words.lower()).strip()
        texts = "\n".join(text for text in message.texts if not _is_cut(text, message.texts))
        parts += [
            f"## {_code(message.words)}",
            mark(message.places[0].lesson, kinds and f"{kinds}: ", message=by) + f"{message.cause} → {links}",
            f"```text\n{texts}\n```",
        ]
    return "\n\n".join(parts) + "\n"


def _is_cut(text: str, texts: Iterable[str]) -> bool:
    """Whether another of the texts has all of this one."""
    return any(text.rstrip(" .,") in other and text != other for other in texts)


def _code(words: str) -> str:
    return f"`` {words} ``" if "`" in words else f"`{words}`"
