"""What `watch_compile` writes down, against what torch.compile really does, and what the pictures show of it.

The backend is "eager": what is compiled runs as torch would run it, so that tests are quick.
"""

import functools
import html
import itertools
import logging
import subprocess
import sys

import pytest
import torch
from torch import nn

from course_utils import draw, explore, watch_compile
from course_utils.draw.compiled import compose
from course_utils.draw.picture import Picture
from course_utils.watching import compiled_messages as in_words
from course_utils.watching.compiled_seen import Break


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """Torch warns where its recompile limit is reached, as it should."""
    log = logging.getLogger("torch._dynamo")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)


def ones(*shape, **kwargs):
    return torch.ones(*shape, **kwargs)


def whole(x, y):
    h = torch.tanh(x) @ y
    return (h
            + 1)  # fmt: skip


def two_breaks(x, n):
    y = x + 1
    print("y is ready")
    z = y * n
    if z.sum() > 0:
        z = z.relu()
    return z - 1


def by_name(x, name):
    y = x + 1
    print(end="")
    if name == "a":
        y = y * 2
    return y.sum()


def helper(x):
    y = x.sin()
    print("helper")
    return y.cos()


def breaks_in_a_helper(x):
    y = x + 1
    z = helper(y)
    return z * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x, verbose=False):
        h = self.body(x)
        if verbose:
            print(h.shape)
        h = h * 2
        return self.head(h)


def line_of(f, code):
    """The number of the line of `f` that has this code in it."""
    first, lines = f.__code__.co_firstlineno, watched_source(f)
    return next(first + i for i, text in enumerate(lines) if code in text)


@functools.cache
def watched_source(f):
    import inspect

    return inspect.getsource(f).splitlines()


def marks(seen, call):
    return [(f"{step.piece}{step.version or ''}", step.what) for step in seen.calls[call - 1].steps]


def pieces_of(seen, f):
    first = f.__code__.co_firstlineno
    return ["".join(line.pieces) for line in seen.lines if line.number >= first]


@pytest.fixture(scope="module")
def no_break():
    seen = watch_compile(whole)
    for _ in range(2):
        seen(ones(4, 8), ones(8, 4))
    return seen


@pytest.fixture(scope="module")
def recompiled():
    """Two breaks and three recompilations."""
    seen = watch_compile(two_breaks)
    for arguments in ((ones(4, 8), 2), (ones(4, 8), 2), (ones(4, 8), 3), (ones(4, 8, dtype=torch.int64), 3)):
        seen(*arguments)
    return seen


@pytest.fixture(scope="module")
def limited():
    with torch._dynamo.config.patch(recompile_limit=2):
        seen = watch_compile(by_name)
        for name in "abcdab":
            seen(ones(4), name)
    return seen


@pytest.fixture(scope="module")
def module():
    seen = watch_compile(Net())
    for arguments in ((ones(4, 8),), (ones(4, 8), True), (ones(4, 8), True), (ones(2, 8),)):
        seen(*arguments)
    return seen


EVERY = ("no_break", "recompiled", "limited", "module")


@pytest.fixture(params=EVERY)
def any_of_them(request):
    return request.getfixturevalue(request.param)


# --- what is written down -------------------------------------------------------------------------------


def test_a_function_without_a_break_is_one_piece(no_break):
    assert pieces_of(no_break, whole) == ["", "A", "A", "A"]  # both lines of a statement
    [graph] = no_break.graphs
    assert graph.operators == ("tanh", "matmul", "add")
    assert (graph.piece, graph.version, graph.call, graph.why) == ("A", 1, 1, "")
    assert no_break.breaks == []
    assert [marks(no_break, n) for n in (1, 2)] == [[("A1", "compiled")], [("A1", "hit")]]


def test_the_watched_function_gives_what_the_function_gives():
    x, y = torch.randn(4, 8), torch.randn(8, 4)
    torch.testing.assert_close(watch_compile(whole)(x, y=y), whole(x, y))
    net = Net()
    torch.testing.assert_close(watch_compile(net)(x), net(x))


