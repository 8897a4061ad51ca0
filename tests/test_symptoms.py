"""Each sentence is said where it is true, and none where none is."""

import itertools
import math

import pytest
import torch
from torch import tensor

from course_utils.exercise import symptoms

NAN, INF = math.nan, math.inf
# Nothing in these is symmetric, a multiple of something else, or of one sign.
M = tensor([[1.0, -2.5, 4.0], [0.5, 7.0, -3.0], [6.0, 2.25, 9.0]])
V = tensor([1.5, -2.25, 4.75, 0.5])
CUBE = torch.arange(24.0).reshape(2, 3, 4) ** 2
WHOLE, X = tensor([3, 5, 8, 10]), torch.arange(-4.0, 8).reshape(3, 4)
X7 = torch.zeros(7, 3)

LAST, SUM = "Only the last element of the result is wrong.", "The result is the sum of what was expected"
EVERY, BUT = "Every element of the result is ", "The result is what was expected, "
TIMES, NEGATIVE = " times what was expected", "The result is the negative of what was expected."
ROUNDED, BY = BUT + "rounded to ", BUT + "rounded to whole numbers by "
OF, IN_PLACE, OTHERS = "elements of the result", "in place of a finite number", "; the others are right."
IN_ORDER = "The elements of the result are right and in order; only the shape is another."
BROADCAST = "Broadcast to one shape, the result and what was expected are equal."
NO_GRAPH = "The values are right, but the result has no graph behind it: its `requires_grad` is `False`."


def said(actual, expected, rtol=1e-5, atol=1e-6, **more):
    return symptoms.of_tensor(actual, expected, rtol=rtol, atol=atol, **more)


