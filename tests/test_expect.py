"""Assertions: the first difference, with both values, in the order in which one would look."""

import math

import pytest
import torch
from torch import nn, tensor

from course_utils import evidence, expect


@pytest.fixture(autouse=True)
def nothing_given():
    """An example that a test gives belongs to that test."""
    with expect.situation():
        yield


def message(assertion, *args, **kwargs):
    """What the reader is told; fails where nothing is told."""
    with pytest.raises(expect.Mismatch) as caught:
        assertion(*args, **kwargs)
    assert str(caught.value) == "\n".join(caught.value.lines)
    return caught.value.lines


# --- equal: one layer after another ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actual", "first_line"),
    [
        (None, "the result is None (is a `return` missing?), expected a tensor"),
        ([1.0, 2.0], "the result is a list, expected a tensor"),
        (7, "the result is an int, expected a tensor"),
        (torch.ones(2).to_sparse(), "the result is a sparse_coo tensor, expected a strided one"),
        (torch.ones(2, 1), "the shape of the result is (2, 1), expected (2,)"),
        (torch.ones(()), "the shape of the result is (), expected (2,)"),
        (torch.ones(2, dtype=torch.int64), "the dtype of the result is int64, expected float32"),
        (torch.ones(2, device="meta"), "the result is on meta, expected on cpu"),
        (tensor([1.0, 3.0]), "element `[1]` of the result is 3, expected 2"),
        (tensor([1.0, math.nan]), "element `[1]` of the result is nan, expected 2"),
    ],
)
def test_the_first_difference_is_told(actual, first_line):
    assert message(expect.equal, actual, tensor([1.0, 2.0]))[0] == first_line


def test_an_earlier_layer_hides_the_later_ones():
    all_wrong = torch.zeros(3, dtype=torch.int64)
    (line,) = message(expect.equal, all_wrong, tensor([1.0, 2.0]))
    assert line.startswith("the shape")


def test_the_first_element_in_the_order_of_reading_is_told():
    expected = torch.zeros(2, 3, 2)
    actual = expected.clone()
    actual[1, 0, 1] = 5
    actual[0, 2, 0] = -1
    assert message(expect.equal, actual, expected) == [
        "element `[0, 2, 0]` of the result is -1, expected 0",
        "2 of 12 elements differ",
    ]


def test_small_tensors_are_shown_whole_and_large_ones_are_not():
    lines = message(expect.equal, tensor([[1, 2], [3, 5]]), tensor([[1, 2], [3, 4]]), what="`y`")
    assert lines[0] == "element `[1, 1]` of `y` is 5, expected 4"
    assert lines[1:] == ["it is [[1, 2], [3, 5]]", "expected [[1, 2], [3, 4]]"]
    assert len(message(expect.equal, torch.zeros(50), torch.ones(50))) == 2


def test_a_number_in_a_tensor_has_no_index():
    assert message(expect.equal, tensor(1.0), tensor(2.0)) == ["the result is 1, expected 2"]


def test_tolerance_follows_from_the_dtype():
    third = torch.tensor(1 / 3, dtype=torch.float64)
    for dtype, near, far in [
        (torch.float64, 1e-9, 1e-6),
        (torch.float32, 1e-7, 2e-5),
        (torch.float16, 1e-4, 3e-3),
        (torch.bfloat16, 1e-3, 3e-2),
    ]:
        expect.equal((third + near).to(dtype), third.to(dtype))
        message(expect.equal, (third + far).to(dtype), third.to(dtype))
    message(expect.equal, tensor([1_000_000_001]), tensor([1_000_000_000]))


def test_tolerance_can_be_given():
    expect.equal(tensor(1.05), tensor(1.0), rtol=0.1, atol=0)
    message(expect.equal, tensor(1.05), tensor(1.0), rtol=0.01, atol=0)
    expect.equal(1.05, 1.0, rtol=0.1)


def test_nan_infinity_and_signed_zero():
    expect.equal(tensor([math.nan, math.inf, -0.0]), tensor([math.nan, math.inf, 0.0]))
    message(expect.equal, tensor([math.inf]), tensor([-math.inf]))
    expect.equal(math.nan, math.nan)
    message(expect.equal, 0.0, math.nan)


@pytest.mark.parametrize(
    "tensors",
    [
        (tensor([True]), tensor([False])),
        (tensor([1 + 1j]), tensor([1 - 1j])),
        (tensor([1 + 1j]).conj(), tensor([1 + 1j])),
        (tensor([1], dtype=torch.uint16), tensor([2], dtype=torch.uint16)),
        (tensor([1.0]).to(torch.float8_e5m2), tensor([2.0]).to(torch.float8_e5m2)),
        (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse()),
    ],
)
def test_every_kind_of_element_is_compared(tensors):
    a, b = tensors
    expect.equal(a, a)
    message(expect.equal, a, b)


