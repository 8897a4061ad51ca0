"""`mask_mod` says of one pair whether it counts. `create_block_mask` asks it about all of them, and lists the
blocks in which some count, and those in which all do. It does so for each row, since documents differ.
"""

from torch.nn.attention.flex_attention import create_block_mask


def flex_mask(document, window, block):
    rows, tokens = document.shape

    def counts(b, h, q, kv):
        same = document[b, q] == document[b, kv]
        return same & (kv <= q) & (q - kv < window)

    where = document.device
    return create_block_mask(
        counts, rows, None, tokens, tokens, device=where, BLOCK_SIZE=block
    )


# Other right answers

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, and_masks

from course_utils.exercise import Edit, Wrong


def _of_three(document, window, block):
    def causal(b, h, q, kv):
        return q >= kv

    def near(b, h, q, kv):
        return kv > q - window

    def same(b, h, q, kv):
        return document[b, q].eq(document[b, kv])

    rows, tokens = document.shape
    every = and_masks(causal, near, same)
    return create_block_mask(every, rows, 1, tokens, tokens, document.device, (block, block))


def _by_hand(document, window, block, twice=False, edge=0):
    rows, tokens = document.shape
    at = torch.arange(tokens, device=document.device)
    back = at[:, None] - at[None, :]
    pairs = (document[:, None, :, None] == document[:, None, None, :]) & (back >= 0) & (back < window)
    more = -tokens % block
    tiles = nn.functional.pad(pairs, (0, more, 0, more)).unflatten(3, (-1, block)).unflatten(2, (-1, block))
    some, every = tiles.any(5).any(3), tiles.all(5).all(3)
    partial = some if twice else some & ~every

    def listed(blocks):
        order = blocks.int().argsort(dim=-1, descending=True, stable=True).int()
        return blocks.sum(-1, dtype=torch.int32), order

    def counts(b, h, q, kv):
        return pairs[b, 0, q, kv]

    lengths = (tokens + edge * more,) * 2
    return BlockMask.from_kv_blocks(
        *listed(partial), *listed(every), BLOCK_SIZE=block, mask_mod=counts, seq_lengths=lengths
    )


also_right = [_of_three, _by_hand]


# Mistakes


def _padded(document, window, block):
    return _by_hand(document, window, block, edge=1)


def _twice(document, window, block):
    return _by_hand(document, window, block, twice=True)


def _never_smaller(document, window, block):
    mask = flex_mask(document, window, block)
    rows, tokens = document.shape
    causal = create_block_mask(lambda b, h, q, kv: kv <= q, rows, None, tokens, tokens, "cpu", block)
    causal.mask_mod = mask.mask_mod
    return causal


_WAYS = "(q - kv < window)"

mistakes = [
    Edit("one more", _WAYS, "(q - kv <= window)", told_by="pairs"),
    Edit("both ways", "(kv <= q) & ", "", told_by="pairs"),
    Edit("the first row's documents", "document[b, q] ==", "document[0, q] ==", told_by="pairs"),
    Edit("the blocks of one row", "counts, rows,", "counts, None,", told_by="blocks_computed"),
    Edit("blocks of 128", ", BLOCK_SIZE=block", "", told_by="blocks_computed"),
    Wrong(_never_smaller, told_by="blocks_computed"),
    Wrong(_twice, told_by="full_blocks"),
    Wrong(_padded, told_by="attention"),
]

equivalent = {
    "line 12: `create_block_mask(counts, rows, None, tokens, tokens, device=where, BLOCK_SIZE=block)` -> "
    "`create_block_mask(counts, rows, None, tokens, tokens, BLOCK_SIZE=block)`": "the CPU, without a GPU",
}
not_tried = {
    "hard numbers": "a number of a document is compared, and nothing else",
    "dtypes": "numbers of documents are whole",
    "seeds": "no element of the mask is drawn",
}
