"""The explorers of lesson 02 as a reader has them, in JupyterLab in a real Chromium. What they show is
compared with what torch does with the same code in this process."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from types import SimpleNamespace

import browser
import nbformat
import pytest
import torch
from browser import DARK, LIGHT, Notebook, assert_drawn_well, assert_still, press, widget
from playwright.sync_api import Locator, expect

pytest_plugins = ["browser_fixtures"]

LESSON = "02_autograd.ipynb"
CELLS = nbformat.read(browser.ROOT / "notebooks" / LESSON, as_version=4).cells


def cell_with(code: str) -> int:
    return next(n for n, cell in enumerate(CELLS) if code in cell.source)


GRAPH, INPLACE, STILL = map(cell_with, ("explore.graph(", "explore.inplace(", "draw.graph(first(w)"))
EXPRESSION = max(n for n in range(GRAPH) if CELLS[n].cell_type == "code")


@pytest.fixture(scope="module")
def lesson(page, address):
    """Lesson 02, run up to the first graph."""
    notebook = Notebook(page, address, LESSON)
    for number in range(GRAPH + 1):
        if notebook.is_code(number):
            notebook.run(number)
    return notebook


@pytest.fixture(scope="module")
def graph(lesson):
    return widget(lesson.output(GRAPH))


@pytest.fixture(scope="module")
def inplace(lesson):
    return widget(lesson.run(INPLACE))


# Everything in a picture: its boxes, where its lines lead, and the words beside the boxes.
PICTURE = """
svg => {
  const words = parent => [...parent.querySelectorAll(":scope > text")].map(text => text.textContent);
  return {
    said: svg.getAttribute("aria-label"),
    boxes: [...svg.querySelectorAll("g[data-part]")].map(g => ({
      part: g.dataset.part, key: g.dataset.key, words: words(g)
    })),
    edges: [...svg.querySelectorAll("[data-edge]")].map(path => path.dataset.edge.split("-")),
    beside: words(svg),
  };
}
"""


def picture(explorer: Locator) -> SimpleNamespace:
    """What is drawn at this moment."""
    seen = explorer.locator("svg").evaluate(PICTURE)
    seen["boxes"] = [SimpleNamespace(**box) for box in seen["boxes"]]
    return SimpleNamespace(**seen)


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def shown(tensor: torch.Tensor):
    """The values of a tensor as they are read off a page, where they have three digits."""
    return pytest.approx(tensor.flatten().tolist(), rel=0.006, abs=1e-6)


# --- the graph ---------------------------------------------------------------------------------------


def expression() -> SimpleNamespace:
    """What the lesson's cell makes, made here anew: x, h and y."""
    made = {"torch": torch, "here": "cpu"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(CELLS[EXPRESSION].source, made)
    return SimpleNamespace(x=made["x"], h=made["h"], y=made["y"])


def nodes_behind(y: torch.Tensor) -> dict:
    """The nodes of a graph by their names, each of which must be there once."""
    found, waiting = {}, [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if found.setdefault(type(node).__name__, node) is not node:
            raise ValueError(f"two nodes are called {type(node).__name__}")
        waiting += [following for following, _ in node.next_functions if following is not None]
    return found


def ways_between(nodes: dict) -> list[tuple[str, str]]:
    """From which node to which, by their names; a way for each entry of `next_functions`."""
    return [
        (name, type(following).__name__)
        for name, node in nodes.items()
        for following, _ in node.next_functions
    ]


def torch_backward(y: torch.Tensor) -> tuple[list[str], list[dict], list[Counter]]:
    """Runs backward. Returns the names of the nodes in the order in which they ran, and for each number of
    steps what had arrived at each node by then, added up, and in how many parts."""
    start, order = type(y.grad_fn).__name__, []
    totals, counts = [{start: torch.ones_like(y)}], [Counter([start])]

    def listen(name, node):
        def ran(sent, given):
            order.append(name)
            total, count = dict(totals[-1]), Counter(counts[-1])
            for (target, _), gradient in zip(node.next_functions, sent, strict=True):
                to = type(target).__name__
                total[to] = total.get(to, 0) + gradient
                count[to] += 1
            totals.append(total)
            counts.append(count)

        return ran

    for name, node in nodes_behind(y).items():
        node.register_hook(listen(name, node))
    y.backward()
    return order, totals, counts


def boxes_by_name(seen: SimpleNamespace) -> dict[str, SimpleNamespace]:
    """The box of each node by the node's name, without the sign before it."""
    nodes = [box for box in seen.boxes if box.part in ("node", "leaf")]
    named = {box.words[0].lstrip("▶✓✗ "): box for box in nodes}
    assert len(named) == len(nodes)
    return named


def inside(seen: SimpleNamespace, name: str, part: str) -> list[str]:
    """The lines of a kind in a node's box."""
    number = boxes_by_name(seen)[name].key
    return [" ".join(box.words) for box in seen.boxes if box.part == part and box.key.split(".")[0] == number]


def saved_by(node, h: torch.Tensor) -> list[str]:
    """What a node keeps, as the picture says it; h is called by its name."""
    lines = []
    for name in dir(node):
        tensor = getattr(node, name) if name.startswith("_saved_") else None
        if isinstance(tensor, torch.Tensor):
            size = tensor.numel() * tensor.element_size()
            line = f"{name.removeprefix('_saved_')} {tuple(tensor.shape)} {size} B v{tensor._version}"
            lines.append(f"{line} h" if tensor.data_ptr() == h.data_ptr() else line)
    return sorted(lines)


def leave_the_backward(graph: Locator) -> None:
    """To the graph alone, from wherever an explorer is."""
    button = graph.get_by_role("button", name="Graph", exact=True)
    if button.is_enabled():
        button.click()
    expect(graph.get_by_role("button", name="Backward ▶", exact=True)).to_be_visible()
    browser.until(lambda: " Step " not in picture(graph).said, "the graph alone")


def wait_for_step(graph: Locator, step: int, last: int) -> SimpleNamespace:
    """Waits until the picture and the words above it are those of a step."""
    expect(graph.locator("b").first).to_have_text(re.compile(f"^{step} of {last}: "))
    browser.until(lambda: picture(graph).said.endswith(f" Step {step} of {last}."), f"step {step}")
    return picture(graph)


def test_the_graph_is_the_live_one(graph):
    leave_the_backward(graph)
    made = expression()
    seen, nodes = picture(graph), nodes_behind(made.y)
    boxes = boxes_by_name(seen)
    assert set(boxes) == set(nodes) and len(nodes) > 4
    assert {name for name, box in boxes.items() if box.part == "leaf"} == {"AccumulateGrad"}
    assert boxes["AccumulateGrad"].words[1] == f"x {tuple(made.x.shape)}"
    assert boxes[type(made.h.grad_fn).__name__].words[1] == f"h {tuple(made.h.shape)}"
    names = {box.key: name for name, box in boxes.items()}
    assert sorted((names[a], names[b]) for a, b in seen.edges) == sorted(ways_between(nodes))


def test_saved_tensors_stand_in_their_boxes_with_their_bytes(graph):
    leave_the_backward(graph)
    made = expression()
    seen, nodes = picture(graph), nodes_behind(made.y)
    saved = {name: saved_by(node, made.h) for name, node in nodes.items()}
    assert sum(map(len, saved.values())) > 3
    assert {name: sorted(inside(seen, name, "saved")) for name in nodes} == saved


def test_each_step_of_the_backward_is_torchs(graph, page, lesson):
    made = expression()
    (wanted,) = torch.autograd.grad(made.y, made.x, retain_graph=True)
    nodes = nodes_behind(made.y)
    ways = Counter(target for _, target in ways_between(nodes))
    assert max(ways.values()) == 2  # somewhere gradients meet
    order, totals, counts = torch_backward(made.y)
    assert sorted(order) == sorted(nodes)
    last = len(order)

    def assert_step(step: int) -> None:
        seen = wait_for_step(graph, step, last)
        for name, box in boxes_by_name(seen).items():
            sign = "▶ " if order[:step][-1:] == [name] else "✓ " if name in order[:step] else ""
            assert box.words[0] == f"{sign}{name}"
            [line] = inside(seen, name, "gradient")
            if not counts[step][name]:
                assert line.startswith("waits")
                continue
            if ways[name] > 1:
                count, _, line = line.partition("  ")
                assert count == f"{counts[step][name]} of {ways[name]}"
            assert numbers(line) == shown(totals[step][name])
        if step:
            first_line = graph.locator(".widget-html-content").first.inner_text().splitlines()[0]
            [arrived] = re.findall(r"(?:was given|adds) (.+?)(?:\.$| to its)", first_line)
            assert numbers(arrived) == shown(totals[step][order[step - 1]])

    leave_the_backward(graph)
    press(graph, "Backward ▶")
    assert_step(0)
    for step in range(1, last + 1):
        press(graph, "Step ▶")
        assert_step(step)
    [line] = inside(picture(graph), "AccumulateGrad", "gradient")
    assert numbers(line) == shown(wanted)
    expect(graph.get_by_role("button", name="Step ▶", exact=True)).to_be_disabled()

    press(graph, "◀ Back")
    assert_step(last - 1)
    handle = graph.get_by_role("slider")
    handle.focus()
    for key, step in (("ArrowLeft", last - 2), ("Home", 0), ("ArrowRight", 1), ("End", last)):
        page.keyboard.press(key)
        assert_step(step)
    leave_the_backward(graph)
    assert not any(box.part == "gradient" for box in picture(graph).boxes)
    # The reader's tensor has nothing of it.
    expect(lesson.run(lesson.add("print(x.grad)"))).to_have_text("None")


# --- the write in place ------------------------------------------------------------------------------

FORMS = ("h.mul_(2)", "h.data.mul_(2)", "h.detach().mul_(2)", "with torch.no_grad(): h.mul_(2)")
OUT_OF_PLACE = "h = h * 2"
VERDICTS = {"raises": "✗ backward raises", "harmless": "✓ harmless", "wrong": "≠ silently wrong"}


def program() -> tuple[list[str], str, torch.Tensor]:
    """What the lesson gives to the explorer: lines, the write, and x."""
    given = []
    stub = SimpleNamespace(inplace=lambda lines, write, **tensors: given.extend([lines, write, tensors["x"]]))
    exec(CELLS[INPLACE].source, {"explore": stub, "x": expression().x})
    lines, write, x = given
    return lines.splitlines(), write, x


def really_run(lines: list[str], x: torch.Tensor) -> SimpleNamespace:
    """Runs a program and its backward. After each line: the version of h and its values."""
    space = {"torch": torch, "x": x.detach().clone().requires_grad_()}
    versions, values, error = [], [], ""
    for line in lines:
        exec(line, space)
        versions.append(space["h"]._version)
        values.append(space["h"].detach().clone())
    try:
        space["loss"].backward()
    except RuntimeError as raised:
        error = str(raised).partition(" Hint")[0]
    return SimpleNamespace(error=error, gradient=space["x"].grad, versions=versions, values=values)


def kept(ran: SimpleNamespace, since: int) -> list[str]:
    """What there is to say of h, kept since a line, after that line and every one below, and at backward."""
    version = ran.versions[since]
    said = [f"saved at v{version}"]
    for now, values in list(zip(ran.versions, ran.values, strict=True))[since + 1 :]:
        same = torch.equal(values, ran.values[since])
        said.append(f"✗ v{now}" if now != version else f"v{now}" if same else f"≠ v{now}")
    at_backward = {"✗": f"{said[-1]}, not v{version}", "≠": "≠ other values"}
    return [*said, at_backward.get(said[-1][0], f"✓ v{version}")]


def put(inplace: Locator, page, form: str, at: int) -> SimpleNamespace:
    """Moves the write after so many lines, with the keyboard, and waits until the picture shows that."""
    lines, _, _ = program()

    def rows() -> list[str]:
        return [" ".join(box.words) for box in picture(inplace).boxes if box.part == "line"]

    def wait_for(place: int) -> None:
        wanted = [*lines[:place], f"▶ {form}", *lines[place:], "loss.backward()"]
        browser.until(lambda: rows() == wanted, lambda: f"{wanted}; there is {rows()}")

    place = next(n for n, row in enumerate(rows()) if row.startswith("▶"))
    inplace.locator("select").select_option(label=form)
    wait_for(place)
    inplace.get_by_role("slider").focus()
    while place != at:
        page.keyboard.press("ArrowRight" if place < at else "ArrowLeft")
        place += 1 if place < at else -1
        wait_for(place)
    return picture(inplace)


def value_beside(seen: SimpleNamespace, label: str) -> list[float]:
    return numbers(seen.beside[seen.beside.index(label) + 1])


def test_the_forms_of_the_write_are_offered(inplace):
    assert program()[1] == FORMS[0]
    offered = inplace.locator("option").all_inner_texts()
    assert [text.replace("\xa0", " ") for text in offered] == list(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_the_verdict_on_a_write_is_what_running_it_shows(inplace, page, form):
    lines, _, x = program()
    for at in range(1, len(lines) + 1):
        ran = really_run([*lines[:at], form, *lines[at:]], x)
        true = really_run([*lines[:at], OUT_OF_PLACE, *lines[at:]], x).gradient
        right = not ran.error and torch.allclose(ran.gradient, true)
        verdict = "raises" if ran.error else "harmless" if right else "wrong"

        seen = put(inplace, page, form, at)
        [said] = [box.words for box in seen.boxes if box.part == "verdict"]
        assert said == [VERDICTS[verdict]]
        if ran.error:
            assert ran.error in " ".join(seen.beside)
            assert "x.grad" not in seen.beside
            assert value_beside(seen, "true gradient of x") == shown(true)
        else:
            assert value_beside(seen, "x.grad") == shown(ran.gradient)
            assert value_beside(seen, "true gradient") == shown(true)
        cells = {box.key: " ".join(box.words) for box in seen.boxes if box.part == "cell"}
        rows = [*lines[:at], form, *lines[at:]]
        for lane, line in (("SinBackward0.self", "s = h.sin()"), ("MulBackward0.other", "y = s * h")):
            since = rows.index(line)
            found = [cells.get(f"{lane}.{row}") for row in range(since, len(rows) + 1)]
            assert found == kept(ran, since)


def test_the_writes_come_to_all_three_ends():
    """What the test above runs is not all of one kind."""
    lines, _, x = program()
    ends = set()
    for form in FORMS:
        for at in range(1, len(lines) + 1):
            ran = really_run([*lines[:at], form, *lines[at:]], x)
            true = really_run([*lines[:at], OUT_OF_PLACE, *lines[at:]], x).gradient
            ends.add("raises" if ran.error else "harmless" if torch.allclose(ran.gradient, true) else "wrong")
    assert ends == set(VERDICTS)


# --- light and dark ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[DARK, LIGHT])
def theme(request, lesson):
    browser.set_theme(lesson.page, request.param)
    return request.param


def test_the_graph_is_readable(theme, graph):
    leave_the_backward(graph)
    assert_drawn_well(graph, least=18)
    last = len(nodes_behind(expression().y))
    press(graph, "Backward ▶")
    wait_for_step(graph, 0, last)
    assert_drawn_well(graph, least=24)
    # All states of a node are there: one runs, others have run or wait.
    for step in range(1, 4):
        press(graph, "Step ▶")
        wait_for_step(graph, step, last)
    assert_drawn_well(graph, least=24)


def test_a_write_is_readable(theme, inplace, page):
    """At places where it does no harm, where backward raises and where nothing is said, and in its longest
    form."""
    for form, at in ((FORMS[0], 1), (FORMS[0], 3), (FORMS[1], 3), (FORMS[3], 2)):
        put(inplace, page, form, at)
        assert_drawn_well(inplace, least=28)


def test_a_still_is_shown_in_its_size(lesson):
    assert_still(lesson.run(STILL))
