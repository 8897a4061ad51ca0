"""Keep the products that cost much

Each number in the product of an n × k and a k × m matrix costs k multiplications, and in float32 takes
four bytes whatever k is. Write a policy for `create_selective_checkpoint_contexts`:

- It keeps the results of the operators `mm`, `addmm`, `bmm` and `baddbmm` whose k is at least 32.
- Everything else is recomputed, products in other operators too.

`args` are the operator's arguments, with the two matrices at the end. All four come as their overload
`default`.

`selective_policy(ctx, torch.ops.aten.mm.default, torch.ones(2, 64), torch.ones(64, 3))` → `MUST_SAVE`
"""

from typing import Any

from torch.utils.checkpoint import CheckpointPolicy

from course_utils import measure
from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=12,
    hints=[
        "Print `op, [type(a) for a in args]` in the policy. Is `torch.ops.aten.mm` the same object as `op`?",
        "In `addmm` and `baddbmm` what is added comes first. Look at arguments once you know the operator.",
        "`op in (torch.ops.aten.mm.default, …)`, and then `args[-2].size(-1)` is k.",
    ],
)


@exercise.starter
def selective_policy(ctx, op, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    raise NotImplementedError


_RUN = """
from functools import partial
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
chosen = partial(create_selective_checkpoint_contexts, selective_policy)
def forward():
    return checkpoint(f, x, use_reentrant=False, context_fn=chosen)
"""
_OTHER = "x = torch.rand(64, 64, device=device, requires_grad=True)\ndef f(x):\n    return "
_OTHERS = {  # and how many products run again
    "`cat`": ("torch.cat([x, x]).sin().exp()", 0),
    "`arange`": ("(x.flatten() * torch.arange(4096., device=device)).sin()", 0),
    "`lgamma`": ("torch.lgamma(x.exp()).sin()", 0),
    "`conv1d`": ("F.conv1d(x, x[:, :, None]).sin()", 0),
    "`mv`": ("(x @ x[0]).sin()", 1),
    "`addbmm`": ("torch.addbmm(x, x[None], x[None]).sin()", 1),
}


def _product(name, n, k, m):
    """Code of a product, and of an operator that needs its result in backward."""
    batch = "2, " if name.startswith("b") else ""
    added = "torch.rand(m, device=device), " if "add" in name else ""
    return f"""
n, k, m = {n}, {k}, {m}
x = torch.rand({batch}n, k, device=device)
w = torch.rand({batch}k, m, device=device, requires_grad=True)
def f(x):
    return torch.{name}({added}x, w).sin()
"""


def _expect(t, kept, again):
    """A forward keeps so many bytes, and backward runs so many products again."""
    t.run(_RUN)
    with measure.operators() as plain:
        t.f(t.x).sum().backward()
    with measure.operators() as ops:
        t.run("forward().sum().backward()")
    ran = ops.matmuls("backward") - plain.matmuls("backward")
    expect.equal(ran, again, what="the number of products that ran again in backward")
    live = measure.live_bytes(t.forward)
    expect.equal(live.held - live.result, kept, what="the number of bytes made in `forward()` and kept")


@exercise.check(cases={f"`{name}`": _product(name, 8, 64, 24) for name in ("mm", "addmm", "bmm", "baddbmm")})
def dear_products(t, device):
    """The result of each of the four is kept, and not computed again

    A policy gets overloads: `torch.ops.aten.mm.default` isn't equal to `torch.ops.aten.mm`. k is the size
    that the two matrices share; n and m don't count. The first argument of `addmm` is a bias, and the first
    dimension in `bmm` the batch.
    """
    _expect(t, 4 * t.n * t.m * (len(t.x) if t.x.dim() == 3 else 1), 0)


@exercise.check(
    cases={
        f"`{name}` with k = {k}": (_product(name, 48, k, 40), 4 * 48 * 40 * (k == 32))
        for name, k in [("mm", 4), ("mm", 31), ("mm", 32), ("addmm", 31), ("bmm", 31), ("baddbmm", 31)]
    }
)
def short_sums(t, kept, device):
    """With k = 31 a product is computed again, with 32 kept, whatever its size

    A number of the result costs a sum of k products. The outer sizes don't count, nor what was decided for
    another call: one operator comes with many sizes.
    """
    _expect(t, kept, int(not kept))


@exercise.check(given=lambda result, _: _OTHER + result, cases=_OTHERS)
def everything_else(t, again, device):
    """What other operators return is not kept

    The policy is also asked about operators without a tensor among their arguments (`arange`), and about some
    whose first argument is a list (`cat`). Names mislead: there is an `mm` in `lgamma` and in `addbmm` too.
    """
    _expect(t, 0, again)