def test_lines_are_in_the_graphs_between_the_breaks(recompiled):
    assert pieces_of(recompiled, two_breaks) == ["", "A", "", "B", "B", "C", "C"]
    printed, branch = recompiled.breaks
    assert printed == Break(line_of(two_breaks, "print"), "calls `print`, which no graph can hold")
    assert (branch.line, branch.reason) == (
        line_of(two_breaks, "if "),
        "the branch depends on a tensor's values",
    )
    begins = [piece.begins for piece in recompiled.pieces]
    lines = [one.line for one in recompiled.breaks]
    assert begins == ["from the top", *(f"after the break in line {line}" for line in lines)]


def test_why_a_piece_was_compiled_anew(recompiled):
    assert marks(recompiled, 1) == [("A1", "compiled"), ("B1", "compiled"), ("C1", "compiled")]
    assert marks(recompiled, 2) == [("A1", "hit"), ("B1", "hit"), ("C1", "hit")]
    assert marks(recompiled, 3) == [("A1", "hit"), ("B2", "recompiled"), ("C1", "hit")]
    assert [step.why for step in recompiled.calls[2].steps] == ["", "`n` is 3, was 2", ""]
    again = recompiled.calls[3].steps
    assert [step.what for step in again] == ["recompiled"] * 3
    assert again[0].why == "`x` is int64, was float32"
    assert {graph.name: graph.why for graph in recompiled.graphs if graph.call == 4} == {
        f"{step.piece}{step.version}": step.why for step in again
    }
    assert recompiled.calls[3].arguments == ("x int64 (4, 8)", "n = 3")
    assert any(words.startswith("`x` is an int64 tensor of shape") for words in recompiled.graphs[-3].guards)


def test_guards_are_said_in_words(recompiled):
    graphs = {graph.name: graph.guards for graph in recompiled.graphs}
    assert "`x` is a float32 tensor of shape (4, 8) on the CPU, without gradient" in graphs["A1"]
    assert "`n` is 2" in graphs["B1"]
    assert "`n` is an int" in graphs["B2"]
    assert all(guards[-1] == in_words.STATE for guards in graphs.values())
    assert not any("___" in words or "L[" in words for guards in graphs.values() for words in guards)


def test_a_size_that_was_left_open():
    seen = watch_compile(whole)
    for rows in (4, 5, 6):
        seen(ones(rows, 8), ones(8, 4))
    assert [step.what for call in seen.calls for step in call.steps] == ["compiled", "recompiled", "hit"]
    assert seen.graphs[1].why == "size 0 of `x` is 5, was 4"
    shape = "`x` is a float32 tensor of shape (any, 8) on the CPU, without gradient"
    assert {shape, "size 0 of `x` is any number from 2 on"} <= set(seen.graphs[1].guards)


def test_after_the_recompile_limit_a_piece_runs_in_python_and_its_versions_still_hit(limited):
    whats = [step.what for call in limited.calls for step in call.steps if step.piece == "B"]
    assert whats == ["compiled", "recompiled", "python", "python", "hit", "hit"]
    assert [step.version for step in (call.steps[-1] for call in limited.calls[4:])] == [1, 2]
    assert [piece.limit for piece in limited.pieces] == [False, True]
    assert limited.calls[2].steps[1].why == "the recompile limit is reached: `name` is 'c', was 'b'"
    assert limited.calls[3].steps[1].why == "no version fits, and the recompile limit is reached"
    assert all(call.steps[0].what == "hit" for call in limited.calls[1:])


def test_a_break_inside_a_helper_stands_at_the_line_that_calls_it():
    seen = watch_compile(breaks_in_a_helper)
    seen(ones(4))
    [one] = seen.breaks
    assert one.line == line_of(breaks_in_a_helper, "helper(y)")
    assert one.inside == f'line {line_of(helper, "print")}, in `helper`: `print("helper")`'
    assert pieces_of(seen, breaks_in_a_helper) == ["", "A", "BC", "D"]
    assert seen.pieces[1].begins == f"`helper`, called in line {one.line}"