def put(tensor, index, value):
    """The tensor, with another value in one place."""
    changed = tensor.clone()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("actual", "expected", "sentence"),
    [
        # not finite
        (V * NAN, V, EVERY + "NaN."),
        (tensor([NAN, INF]), tensor([NAN, 3.0]), f"1 of 2 {OF} is infinite {IN_PLACE}{OTHERS}"),
        (tensor([NAN, 1.0]), M, f"1 of 2 {OF} is NaN {IN_PLACE}."), (V / 0, V, EVERY + "infinite."),
        (tensor([NAN, 2.0, NAN]), V[:3], f"2 of 3 {OF} are NaN {IN_PLACE}."),
        # one value
        (M * 0, M, EVERY + "0."), (V < -9, V > 0, EVERY + "`False`."), (torch.ones(3, 3), M, EVERY + "1."),
        (torch.full((4,), 1 / 3), V, EVERY + "1/3."),
        # factors and offsets
        (-M, M, NEGATIVE), (3 * M, M, EVERY + f"3{TIMES}."), (M / 3, M, EVERY + f"1/3{TIMES}."),
        (V * 1e4, V, EVERY + f"1e+04{TIMES}."), (V.double() * 65_537, V.double(), EVERY + f"65537{TIMES}."),
        (WHOLE * 2, WHOLE, EVERY + f"2{TIMES}."), (V * 1.0001, V, EVERY + f"1.0001{TIMES}."),
        (tensor([2.0]), tensor([4.0]), EVERY + f"0.5{TIMES}."),
        (tensor(2.0), tensor(4.0), f"The result is 0.5{TIMES}."),
        (tensor([1j, 2]) * 3, tensor([1j, 2]), EVERY + f"3{TIMES}."),
        (put(M, 0, NAN) * -0.3, put(M, 0, NAN), EVERY + f"-0.3{TIMES}."),
        (M + 1, M, EVERY + "1 more than what was expected."),
        (WHOLE - 4, WHOLE, EVERY + "4 less than what was expected."),
        # moved
        (M.T, M, BUT + "transposed."), (M[:2].T, M[:2], BUT + "transposed."),
        (CUBE.transpose(0, 1), CUBE, BUT + "with dimensions 0 and 1 swapped."),
        (CUBE[None].permute(3, 2, 1, 0), CUBE[None], BUT + "with its dimensions in reverse order."),
        (V.flip(0), V, BUT + "reversed."), (M.flip(1), M, BUT + "reversed along dimension 1."),
        (V.roll(1), V, BUT + "rolled by 1."),
        (CUBE.roll(-1, 2), CUBE, BUT + "rolled by -1 along dimension 2."),
        (V[[1, 0, 3, 2]], V, "The result has the expected elements in another order."),
        # changed one by one
        (M > 2, M <= 2, BUT + "with `True` and `False` swapped."),
        (M.abs(), M, BUT + "without its signs (`abs`)."),
        (M.relu(), M, BUT + "with 0 in place of what is negative."), (V.trunc(), V, BY + "`trunc`."),
        (V.int(), V, BY + "`trunc`."), (V.floor(), V, BY + "`floor`."), (V.round(), V, BY + "`round`."),
        ((M / 7).bfloat16().float(), M / 7, ROUNDED + "`bfloat16`."),
        ((M / 7).half(), M / 7, ROUNDED + "`float16`."),
        # right in part
        (put(V, 3, 8), V, LAST), (put(M, 0, 8), M, "Only the first row of the result is wrong."),
        (put(M, (slice(None), 2), 8), M, "Only the last column of the result is wrong."),
        (put(CUBE, (slice(None), 1), 8), CUBE, "Only slice `[:, 1]` of the result is wrong."),
        (tensor([0.0, 2, 3]), tensor([1j, 2, 3]), "Only the first element of the result is wrong."),
        (V.abs(), V, "Only element `[1]` of the result is wrong."),
        (put(X.exp(), 1, X[1]), X, "Only row `[1]` of the result is right."),
        # another shape
        (V[:, None], V, IN_ORDER), (M.expand(2, 3, 3), M, BROADCAST),
        (tensor([5.0]), torch.full((3,), 5.0), BROADCAST), (M.sum(), M, SUM + "."),
        (M.mean(0), M, "The result is the mean of what was expected over dimension 0."),
        (CUBE[:, None].sum(0), CUBE[:, None], SUM + " over dimension 0."),
        (CUBE.sum((0, 2)), CUBE, SUM + " over dimension 0 and 2."),
        (CUBE, CUBE.mean(0), "The mean of the result over dimension 0 is what was expected."),
        (M, M.sum(1, keepdim=True), "The sum of the result over dimension 1 is what was expected."),
        (V, V.sum(), "The sum of the result is what was expected."),
        # the values are right
        (V.double(), V, "The values are right; the dtype is `torch.float64`, expected `torch.float32`."),
        (V, V.clone().requires_grad_(), NO_GRAPH),
        # of several true sentences the plainer
        (tensor([1.0, -1.0]), tensor([-1.0, 1.0]), NEGATIVE),  # and reversed
        (tensor([1.0, 2.0]), tensor([-1.0, -2.0]), NEGATIVE),  # and the absolute value
        (tensor([2.0, 1.0]), tensor([1.0, 2.0]), BUT + "reversed."),  # and rolled
        (tensor([1.0, 2.0, 3.0]), tensor([1.0, 2.0, -3.0]), LAST),  # and the absolute value
        (torch.full((2,), 2.0), torch.ones(2), EVERY + f"2{TIMES}."),  # and 1 more
        (tensor([0.0, 0.0]), tensor([-1.0, -2.0]), EVERY + "0."),  # and without what is negative
        (tensor([5.0, 5.0]), tensor(5.0), BROADCAST),  # and a mean
        (X[:1], X[0, :, None], IN_ORDER),  # and transposed
    ],
)  # fmt: skip
def test_what_is_known_is_said(actual, expected, sentence):
    before = actual.tolist(), expected.tolist(), actual.requires_grad
    assert said(actual, expected) == sentence
    after = actual.tolist(), expected.tolist(), actual.requires_grad
    assert str(after) == str(before) and torch.is_grad_enabled()


# Each only looks like something.
NOTHING = [
    (V, V), (V.clone().requires_grad_(), V), (M.exp(), M), (V[:3], V), (put(M, 1, 3.0) * 2, M),
    (put(M + 1, (1, 1), 3.0), M), (tensor([3.0, -3.0]), tensor([1.0, 1.0])), (3 * M, put(M, 1, NAN)),
    # One number is always a multiple of another, and more or less than it.
    (tensor([7.0]), tensor([5.0])), (tensor([7.0, 7.0]), tensor([5.0, 5.000001])),
    (tensor([3.0, 3.0]), tensor([0.0, 0.0])), (tensor([6.0, 6, INF, INF]), tensor([5.0, 5, INF, INF])),
    # What lies within the tolerance tells nothing.
    (tensor([3e-7, 6e-7, 5.0, 5.0]), tensor([1e-7, 2e-7, 3.0, 3.0])),
    (tensor(4e-6), tensor([-3e-6, 5e-6, 2e-6])), (M.T * (1 + 1e-4), M),
    # None of these is expected to be finite, or to vary.
    (tensor([INF, INF, 3.0, 4.0]), V / 0 * V.sign()), (tensor([NAN, 1.0]), put(M, 0, NAN)),
    (torch.zeros(2), torch.zeros(3)), (torch.ones(2), torch.full((3,), 2.0)),
    # Few numbers, soon the same by chance.
    (tensor([2, 2, 1, 1]), tensor([1, 2, 1, 2])), (tensor([6, 6]), tensor([1, 4])),
    (tensor([0.0, 6.0, 8.0]), tensor([0.0, 5.0, 2.0])),
    (tensor([[1, 1], [0, 1], [0, 7]]), tensor([[1, 1], [2, 3], [4, 5]])),
]  # fmt: skip


