"""Attention with several heads

Attention from queries `q`, `(batch, n, width)`, to keys `k` and values `v`, `(batch, m, width)`. Each head
has `width / heads` neighbouring columns of all three, the first head the first ones. It attends with them
alone, and its result stands in the same columns.

- `mask`, of two or four dimensions, broadcasts to `(batch, heads, n, m)`. A boolean one is True where a query
  sees a key; floats are added to the scores.
- In training, each weight is dropped with probability `dropout` and the others divided by `1 - dropout`; in
  evaluation none is.
- `need_weights=True` returns `(output, weights)`: each head's, from before the dropout. Otherwise return the
  output alone, which in evaluation on a CPU comes from SDPA's flash kernel.

`torch.ones(1, 3, 4)` for all three returns ones.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from course_utils import measure
from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import numbers

exercise = Exercise(
    minutes=13,
    core=True,
    hints=[
        "Cut the last dimension in two, heads and what each of them has. Which dimensions must then change "
        "places, so that the scores of a head are a matrix of queries by keys?",
        "SDPA takes `(batch, heads, n, d)`, either kind of mask and `dropout_p`, and returns no weights. For "
        "these you need the scores, with the mask in them before the softmax. What does `dropout_p` know of "
        "the mode?",
        "`unflatten` and `transpose(1, 2)` on the way in, `transpose(1, 2)` and `flatten(2)` on the way out, "
        "once for both ways of computing. By hand: `masked_fill` with `-math.inf` where a boolean mask is "
        "False, a sum where it holds floats, and the `d` in the root is the head's.",
    ],
)


@exercise.starter
def multi_head_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    training: bool = False,
    need_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """(batch, n, width), twice (batch, m, width) -> (batch, n, width)"""
    raise NotImplementedError


_NEAR = {"rtol": 1e-4, "atol": 1e-5}
_SETUP = """
torch.manual_seed(0)
q, k, v = (torch.randn(2, n, 12) for n in (4, 5, 5))
"""


def _by_sdpa(t, heads, value=None, **more):
    """What SDPA returns in float64, `(batch, heads, n, ...)`; for `value`, that in the place of `v`."""
    q, k, v = (torch.stack(x.detach().double().chunk(heads, -1), 1) for x in (t.q, t.k, t.v))
    if more.get("attn_mask") is not None and more["attn_mask"].is_floating_point():
        more["attn_mask"] = more["attn_mask"].double()
    return F.scaled_dot_product_attention(q, k, v if value is None else value, **more)


def _output(t, heads, **more):
    return torch.cat(_by_sdpa(t, heads, **more).unbind(1), -1).to(t.q.dtype)


def _in_turn(t):
    """What comes of the columns h, h + heads, ... for head h."""
    q, k, v = (x.double().unflatten(-1, (-1, t.heads)).permute(0, 3, 1, 2) for x in (t.q, t.k, t.v))
    return F.scaled_dot_product_attention(q, k, v).permute(0, 2, 3, 1).flatten(2).to(t.q.dtype)


def _weights(t, heads, **more):
    """The weights: what attention returns for the unit vectors as values."""
    unit = torch.eye(t.k.shape[1], dtype=torch.float64, device=t.k.device)
    value = unit.expand(len(t.k), heads, -1, -1)
    return _by_sdpa(t, heads, value, **more).to(t.q.dtype)


def _expect_both(t, options, wanted, weights, like=None, near=_NEAR):
    """The output, as asked for alone and with the weights."""
    with expect.left_alone([t.q, t.k, t.v], what="`q`, `k` or `v`"):
        alone = t.call(f"multi_head_attention(q, k, v, {options})")
    expect.equal(_detached(alone), wanted, like=like, **near)
    output, found = _pair(t, f"multi_head_attention(q, k, v, {options}, need_weights=True)")
    expect.equal(_detached(output), wanted, what="the output", like=like, **near)
    expect.equal(_detached(found), weights, what="`weights`", **near)


def _pair(t, code):
    found = t.call(code)
    told = f"the result is {expect.show(found)}"
    expect.true(isinstance(found, tuple) and len(found) == 2, told, "expected: `(output, weights)`")
    return found


def _detached(found):
    return expect.a_tensor(found).detach()


@exercise.check(
    given=f"{_SETUP}q, k, v = q.to(device), k.to(device), v.to(device)",
    cases={"1 head": "heads = 1", "2 heads": "heads = 2", "3 heads": "heads = 3"},
)
def heads(t, device):
    """Each head has its own columns, of the queries, of the keys and of the values

    `(batch, n, width)` holds the heads of one row side by side. A `view` as `(batch, heads, n, d)` has the
    shape that attention wants, but cuts the rows of memory in another order: a head would get all columns of
    a part of the numbers. So `n` and `heads` change places after the cut, and again before the output is
    joined. The columns of a head are neighbours, so `heads` is the first of the two that the width is cut
    into.
    """
    d = 12 // t.heads
    cut = [x.reshape(2, t.heads, -1, d) for x in (t.q, t.k, t.v)]
    wrong = F.scaled_dot_product_attention(*cut)
    unturned = _by_sdpa(t, t.heads).to(t.q.dtype).reshape(2, 4, 12)
    like = {
        "what comes of a view as `(batch, heads, n, d)`": wrong.reshape(2, 4, 12),
        "what comes of columns dealt out to the heads in turn": _in_turn(t),
        "what comes of heads that are joined without a transpose": unturned,
        "what comes of scores over the root of `width`": _output(t, t.heads, scale=12**-0.5),
    }
    like = like if t.heads > 1 else {}
    with expect.left_alone([t.q, t.k, t.v], what="`q`, `k` or `v`"):
        found = t.call("multi_head_attention(q, k, v, heads)")
    expect.equal(_detached(found), _output(t, t.heads), like=like, **_NEAR)


@exercise.check(
    given=f"{_SETUP}{{}}".format,
    cases={
        "float32": "",
        "float64": "q, k, v = q.double(), k.double(), v.double()",
        **{
            label: f"q = {code}"
            for label, code in numbers.hard("2, 4, 12", "large numbers", "a tiny scale").items()
        },
    },
)
def scores(t):
    """The scores are divided by the root of the head's width, and `softmax` goes over the keys

    A dot product of `d` independent numbers with mean 0 and variance 1 has the variance `d`. What one head
    sums over is its own `d`, not `width`: divided by too much, the weights come closer to each other.
    `softmax` subtracts the largest score before it takes `exp`, which would be inf for large ones.
    """
    like = {"what comes of scores over the root of `width`": _output(t, 3, scale=12**-0.5)}
    _expect_both(t, "3, training=True", _output(t, 3), _weights(t, 3), like)


_SEEN = {
    "causal": "mask = torch.ones(4, 5, dtype=torch.bool).tril()",
    "padding": "mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()[:, None, None]",
    "one for each head": "mask = torch.rand(2, 3, 4, 5) < 0.6\nmask[..., 0] = True",
}


@exercise.check(given=_SETUP, cases=_SEEN)
def boolean_masks(t):
    """A boolean mask is True where a query sees a key, and acts before the softmax

    Weights that are set to 0 after the softmax no longer sum to 1: what the hidden keys had is missing.
    Beside finite scores one of -inf becomes a weight of 0, and the others share all of it. SDPA takes True
    for "sees"; `nn.MultiheadAttention` takes True for "is hidden".
    """
    cut = (_weights(t, 3) * t.mask) @ torch.stack(t.v.chunk(3, -1), 1)
    like = {"what comes of weights that are set to 0 after the softmax": torch.cat(cut.unbind(1), -1)}
    if not (~t.mask).all(-1).any() and (~t.mask).any(-1).all():
        like["what comes of the opposite mask"] = _output(t, 3, attn_mask=~t.mask)
    more = {"attn_mask": t.mask}
    with expect.left_alone(t.mask, what="`mask`"):
        _expect_both(t, "3, mask", _output(t, 3, **more), _weights(t, 3, **more), like)


@exercise.check(
    given=_SETUP,
    cases={
        "a distance": "mask = -0.5 * (torch.arange(4.)[:, None] - torch.arange(5.)).abs()",
        "zeros and -inf": "mask = torch.full((4, 5), -float('inf')).triu(1)",
        "one for each head": "mask = -torch.rand(1, 3, 1, 5)",
    },
)
def float_masks(t):
    """A mask of floats is added to the scores

    A number that is added to a score multiplies the weight by its `exp`, before all are divided by their sum:
    0 changes nothing, -inf hides the key. Relative positions come in this way. It broadcasts: `(1, 3, 1, 5)`
    is one row for each of three heads.
    """
    more = {"attn_mask": t.mask}
    with expect.left_alone(t.mask, what="`mask`"):
        _expect_both(t, "3, mask", _output(t, 3, **more), _weights(t, 3, **more))


@exercise.check(given=_SETUP, cases={"0.5": "dropout = 0.5", "0.9": "dropout = 0.9"})
def evaluation(t):
    """In evaluation nothing is dropped

    SDPA is a function and knows no mode: it drops what `dropout_p` says. `F.dropout` has an argument
    `training`, which is True unless you say otherwise.
    """
    _expect_both(t, "3, dropout=dropout", _output(t, 3), _weights(t, 3))


@exercise.check(
    given="""
        torch.manual_seed({})
        q, k = torch.randn(2, 9, 32), torch.randn(2, 8, 32)
        v = torch.eye(8).repeat(2, 1, 4)
    """.format,
    cases={f"seed {seed}": seed for seed in numbers.SEEDS},
)
def dropped(t):
    """In training single weights are dropped, and the others scaled up

    Each head has the unit vectors as values, twice side by side. So its output is the dropped weights
    themselves, twice the same: a weight is 0 or `1 / (1 - dropout)` times itself, and one that is dropped is
    missing in both. The weights that are returned are those from before: rows that sum to 1.
    """
    weights = _weights(t, 2)
    code = "multi_head_attention(q, k, v, 2, dropout=0.25, training=True{})"
    alone = _detached(t.call(code.format("")))
    output, found = _pair(t, code.format(", need_weights=True"))
    expect.equal(_detached(found), weights, what="`weights`", **_NEAR)
    for what, one in (("alone", alone), ("with weights", _detached(output))):
        expect.true(one.shape == (2, 9, 32), f"the output {what} has the shape {tuple(one.shape)}")
        gone = one.unflatten(-1, (2, 2, 8))[..., 0, :] == 0  # (batch, n, heads, m)
        share = gone.float().mean().item()
        told = f"of the weights in the output {what}, {share:.0%} are 0"
        expect.true(0.1 < share < 0.4, told, "expected: about 25%")
        wanted = torch.where(gone, 0.0, weights.transpose(1, 2) / 0.75)
        wanted = wanted.unsqueeze(3).expand(-1, -1, -1, 2, -1).flatten(2)
        expect.equal(one, wanted, what=f"the output {what}", **_NEAR)
        for dim, of in enumerate(("rows of the batch", "queries", "heads")):
            alike = bool((gone == gone.narrow(dim, 0, 1)).all())
            told = f"in the output {what} all {of} lose the same weights"
            expect.true(not alike, told, "expected: each weight is dropped by itself")


@exercise.check(
    given=f"from torch.nn.attention import SDPBackend, sdpa_kernel\n{_SETUP}",
    cases={"no mask": "mask = None", **_SEEN, "a mask of floats": "mask = torch.zeros(4, 5)"},
)
def kernel(t):
    """In evaluation the flash kernel computes the output

    SDPA is one name for several kernels. `sdpa_kernel` leaves it the flash kernel alone, and SDPA raises
    where the arguments rule that out, as a `dropout_p` above 0 does on a CPU, or tensors of three dimensions.
    Products and a softmax of your own are several operators, with the matrix of weights between them.
    """
    head = torch.ones(2, 3, 4, 4)
    with measure.operators() as ran:
        F.scaled_dot_product_attention(head, head, head)
    name = next((name for name in ran.names if "flash" in name), None)
    if name is None:
        raise expect.CannotCheck("SDPA has no flash kernel for the CPU here")
    with measure.operators() as ran:
        t.run(
            "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n"
            "    multi_head_attention(q, k, v, 3, mask, dropout=0.5)"
        )
    expect.true(name in ran.names, f"`{name}` did not run", "expected: the output comes from it")
