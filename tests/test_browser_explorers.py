"""The explorers that are not in lesson 01, and the live figure, as a reader has them: one JupyterLab in a
real Chromium. What they show is compared with what was recorded in the kernel, or with what torch does."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime, timedelta

import browser
import pytest
from browser import DARK, LIGHT, Notebook, assert_drawn_well, press, until, widget
from playwright.sync_api import Locator, expect

from course_utils.draw import palette
from course_utils.explore import on_the_page

pytest_plugins = ["browser_fixtures"]

PROGRAM = """
import torch
x = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
h = x.exp()
y = (h.sin() * h).sum()
"""
WRITES = ["h = x + 1", "s = h.sin()", "y = s * h", "loss = y.sum()"]
CELLS = {
    "graph": f"""{PROGRAM}
from course_utils import draw, explore
explore.graph(y, x=x, h=h)
""",
    "write": f"""
explore.inplace({chr(10).join(WRITES)!r}, "h.mul_(2)", x=x)
""",
    "checkpoints": """
deep = explore.checkpoints()
deep
""",
    "compiled": """
from course_utils import watch_compile

def f(x, n):
    y = x + 1
    print(end="")
    z = y * n
    if z.sum() > 0:
        z = z.relu()
    return z - 1

seen = watch_compile(f)
ones = torch.ones(4, 8)
for arguments in ((ones, 2), (ones, 2), (ones, 3), (torch.ones(5, 8), 3)):
    seen(*arguments)
explore.compiled(seen)
""",
    "lanes": """
import torch.distributed as dist
from torch import nn
from course_utils import run_ranks
from course_utils.watching.lanes import trace_from_here

def step(rank, world_size):
    torch.manual_seed(rank)
    layers = [nn.Linear(128, 128, bias=False) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.13)
    for i in range(2):
        if i == 1:
            trace_from_here()
        model(torch.ones(64, 128)).sum().backward()

recording = run_ranks(step, 2, trace=True)
explore.lanes(recording)
""",
    "hang": """
def hangs(rank, world_size):
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x)

stuck = run_ranks(hangs, 2, trace=True)
explore.lanes(stuck)
""",
}
TOLD = """
import json
from course_utils.draw.labels import bytes_said
print(json.dumps({
    "peaks": {size: bytes_said(deep.stack.record(size, 36).peak) for size in (0, 6, 7)},
    "calls": [[call.arguments, [[s.what, s.why] for s in call.steps]] for call in seen.calls],
    "lines": [[line.number, line.text, line.pieces] for line in seen.lines],
    "guards": {graph.name: graph.guards for graph in seen.graphs},
    "breaks": [[one.line, one.reason] for one in seen.breaks],
    "moments": recording.moments(),
    "flights": [f"{lane.rank}.{f.number}" for lane in recording.lanes for f in lane.flights],
}))
"""
STILLS = [
    "draw.graph(y, x=x)",
    "draw.checkpoints(nn.Sequential(*deep.stack.layers), deep.stack.batch, segments=(None, 1, 4))",
    "draw.compiled(seen)",
    "draw.lanes(stuck)",
]
# It goes on until the figure was drawn six times, however long the machine takes for that.
RUN = """
import torch
from course_utils import draw
x, w, live, drawn = torch.ones(64, 4), torch.zeros(4, 1, requires_grad=True), draw.training(), []
def picture(made=live.picture):
    drawn.append(made())
    return drawn[-1]
live.picture = picture
optimizer = torch.optim.SGD([w], lr=0.01)
while len(drawn) < 6:
    optimizer.zero_grad()
    loss = (x @ w - 1).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_([w], 1.0)
    live.add(loss=loss.detach(), norm=norm, rate=optimizer.param_groups[0]["lr"])
    optimizer.step()