def test_empty_tensors_agree_by_shape():
    expect.equal(torch.empty(0, 3), torch.empty(0, 3))
    assert message(expect.equal, torch.empty(0), torch.empty(0, 3))[0].startswith("the shape")


def test_views_gradients_and_parameters_are_compared_by_value():
    expect.equal(torch.arange(6).view(2, 3).t(), tensor([[0, 3], [1, 4], [2, 5]]))
    expect.equal(nn.Parameter(torch.ones(2)), torch.ones(2))
    with torch.inference_mode():
        made_here = torch.ones(2)
    expect.equal(made_here, torch.ones(2))


@pytest.mark.parametrize(
    ("actual", "expected", "line"),
    [
        ((2, 3), (2, 4), "the result is `(2, 3)`, expected `(2, 4)`"),
        (3, (3,), "the result is an int, expected a tuple: `(3,)`"),
        ((True, 1), (1, 1), "the result is `(True, 1)`, expected `(1, 1)`"),
        ((1.0,), (1,), "the result is `(1.0,)`, expected `(1,)`"),
        ([tensor([1, 2])], [3], "the result is `[tensor([1, 2])]`, expected `[3]`"),
        ((1, (2, 3)), (1, (2, 4)), "the result is `(1, (2, 3))`, expected `(1, (2, 4))`"),
        ((tensor(1),), (tensor(1), tensor(2)), "the result has 1 entries, expected 2"),
        ((tensor(1), tensor(3)), (tensor(1), tensor(2)), "the result[1] is 3, expected 2"),
        ({"a": 1}, {"a": 1, "b": 2}, "the result has no `'b'`"),
        ({"a": 1, "c": 3}, {"a": 1}, "the result has `'c'`, which was not expected"),
        ({"a": tensor([1.0])}, {"a": tensor([2.0])}, "element `[0]` of the result['a'] is 1, expected 2"),
        ([], {}, "the result is a list, expected a dict"),
        (1, True, "the result is `1`, expected `True`"),
        (True, 1, "the result is `True`, expected `1`"),
        (True, 1.0, "the result is `True`, expected `1.0`"),
        (1.5, 1, "the result is `1.5`, expected `1`"),
        ("sum", "mean", "the result is `'sum'`, expected `'mean'`"),
        (0, None, "the result is `0`, expected `None`"),
        (torch.float32, torch.float64, "the result is `torch.float32`, expected `torch.float64`"),
        (tensor([1.0, 2.0]), torch.float32, "the result is `tensor([1., 2.])`, expected `torch.float32`"),
    ],
)
def test_plain_values(actual, expected, line):
    assert message(expect.equal, actual, expected)[0] == line
    expect.equal(expected, expected)


def test_lists_are_accepted_for_tuples_and_sizes():
    expect.equal([2, 3], (2, 3))
    expect.equal(torch.Size([2, 3]), (2, 3))
    expect.equal([tensor(1), 2.0], (tensor(1), 2.0))


# --- close, storage, strides and the rest ----------------------------------------------------------------


def test_numbers_that_differ_are_shown_with_the_digits_in_which_they_do():
    lines = message(expect.close, tensor(-0.0323214, dtype=torch.float64), tensor(-0.03232140467).double())
    assert lines[0] == "the result is -0.0323214, expected -0.032321405"
    lines = message(expect.unchanged, tensor(1 / 3).double(), tensor(1 / 3, dtype=torch.float64))
    assert lines[0] == "the input was changed: element `[]` was 0.33333333 and is 0.33333334 now"
    assert message(expect.equal, tensor(1.0), tensor(2.0))[0] == "the result is 1, expected 2"
    assert message(expect.equal, tensor(math.nan), tensor(2.0))[0] == "the result is nan, expected 2"


def test_close_allows_the_rounding_of_the_dtype_and_no_more():
    oracle = torch.linspace(1, 100, 50, dtype=torch.float64)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        expect.close(oracle.to(dtype), oracle)
    message(expect.close, (oracle * 1.001).float(), oracle)
    nearly = (oracle * (1 + 2**-22)).float()
    expect.close(nearly, oracle)
    message(expect.close, nearly, oracle, factor=0.5)
    assert message(expect.close, oracle.long(), oracle) == [
        "the dtype of the result is int64, expected one of floating point"
    ]
    assert message(expect.close, oracle[1:], oracle)[0] == "the shape of the result is (49,), expected (50,)"
    expect.close(torch.zeros(0), torch.zeros(0, dtype=torch.float64))


