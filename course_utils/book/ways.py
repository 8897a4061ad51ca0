"""The ways from a page into the course: where to work on a lesson, which route to take, the front page."""

from course_utils.draw.course_map import Stop, course_map
from course_utils.lessons.catalog import Course, Lesson
from course_utils.lessons.source import colab_badge

HOUR = 60

_ABOUT = """\
# PyTorch Inside Out

A hands-on course on how PyTorch works inside, for people who already train models and want to stop guessing.
You predict, run, look at a picture and build the mechanism yourself. Every claim is a cell that shows it.

This is the course to read: all lessons with what their cells showed, hints and solutions folded. To run a
cell, to move an explorer and to have an answer graded, work on the lesson: each page says how."""


def work_on_it(lesson: Lesson, repository: str | None) -> str:
    """What is behind the button of a lesson's page, as Markdown: two commands, with a repository also where
    it opens on Colab and where its source is."""
    name = repository.rstrip("/").removesuffix(".git").rpartition("/")[2] if repository else ""
    commands = [f"git clone {repository}", f"make -C {name} lab"] if repository else ["make lab"]
    lines = ['<details class="work">', "<summary>Work on it</summary>", "", "```console"]
    lines += [*(f"$ {command}" for command in commands), "```", ""]
    here = "" if repository else "In the folder of the course. "
    lines += [f"{here}In JupyterLab, open `{lesson.notebook.name}`."]
    if repository:
        badge = colab_badge(repository, lesson.slug)
        colab = [f"[Open it in Colab]({badge.rpartition('](')[2]}"] if badge else []
        source = (
            f"{repository.rstrip('/').removesuffix('.git')}/blob/main/notebooks/source/{lesson.source.name}"
        )
        lines += ["", " · ".join([*colab, f"[Its source]({source})"])]
    return "\n".join([*lines, "", "</details>"])


def front_page(course: Course, more: list[tuple[str, str]]) -> str:
    """The map, the routes and the contents, as MyST Markdown. `more`: the name and the title of each page
    that is collected from all lessons."""
    number = {one.topic: one.number for one in course.lessons}
    stops, rows, sums, short = [], [], [0, 0], 0
    for one in course.lessons:
        core, further = course.minutes(one)
        needs = tuple(number[topic] for topic in one.needs if topic in number)
        stops.append(Stop(one.number, one.title, f"{one.slug}.html", 0, 0, needs, word=f"{core} min"))
        rows.append(f"| {one.number:02d} | [{one.title}]({one.slug}.ipynb) | {core} | {core + further} |")
        sums = [sums[0] + core, sums[1] + core + further]
        short += min(core, HOUR)
    hours = [round(minutes / HOUR) for minutes in (short, *sums)]
    routes = [
        f"**One hour** a lesson, {hours[0]} hours in all: read, and solve the one or two exercises that its "
        "page names at the top.",
        f"**Core**, {hours[1]} hours: all that is marked ★.",
        f"**Everything**, {hours[2]} hours: what is marked ☆ goes further.",
    ]
    found = [f"- [{title}]({name}.md)" for name, title in more]
    return "\n\n".join(
        [
            _ABOUT,
            "## The map",
            "A lesson stands below those that it builds on. The minutes are those of its core.",
            f'<div class="map" tabindex="0" role="group" aria-label="The map">{course_map(stops)}</div>',
            "## Three routes",
            "\n".join(f"- {route}" for route in routes),
            "## The lessons",
            "\n".join(
                ["| No. | Lesson | core, minutes | everything |", "| --- | --- | ---: | ---: |", *rows]
            ),
            "## Across the lessons",
            "\n".join(found),
            _contents("Lessons", [f"{one.number:02d} {one.title} <{one.slug}>" for one in course.lessons]),
            _contents("Across the lessons", [name for name, _ in more]),
        ]
    )


def _contents(caption: str, names: list[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"])
