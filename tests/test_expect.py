"""Assertions: the first difference, with both values, in the order in which one would look."""

import collections
import enum
import math
import types

import numpy as np
import pytest
import torch
from torch import nn, tensor

from course_utils.exercise import expect
from course_utils.words import with_article


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


SPARSE = torch.zeros(2, 3, 2)
TWO_WRONG = SPARSE.index_put((tensor([1, 0]), tensor([0, 2]), tensor([1, 0])), tensor([5.0, -1.0]))


@pytest.mark.parametrize(
    ("actual", "expected", "lines"),
    [
        # An earlier layer hides the later ones.
        (torch.zeros(3).int(), tensor([1.0, 2.0]), ["the shape of the result is (3,), expected (2,)"]),
        # The first element in the order of reading is told.
        (TWO_WRONG, SPARSE,
         ["element `[0, 2, 0]` of the result is -1, expected 0", "2 of 12 elements differ"]),
        # Small tensors are shown whole and large ones are not.
        (tensor([[1, 2], [3, 5]]), tensor([[1, 2], [3, 4]]),
         ["element `[1, 1]` of the result is 5, expected 4", "it is [[1, 2], [3, 5]]",
          "expected [[1, 2], [3, 4]]"]),
        (torch.zeros(50), torch.ones(50),
         ["element `[0]` of the result is 0, expected 1", "50 of 50 elements differ"]),
        # A number in a tensor has no index.
        (tensor(1.0), tensor(2.0), ["the result is 1, expected 2"]),
        (tensor(math.nan), tensor(2.0), ["the result is nan, expected 2"]),
        (torch.empty(0), torch.empty(0, 3), ["the shape of the result is (0,), expected (0, 3)"]),
        (tensor([1.0, 0.5]), tensor([True, False]), ["the dtype of the result is float32, expected bool"]),
    ],
)  # fmt: skip
def test_all_that_is_told(actual, expected, lines):
    assert message(expect.equal, actual, expected) == lines
    expect.equal(expected, expected)


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
    expect.equal(tensor(1.05), tensor(1.0), rtol=0.1, atol=0)
    message(expect.equal, tensor(1.05), tensor(1.0), rtol=0.01, atol=0)
    assert message(expect.equal, 1.00000001, 1.0, rtol=0) == ["the result is 1.00000001, expected 1"]


def test_tolerance_follows_the_size_of_what_is_expected():
    wanted = tensor([1e-4, -5e-4, 2e-4])
    expect.equal(wanted + 9e-7, wanted)
    message(expect.equal, wanted + 2e-6, wanted)
    expect.equal(wanted + 2e-6, wanted, atol=1e-5)  # what is passed stays
    # An infinite one has no size; large ones make it no wider; what is rounding beside 1 stays allowed.
    message(expect.equal, tensor([math.inf, 1e-4 + 2e-6]), tensor([math.inf, 1e-4]))
    message(expect.equal, tensor([1e4, 2e-5]), tensor([1e4, 0.0]))
    expect.equal(tensor([1e-9, -3e-8]), tensor([0.0, 2e-9]))
    expect.equal(tensor([1e-15]).double(), tensor([0.0]).double())
    message(expect.equal, tensor([1e-9]).double(), tensor([0.0]).double())
    message(expect.equal, 3e-13, 1e-13)
    expect.equal(1e-13, 0.0)
    expect.equal(1e-13 + 1e-16, 1e-13)
    message(expect.equal, 1e-13, 0.0, atol=0.0)


def test_elements_that_differ_are_counted_as_closely_as_they_do():
    wanted = torch.linspace(1e-5, 2e-5, 32)
    assert message(expect.equal, -wanted / 4, wanted, atol=2.4e-5)[1] == "32 of 32 elements differ"
    came = torch.linspace(1, 2, 32)
    came[7:9] += 0.1
    assert message(expect.equal, came * (1 + 2e-7), torch.linspace(1, 2, 32))[1] == "2 of 32 elements differ"
    near = message(expect.close, came * (1 + 1e-7), torch.linspace(1, 2, 32, dtype=torch.float64))
    assert near[1] == "2 of 32 elements differ"


class Colour(enum.StrEnum):
    RED = "red"


Pair = collections.namedtuple("Pair", "a b")


def test_a_value_of_another_class_is_what_it_equals():
    expect.equal(np.int64(2), 2)
    expect.equal((np.int64(2), Colour.RED), (2, "red"))
    expect.equal([np.float32(0.5), np.float64(2)], (0.5, 2.0))
    expect.equal(np.bool_(True), True)
    expect.equal(Colour.RED, "red")
    expect.equal(Pair(1, tensor(2)), (1, tensor(2)))
    expect.equal(Pair(1, 2), (1, 2))
    for kind in (collections.OrderedDict, collections.UserDict, types.MappingProxyType):
        expect.equal(kind({"a": tensor(1), "b": 2}), {"a": tensor(1), "b": 2})
    for came, wanted in [
        (np.bool_(True), 1), (np.float64(1), 1), (np.int64(1), True), (tensor(1), 1), (np.int64(3), 2),
        (np.array(1), 1), (Pair(1, 3), (1, 2)), ((True, 2), Pair(1, 2)), (collections.UserDict(), {"a": 1}),
    ]:  # fmt: skip
        message(expect.equal, came, wanted)