def inlined(x):
    return x.sin() * 2


def test_a_helper_without_a_break_counts_on_the_line_that_calls_it():
    def calls(x):
        return inlined(x)

    seen = watch_compile(calls)
    seen(ones(4))
    assert pieces_of(seen, calls) == ["", "A"]
    assert seen.graphs[0].operators == ("sin", "mul")


def test_the_source_of_a_module_is_its_forward(module):
    assert module.name == "Net"
    assert module.lines[0].text == "def forward(self, x, verbose=False):"
    assert pieces_of(module, Net.forward) == ["", "A", "", "", "AB", "AB"]
    assert [marks(module, n) for n in (1, 2, 3)] == [
        [("A1", "compiled")],
        [("A2", "recompiled"), ("B1", "compiled")],
        [("A2", "hit"), ("B1", "hit")],
    ]
    assert module.calls[1].steps[0].why == "`verbose` is True, was False"
    assert "4 parameters with dtype, shape and device as they were" in module.graphs[0].guards


FACTOR = 2


def test_a_global_that_was_a_constant(monkeypatch):
    def scaled(x):
        return x * FACTOR

    seen = watch_compile(scaled)
    seen(ones(4))
    monkeypatch.setitem(globals(), "FACTOR", 3)
    seen(ones(4))
    assert "`FACTOR` is 2" in seen.graphs[0].guards
    assert seen.graphs[1].why == "`FACTOR` is 3, was 2"


def test_which_sizes_have_varied_is_known_until_a_reset():
    def doubled(x):
        return x * 2

    def whats():
        seen = watch_compile(doubled)
        for n in (3, 4, 5):
            seen(ones(n))
        return [step.what for call in seen.calls for step in call.steps]

    assert whats() == ["compiled", "recompiled", "hit"]
    assert whats() == ["compiled", "hit", "hit"]
    torch.compiler.reset()
    assert whats() == ["compiled", "recompiled", "hit"]


def test_a_text_at_the_margin_does_not_move_the_lines():
    def margin(x):
        text = """
here"""
        return (x
                + len(text))  # fmt: skip

    seen = watch_compile(margin)
    seen(ones(4))
    assert [line.text for line in seen.lines][:3] == ["def margin(x):", '    text = """', 'here"""']
    assert pieces_of(seen, margin) == ["", "", "", "A", "A"]


def test_after_a_reset_all_is_compiled_anew():
    seen = watch_compile(inlined)
    seen(ones(4))
    torch.compiler.reset()
    seen(ones(4))
    assert marks(seen, 2) == [("A2", "recompiled")]
    assert seen.graphs[1].why == "what was compiled before is gone"


def test_keys_and_values_of_a_dictionary():
    def weighted(x, weights):
        for _name, weight in weights.items():
            x = x * weight
        return x

    seen = watch_compile(weighted)
    seen(ones(4), {"a": 2.0})
    seen(ones(4), {"b": 2.0})
    assert "`weights['a']` is 2.0" in seen.graphs[0].guards
    assert seen.graphs[1].why == "`key 0 of weights` is no longer 'a'"
    assert seen.calls[0].arguments == ("x float32 (4,)", "weights dict of 1")


def test_what_was_compiled_before_plays_no_part():
    torch.compile(whole, backend="eager")(ones(4, 8), ones(8, 4))
    first, second = watch_compile(whole), watch_compile(whole)
    for seen in (first, second):
        seen(ones(4, 8), ones(8, 4))
        assert marks(seen, 1) == [("A1", "compiled")]
        assert seen.graphs[0].why == ""


def test_only_the_watched_function_is_written_down():
    other = torch.compile(by_name, backend="eager")

    def calls_another(x):
        return other(x + 1, "a")

    seen = watch_compile(calls_another)
    seen(ones(4))
    assert [graph.operators[:1] for graph in seen.graphs][0] == ("add",)
    before = repr(draw.compiled(seen))
    other(ones(5), "b")
    watch_compile(two_breaks)(ones(4), 2)
    assert repr(draw.compiled(seen)) == before


