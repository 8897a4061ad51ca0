"""The live figure as a reader has it, in JupyterLab in a real Chromium, while a training loop adds to it."""

import json
import re
from datetime import datetime, timedelta

from browser import Notebook, until
from playwright.sync_api import expect

from course_utils.draw import palette

pytest_plugins = ["browser_fixtures"]

RUN = """
import time, torch
from course_utils import draw
x, w, live, end = torch.ones(64, 4), torch.zeros(4, 1, requires_grad=True), draw.training(), None
optimizer = torch.optim.SGD([w], lr=0.01)
while end is None or time.monotonic() < end:
    optimizer.zero_grad()
    loss = (x @ w - 1).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_([w], 1.0)
    live.add(loss=loss.detach(), norm=norm, rate=optimizer.param_groups[0]["lr"])
    optimizer.step()
    end = end or time.monotonic() + 2
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