def test_an_index_stands_in_the_code_that_it_belongs_to():
    def told(what):
        return message(expect.equal, {0: {"m": tensor(1.0)}}, {0: {"m": tensor(2.0)}}, what=what)[0]

    assert told("`x.state`") == "`x.state[0]['m']` is 1, expected 2"
    assert told("model.state_dict()") == "model.state_dict()[0]['m'] is 1, expected 2"
    assert told("the state of `x`") == "`[0]['m']` of the state of `x` is 1, expected 2"
    assert told("`x` after `f()`") == "`[0]['m']` of `x` after `f()` is 1, expected 2"


def test_every_name_has_its_article():
    for name in ("list", "dict", "Union", "UserDict", "uint8", "SymInt", "ReLU", "GRU", "_Hidden", "float16"):
        assert with_article(name) == f"a {name}"
    for name in ("int", "OrderedDict", "object", "LSTM", "SGD", "UntypedStorage", "UninitializedParameter"):
        assert with_article(name) == f"an {name}"


def test_nan_infinity_and_signed_zero():
    expect.equal(tensor([math.nan, math.inf, -0.0]), tensor([math.nan, math.inf, 0.0]))
    message(expect.equal, tensor([math.inf]), tensor([-math.inf]))
    expect.equal(math.nan, math.nan)
    assert message(expect.equal, None, tensor(1), what="`x.grad`") == ["`x.grad` is None, expected a tensor"]
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


def test_views_gradients_and_parameters_are_compared_by_value():
    expect.equal(torch.arange(6).view(2, 3).t(), tensor([[0, 3], [1, 4], [2, 5]]))
    expect.equal(nn.Parameter(torch.ones(2)), torch.ones(2))
    with torch.inference_mode():
        made_here = torch.ones(2)
    expect.equal(made_here, torch.ones(2))
    # Lists are accepted for tuples and sizes.
    expect.equal([2, 3], torch.Size([2, 3]))
    expect.equal([tensor(1), 2.0], (tensor(1), 2.0))


@pytest.mark.parametrize(
    ("actual", "expected", "line"),
    [
        ((2, 3), (2, 4), "the result is `(2, 3)`, expected `(2, 4)`"),
        (3, (3,), "the result is an int, expected a tuple: `(3,)`"),
        ((True, 1), (1, 1), "the result is `(True, 1)`, expected `(1, 1)`"),
        ([tensor([1, 2])], [3], "the result is `[tensor([1, 2])]`, expected `[3]`"),
        ((1, (2, 3)), (1, (2, 4)), "the result is `(1, (2, 3))`, expected `(1, (2, 4))`"),
        ((tensor(1),), (tensor(1), tensor(2)), "the result has 1 entries, expected 2"),
        ({"a": 1}, {"a": 1, "b": 2}, "the result has no `'b'`"),
        ({"a": 1, "c": 3}, {"a": 1}, "the result has `'c'`, which was not expected"),
        (
            {"a": tensor([1.0])},
            {"a": tensor([2.0])},
            "element `[0]` of `['a']` of the result is 1, expected 2",
        ),
        (1, True, "the result is `1`, expected `True`"),
        (True, 1, "the result is `True`, expected `1`"),
        (1.5, 1, "the result is `1.5`, expected `1`"),
        ("sum", "mean", "the result is `'sum'`, expected `'mean'`"),
        (torch.float32, torch.float64, "the result is `torch.float32`, expected `torch.float64`"),
        (tensor([1.0, 2.0]), torch.float32, "the result is `tensor([1., 2.])`, expected `torch.float32`"),
    ],
)
def test_plain_values(actual, expected, line):
    assert message(expect.equal, actual, expected)[0] == line
    expect.equal(expected, expected)


# --- close, storage, strides and the rest ----------------------------------------------------------------


def test_numbers_that_differ_are_shown_with_the_digits_in_which_they_do():
    lines = message(expect.close, tensor(-0.0323214, dtype=torch.float64), tensor(-0.03232140467).double())
    assert lines[0] == "the result is -0.0323214, expected -0.032321405"
    lines = message(expect.unchanged, tensor(1 / 3).double(), tensor(1 / 3, dtype=torch.float64))
    assert lines[0] == "the input was changed: element `[]` was 0.33333333 and is 0.33333334 now"


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


X = torch.arange(6.0)
LEAF = torch.ones(2, requires_grad=True)
SHARES = "expected: it shares the storage of the input"