def test_nothing_is_listened_to_between_calls_and_nothing_is_reset():
    from torch._dynamo import convert_frame, utils

    reasons, hooks = len(utils.graph_break_reasons), len(convert_frame._bytecode_hooks)
    seen = watch_compile(two_breaks)
    seen(ones(4), 2)
    assert len(convert_frame._bytecode_hooks) == hooks
    assert len(utils.graph_break_reasons) == reasons + 2
    with pytest.raises(TypeError):
        seen("no", None, None)
    assert len(convert_frame._bytecode_hooks) == hooks


def test_the_compiler_is_imported_when_something_is_watched():
    code = "import sys; from course_utils import watch_compile; print('torch._dynamo' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_torch_says_more_than_we_have_words_for():
    assert in_words.of_break("Something new\n  Explanation: …") == "Something new"
    assert in_words.of_failure("0/1: f(x) > 3  # x = y") == "`f(x) > 3` does not hold"
    assert in_words.of_guards("| +- NEW_KIND: check(L['x'].a) # what") == ("`check(x.a)`",)
    assert in_words.of_guards("nothing like a guard") == ()


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0", "`x` requires a gradient now"),
        ("0/0: tensor 'x' rank mismatch. expected 2, actual 3", "`x` has 3 dimensions, had 2"),
        ("0/0: len(xs) == 2  # for x in xs:", "`xs` has no longer 2 elements"),
        ("0/0: ___stack0 == 32.0  # if y", "the value from before the break is no longer 32.0"),
        ("0/0: 2 <= x.size()[0]", "size 0 of `x` is 0 or 1"),
    ],
)
def test_why_a_guard_failed_in_words(failure, words):
    assert in_words.of_failure(failure) == words


# --- text and pictures ----------------------------------------------------------------------------------


def test_the_picture_describes_itself(any_of_them):
    picture = draw.compiled(any_of_them)
    assert isinstance(picture, Picture)
    said = repr(picture)
    for one in any_of_them.breaks:
        assert f"line {one.line}: " in said and one.reason in said
    for call in any_of_them.calls:
        assert f"call {call.number}: " in said


def test_every_line_has_the_colours_of_its_pieces(any_of_them):
    scene = compose(any_of_them)
    drawn = {box.key: box.fill for box in scene.boxes if box.part == "line"}
    wanted = [f"{line.number}.{name}" for line in any_of_them.lines for name in line.pieces]
    assert sorted(drawn) == sorted(wanted)
    fills = {}
    for key, fill in drawn.items():
        fills.setdefault(key.partition(".")[2], set()).add(fill)
    assert all(len(found) == 1 for found in fills.values())
    assert len(set().union(*fills.values())) == len(fills)
    text = [words.text for box in scene.boxes for words in box.words] + [words.text for words in scene.words]
    assert all(line.text in text for line in any_of_them.lines if line.text)


def test_every_step_has_a_mark_and_every_break_its_reason(any_of_them):
    scene = compose(any_of_them)
    whats = ("compiled", "recompiled", "hit", "python")
    assert [box.part for box in scene.boxes if box.part in whats] == [
        step.what for call in any_of_them.calls for step in call.steps
    ]
    assert all(not box.fill and box.dashed for box in scene.boxes if box.part == "python")
    told = {int(box.key) for box in scene.boxes if box.part == "break"}
    assert told == {one.line for one in any_of_them.breaks}
    for one in any_of_them.breaks:
        assert any(one.reason in words.text for words in scene.words)


def everything_drawn(scene):
    """(left, top, right, bottom) of boxes and of words outside of them."""
    boxes = [box for box in scene.boxes if box.part != "break"]  # has words inside
    found = [(box.x, box.y, box.x + box.width, box.y + box.height) for box in boxes]
    for words in scene.words:
        # A letter of prose is narrower than one of code.
        width = words.width if words.code else words.width * 0.9
        left = {"start": words.x, "middle": words.x - width / 2, "end": words.x - width}[words.anchor]
        found.append((left, words.y - 5, left + width, words.y + 5))
    return found


