"""Batches of unequal lengths

`samples` is a list of pairs: a 1-D tensor of tokens, and a label, a Python integer. Return a
dictionary:

- `tokens`: a row for each sample, filled up at its end with `pad`, as wide as the longest sample of this
  batch. The dtype is that of the samples.
- `mask`: the same shape, boolean. `True` where a token of the sample stands, whatever its value.
- `lengths` and `labels`: int64 tensors.

A sample may be empty. The result has memory of its own: writing to it changes no sample.

`pad_collate([(torch.tensor([5, 0]), 1), (torch.tensor([7]), 3)])` → tokens `[[5, 0], [7, 0]]`, mask
`[[True, True], [True, False]]`, lengths `[2, 1]`, labels `[1, 3]`
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "Where can you know from which elements are padding? The values can't tell you.",
        "Make a tensor that is full of the padding, in the dtype of the samples (`new_full`), and write each "
        "sample to the beginning of its row.",
        "The mask is a comparison: column numbers as a row against lengths as a column.",
    ],
)


@exercise.starter
def pad_collate(
    samples: Sequence[tuple[Tensor, int]], pad: int = 0
) -> dict[str, Tensor]:
    """n pairs of (length,) and a label -> (n, longest) twice, (n,) twice"""
    raise NotImplementedError


def _given(pad_collate, *samples, dtype=""):
    parts = ", ".join(f"(torch.tensor({list(tokens)}{dtype}), {label})" for tokens, label in samples)
    return expect.given(f"samples = [{parts}]", pad_collate=pad_collate)


def _batch(t, call="pad_collate(samples)"):
    """The result of a call, a dictionary with the four names."""
    batch = t.call(call)
    expect.true(isinstance(batch, dict), f"the result is a {type(batch).__name__}, expected a dictionary")
    keys = ["labels", "lengths", "mask", "tokens"]
    expect.equal(sorted(batch), keys, what="the keys of the result, sorted,")
    return {name: expect.a_tensor(batch[name], what=f'`["{name}"]`') for name in keys}


@exercise.check
def fills_up(pad_collate):
    """Each row is its sample, filled up at the end

    `tokens` is one dense tensor, so all its rows have one length. What is added has a value too: `pad` says
    which. An empty sample has a row like the others, of padding alone: its label is in the batch too.
    """
    t = _given(pad_collate, ([1, 2, 3], 4), ([5], 0), ([6, 7], 2))
    batch = _batch(t, "pad_collate(samples, pad=9)")
    expect.equal(batch["tokens"], torch.tensor([[1, 2, 3], [5, 9, 9], [6, 7, 9]]), what='`["tokens"]`')
    expect.equal(batch["labels"].tolist(), [4, 0, 2], what='`["labels"].tolist()`')
    expect.equal(batch["lengths"].tolist(), [3, 1, 2], what='`["lengths"].tolist()`')
    tokens = _batch(_given(pad_collate, ([1, 2, 3], 4), ([5], 0), ([6, 7], 2)))["tokens"]
    expect.equal(tokens, torch.tensor([[1, 2, 3], [5, 0, 0], [6, 7, 0]]), what='`["tokens"]`')
    batch = _batch(_given(pad_collate, ([1, 2], 3), ([], 4), dtype=", dtype=torch.int64"))
    expect.equal(batch["tokens"].tolist(), [[1, 2], [0, 0]], what='`["tokens"].tolist()`')


@exercise.check(
    cases={
        "unequal lengths": [([1, 2, 3], 0), ([4], 0)],
        "real tokens with the value of the padding": [([0, 1, 0], 0), ([0], 1)],
        "an empty sample": [([1, 2], 0), ([], 0)],
    }
)
def mask(pad_collate, samples):
    """The mask says what is real, by length and not by value

    A real token may have the value of the padding. What is compared with `pad` takes it for padding. `True`
    stands for real, as the task says.
    """
    batch = _batch(_given(pad_collate, *samples, dtype=", dtype=torch.int64"))
    longest = max(len(tokens) for tokens, _ in samples)
    wanted = [[i < len(tokens) for i in range(longest)] for tokens, _ in samples]
    expect.equal(batch["mask"], torch.tensor(wanted), what='`["mask"]`')


@exercise.check(cases={"up to 6": (6, 2), "up to 3, after it": (3, 1), "all empty": (0, 0)})
def longest_of_this_batch(pad_collate, lengths):
    """A batch is as wide as its own longest sample

    A column of padding takes as much memory as one of tokens. A width for all batches is the width of the
    worst one.
    """
    samples = [([1] * length, 0) for length in lengths]
    batch = _batch(_given(pad_collate, *samples, dtype=", dtype=torch.int64"))
    for name in ("tokens", "mask"):
        shape = tuple(batch[name].shape)
        expect.equal(shape, (2, max(lengths)), what=f'the shape of `["{name}"]`')
    expect.equal(batch["lengths"].tolist(), list(lengths), what='`["lengths"].tolist()`')


@exercise.check(
    cases=[("int32", 2**31 - 1), ("uint8", 255), ("int64", 2**62 + 1), ("float64", 0.1)],
)
def dtypes(pad_collate, dtype, token):
    """The tokens keep their dtype; lengths and labels are int64

    Without a `dtype`, `torch.zeros` and `torch.full` choose one of their own. `t.new_full` takes that of `t`.
    A large integer may be rounded on a way through float32. `F.cross_entropy` takes class numbers as int64.
    """
    batch = _batch(_given(pad_collate, ([1, token], 1), ([3], 0), dtype=f", dtype=torch.{dtype}"))
    told = f"{batch['tokens'][0, 1].item()!r} stands for the token {token!r}"
    expect.true(batch["tokens"][0, 1].item() == token, told, "expected: the same number")
    int64 = {"labels": "torch.int64", "lengths": "torch.int64"}
    for name, wanted in (int64 | {"mask": "torch.bool", "tokens": f"torch.{dtype}"}).items():
        expect.equal(str(batch[name].dtype), wanted, what=f'the dtype of `["{name}"]`')


@exercise.check(cases=[[([1, 2], 0)], [([1, 2], 0), ([3, 4], 1)], [([1, 2, 3], 0), ([4], 1)]])
def memory_of_its_own(pad_collate, samples):
    """Neither the call nor a write to the batch changes a sample

    A dataset may hand out views of what it keeps. What pads a sample in place changes the dataset, and so
    does a model that writes to a batch that is a view. One sample alone needs no padding, and is a view all
    too easily.
    """
    t = _given(pad_collate, *samples)
    t.run("tokens = [tokens for tokens, _ in samples]")
    with expect.left_alone(t.tokens, what="`tokens`"):
        batch = _batch(t)
    for i, (tokens, _) in enumerate(t.samples):
        expect.own_storage(batch["tokens"], tokens, what='`["tokens"]`', of=f"`samples[{i}][0]`")