@pytest.mark.parametrize(("actual", "expected"), NOTHING)
def test_nothing_is_said_by_chance(actual, expected):
    assert said(actual, expected) == ""


@pytest.mark.parametrize(
    ("actual", "expected", "more", "sentence"),
    [
        (M * 2, M, {"factors": {"the world size": 2}}, EVERY + f"2{TIMES}; 2 is the world size."),
        (M / 2, M, {"factors": {"`n`": 2}}, EVERY + "1/2 of what was expected; 2 is `n`."),
        (M * -5, M, {"factors": {"`n`": 5}}, EVERY + f"-5{TIMES}; 5 is `n`."),
        (M * 7, M, {"known": {"x": X7}}, EVERY + f"7{TIMES}; 7 is `x.shape[0]`."),
        (M / 12, M, {"known": {"`x`": X}}, EVERY + "1/12 of what was expected; 12 is `x.numel()`."),
        (M / 7**0.5, M, {"known": {"x": X7}}, EVERY + "1/√7 of what was expected; 7 is `x.shape[0]`."),
        (M * 9, M, {"numbers": {"`n`": 9}}, EVERY + f"9{TIMES}; 9 is `n`."),
        # No name: a small number, and one of several things.
        (M * 3, M, {"known": {"x": X}, "numbers": {"`n`": 3}}, EVERY + f"3{TIMES}."),
        (M * 7, M, {"known": {"x": X7, "y": X7}}, EVERY + f"7{TIMES}."),
        (M * 7, M, {"known": {"x": X7}, "numbers": {"`n`": 7}}, EVERY + f"7{TIMES}."),
        (M * 2, M, {"known": {"x": X, "z": M * 2 + 1j}}, EVERY + f"2{TIMES}."),  # no root of 4
        (M * 3, M, {"known": {"x": X}, "factors": {"k": 3}}, EVERY + f"3{TIMES}; 3 is k."),
        (tensor([12.0]), tensor([4.0]), {"factors": {"k": 3}}, EVERY + f"3{TIMES}; 3 is k."),
        (M * 5, M, {"factors": {"k": 3, "one": 1, "none": 0}}, EVERY + f"5{TIMES}."),
        (M * 31.5, M, {"factors": {"k": 31, "m": 31.5}, "rtol": 0.1}, f"{EVERY}31.5{TIMES}; 31.5 is m."),
        (X, X * 2, {"known": {"m": M, "x": X}}, "The result is `x` itself."),
        (X.clone(), X * 2, {"known": {"m": M, "x": X}}, "The result has the values of `x`."),
        (X.long(), X * 2, {"known": {"x": X}}, "The result has the values of `x`."),
        (X, X[[0, 2, 1]] * 2, {"known": {"x": X + 0.5}}, ""),
        # In an arithmetic progression these are places, unless the factor was named for this very comparison.
        (X[:2], X[1:], {"known": {"x": X}}, ""),
        (X.flatten()[4:8], X.flatten()[4::2], {"known": {"x": X[:, ::3]}}, ""),
        (X[:2] + 0.5, X[:2], {"known": {"x": X}}, EVERY + "0.5 more than what was expected."),
        (X * 7, X, {"known": {"x": X, "z": X7}}, ""), (X * 3, X, {"known": {"x": M}}, EVERY + f"3{TIMES}."),
        (X * 7, X, {"known": {"x": X}, "factors": {"k": 7}}, EVERY + f"7{TIMES}; 7 is k."),
        (-X, X, {"known": {"x": X}}, NEGATIVE),
        (X * 0 + 1, X, {"known": {"mask": X > 0}}, EVERY + "1."),
        (put(X, 1, NAN), X, {"known": {"x": put(X, 1, 0)}},
         f"4 of 12 {OF} are NaN {IN_PLACE}, exactly where `x` is 0{OTHERS}"),
        (put(X, 1, INF), X, {"known": {"x": put(X, 2, 0)}},
         f"4 of 12 {OF} are infinite {IN_PLACE}{OTHERS}"),
        (put(X, 1, NAN), X.exp(), {"known": {"x": put(X, 1, -INF)}},
         f"4 of 12 {OF} are NaN {IN_PLACE}, exactly where `x` is -inf."),
        (X.T, X, {"what": "`w.grad`"}, "`w.grad` is what was expected, transposed."),
        (X * 2, X, {"what": "the gradient"}, f"Every element of the gradient is 2{TIMES}."),
        # The tolerance is that of the comparison; rounding is allowed for where something was computed.
        (M.T * (1 + 1e-4), M, {"rtol": 1e-3}, BUT + "transposed."),
        (M / 3, M.double() / 9, {"rtol": 0, "atol": 0}, EVERY + f"3{TIMES}."),
        (M * 1.65e-5, M * 5.5e-6, {"atol": 1e-5, "factors": {"k": 3}}, ""),
        (M.double() * 3 + 1e-5, M, {"rtol": 0, "atol": 1e-5, "factors": {"k": 3}},
         EVERY + f"3{TIMES}; 3 is k."),
        (V[[1, 0, 3, 2]] + 1e-3, V, {"rtol": 1e-2}, ""),  # near to the elements, in order, is not equal
        # What is said holds a hundred times more closely than the values differ.
        (tensor([3e-5, 1e-5, -1e-5, 2e-5]), tensor([1.5e-5, 0.0, 8e-6, 2.4e-5]), {"atol": 1e-5}, ""),
        (tensor([1e-5, 2e-5, 9e-5]), tensor([2e-5, 1.5e-5, 3e-5]), {"atol": 1e-5}, ""),  # the last one alone
        (tensor([2.0, 4, 1.3e-4, 1e-4]), tensor([1.0, 2, 1e-4, 1e-4]), {"atol": 1e-3}, ""),  # not every one
        (tensor([[2e-6, 5e-6]]), tensor([3e-6, 1e-6]), {"atol": 1e-5}, ""),
        (V * 1.01, V, {"like": {"own": V * 1.011}, "rtol": 2e-3, "atol": 0.0}, EVERY + f"1.01{TIMES}."),
        (V * 1.01, V, {"like": {"own": V * 1.01001}, "atol": 1e-4}, "The result is own."),
    ],
)  # fmt: skip
def test_names_and_tolerances_count(actual, expected, more, sentence):
    assert said(actual, expected, **more) == sentence