def test_storage():
    x = torch.arange(6.0)
    expect.same_storage(x[::2], x)
    expect.own_storage(x.clone(), x)
    assert message(expect.same_storage, x.clone(), x, of="`x`") == [
        "the result has a storage of its own, of 24 bytes: its elements were copied",
        "expected: it shares the storage of `x`",
    ]
    assert "shares the storage" in message(expect.own_storage, x.view(2, 3), x)[0]
    assert "expected a tensor" in message(expect.same_storage, [1], x)[0]


def test_strides_of_single_elements_do_not_matter():
    expect.strides(torch.empty_strided((1, 3), (77, 1)), (3, 1))
    lines = message(expect.strides, torch.zeros(2, 3).t(), (2, 1))
    assert lines == ["the strides of the result are (1, 3), expected (2, 1)"]
    message(expect.strides, torch.zeros(2, 3), (3, 1, 1))


def test_unchanged():
    x = tensor([1.0, math.nan, 3.0])
    before = x.clone()
    expect.unchanged(x, before)
    x[2] = 4
    assert message(expect.unchanged, x, before, what="`x`") == [
        "`x` was changed: element `[2]` was 3 and is 4 now"
    ]
    x.resize_(2)
    assert message(expect.unchanged, x, before)[0] == "the shape of the input was (3,) and is (2,) now"


def test_a_return_is_missed_only_where_the_result_is_none():
    assert message(expect.equal, None, tensor(1))[0].startswith("the result is None (is a `return` missing?)")
    assert message(expect.equal, None, tensor(1), what="`x.grad`") == ["`x.grad` is None, expected a tensor"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x: x.resize_(2), "its size was (3,) and is (2,) now"),
        (lambda x: x.as_strided_((3,), (2,)), "its stride was (1,) and is (2,) now"),
        (lambda x: setattr(x, "data", x.clone()), "it reads from another place now than before the call"),
        (lambda x: x.as_strided_((3,), (1,), 2), "it reads from another place now than before the call"),
        (lambda x: x[1:].zero_(), "element `[1]` was 2 and is 0 now"),
    ],
)
def test_left_alone(change, told):
    def changes():
        x = tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])[1:4]
        with expect.left_alone(x, what="`x`"):
            change(x)

    assert message(changes) == [f"`x` was changed: {told}"]
    with expect.left_alone(torch.ones(2)):
        pass
    with pytest.raises(KeyError), expect.left_alone(torch.ones(2)):
        raise KeyError


def test_in_graph():
    x = torch.ones(2, requires_grad=True)
    expect.in_graph(x[:1])
    assert "has left the graph" in message(expect.in_graph, x.detach()[:1], of="`x`")[0]
    assert "has no `grad_fn`" in message(expect.in_graph, x.detach()[:1].requires_grad_(), of="`x`")[0]
    assert "is a list, expected a tensor" in message(expect.in_graph, [x], of="`x`")[0]


def test_conditions_and_limits():
    expect.true(True, "no")
    assert message(expect.true, [], "it is empty", "expected: it is not") == [
        "it is empty",
        "expected: it is not",
    ]
    expect.at_most(5, 5, "graphs")
    assert message(expect.at_most, 1_234_567, 1000, "kept for backward", unit="bytes") == [
        "kept for backward: 1,234,567 bytes, expected at most 1,000 bytes"
    ]
    expect.at_least(5, 5, "graphs")
    assert message(expect.at_least, 0.5, 2.0, "gain") == ["gain: 0.5, expected at least 2"]
    message(expect.at_most, math.nan, 1.0, "loss")
    message(expect.at_least, math.nan, 1.0, "loss")


def test_raises():
    error = expect.raises(ValueError, lambda: int("x"))
    assert isinstance(error, ValueError)
    assert message(expect.raises, ValueError, lambda: 3, what="`f(3)`") == [
        "`f(3)` returned `3`, expected a ValueError"
    ]
    with pytest.raises(TypeError):
        expect.raises(ValueError, lambda: len(3))


# --- predictions ---------------------------------------------------------------------------------------


def test_predictions():
    expect.predicted({"a": (2, 3)}, "a", torch.Size([2, 3]), code="x.shape")
    expect.predicted({"a": 0.3333}, "a", 1 / 3, code="x")
    expect.predicted({"a": "copies"}, "a", "copies", code="x")
    assert message(expect.predicted, {"a": ...}, "a", 1, code="x.dim()") == [
        "`x.dim()`: no prediction yet (it still says `...`)"
    ]
    assert message(expect.predicted, {"a": 2}, "a", 1, code="x.dim()") == [
        "`x.dim()`: you predicted `2`, torch says `1`"
    ]