def test_nothing_overlaps_and_nothing_leaves_the_picture(any_of_them):
    for scene in (compose(any_of_them), compose(any_of_them, 1, any_of_them.graphs[:1])):
        places = everything_drawn(scene)
        assert all(left >= 0 and right <= scene.width + 1 for left, _, right, _ in places)
        assert all(top >= 0 and bottom <= scene.height + 1 for _, top, _, bottom in places)
        for a, b in itertools.combinations(places, 2):
            assert a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1, (a, b)
        for box in scene.boxes:
            assert all(words.width * (1 if words.code else 0.9) <= box.width for words in box.words)


def test_before_any_call_there_is_the_source():
    seen = watch_compile(whole)
    assert "whole: 0 pieces, 0 breaks, 0 graphs compiled, 0 recompilations, 0 calls" in repr(
        draw.compiled(seen)
    )
    explorer = explore.compiled(seen)
    explorer.forward_button.click()
    assert explorer.step is None and explorer.slider.disabled
    seen(ones(4, 8), ones(8, 4))
    explorer.forward_button.click()
    assert explorer.step == 1 and not explorer.slider.disabled
    seen(ones(4, 8), ones(8, 4))
    assert not explorer.forward_button.disabled
    explorer.forward_button.click()
    assert explorer.step == 2


# --- the widget -----------------------------------------------------------------------------------------


def test_the_explorer_steps_through_the_calls(recompiled):
    explorer = explore.compiled(recompiled)
    assert "7 graphs compiled" in explorer.message.value
    assert "piece A: from the top, 2 versions" in explorer.message.value
    for number, call in enumerate(recompiled.calls, 1):
        explorer.forward()
        said = html.unescape(explorer.message.value)
        assert explorer.step == number
        assert f"call {number} of 4: {', '.join(call.arguments)}" in said
        for step in call.steps:
            assert f"piece {step.piece}: " in said and step.why in said
    explorer.forward()
    assert explorer.step == 4
    explorer.slider.value = 3
    assert explorer.step == 3
    assert "piece B: compiled anew as version 2, since `n` is 3, was 2" in html.unescape(
        explorer.message.value
    )
    assert explorer.chosen.value == "B2"
    explorer.back()
    explorer.back()
    assert explorer.step == 1 and not explorer.back_button.disabled
    explorer.back()
    assert explorer.step is None and explorer.back_button.disabled


def test_the_explorer_shows_the_guards_of_one_version(recompiled):
    explorer = explore.compiled(recompiled)
    explorer.chosen.value = "B1"
    assert "`n` is 2" in explorer.picture.value and "`n` is an int" not in explorer.picture.value
    explorer.chosen.value = "B2"
    assert "`n` is an int" in explorer.picture.value
    explorer.chosen.value = ""
    assert "`n` is 2" not in explorer.picture.value and "`n` is an int" not in explorer.picture.value


def test_only_what_ran_in_a_call_is_filled(limited):
    lines = {key for box in compose(limited, call=3).boxes if box.part == "line" for key in [box.key]}
    assert {key.partition(".")[2] for key in lines} == {"A"}
    assert {box.key.partition(".")[2] for box in compose(limited, call=5).boxes if box.part == "line"} == {
        "A",
        "B",
    }


def test_the_explorer_finds_calls_that_came_later_and_keeps_a_still():
    seen = watch_compile(inlined)
    seen(ones(4))
    explorer = explore.compiled(seen)
    seen(ones(4, dtype=torch.float64))
    explorer.forward()
    explorer.forward()
    assert explorer.step == 2 and explorer.chosen.value == "A2"
    data = explorer._repr_mimebundle_()[0]
    assert "image/png" in data and "application/vnd.jupyter.widget-view+json" in data