class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise RuntimeError("asked")


def test_nothing_is_raised():
    odd = [torch.zeros(0, 3), torch.ones(2, 3, device="meta"), M > 0, tensor([1j, -2.0]).conj(), None]
    odd += [torch.nn.Parameter(M), M.to(torch.float8_e4m3fn), tensor(NAN), M[None].expand(2, 3, 3), 3.0]
    odd += [torch.nested.nested_tensor([V, V[:2]], layout=torch.jagged), tensor([2**62, 1]), M.to_sparse()]
    known = {f"x{i}": x for i, x in enumerate(odd)}
    for a, e, names in itertools.product(odd, odd, ({}, known)):
        assert isinstance(said(a, e, known=names), str)
    assert said(torch.Tensor._make_subclass(Liar, M.T), M, known={"x": M.to_sparse()}) == BUT + "transposed."
    assert said(M.T.to_sparse(), M, known={"x": M}) == BUT + "transposed."
    assert said(tensor([2**62, 2**62 + 1]), tensor([2**62, 2**62 + 3])) == ""  # equal in double precision


@pytest.mark.parametrize(
    ("actual", "expected", "sentence"),
    [
        (6.0, 3.0, f"The loss is 2{TIMES}; 2 is the world size."),
        (1.5, 3, "The loss is 1/2 of what was expected; 2 is the world size."),
        (-7.5, 7.5, "The loss is the negative of what was expected."),
        (8, 7, "The loss is 1 more than what was expected."),
        (-1, 0, "The loss is 1 less than what was expected."),
        *((a, e, "") for a, e in [(7.7, 7), (7, 7.000001), (0, 5.0), (NAN, 1.0), (True, 2), (1e299, 1e-299)]),
    ],
)  # fmt: skip
def test_what_is_known_of_a_number_is_said(actual, expected, sentence):
    assert symptoms.of_number(actual, expected, what="the loss", factors={"the world size": 2}) == sentence


def test_right_values_of_another_dtype_are_not_told_as_another_value():
    like = {"the mean over the elements": V.double()}
    told = said(V, V.double(), like=like)
    assert told == "The values are right; the dtype is `torch.float32`, expected `torch.float64`."
    assert said(2 * V, V, like={"twice as much": 2 * V}) == "The result is twice as much."
