"""Document masks in blocks

Each row packs several documents. Of the last `window` tokens of its row, itself included, a token sees those
of its own document.

Return this mask for `flex_attention`: `flex_mask(document, window, block)` is a `BlockMask` with blocks of
`block` × `block`. `document[row, i]` is the number of token `i`'s document. A row has any length, and the
tokens of a document need not be neighbours.

- Rows differ. The blocks are listed once for all heads.
- A block is computed only if one of its pairs counts.
- A block whose pairs all count is a full block, for which `mask_mod` isn't called. Behind the last token no
  pair counts.

`flex_mask(torch.tensor([[0, 0, 1, 1]]), 4, 2)` computes 2 of its 4 blocks.
"""

import itertools
import warnings

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=15,
    hints=[
        "A `mask_mod` gets four indices, `b`, `h`, `q` and `kv`, and says whether this pair counts. Which "
        "of them does each condition read?",
        "The indices are tensors, so combine conditions with `&`, not with `and`. A `mask_mod` may read a "
        "tensor from outside, such as `document`.",
        "`create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device=…, BLOCK_SIZE=…)` finds the blocks. With "
        "`B=None` it looks at row 0 alone, and uses its blocks for all rows.",
    ],
)


@exercise.starter
def flex_mask(document: Tensor, window: int, block: int):
    """document: (rows, tokens); a BlockMask"""
    raise NotImplementedError


_DRAWN = {
    "one document": "torch.zeros(1, 64, device=device).long(), 64, 16",
    "a window": "torch.zeros(1, 64, device=device).long(), 20, 8",
    "a window of 1": "torch.zeros(1, 32, device=device).long(), 1, 8",
    "documents": "torch.arange(64, device=device).view(1, 64) // 24, 64, 8",
    "rows that differ": "torch.arange(96, device=device).view(2, 48) // 20, 30, 8",
    "not neighbours": "torch.arange(64, device=device).view(1, 64) // 8 % 3, 40, 8",
    "50 tokens": "torch.arange(50, device=device).view(1, 50) // 30, 12, 16",
    "17 tokens": "torch.zeros(1, 17, device=device).long(), 17, 16",
    "two in one block": "torch.tensor([[0, 2] * 4 + [1] * 8 + [2, 0] * 4], device=device), 24, 8",
    "ends that agree": "torch.tensor([[0, 1, 1, 0] * 8], device=device), 32, 4",
    "drawn": "torch.randint(2, (2, 42), device=device), 30, 4",
}
_CASES = {label: f"document, window, block = {code}" for label, code in _DRAWN.items()}
_CASES["drawn"] = f"torch.manual_seed(0)\n{_CASES['drawn']}"


def _truth(t):
    """Which pairs count: (rows, queries, keys)."""
    document, token = t.document.cpu(), torch.arange(t.document.shape[1])
    back = token[:, None] - token[None, :]
    return (document[:, :, None] == document[:, None, :]) & (back >= 0) & (back < t.window)


def _tiles(t):
    """The pairs that count, (rows, blocks, block, blocks, block). Those behind the end don't."""
    more = -t.document.shape[1] % t.block
    pairs = nn.functional.pad(_truth(t), (0, more, 0, more))
    blocks = pairs.shape[1] // t.block
    return pairs.view(-1, blocks, t.block, blocks, t.block)


def _made(t, device):
    with expect.left_alone(t.document, what="`document`"):
        t.run("mask = flex_mask(document, window, block)")
    told = f"the result is a `{type(t.mask).__name__}`"
    expect.true(isinstance(t.mask, BlockMask), told, "expected: a `BlockMask`")
    expect.equal(t.mask.kv_indices.device.type, device.type, what="the device of the mask")
    return t.mask


def _listed(t, mask, numbers, indices):
    """The blocks that a mask lists, (rows, blocks, blocks)."""
    expect.equal(tuple(mask.BLOCK_SIZE), (t.block, t.block), what="`BLOCK_SIZE`")
    rows, blocks = _tiles(t).shape[:2]
    found = torch.zeros(rows, blocks, blocks, dtype=torch.bool)
    if numbers is not None:
        heads = numbers.shape[1]
        expect.true(heads == 1, f"the blocks are listed for {heads} heads", "expected: once, for all of them")
        for row, i in itertools.product(range(rows), range(blocks)):
            at = min(row, len(numbers) - 1), 0, i  # one row stands for all
            found[row, i, indices[at][: numbers[at]].long().cpu()] = True
    return found