live.close()
"""
# Whenever something changes below the cell: how many outputs stand there, and which pictures.
WATCH = """cell => {
  window.seen = {most: 0, pictures: new Set()};
  new MutationObserver(() => {
    const outputs = cell.querySelectorAll(".jp-OutputArea-output");
    window.seen.most = Math.max(window.seen.most, outputs.length);
    for (const {src} of cell.querySelectorAll(".jp-OutputArea-output img")) window.seen.pictures.add(src);
  }).observe(cell, {childList: true, subtree: true, attributeFilter: ["src"]});
}"""
# The first and the last column of a picture in which a colour is found, as shares of its width.
COLUMNS = """(image, colour) => {
  const {naturalWidth: width, naturalHeight: height} = image, found = [];
  const page = new OffscreenCanvas(width, height).getContext("2d");
  page.drawImage(image, 0, 0);
  const {data} = page.getImageData(0, 0, width, height);
  for (let i = 0; i < data.length; i += 4)
    if ([...colour, 255].every((c, k) => c === data[i + k])) found.push(((i / 4) % width) / width);
  found.sort((a, b) => a - b);
  return [found[0], found.at(-1)];
}"""


def test_a_live_figure_is_one_output_that_changes_in_place_and_stays(page, address, root):
    sent = []  # what the kernel shows and updates, and when it said so

    def read(frame):
        text = frame if isinstance(frame, str) else frame.decode(errors="replace")
        if kind := re.search(r'"msg_type": ?"((?:update_)?display_data)"', text):
            sent.append((kind[1], datetime.fromisoformat(re.search(r'"date": ?"([^"]+)"', text)[1])))

    page.on("websocket", lambda socket: socket.on("framereceived", read))
    notebook = Notebook(page, address, "00_start_here.ipynb")
    number = notebook.add(RUN.strip())
    notebook.cell(number).evaluate(WATCH)
    output = notebook.run(number)
    expect(output).to_have_count(1)
    until(lambda: output.locator("img").evaluate("i => i.complete && i.clientWidth > 600"), "the picture")
    most, pictures = page.evaluate("[window.seen.most, window.seen.pictures.size]")
    assert most == 1 and 3 <= pictures <= len(sent)
    assert [kind for kind, _ in sent] == ["display_data"] + ["update_display_data"] * (len(sent) - 1)
    times = [time for _, time in sent[:-1]]  # the last one is from `close`
    assert min(b - a for a, b in zip(times, times[1:], strict=False)) >= timedelta(seconds=0.2), times
    for panel, hue in enumerate((palette.VIEW, palette.GRADIENT, palette.RANK)):
        left, right = output.locator("img").evaluate(COLUMNS, list(bytes.fromhex(hue[1:])))
        assert panel / 3 < left + 0.03 < left + 0.1 < right < (panel + 1) / 3 + 0.03, (panel, left, right)
    last = output.locator("img").get_attribute("src")
    notebook.save()
    cells = json.loads((root / "workspace" / notebook.name).read_text())["cells"]
    assert "loss, norm, rate" in "".join(cells[number]["outputs"][0]["data"]["text/plain"])
    notebook.reload()
    expect(notebook.output(number).locator("img")).to_have_attribute("src", last)


@pytest.fixture(scope="module")
def notebook(page, address):
    return Notebook(page, address, "00_start_here.ipynb")


@pytest.fixture(scope="module")
def shown(notebook):
    """The explorers by name, each in a cell of its own."""
    return {name: widget(notebook.run(notebook.add(code.strip()))) for name, code in CELLS.items()}


@pytest.fixture(scope="module")
def told(notebook, shown):
    return json.loads(notebook.run(notebook.add(TOLD.strip())).text_content())


def message(explorer: Locator) -> str:
    return explorer.locator(".widget-html").first.inner_text()


def drawn(explorer: Locator) -> str:
    return explorer.locator("svg").text_content()


def keys(explorer: Locator, part: str) -> list[str]:
    found = explorer.locator(f"svg g[data-part={part}]")
    return found.evaluate_all("all => all.map(g => g.dataset.key)")


def shows(explorer: Locator, *words: str) -> None:
    until(lambda: all(word in message(explorer) + drawn(explorer) for word in words), f"{words} to be shown")


# --- the graph and the write in place ----------------------------------------------------------------

# Its boxes with the words beside them, and where its lines lead.
PICTURE = """
svg => ({
  boxes: [...svg.querySelectorAll("g[data-part]")].map(g => [g.dataset.part, g.dataset.key,
    [...g.querySelectorAll(":scope > text")].map(text => text.textContent).join(" ")]),
  edges: [...svg.querySelectorAll("[data-edge]")].map(path => path.dataset.edge.split("-")),
})
"""


def picture(explorer: Locator) -> tuple[dict[str, str], list[list[str]], list[str]]:
    """The words of each node by its key, the edges between keys, and what stands in lines for gradients."""
    seen = explorer.locator("svg").evaluate(PICTURE)
    nodes = {key: words for part, key, words in seen["boxes"] if part in ("node", "leaf")}
    return nodes, seen["edges"], [words for part, _, words in seen["boxes"] if part == "gradient"]


def lines(explorer: Locator) -> list[str]:
    """The program in the picture, line by line."""
    boxes = explorer.locator("svg").evaluate(PICTURE)["boxes"]
    return [words for part, _, words in boxes if part == "line"]


def test_the_graph_is_the_live_one_and_its_steps_are_those_of_backward(shown, notebook, page):
    graph, made, order = shown["graph"], {}, []
    exec(PROGRAM, made)
    nodes, waiting = {}, [made["y"].grad_fn]
    while waiting:
        node = waiting.pop()
        if nodes.setdefault(type(node).__name__, node) is node:
            waiting += [following for following, _ in node.next_functions if following is not None]
    for name, node in nodes.items():
        node.register_hook(lambda *_, name=name: order.append(name))
    ways = [(name, type(to).__name__) for name, node in nodes.items() for to, _ in node.next_functions]
    boxes, edges, _ = picture(graph)
    names = {key: words.split()[0] for key, words in boxes.items()}
    assert sorted(names.values()) == sorted(nodes)
    assert Counter((names[a], names[b]) for a, b in edges) == Counter(ways)
    assert f"AccumulateGrad x {tuple(made['x'].shape)}" in " ".join(boxes.values())
    made["y"].backward()

    press(graph, "Backward ▶")
    for step in range(len(order) + 1):
        expect(graph.locator("b").first).to_have_text(re.compile(f"^{step} of {len(order)}: "))
        until(lambda step=step: f" Step {step} of" in graph.locator("svg").get_attribute("aria-label"), "it")
        boxes, _, gradients = picture(graph)
        signs = {words.split()[1]: words[0] for words in boxes.values() if words[0] in "▶✓"}
        assert signs == {name: "▶" if name == order[step - 1] else "✓" for name in order[:step]}
        if step < len(order):
            press(graph, "Step ▶")
    numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", gradients[list(boxes).index(
        next(key for key, words in boxes.items() if "AccumulateGrad" in words))])]  # fmt: skip
    assert numbers == pytest.approx(made["x"].grad.tolist(), rel=0.006)
    graph.get_by_role("slider").focus()
    page.keyboard.press("Home")
    expect(graph.locator("b").first).to_have_text(re.compile(f"^0 of {len(order)}: "))
    # The reader's tensor has nothing of it.
    expect(notebook.run(notebook.add("print(x.grad)"))).to_have_text("None")


VERDICTS = {
    "h.mul_(2)": ["✓ harmless", *["✗ backward raises"] * 3],
    "h.data.mul_(2)": ["≠ silently wrong"] * 4,
}


@pytest.mark.parametrize("form", VERDICTS)
def test_a_write_moves_from_line_to_line_with_its_verdict(shown, page, form):
    write = shown["write"]
    write.locator("select").select_option(label=form)
    until(lambda: f"▶ {form}" in lines(write), f"▶ {form}")  # what comes of it may move the slider as well
    write.get_by_role("slider").focus()
    page.keyboard.press("Home")
    for at, verdict in enumerate(VERDICTS[form], 1):
        rows = [*WRITES[:at], f"▶ {form}", *WRITES[at:], "loss.backward()"]
        until(lambda rows=rows: lines(write) == rows, f"{rows}")
        shows(write, verdict)
        page.keyboard.press("ArrowRight")


# --- checkpoints, what was compiled, lanes -----------------------------------------------------------


def test_checkpoints_go_by_keyboard_and_show_what_was_recorded(shown, told, page):
    deep, peaks = shown["checkpoints"], told["peaks"]
    shows(deep, "segments of 6", peaks["6"], "√36 = 6", "least: 4")
    deep.locator(".noUi-handle").first.focus()
    for key, words, size in (("ArrowRight", "segments of 7", "7"), ("Home", "no checkpoint", "0")):
        page.keyboard.press(key)
        shows(deep, words, peaks[size])
    # Another depth is recorded.
    deep.locator(".noUi-handle").nth(1).focus()
    page.keyboard.press("ArrowLeft")
    shows(deep, "√35 = 5.92", "least: ")


def test_what_was_compiled_is_drawn_with_its_pieces_and_breaks(shown, told):
    compiled = shown["compiled"]
    assert all(text in drawn(compiled) for _, text, _ in told["lines"])
    wanted = [f"{number}.{name}" for number, _, pieces in told["lines"] for name in pieces]
    assert sorted(keys(compiled, "line")) == sorted(wanted)
    assert keys(compiled, "break") == [str(line) for line, _ in told["breaks"]]
    assert all(reason in drawn(compiled) for _, reason in told["breaks"])


def test_the_calls_of_what_was_compiled_one_by_one_and_its_guards(shown, told, page):
    compiled, calls = shown["compiled"], told["calls"]

    def is_at(number: int) -> None:
        arguments, steps = calls[number - 1]
        line = f"call {number} of {len(calls)}: {', '.join(arguments)}"
        shows(compiled, line, *[why for _, why in steps])

    for number in range(1, 5):
        press(compiled, "Call ▶")
        is_at(number)
    press(compiled, "◀ Back")
    is_at(3)
    assert len(keys(compiled, "hit")) == sum(what == "hit" for _, steps in calls for what, _ in steps)
    compiled.locator(".noUi-handle").first.focus()
    for key, number in (("End", 4), ("Home", 1)):
        page.keyboard.press(key)
        is_at(number)
    for name, guards in told["guards"].items():
        compiled.locator("select").select_option(label=name)
        shows(compiled, *guards)
    press(compiled, "All")
    shows(compiled, "recompilations")


def test_lanes_show_all_that_was_recorded_event_by_event(shown, told, page):
    lanes, moments = shown["lanes"], told["moments"]
    assert sorted(keys(lanes, "flight")) == sorted(told["flights"])
    assert len(told["flights"]) >= 6
    shows(lanes, "all 2 ranks have returned")

    def is_at(number: int) -> None:
        time, rank, what = moments[number]
        shows(lanes, f"{time * 1e3:.2f} ms: rank {rank}: {what}")
        expect(lanes.locator("svg [data-edge=cursor]")).to_have_count(1)

    for number in range(3):
        press(lanes, "Step ▶")
        is_at(number)
    press(lanes, "◀ Back")
    is_at(1)
    lanes.locator(".noUi-handle").first.focus()
    for key, number in (("End", len(moments) - 1), ("ArrowLeft", len(moments) - 2), ("Home", 0)):
        page.keyboard.press(key)
        is_at(number)
    # A window shows less, and larger.
    lanes.locator(".noUi-handle").nth(2).focus()  # its right end
    for _ in range(80):
        page.keyboard.press("PageDown")
    until(lambda: len(keys(lanes, "flight")) < len(told["flights"]), "fewer flights")
    press(lanes, "All")
    until(lambda: sorted(keys(lanes, "flight")) == sorted(told["flights"]), "all flights again")


def test_a_hang_is_shown_as_one(shown):
    hang = shown["hang"]
    assert "waits for ever" in drawn(hang)
    waits = r"rank 0 waits in all_reduce at your line \d+ \(`dist.all_reduce\(x\)`\)"
    assert re.search(waits, drawn(hang)) and re.search(waits[:42], message(hang))
    assert "nothing moved any more" in message(hang)


# --- all of them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", STILLS)
def test_a_still_is_shown_in_its_size(code, notebook, shown):
    still = notebook.run(notebook.add(code)).locator("img")
    until(lambda: still.evaluate("i => i.clientWidth > 600"), "the picture")
    assert 1.25 <= still.evaluate("i => i.naturalWidth / i.clientWidth") < 2.01


LEAST = {
    "graph": 18,
    "write": 28,
    "checkpoints": 18,
    "compiled": 30,
    "lanes": 14,
    "hang": 12,
}


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_the_explorers_are_readable(theme, notebook, shown, page):
    browser.set_theme(page, theme)
    for name, least in LEAST.items():
        assert_drawn_well(shown[name], least)
    # Where nothing is said of a write, and in its longest form.
    shown["write"].locator("select").select_option(index=3)
    assert_drawn_well(shown["write"], 28)


def test_in_a_narrow_page_a_picture_keeps_its_size_and_scrolls_by_itself(notebook, shown, page):
    picture = shown["write"].locator(".widget-html:has(svg)")
    size = page.viewport_size
    page.set_viewport_size({"width": 900, "height": size["height"]})
    until(lambda: picture.evaluate("e => e.scrollWidth > e.clientWidth + 100"), "a page that is narrower")
    least = (
        "s => Math.min(...[...s.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize)))"
    )
    assert picture.locator("svg").evaluate("s => s.clientWidth == s.viewBox.baseVal.width")
    assert picture.locator("svg").evaluate(least) >= 11
    assert shown["write"].evaluate("e => e.scrollWidth <= e.clientWidth")
    # What is drawn anew stays where it was scrolled to.
    picture.evaluate("e => e.scrollLeft = 90")
    before = drawn(shown["write"])
    shown["write"].get_by_role("slider").focus()
    page.keyboard.press("ArrowLeft")
    until(lambda: drawn(shown["write"]) != before, "the next place")
    assert picture.evaluate("e => e.scrollLeft") == 90
    page.set_viewport_size(size)


def test_every_control_has_a_name_for_a_screen_reader(shown):
    for name in LEAST:
        tree = shown[name].aria_snapshot()
        controls = re.findall(r"- (slider|spinbutton|textbox|combobox|button|checkbox)(.*)", tree)
        assert controls and all(re.match(' "[^"]', rest) for _, rest in controls), tree
    assert 'slider "after line"' in shown["write"].aria_snapshot()


# --- without a kernel ---------------------------------------------------------------------------------

IMPORTS = "import torch\nfrom torch import nn\nfrom course_utils import explore\n"
SAID_BEFORE = "e => getComputedStyle(e, '::before').content"


def test_on_the_next_day_an_explorer_is_the_picture_that_was_left(notebook, page, address):
    number = notebook.add(f"{IMPORTS}explore.strides(torch.arange(12).reshape(3, 4))")
    left = widget(notebook.run(number))
    press(left, ".t()")
    until(lambda: left.locator("b").first.inner_text() == "x.t()", "the transpose")
    seen, before = drawn(left), left.locator(".widget-inline-hbox").first.evaluate(SAID_BEFORE)
    assert left.evaluate(SAID_BEFORE) == before == "none"
    notebook.save()
    server, _, token = address.partition("/lab/")
    headers = {"Authorization": f"token {token.partition('token=')[2]}"}
    for session in page.request.get(f"{server}/api/sessions", headers=headers).json():
        page.request.delete(f"{server}/api/sessions/{session['id']}", headers=headers)
    notebook.reload()
    found = widget(notebook.output(number))
    assert drawn(found) == seen and found.locator("b").first.text_content() == "x.t()"
    assert found.evaluate(SAID_BEFORE) == f'"{on_the_page.NOTE}"'
    assert found.locator(".widget-inline-hbox").first.evaluate(SAID_BEFORE) == "none"
    assert found.get_by_role("button").first.evaluate("e => getComputedStyle(e).pointerEvents") == "none"


def test_a_screen_reader_is_told_what_is_chosen_and_what_a_part_does(notebook):
    code = f"{IMPORTS}explore.floats(nn.Linear(4, 1), torch.ones(2, 4), torch.mean)"
    floats = widget(notebook.run(notebook.add(code)))
    half, brain = (floats.get_by_role("button", name=name, exact=True) for name in ("float16", "bfloat16"))
    expect(half).to_have_attribute("aria-pressed", "true")
    brain.click()
    expect(brain).to_have_attribute("aria-pressed", "true")
    expect(half).to_have_attribute("aria-pressed", "false")
    scale = floats.get_by_role("slider", name="loss ×")
    scale.focus()
    notebook.page.keyboard.press("ArrowRight")
    expect(scale).to_have_attribute("aria-valuetext", "2")
    expect(floats.get_by_title("bit 15, sign")).to_have_count(1)
    player = widget(notebook.run(notebook.add(f"{IMPORTS}explore.strides(torch.ones(2, 2))")))
    for name in ("swap dim", "with dim"):
        expect(player.get_by_role("combobox", name=name, exact=True)).to_have_count(1)
    for name in ("play or pause", "stop", "repeat"):
        expect(player.get_by_role("button", name=name)).to_have_count(1)


KERNEL = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
from course_utils import explore, measure

@triton.jit
def shift(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i + 1), mask=i < n)

explore.kernel(measure.kernel(shift, (4,), torch.ones(100), 100, B=32))
"""


@pytest.fixture(scope="module")
def kernel(notebook):
    pytest.importorskip("triton")
    return widget(notebook.run(notebook.add(KERNEL.strip())))


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_the_programs_of_a_kernel_one_by_one(theme, kernel, page):
    browser.set_theme(page, theme)
    shows(kernel, "shift: 4 programs", "crossed: 3 elements raced for", "29 loads outside the tensor")
    assert_drawn_well(kernel, 30)
    slider, line = kernel.get_by_role("slider", name="program"), kernel.get_by_role("combobox", name="line")
    assert line.evaluate("select => select.selectedOptions[0].text") == "all"
    slider.focus()
    page.keyboard.press("End")
    shows(kernel, "program 3 (of 0–3)", "program 2 loads x[96], and program 3 stores it", "4 of 100 stored")
    expect(slider).to_have_attribute("aria-valuetext", "3")
    assert_drawn_well(kernel, 30)
    line.select_option(index=1)
    until(lambda: "100 stored" not in drawn(kernel), "the load alone")
    line.select_option(index=0)
    press(kernel, "All")
