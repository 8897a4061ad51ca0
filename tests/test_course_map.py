"""The map of the course: its boxes and lines by where they lie, and the HTML that is made of them."""

import itertools
import random
import re

import pytest

from course_utils.draw.course_map import HIGH, WIDE, WIDTH, Plan, Stop, course_map
from course_utils.lessons import catalog

COURSE = catalog.load()
NUMBER = {lesson.topic: lesson.number for lesson in COURSE.lessons}
STOPS = [
    Stop(one.number, one.title, f"{one.slug}.ipynb", 0, 4, tuple(NUMBER[topic] for topic in one.needs))
    for one in COURSE.lessons
]


def with_more(seed: int) -> list[Stop]:
    """The course and two lessons more, which build on any."""
    chance, stops = random.Random(seed), list(STOPS)
    for _ in range(2):
        number = stops[-1].number + 1
        needs = chance.sample([stop.number for stop in stops], chance.choice((1, 2)))
        stops.append(Stop(number, "A lesson of the future", f"{number}.ipynb", 0, 4, tuple(needs)))
    return stops


@pytest.fixture(scope="module", params=[None, 0, 1, 2], ids=["course", "two more", "others", "yet others"])
def stops(request):
    return STOPS if request.param is None else with_more(request.param)


def built_on(stops):
    """What each lesson builds on, directly or not."""
    found = {}
    for stop in sorted(stops, key=lambda one: one.number):
        found[stop.number] = set(stop.needs).union(*(found[n] for n in stop.needs))
    return found


def test_lines_run_beside_boxes_and_not_in_one_another(stops):
    plan = Plan(stops)
    corners = {stop.number: plan.corner(stop.number) for stop in stops}
    for (x, y), (other, below) in itertools.combinations(corners.values(), 2):
        assert abs(x - other) > WIDE or abs(y - below) > HIGH
    for line in plan.lines:
        assert 0 < line.x <= line.right < WIDTH and 0 < line.y <= line.bottom < plan.height
        for number, (x, y) in corners.items():
            beside = line.right < x or line.x > x + WIDE
            assert beside or line.bottom <= y or line.y >= y + HIGH, f"{line} crosses lesson {number}"
    for one, other in itertools.combinations(plan.lines, 2):
        assert one.start == other.start or not one.lies_on(other), f"{one} lies on {other}"


def test_lines_of_the_course_do_not_cross():
    lines = Plan(STOPS).lines
    assert not [1 for a, b in itertools.combinations(lines, 2) if a.start != b.start and a.meets(b)]


def test_an_arrow_leads_to_a_lesson_from_each_that_it_builds_on_directly(stops):
    plan, all_of = Plan(stops), built_on(stops)
    tops = {plan.corner(stop.number): stop for stop in stops}
    arrows = set()
    for line in (line for line in plan.lines if line.arrow):
        [reached] = [stop for (x, y), stop in tops.items() if line.bottom == y and x < line.x < x + WIDE]
        arrows.add((line.start, reached.number))
    wanted = {
        (n, stop.number) for stop in stops for n in stop.needs if not any(n in all_of[m] for m in stop.needs)
    }
    assert arrows == wanted
    for number in {start for start, _ in arrows}:  # and from the box on its lines hang together
        mine = [line for line in plan.lines if line.start == number]
        reached = [line for line in mine if line.y == plan.corner(number)[1] + HIGH]
        for line in reached:
            reached += [other for other in mine if other.meets(line) and other not in reached]
        assert set(reached) == set(mine)


# Of what JupyterLab lets a notebook show that is not trusted.
PROPERTIES = """position left top right bottom width height display overflow box-sizing padding margin color
border background-color border-left border-right border-top border-radius font-size line-height"""


def test_the_map_is_links_and_words_that_every_notebook_may_show():
    stops = [Stop(0, "A & B", "a.ipynb", 2, 2, ()), Stop(1, "<C>", "c.ipynb", 1, 3, (0,))]
    html = course_map(stops)
    assert set(re.findall(r"</?(\w+)", html)) == {"div", "a", "span", "b"}
    styles = ";".join(re.findall(r'style="(.*?)"', html)).split(";")
    assert {style.partition(":")[0] for style in styles} <= set(PROPERTIES.split())
    links = re.findall(r'<a href="(.*?)".*?>(.*?)</a>', html)
    said = [(link, re.sub("<.*?>", "", text)) for link, text in links]
    assert said == [("a.ipynb", "00 A &amp; B ✓ 2 of 2"), ("c.ipynb", "01 &lt;C&gt; 1 of 3")]
    assert "width:33%" in html
    assert min(map(float, re.findall(r"font-size:([\d.]+)px", html))) >= 12
    assert f"width:{WIDTH}px" in html and WIDTH <= 448  # what a window of 900 leaves beside a file browser