@pytest.mark.parametrize(
    ("assertion", "right", "wrong", "lines"),
    [
        (expect.same_storage, (X[::2], X), (X.clone(), X),
         ["the result has a storage of its own, of 24 bytes: its elements were copied", SHARES]),
        (expect.same_storage, (X, X), ([1], X), ["the result is a list, expected a tensor"]),
        (expect.own_storage, (X.clone(), X), (X.view(2, 3), X), None),
        # Strides of single elements do not matter.
        (expect.strides, (torch.empty_strided((1, 3), (77, 1)), (3, 1)), (torch.zeros(2, 3).t(), (2, 1)),
         ["the strides of the result are (1, 3), expected (2, 1)"]),
        (expect.strides, (X, (1,)), (torch.zeros(2, 3), (3, 1, 1)), None),
        (expect.in_graph, (LEAF[:1],), (LEAF.detach()[:1],), None),
        (expect.in_graph, (LEAF[:1],), (LEAF.detach()[:1].requires_grad_(),), None),
        (expect.in_graph, (LEAF[:1],), ([LEAF],), None),
        (expect.true, (True, "no"), ([], "it is empty", "expected: it is not"),
         ["it is empty", "expected: it is not"]),
        (expect.at_most, (5, 5, "graphs"), (math.nan, 1.0, "loss"), None),
        (expect.at_most, (5, 5, "graphs"), (1_234_567, 1000, "kept for backward"),
         ["kept for backward: 1,234,567, expected at most 1,000"]),
        (expect.raises, (ValueError, lambda: int("x")), (ValueError, lambda: 3), None),
    ],
)  # fmt: skip
def test_what_else_can_be_expected(assertion, right, wrong, lines):
    assertion(*right)
    found = message(assertion, *wrong)
    assert found if lines is None else found == lines


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


def test_raises():
    assert isinstance(expect.raises(ValueError, lambda: int("x")), ValueError)
    with pytest.raises(TypeError):
        expect.raises(ValueError, lambda: len(3))


# --- the example that failed -----------------------------------------------------------------------------


def test_the_example_is_shown_as_it_was_run():
    def double(x):
        return x + x.sum()

    t = expect.given("x = torch.arange(3)\ny = x[1:]", double=double)
    assert t.y.tolist() == [1, 2]
    lines = message(expect.equal, t.call("double(y)"), t.y * 2)
    assert lines[0] == "for\nx = torch.arange(3)\ny = x[1:]\ndouble(y)"
    exec(lines[0].removeprefix("for\n"), {"torch": torch, "double": double})


def test_plain_values_that_an_example_was_given_stand_in_it():
    t = expect.given(
        "for i in range(n):\n    x = torch.ones(i, device=device)", n=2, other=3, device=torch.device("cpu")
    )
    t.run("x = x + n")
    t.call("x.sum()")
    assert expect.example() == ["for\nn = 2\nfor i in range(n):\n    x = torch.ones(i)\nx = x + n\nx.sum()"]
    with pytest.raises(AttributeError):
        _ = expect.given("x = 1").y
    assert expect.example() == ["for `x = 1`"]


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
        assert expect.example() == ["for\nx = 1\ny = x / 0"]
    assert expect.example() == []


# --- what is shown, what was looked at ---------------------------------------------------------------------


def test_values_are_shown_on_one_line_without_addresses():
    assert expect.show(tensor([[1, 2], [3, 4]])) == "`tensor([[1, 2], [3, 4]])`"
    assert expect.show(torch.zeros(100)) == "a tensor of shape (100,) and dtype float32"
    assert expect.show(torch.zeros(2, device="meta")) == "a tensor of shape (2,) and dtype float32"
    assert expect.show(nn.Linear(1, 1)) == "a Linear"
    assert expect.show(object()) == "an object"
    assert expect.show([object()]) == "a list"
    assert len(expect.show("x" * 1000)) < 200

    class Silent:
        def __repr__(self):
            raise ValueError

    assert expect.show(Silent()) == "a Silent"


# --- symptoms ----------------------------------------------------------------------------------------------


def symptom(assertion, *args, **options):
    with pytest.raises(expect.Mismatch) as caught:
        assertion(*args, **options)
    return caught.value.symptom


def test_a_wrong_value_has_its_symptom():
    x = tensor([1.0, 2.0, 4.0])
    assert symptom(expect.equal, -x, x)
    assert symptom(expect.close, 2 * x, x.double())
    assert symptom(expect.equal, [x, 2 * x], [x, x])
    assert "the world size" in symptom(expect.equal, 3.0, 1.0, factors={"the world size": 3})


def test_a_wrong_value_that_is_known_by_name():
    x, own = tensor([1.0, 2.0, 4.0]), tensor([7.0, 2.0, 3.0])
    said = symptom(expect.equal, own.clone(), x, what="`grad`", like={"what this rank computed": own})
    assert said == "`grad` is what this rank computed."
    t = expect.given("x = torch.tensor([1., 5., 2.])")
    assert "`x`" in symptom(expect.equal, t.call("x"), x)


def test_what_shares_memory_through_numpy_is_no_copy():
    x = torch.arange(6.0)
    expect.same_storage(torch.from_numpy(x.numpy()[2:]), x)
    assert symptom(expect.own_storage, torch.from_numpy(x.numpy()[2:]), x) == ""
