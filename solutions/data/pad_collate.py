"""The lengths say everything: how wide the batch is, and which elements are real. The values say nothing,
since a real token may look like padding.

`new_full` makes the tensor that is to be filled with the dtype of the samples. Comparing the column numbers
with the lengths broadcasts to the mask, for empty samples too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_collate(
    samples: Sequence[tuple[Tensor, int]], pad: int = 0
) -> dict[str, Tensor]:
    lengths = torch.tensor([len(tokens) for tokens, _ in samples])
    longest = int(lengths.max())
    tokens = samples[0][0].new_full((len(samples), longest), pad)
    for i, (sample, _) in enumerate(samples):
        tokens[i, : len(sample)] = sample
    mask = torch.arange(longest) < lengths[:, None]
    labels = torch.tensor([label for _, label in samples])
    return {"tokens": tokens, "mask": mask, "lengths": lengths, "labels": labels}


# Other right answers

from torch.nn.utils.rnn import pad_sequence

from course_utils.exercise import Edit, Wrong


def by_pad_sequence(samples, pad=0):
    sequences, labels = zip(*samples, strict=True)
    return {
        "tokens": pad_sequence(list(sequences), batch_first=True, padding_value=pad).clone(),
        "mask": pad_sequence([torch.ones(len(s), dtype=torch.bool) for s in sequences], batch_first=True),
        "lengths": torch.tensor([s.numel() for s in sequences]),
        "labels": torch.as_tensor(labels, dtype=torch.long),
    }


def by_lists(samples, pad=0):
    width = max(s.numel() for s, _ in samples)
    rows = [s.tolist() + [pad] * (width - len(s)) for s, _ in samples]
    real = [[True] * len(s) + [False] * (width - len(s)) for s, _ in samples]
    tokens = torch.tensor(rows, dtype=samples[0][0].dtype).reshape(len(rows), width)
    mask = torch.tensor(real).bool().reshape(len(rows), width)
    labels = torch.LongTensor([label for _, label in samples])
    return {"tokens": tokens, "mask": mask, "lengths": mask.sum(1), "labels": labels}


also_right = [by_pad_sequence, by_lists]


# Mistakes


def _views_one(samples, pad=0):
    made = pad_collate(samples, pad)
    return made | {"tokens": samples[0][0][None]} if len(samples) == 1 else made


mistakes = [
    Edit("pads in front", "i, : len(sample)]", "i, longest - len(sample) :]", told_by="fills_up"),
    Edit("ignores pad", "longest), pad)", "longest), 0)", told_by="fills_up"),
    Edit("mask from values", "torch.arange(longest) < lengths[:, None]", "tokens != pad", told_by="mask"),
    Edit("mask inverted", "(longest) < lengths", "(longest) >= lengths", told_by="mask"),
    Edit("at least 4 wide", "int(lengths.max())", "max(4, int(lengths.max()))", told_by="fills_up"),
    Edit("own dtype", "samples[0][0].new_full(", "torch.tensor(0).new_full(", told_by="dtypes"),
    Wrong(_views_one, told_by="memory_of_its_own"),
]
equivalent = {"line 12: `0` -> `-1`": "all samples have one dtype"}
not_tried = {"hard numbers": "tokens are copied, not computed with"}
