"""The picture of a graph: what it says against what torch has and does."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from course_utils import draw
from course_utils.draw.graph import Drawing
from course_utils.draw.graph_backward import describe
from course_utils.draw.graph_nodes import read
from course_utils.draw.layers import place
from course_utils.draw.shapes import to_picture


class TwoOutputs(torch.autograd.Function):
    """a*b and a+b; keeps its inputs, and one tensor too many on its context."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.extra = a * 2
        return a * b, a + b

    @staticmethod
    def backward(ctx, g, h):
        a, b = ctx.saved_tensors
        return g * b + h, None


class Cell(nn.Module):
    """A step of an LSTM, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.ih, self.hh = nn.Linear(3, 16), nn.Linear(4, 16)

    def forward(self, x, h, c):
        i, f, g, o = (self.ih(x) + self.hh(h)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def shared():
    w, b = leaf(0.5, -1.0), leaf(0.1)
    h = w * 2
    return ((h.exp() + b) * h).sum(), {"w": w, "b": b}


def lstm():
    torch.manual_seed(0)
    cell = Cell()
    h, c = cell(torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4))
    h, c = cell(torch.randn(2, 3), h, c)
    return h.sum() + c.sum(), dict(cell.named_parameters())


def convolution():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    loss = nn.functional.cross_entropy(net(torch.randn(2, 2, 6, 6)), torch.tensor([0, 1]))
    return loss, dict(net.named_parameters())


def unbound():
    x = torch.arange(6.0).reshape(3, 2).requires_grad_()
    a, _, c = (x * 1).unbind()
    return (a * c).sum() + a.exp().sum(), {"x": x}


def custom():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    p, q = TwoOutputs.apply(a, b.detach())
    return (p * 3).sum() + (q * b).sum(), {"a": a, "b": b}


def checkpointed():
    x = leaf(1.0, 2.0)
    return (checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False) * x).sum(), {"x": x}


def squared():
    x = leaf(3.0)
    return x * x, {"x": x}


def vector():
    x = leaf(*range(20))
    return x.sin() * 2, {"x": x}


def many_leaves():
    leaves = {f"t{n}": torch.tensor(float(n), requires_grad=True) for n in range(9)}
    return torch.stack(list(leaves.values())).prod(), leaves


def a_leaf_alone():
    x = leaf(1.0, 2.0)
    return x, {"x": x}


PROGRAMS = [
    shared,
    lstm,
    convolution,
    unbound,
    custom,
    checkpointed,
    squared,
    vector,
    many_leaves,
    a_leaf_alone,
]
each = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)


def reached_nodes(output: torch.Tensor) -> set:
    """By another walk than the one that is tested."""
    level, seen = {torch.autograd.graph.get_gradient_edge(output).node}, set()
    while level:
        seen |= level
        level = {n for node in level for n, _ in node.next_functions if n is not None} - seen
    return seen


def texts(scene) -> list[str]:
    return [w.text for w in scene.words] + [w.text for box in scene.boxes for w in box.words]


# --- reading -----------------------------------------------------------------------------------------


@each
def test_every_node_once_and_every_edge_as_torch_has_it(program):
    output, names = program()
    graph = read([output], names)
    nodes = [op.node for op in graph.ops]
    assert len(nodes) == len(set(nodes)) and set(nodes) == reached_nodes(output)
    for op in graph.ops:
        ends = [(None, 0) if e is None else (nodes[e[0]], e[1]) for e in op.edges]
        assert tuple(ends) == op.node.next_functions
        assert op.kind == op.node.name().removeprefix("torch::autograd::")
    called = {name for op in graph.leaves for name in op.labels.values()}
    assert called == {name for name, t in names.items() if t.requires_grad}
    for op in graph.leaves:
        assert names[op.labels[0]] is op.node.variable and op.shapes == (tuple(op.node.variable.shape),)


def test_a_name_for_what_is_no_leaf_stands_at_its_node():
    x = leaf(1.0, 2.0)
    a, b = x.exp().reshape(2, 1).unbind()
    (op,) = [op for op in read([(a * b).sum()], {"a": a, "b": b}).ops if op.labels]
    assert op.labels == {0: "a", 1: "b"} and op.kind == "UnbindBackward0"
    tied = read([x.sum()], {"one": x, "two": x})
    assert tied.leaves[0].labels == {0: "one, two"}


def test_what_has_no_graph_is_refused_in_words():
    with pytest.raises(ValueError, match="does not require a gradient"):
        draw.graph(torch.ones(2))


def test_a_graph_of_any_length_is_drawn():
    y = leaf(1.0)
    for _ in range(400):
        y = y.sin()
    drawing = Drawing(y, {})
    assert len(drawing.rows.nodes) == 2 and drawing.rows.groups[0].times == 399
    assert len(drawing.scene().boxes) < 10  # the last one has a leaf


# --- what is saved -----------------------------------------------------------------------------------


def saved(output: torch.Tensor, kind: str, **names) -> dict:
    graph = read([output], names)
    (number,) = [op.number for op in graph.ops if op.kind == kind]
    return {one.name: one for one in graph.saved(number)}


def test_saved_tensors_are_those_that_hooks_see():
    for program in (shared, lstm, convolution, unbound, vector, many_leaves):
        seen = []

        def pack(t, seen=seen):
            seen.append((tuple(t.shape), t.numel() * t.element_size()))
            return t

        with saved_tensors_hooks(pack, lambda t: t):
            program()
        output, names = program()
        graph = read([output], names)
        kept = [s for op in graph.ops for s in graph.saved(op.number) if s.state != "number"]
        found = [(s.shape, s.bytes) for s in kept]
        assert sorted(found) == sorted(seen), program.__name__


def test_versions_at_saving_and_now():
    x = leaf(1.0, 2.0)
    y = x.exp()
    y2 = y.clone()
    y2.add_(1)
    z = (y2.sin() + y).sum()
    one = saved(z, "SinBackward0", y2=y2)["self"]
    assert (one.version, one.now, one.changed, one.whose, one.state) == (1, 1, False, "y2", "kept")
    y2.mul_(2)
    y2.mul_(2)
    one = saved(z, "SinBackward0", y2=y2)["self"]
    assert (one.version, one.now, one.changed, one.shape, one.bytes) == (1, 3, True, (2,), 8)
    assert "✗" in draw.graph(z, y2=y2).description
    y.data.mul_(3)  # seen by nobody
    assert not saved(z, "ExpBackward0")["result"].changed


def test_freed_tensors_say_so():
    x = leaf(1.0, 2.0)
    z = x.exp().sin().sum()
    c = TwoOutputs.apply(x, x.detach())[0].sum()
    z.backward()
    c.backward()
    assert saved(z, "SinBackward0")["self"].state == "freed"
    assert {one.state for one in saved(c, "TwoOutputsBackward").values()} == {"freed"}
    assert any("self freed" in text for text in texts(Drawing(z, {}).scene()))


def test_what_is_packed_is_not_unpacked():
    x, calls = leaf(1.0, 2.0), []

    def block(x):
        calls.append("forward")
        return x.exp().sin()

    y = checkpoint(block, x, use_reentrant=False).sum()
    draw.graph(y, x=x).png()
    assert calls == ["forward"]
    assert saved(y, "SinBackward0")["self"].state == "packed"
    with save_on_cpu():
        z = x.exp().sum()
    assert saved(z, "ExpBackward0")["result"].state == "packed"


def test_a_number_is_no_tensor():
    x = leaf(1.0, 2.0)
    for number in (2, 0.5):
        one = saved(x * number, "MulBackward0")["other"]
        assert (one.state, one.whose) == ("number", str(number))
    for tensor in (torch.tensor(2), torch.tensor(0.5, dtype=torch.float64), torch.tensor(0.5)):
        assert saved(x * tensor, "MulBackward0")["other"].state == "kept"


def test_a_view_of_a_named_tensor_is_known():
    net = nn.Linear(3, 2)
    y = net(torch.randn(4, 3, requires_grad=True)).sum()
    assert saved(y, "AddmmBackward0", weight=net.weight)["mat2"].whose == "view of weight"
    assert saved(y, "AddmmBackward0")["mat2"].whose == ""


def test_bytes_count_each_storage_once():
    x = torch.ones(10, requires_grad=True)
    h = x.exp()  # its result is what both sin and the product keep
    y = (h.sin() * h).sum()
    held = {}
    with saved_tensors_hooks(
        lambda t: held.setdefault(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()), lambda t: t
    ):
        (x.exp().sin()).sum()
    said = draw.graph(y).description
    assert "in 2 storages of 80 bytes" in said and "4 tensors" in said
    assert sum(held.values()) == 40


# --- a real backward ---------------------------------------------------------------------------------


def recorded(program):
    output, names = program()
    drawing = Drawing(output, names)
    drawing.run()
    return drawing, output, names


@each
def test_leaves_get_what_torch_gives_them(program):
    drawing, output, names = recorded(program)
    truth = torch.autograd.grad(
        output, [t for t in names.values()], torch.ones_like(output), retain_graph=True, allow_unused=True
    )
    got = {m.number: m.given[0] for m in drawing.moments if drawing.graph.ops[m.number].leaf}
    assert drawing.recording.error == ""
    for op in drawing.graph.leaves:
        assert got[op.number] == describe(truth[list(names).index(op.labels[0])])


@each
def test_gradients_at_nodes_and_their_order_are_those_of_a_real_backward(program):
    drawing, output, _ = recorded(program)
    graph = drawing.graph
    seen = []
    handles = []
    for op in graph.ops:
        if op.leaf:
            variable = op.node.variable
            hook = variable.register_post_accumulate_grad_hook
            handles.append(hook(lambda t, n=op.number: seen.append((n, (describe(t.grad),)))))
            variable.grad = None
        else:
            hook = op.node.register_prehook
            handles.append(hook(lambda g, n=op.number: seen.append((n, tuple(describe(one) for one in g)))))
    output.backward(torch.ones_like(output), retain_graph=True)
    for handle in handles:
        handle.remove()
    assert [(m.number, m.given) for m in drawing.moments] == seen


@each
def test_what_arrives_adds_up_to_what_a_node_is_given(program):
    drawing, *_ = recorded(program)
    totals, came = {}, {}
    for sent in drawing.recording.start:
        totals[sent.target, sent.slot] = sent.total
        came[sent.target] = came.get(sent.target, 0) + 1
    for moment in drawing.moments:
        assert came[moment.number] == drawing.awaited(moment.number)
        for slot, one in enumerate(moment.given):
            assert totals.pop((moment.number, slot), None) == one
        for sent in moment.sent:
            came[sent.target] = came.get(sent.target, 0) + 1
            totals[sent.target, sent.slot] = sent.total or totals.get((sent.target, sent.slot))
    assert not any(totals.values())


@each
def test_nothing_of_the_readers_is_changed(program):
    output, names = program()
    tensors = [output, *names.values()]
    for tensor in names.values():
        tensor.grad = torch.full_like(tensor, 7.0)
    if not output.is_leaf:
        output.retain_grad()
    grads = [t.grad for t in tensors]
    before = [t._version for t in tensors]
    drawing = Drawing(output, names)
    drawing.run()
    for step in range(drawing.last + 1):
        drawing.scene(step)
    assert all(t.grad is g for t, g in zip(tensors, grads, strict=True))
    assert before == [t._version for t in tensors] and not any(t._backward_hooks for t in tensors)
    assert all((t.grad == 7).all() for t in names.values() if t.requires_grad)
    # Our hooks are gone: another backward adds nothing to the recording.
    steps = len(drawing.recording.steps)
    output.backward(torch.ones_like(output))  # and the graph was kept for it
    assert len(drawing.recording.steps) == steps


def test_a_gradient_that_a_tensor_retains_stays_as_it_was():
    x = leaf(1.0, 2.0)
    h = x.exp()
    h.retain_grad()
    for before in (None, torch.tensor([7.0, 7.0])):
        h.grad = before
        drawing = Drawing(h.sum(), {"h": h})
        drawing.run()
        assert h.grad is before and h.retains_grad and drawing.last == 3
    assert h.grad.tolist() == [7, 7] and h.grad._version == 0


def reentrant():
    x = leaf(1.0, 2.0)
    return checkpoint(lambda x: x.exp().sin(), x, use_reentrant=True).sum(), {"x": x}


def second_order():
    x = leaf(1.0, 2.0)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return g.sum(), {"x": x}


def written_through_a_view():
    x = leaf(1.0, 2.0, 3.0)
    y = x * 1
    y[1:].mul_(3)
    return y.sum(), {"x": x}


def raising():
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no derivative")

    x = leaf(1.0)
    return Raises.apply(x * 3).sum(), {"x": x}


ODD = [
    (reentrant, "use_reentrant=True"),
    (second_order, ""),
    (written_through_a_view, ""),
    (raising, "ValueError: no derivative"),
]


@pytest.mark.parametrize(("program", "error"), ODD, ids=lambda p: getattr(p, "__name__", ""))
def test_any_graph_can_be_drawn_and_stepped_through(program, error):
    drawing, output, names = recorded(program)
    assert error in drawing.recording.error and bool(error) == bool(drawing.recording.error)
    for step in range(drawing.last + 1):
        assert drawing.tell(step) and drawing.scene(step).boxes
    leaves = [t for t in names.values() if t.is_leaf and t.requires_grad]
    if leaves and not error:
        truth = torch.autograd.grad(output, leaves, retain_graph=True)
        assert drawing.moments[-1].given == (describe(truth[-1]),)
    assert all(t.grad is None for t in leaves)


def test_hooks_of_the_readers_run_once_and_may_change_what_arrives():
    x = leaf(1.0, 2.0)
    h = x * 3
    calls = []

    def double(g):
        calls.append("h")
        return g * 2

    h.register_hook(double)
    x.register_post_accumulate_grad_hook(lambda t: calls.append("accumulated"))
    x.register_hook(lambda g: calls.append("x"))
    hooks = dict(x._backward_hooks)
    drawing = Drawing(h.sum(), {"x": x})
    drawing.run()
    for step in range(drawing.last + 1):
        drawing.scene(step)
        drawing.tell(step)
    assert calls == ["h", "x"] and x._backward_hooks == hooks and x.grad is None
    (changed,) = [m for m in drawing.moments if drawing.graph.ops[m.number].kind == "MulBackward0"]
    assert changed.given[0].values == [2.0, 2.0]
    assert drawing.moments[-1].given[0].values == [6.0, 6.0]


def test_a_gradient_that_is_none_is_none():
    drawing, *_ = recorded(custom)
    (step,) = [m for m in drawing.moments if drawing.graph.ops[m.number].kind == "TwoOutputsBackward"]
    assert len(step.given) == 2 and len(step.sent) == 1
    x = leaf(1.0, 2.0)

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return None

    drawing = Drawing((Nothing.apply(x * 1) + x).sum(), {"x": x})
    drawing.run()
    assert drawing.recording.error == "" and drawing.moments[-1].given[0].values == [1.0, 1.0]
    told = " ".join(words for step in range(drawing.last + 1) for words in drawing.tell(step))
    assert "None" in told


def test_where_backward_raises_the_node_is_named():
    x = leaf(1.0, 2.0)
    y = x.exp()
    z = (y.sin() * 2).sum()
    y.add_(1)
    drawing = Drawing(z, {"x": x})
    drawing.run()
    assert drawing.graph.ops[drawing.recording.failed].kind == "SinBackward0"
    assert "modified by an inplace operation" in drawing.tell(drawing.last)[-1]
    assert any(box.fill == "odd" and box.part == "node" for box in drawing.scene(drawing.last).boxes)
    freed = x.exp().sum()
    freed.backward()
    drawing = Drawing(freed, {})
    drawing.run()
    assert "second time" in drawing.recording.error


def test_values_while_few_and_norms_above():
    assert describe(torch.tensor([[1.0, 2.0], [3.0, 4.5]])).text == "[[1, 2], [3, 4.5]]"
    assert describe(torch.tensor(0.25)).text == "0.25" and describe(None) is None
    assert describe(torch.ones(4, 4)).text == "(4, 4) norm 4"
    assert describe(torch.ones(4, 4, dtype=torch.bfloat16)).text == "(4, 4) norm 4"


def test_a_gradient_kept_is_no_tensor():
    """What a large backward makes is not held by the recording."""
    x = torch.ones(1000, requires_grad=True)
    seen = []
    h = x * 2
    h.register_hook(lambda g: seen.append(weakref.ref(g)))
    drawing = Drawing(h.sin().sum(), {})
    drawing.run()
    assert seen and all(ref() is None for ref in seen)


# --- the picture -------------------------------------------------------------------------------------


@each
def test_boxes_stand_apart_and_on_the_page(program):
    drawing, *_ = recorded(program)
    for step in (None, 0, drawing.last):
        scene = drawing.scene(step)
        boxes = [box for box in scene.boxes if box.part in ("node", "leaf")]
        assert len(boxes) == len(drawing.graph.ops if drawing.fits else drawing.rows.nodes)
        for a, b in itertools.combinations(boxes, 2):
            beside = a.x + a.width <= b.x or b.x + b.width <= a.x
            assert beside or a.y + a.height <= b.y or b.y + b.height <= a.y
        for box in scene.boxes:
            assert box.x > -0.01 and box.x + box.width <= scene.width
            assert box.y + box.height <= scene.height
        # An arrow leads down.
        assert all(line.points[0][1] < line.points[-1][1] for line in scene.lines)


@each
def test_words_fit_into_their_boxes_in_a_file(program):
    output, names = program()
    drawing = Drawing(output, names)
    drawing.run()
    picture = to_picture(drawing.scene(drawing.last))
    renderer = FigureCanvasAgg(picture).get_renderer()
    (axes,) = picture.axes
    frames = [
        patch.get_window_extent(renderer) for patch in axes.patches if isinstance(patch, FancyBboxPatch)
    ]
    for text in axes.texts:
        place_ = text.get_window_extent(renderer)
        x, y = (place_.x0 + place_.x1) / 2, (place_.y0 + place_.y1) / 2
        holders = [f for f in frames if f.x0 <= x <= f.x1 and f.y0 <= y <= f.y1 and f.width > 40]
        if holders and text.get_family() != ["DejaVu Sans"]:
            inner = min(holders, key=lambda f: f.height)
            if inner.height < 60:
                assert place_.x1 <= inner.x1 + 1 and place_.x0 >= inner.x0 - 1, text.get_text()
    assert picture.png().startswith(b"\x89PNG")


def test_states_have_signs_other_than_colour():
    drawing, *_ = recorded(shared)
    scene = drawing.scene(2)
    said = texts(scene)
    assert any(text.startswith("▶ ") for text in said) and any(text.startswith("✓ ") for text in said)
    assert any(text.startswith("waits") for text in said) and any("1 of 2" in text for text in said)
    (running,) = [box for box in scene.boxes if box.fill == "lit"]
    assert running.line > 2


def test_the_way_of_a_long_line_is_free():
    sizes = [(100.0, 40.0)] * 5
    placed = place(sizes, [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)], 700)
    assert placed.top == sorted(placed.top)
    for x, top, bottom in placed.routes[0, 3]:
        assert all(
            not (placed.left[n] - 1 <= x <= placed.left[n] + 101)
            for n in range(5)
            if placed.top[n] == top or placed.top[n] + 40 == bottom
        )


def test_a_picture_is_the_same_each_time_and_says_what_it_shows():
    pictures = [to_picture(recorded(shared)[0].scene(3)) for _ in range(2)]
    assert pictures[0].png() == pictures[1].png()
    assert repr(pictures[0]) == repr(pictures[1])
    assert repr(pictures[0]).endswith("Step 3 of 7.") and "7 nodes, 2 of them leaves" in repr(pictures[0])


def test_a_drawing_that_is_gone_keeps_nothing():
    gc.collect()
    gc.disable()
    try:
        output, names = shared()
        big = next(op.node for op in read([output], {}).ops if op.kind == "ExpBackward0")._saved_result
        ref = weakref.ref(big)
        drawing = Drawing(output, names)
        drawing.run()
        drawing.scene(2)
        del big, drawing, output, names
        assert ref() is None
    finally:
        gc.enable()