@pytest.mark.parametrize("given", [None, [1], 3])
def test_what_is_no_prediction_is_none(given):
    told = message(expect.predicted, given, "a", 1, code="x")[0]
    assert told.endswith("expected a dict with a line for each expression")
    assert ("`return`" in told) == (given is None)


@pytest.mark.parametrize(
    ("guess", "truth"), [(1, True), (True, 1), (0, False), ((1,), (True,)), ("2", 2), (2.1, 2), (None, False)]
)
def test_predictions_that_only_look_the_same(guess, truth):
    message(expect.predicted, {"a": guess}, "a", truth, code="x")


def test_written_down():
    assert expect.written_down(lambda: {"a": 1}) == {"a": 1}
    assert "1 of torch's operators ran" in message(expect.written_down, lambda: {"a": torch.ones(1)})[0]
    assert "the result is None" in message(expect.written_down, lambda: None)[0]


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


class AnyTuple(tuple):
    __eq__ = EqualToAll.__eq__
    __hash__ = None


@pytest.mark.parametrize(
    ("guess", "truth"),
    [(EqualToAll(), 1), (EqualToAll(), True), (AnyTuple((3,)), (2,)), (AnyTuple((2,)), (2,))]
    + [((EqualToAll(),), (2,)), (EqualToAll(), torch.int64), (2, (2, 3)), (0, ()), (None, ())],
)
def test_only_plain_values_are_predictions(guess, truth):
    message(expect.predicted, {"a": guess}, "a", truth, code="x")


def test_a_size_of_one_dimension_may_be_a_number():
    expect.predicted({"a": 2}, "a", (2,), code="x")
    expect.all_predicted({"a": (2, [1], True)}, {"a": ((2,), (1,), True)}, parts=("size", "stride", "sure"))


@pytest.mark.parametrize(
    ("guess", "truth", "told"),
    [
        (float, torch.int64, "you predicted `float`, a type, but what was asked for is a dtype of torch's"),
        ("int64", torch.int64, "you predicted `'int64'`, but what was asked for is a dtype of torch's"),
        (1, True, "you predicted `1`, which is neither `True` nor `False`"),
        (None, (), "you predicted `None`, torch says `()`"),
        (torch.int8, torch.int64, "you predicted `torch.int8`, torch says `torch.int64`"),
    ],
)
def test_a_guess_of_another_kind_is_told_what_was_asked_for(guess, truth, told):
    (line,) = message(expect.predicted, {"a": guess}, "a", truth, code="x")
    assert line.startswith(f"`x`: {told}")


def test_every_wrong_line_of_a_group_is_told_and_is_evidence():
    truths = {"a": 1, "b": 2, "c": 3, "d": 4}
    with evidence.recording() as seen:
        lines = message(expect.all_predicted, {"a": 5, "b": 2, "c": ...}, truths, names="abcd")
    assert lines == [
        "`a`: you predicted `5`, torch says `1`",
        "`c`: no prediction yet (it still says `...`)",
        "`d`: there is no line for it",
    ]
    assert dict(seen) == {
        "predicted a": 5,
        "predicted b": 2,
        "predicted c": "not answered",
        "predicted d": "no line",
    }
    expect.all_predicted(truths, truths, names="abcd")


def test_a_line_under_another_name_is_pointed_out():
    lines = message(expect.all_predicted, {"a ": 1, "b": 1}, {"a": 1}, names="ab")
    assert lines[1] == "there is a line for `'a '`, which was not asked for"
    expect.all_predicted({"a": 1, "more": 2}, {"a": 1}, names="a")


def test_lines_of_several_parts():
    parts, truths = ("size", "contiguous"), {"x": ((2, 3), True), "y": ((3,), False)}
    expect.all_predicted({"x": [[2, 3], True], "y": (3, False)}, truths, parts=parts)
    assert message(expect.all_predicted, {"x": ((3, 2), False), "y": ((3,), True)}, truths, parts=parts) == [
        "`x`: size `(3, 2)`, torch says `(2, 3)`; contiguous `False`, torch says `True`",
        "`y`: contiguous `True`, torch says `False`",
    ]
    assert message(expect.all_predicted, {"x": (2, 3), "y": (..., False)}, truths, parts=parts) == [
        "`x`: size `2`, torch says `(2, 3)`; contiguous `3`, which is neither `True` nor `False`",
        "`y`: size `...`, which is no prediction yet",
    ]
    assert message(expect.all_predicted, {"x": 1, "y": ((3,), False)}, truths, parts=parts) == [
        "`x`: your line is `1`, expected 2 things in brackets: size, contiguous"
    ]