def _for_all(mask, rows):
    """A line for what lists its blocks once, for several rows."""
    once = rows > 1 and len(mask.kv_num_blocks) == 1
    return [f"the blocks are listed once, for {rows} rows"] * once


def _first(blocks):
    row, i, j = blocks.nonzero()[0].tolist()
    return f"{int(blocks.sum())} blocks; the first: row {row}, block [{i}, {j}]"


@exercise.check(isolated=True, deadline=60, cases=_CASES)
def pairs(t, device):
    """The right pairs count

    `mask_mod` gets indices and says whether a query sees a key. Indices count the tokens of the row, and so
    does the window, whatever lies between. Two tokens are of one document if their numbers are equal, with
    others between them too.
    """
    mask, (rows, tokens) = _made(t, device), t.document.shape
    found = create_mask(mask.mask_mod, rows, 1, tokens, tokens, device=device)
    expect.equal(found[:, 0].cpu(), _truth(t), what="`mask_mod(row, 0, query, key)`")


@exercise.check(isolated=True, deadline=60, cases=_CASES)
def blocks_computed(t, device):
    """A block is computed if one of its pairs counts, and no other is

    A block that isn't listed is neither loaded nor computed: this is what a `BlockMask` saves. With more
    blocks the result is the same, and with fewer it is wrong. The first and the last document of a block
    don't say which others it holds.
    """
    mask, needed = _made(t, device), _tiles(t).any(4).any(2)
    more_told = _for_all(mask, len(needed))
    found = _listed(t, mask, mask.kv_num_blocks, mask.kv_indices)
    found |= _listed(t, mask, mask.full_kv_num_blocks, mask.full_kv_indices)
    if (lost := needed & ~found).any():
        raise expect.Mismatch(f"left out: {_first(lost)}", "expected: all in which a pair counts", *more_told)
    told = f"computed: {int(found.sum())} blocks; {int(needed.sum())} would do"
    if (more := found & ~needed).any():
        raise expect.Mismatch(told, f"no pair counts in {_first(more)}", *more_told)


@exercise.check(isolated=True, deadline=60, cases=_CASES)
def full_blocks(t, device):
    """A block is full where all of its pairs count, and no other is

    In a full block the compiled kernel doesn't call `mask_mod`. In the others it does, for each pair. The
    corners of a block don't say what holds inside. A block that reaches behind the last token isn't full.
    """
    mask, whole = _made(t, device), _tiles(t).all(4).all(2)
    full = _listed(t, mask, mask.full_kv_num_blocks, mask.full_kv_indices)
    partial = _listed(t, mask, mask.kv_num_blocks, mask.kv_indices)
    for blocks, told in (
        (full & ~whole, "full, though not all of their pairs count"),
        (whole & ~full, "not full, though all of their pairs count"),
        (full & partial, "listed twice, as full and as partial"),
    ):
        told = f"{told}: {_first(blocks) if blocks.any() else ''}"
        expect.true(not blocks.any(), told, *_for_all(mask, len(whole)))


@exercise.check(isolated=True, deadline=60, cases=_CASES)
def attention(t, device):
    """`flex_attention` gives what attention with the dense mask gives

    A `BlockMask` belongs to one length, `seq_lengths`, which needn't be a multiple of the block: what the
    last block holds behind the end is left out.
    """
    mask = _made(t, device)
    t.run("torch.manual_seed(0)\nshape = 3, len(document), 2, document.shape[1], 8")
    t.run("q, k, v = torch.randn(shape, device=device)")
    with warnings.catch_warnings():  # it says that it isn't compiled, which isn't what is taught
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        found = flex_attention(t.q, t.k, t.v, block_mask=mask)
    pairs = _truth(t)[:, None].to(device)
    wanted = nn.functional.scaled_dot_product_attention(t.q, t.k, t.v, attn_mask=pairs)
    expect.close(found, wanted, what="`flex_attention(q, k, v, block_mask=mask)`")
