"""The graph explorer and the in-place explorer: the real widgets on real graphs."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import torch

from course_utils import explore
from course_utils.lessons.notebook_files import make_steady

SVG = "{http://www.w3.org/2000/svg}"


def small():
    w = torch.tensor([0.5, -1.0], requires_grad=True)
    b = torch.tensor(0.1, requires_grad=True)
    h = w * 2
    return ((h.exp() + b) * h).sum(), w, b, h


def explorer():
    loss, w, b, h = small()
    return explore.graph(loss, w=w, b=b, h=h), loss, w, b


def boxes(svg: str, part: str) -> list[ElementTree.Element]:
    return [g for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.get("data-part") == part]


def said(svg: str) -> list[str]:
    return [t.text for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]


# --- the graph -----------------------------------------------------------------------------------------


def test_every_node_is_a_box_and_leaves_have_their_names():
    e, loss, *_ = explorer()
    assert len(boxes(e.picture.value, "node")) == 5 and len(boxes(e.picture.value, "leaf")) == 2
    words = " ".join(said(e.picture.value))
    for name in ("SumBackward0", "ExpBackward0", "w (2,)", "b ()", "h (2,)"):
        assert name in words
    assert loss.grad_fn is e.drawing.graph.ops[0].node


def test_a_step_is_a_node_of_the_real_backward():
    e, loss, w, b = explorer()
    assert e.step is None and e.forward_button.description == "Backward ▶" and e.slider.disabled
    assert e.slider.max >= 7  # far enough when it is first shown
    e.forward_button.click()
    assert e.step == 0 and "Backward begins" in e.message.value and not e.slider.disabled
    order = []
    while not e.forward_button.disabled:
        e.forward_button.click()
        order.append(re.search(r"(\w+Backward\d|leaf \w)", e.message.value)[1])
    assert order == [
        "SumBackward0",
        "MulBackward0",
        "AddBackward0",
        "leaf b",
        "ExpBackward0",
        "MulBackward0",
        "leaf w",
    ]
    assert e.step == e.slider.value == e.slider.max == 7
    truth = torch.autograd.grad(loss, w, retain_graph=True)[0].tolist()
    assert f"[{', '.join(f'{v:.3g}' for v in truth)}]" in e.message.value
    assert w.grad is None and b.grad is None and not w._backward_hooks


def test_where_paths_meet_gradients_are_summed():
    e, *_ = explorer()
    e.go(2)
    assert any(text.startswith("1 of 2") for text in said(e.picture.value))
    e.go(5)
    assert any(text.startswith("2 of 2") for text in said(e.picture.value))
    assert "2 of 2 have arrived, together" in e.message.value


def test_slider_and_buttons_go_both_ways():
    e, *_ = explorer()
    pictures = []
    e.forward()
    while True:
        pictures.append(e.picture.value)
        if e.forward_button.disabled:
            break
        e.forward()
    for step in (3, 0, 7, 5):
        e.slider.value = step
        assert e.step == step and e.picture.value == pictures[step]
    e.back_button.click()
    assert e.step == 4 and e.slider.value == 4 and e.picture.value == pictures[4]
    e.whole_button.click()
    assert e.step is None and e.slider.value == 0 and e.back_button.disabled
    assert len(pictures) == len(set(pictures)) == 8


def test_backward_runs_once():
    calls = []
    loss, w, *_ = small()
    w.register_hook(lambda g: calls.append(1))
    e = explore.graph(loss, w=w)
    assert not calls
    for step in (0, 3, 7, 2):
        e.go(step)
    e.leave()
    e.forward()
    assert calls == [1]
    assert len(w._backward_hooks) == 1 and w.grad is None


# --- the in-place explorer -----------------------------------------------------------------------------

LINES = "y = x.exp()\nz = y.sin()\nloss = z.sum()"


def writer():
    return explore.inplace(LINES, "y.add_(1)", x=torch.tensor([0.5, 1.0], requires_grad=True))


def test_the_write_moves_and_changes_its_form():
    e = writer()
    assert (e.slider.min, e.slider.max, e.slider.value) == (1, 3, 3)
    assert [code for code, _ in e.form.options] == [
        "y.add_(1)",
        "y.data.add_(1)",
        "y.detach().add_(1)",
        "with torch.no_grad(): y.add_(1)",
    ]
    assert "✗ backward raises" in said(e.picture.value)
    e.form.value = "data"
    assert "≠ silently wrong" in said(e.picture.value)
    e.slider.value = 1
    rows = [row.find(f"{SVG}text").text for row in boxes(e.picture.value, "line")]
    assert rows == ["y = x.exp()", "▶ y.data.add_(1)", "z = y.sin()", "loss = z.sum()", "loss.backward()"]
    harmless = explore.inplace("y = x + 1\nloss = y.sum()", "y.add_(1)", x=torch.ones(2, requires_grad=True))
    assert "✓ harmless" in said(harmless.picture.value)


# --- both ----------------------------------------------------------------------------------------------


def test_a_built_notebook_keeps_a_picture_and_words():
    import nbformat

    for e, words in ((explorer()[0], "7 nodes, 2 of them leaves"), (writer(), "backward raises")):
        data, metadata = e._repr_mimebundle_()
        output = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("e", outputs=[output])])
        make_steady(notebook)
        (kept,) = notebook.cells[0].outputs
        assert set(kept.data) == {"image/png", "text/plain"}
        assert words in kept.data["text/plain"]


def test_stills_are_the_same_each_time():
    for make in (lambda: explorer()[0], writer):
        one, two = (make()._repr_mimebundle_()[0] for _ in range(2))
        assert one["image/png"] == two["image/png"] and one["text/plain"] == two["text/plain"]


def test_pictures_on_a_page_keep_to_themselves():
    loss, *_ = small()
    explorers = (explore.graph(loss), explore.graph(loss), writer())
    svgs = [ElementTree.fromstring(e.picture.value) for e in explorers]
    assert len({svg.get("id") for svg in svgs}) == 3
    for svg in svgs:
        selectors = re.findall(r"(?m)^([^{\n]+)\{", svg.find(f"{SVG}style").text)
        assert selectors
        assert all(part.startswith(f"#{svg.get('id')}") for s in selectors for part in s.split(","))


def test_words_in_fills_are_dark_and_the_rest_has_the_colour_of_the_page():
    e, *_ = explorer()
    e.go(3)
    style = ElementTree.fromstring(e.picture.value).find(f"{SVG}style").text
    rules = dict(re.findall(r"#\S+ ([^{}]+)\{([^}]*)\}", style))
    assert "currentColor" in rules["text"] and "fill:#16181C" in rules["g.fill text"]
    for g in ElementTree.fromstring(e.picture.value).iter(f"{SVG}g"):
        assert g.get("class").startswith("fill ") or g.get("class") == "open"
