"""The lanes explorer as a reader has it, in JupyterLab in a real Chromium, on recordings of real ranks. What
it shows is compared with what the recording says in the kernel."""

import json
import re

import browser
import pytest
from browser import DARK, LIGHT, Notebook, assert_drawn_well, assert_still, press, widget
from playwright.sync_api import Locator, expect

pytest_plugins = ["browser_fixtures"]

STEP = """
import json
import torch
import torch.distributed as dist
from torch import nn
from course_utils import draw, explore, run_ranks
from course_utils.watching.lanes import record_from_here

def step(rank, world_size):
    torch.manual_seed(rank)
    layers = [nn.Linear(128, 128, bias=False) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.13)
    for i in range(2):
        if i == 1:
            record_from_here()
        model(torch.ones(64, 128)).sum().backward()

recording = run_ranks(step, 2, record=True)
explorer = explore.lanes(recording)
explorer
"""
TOLD = """
print(json.dumps({
    "moments": recording.moments(),
    "flights": [f"{lane.rank}.{f.number}" for lane in recording.lanes for f in lane.flights],
    "length": explorer.length,
}))
"""
HANG = """
def hangs(rank, world_size):
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x)

stuck = run_ranks(hangs, 2, record=True)
explore.lanes(stuck)
"""


@pytest.fixture(scope="module")
def notebook(page, address):
    return Notebook(page, address, "00_start_here.ipynb")


@pytest.fixture(scope="module")
def explorer(notebook):
    return widget(notebook.run(notebook.add(STEP.strip())))


@pytest.fixture(scope="module")
def told(notebook, explorer):
    return json.loads(notebook.run(notebook.add(TOLD.strip())).text_content())


@pytest.fixture(scope="module")
def hang(notebook, explorer):
    return widget(notebook.run(notebook.add(HANG.strip())))


def flights(explorer: Locator) -> list[str]:
    return explorer.locator("svg g[data-part=flight]").evaluate_all("all => all.map(g => g.dataset.key)")


def message(explorer: Locator) -> str:
    return explorer.locator(".widget-html").first.inner_text()


def expect_event(explorer: Locator, told: dict, number: int) -> None:
    time, rank, what = told["moments"][number]
    line = f"{time * 1e3:.2f} ms: rank {rank}: {what}"
    browser.until(lambda: line in message(explorer), f"event {number}: {line}")
    expect(explorer.locator("svg [data-edge=cursor]")).to_have_count(1)


def test_all_that_was_recorded_is_drawn(explorer, told):
    assert sorted(flights(explorer)) == sorted(told["flights"])
    assert len(told["flights"]) >= 6
    assert "all 2 ranks have returned" in message(explorer)


def test_the_buttons_go_from_event_to_event(explorer, told):
    for number in range(5):
        press(explorer, "Step ▶")
        expect_event(explorer, told, number)
    press(explorer, "◀ Back")
    expect_event(explorer, told, 3)


def test_the_slider_goes_by_mouse_and_by_keyboard(explorer, told, page):
    handle = explorer.locator(".noUi-handle").first
    handle.focus()
    page.keyboard.press("End")
    expect_event(explorer, told, len(told["moments"]) - 1)
    page.keyboard.press("ArrowLeft")
    expect_event(explorer, told, len(told["moments"]) - 2)
    page.keyboard.press("Home")
    expect_event(explorer, told, 0)


def test_a_window_shows_less_and_larger(explorer, told, page):
    before = flights(explorer)
    axis = explorer.locator("svg").text_content()
    handles = explorer.locator(".noUi-handle")
    handles.nth(2).focus()  # the right end of the window
    for _ in range(80):
        page.keyboard.press("PageDown")
    browser.until(lambda: explorer.locator("svg").text_content() != axis, "a part of the time to be shown")
    browser.until(lambda: len(flights(explorer)) < len(before), "fewer flights")
    press(explorer, "All")
    browser.until(lambda: flights(explorer) == before, "all flights again")


def test_a_hang_is_shown_as_one(hang):
    words, told = hang.locator("svg").text_content(), message(hang)
    assert "waits for ever" in words
    assert re.search(r"rank 0 waits in all_reduce at your line \d+ \(`dist.all_reduce\(x\)`\)", words)
    assert "rank 0 waits in all_reduce at your line" in told
    assert "nothing moved any more" in told


def test_a_still_is_shown_in_its_size(notebook, hang):
    assert_still(notebook.run(notebook.add("draw.lanes(stuck)")))


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_the_lanes_are_readable(theme, notebook, explorer, hang):
    browser.set_theme(notebook.page, theme)
    assert_drawn_well(explorer, least=14)
    assert_drawn_well(hang, least=12)