# --- the example that failed -----------------------------------------------------------------------------


def test_the_example_is_shown_as_it_was_run():
    def double(x):
        return x + x.sum()

    t = expect.given("x = torch.arange(3)\ny = x[1:]", double=double)
    assert t.y.tolist() == [1, 2]
    lines = message(expect.equal, t.call("double(y)"), t.y * 2)
    assert lines[0] == "for `x = torch.arange(3)`, `y = x[1:]`, `double(y)`"
    namespace = {"torch": torch, "double": double}
    for line in ("x = torch.arange(3)", "y = x[1:]"):
        exec(line, namespace)
    assert eval("double(y)", namespace).tolist() == [4, 5]


def test_a_situation_holds_inside_and_no_longer():
    with expect.situation("f(x)"):
        assert message(expect.true, False, "no") == ["for `f(x)`", "no"]
        with expect.situation():
            assert message(expect.true, False, "no") == ["no"]
        assert message(expect.true, False, "no")[0] == "for `f(x)`"
    assert message(expect.true, False, "no") == ["no"]


def test_what_was_raised_inside_belongs_to_the_situation():
    with expect.situation():
        with pytest.raises(ZeroDivisionError), expect.situation("f(x)"):
            _ = 1 / 0
        assert expect.example() == ["for `f(x)`"]
        with pytest.raises(ZeroDivisionError):
            expect.given("x = 1\ny = x / 0")
        assert expect.example() == ["for `x = 1`, `y = x / 0`"]
    assert expect.example() == []


def test_names_that_an_example_did_not_make_are_no_attributes():
    with pytest.raises(AttributeError):
        _ = expect.given("x = 1").y


def test_the_line_for_a_tensor_names_the_device_where_that_matters():
    cpu, other = torch.device("cpu"), torch.device("meta", 0)
    assert expect.tensor_line("g", [1.0, 2.0], cpu) == "g = torch.tensor([1.0, 2.0])"
    line = expect.tensor_line("x", [1.0], other, dtype=torch.float64, requires_grad=True)
    assert line == "x = torch.tensor([1.0], device='meta', dtype=torch.float64, requires_grad=True)"
    t = expect.given(line)
    assert t.x.is_meta and t.x.requires_grad and t.x.dtype == torch.float64
    assert (expect.on(cpu), expect.on(other)) == ("", ", device='meta'")


# --- what is shown, what is recorded -----------------------------------------------------------------------


def test_values_are_shown_on_one_line_without_addresses():
    assert expect.show(tensor([[1, 2], [3, 4]])) == "`tensor([[1, 2], [3, 4]])`"
    assert expect.show(torch.zeros(100)) == "a tensor of shape (100,) and dtype float32"
    assert expect.show(torch.zeros(2, device="meta")) == "a tensor of shape (2,) and dtype float32"
    assert expect.show(nn.Linear(1, 1)) == "a Linear"
    assert expect.show(object()) == "a object"
    assert expect.show([object()]) == "a list"
    assert len(expect.show("x" * 1000)) < 200

    class Silent:
        def __repr__(self):
            raise ValueError

    assert expect.show(Silent()) == "a Silent"


@pytest.mark.parametrize(
    ("kind", "assertion"),
    [
        ("equal", lambda x: expect.equal(x, x)),
        ("close", lambda x: expect.close(x, x.double())),
        ("same_storage", lambda x: expect.same_storage(x, x)),
        ("own_storage", lambda x: expect.own_storage(x.clone(), x)),
        ("strides", lambda x: expect.strides(x, (1,))),
        ("unchanged", lambda x: expect.unchanged(x, x)),
        ("true", lambda x: expect.true(True)),
        ("at_most", lambda x: expect.at_most(1, 2, "n")),
        ("at_least", lambda x: expect.at_least(2, 1, "n")),
        ("raises", lambda x: expect.raises(KeyError, lambda: {}[1])),
        ("in graph", lambda x: expect.in_graph(x.requires_grad_()[:1])),
        ("predicted a", lambda x: expect.predicted({"a": 1}, "a", 1, code="x")),
    ],
)
def test_every_assertion_leaves_evidence(kind, assertion):
    with evidence.recording() as seen:
        assertion(torch.ones(2))
    assert [k for k, _ in seen] == [kind]


def test_what_fails_leaves_evidence_too():
    with evidence.recording() as seen:
        message(expect.equal, tensor([1]), tensor([2]))
        message(expect.strides, 3, (1,))
    assert [k for k, _ in seen] == ["equal", "not a tensor"]
