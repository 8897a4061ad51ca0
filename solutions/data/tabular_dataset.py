"""`torch.from_numpy` makes a tensor over the memory of the array. Indexing it with `i` gives a view, so
nothing is copied before somebody looks.

`.to` after the index converts one row, and returns the view itself where the dtype fits. `IndexError` comes
from the tensor's own bounds.
"""

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class TabularDataset(Dataset):
    def __init__(self, features: np.ndarray, labels: np.ndarray) -> None:
        self.features = torch.from_numpy(features)
        self.labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.features[i].to(torch.float32), self.labels[i].to(torch.int64)

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        rows = self.features[indices].to(torch.float32)
        return list(zip(rows, self.labels[indices].to(torch.int64), strict=True))


# Other right answers

from course_utils.exercise import Edit, Wrong


class KeepsArrays(Dataset):
    def __init__(self, features, labels):
        self.features, self.labels = features, labels

    def __len__(self):
        return self.labels.shape[0]

    def __getitem__(self, i):
        row = np.asarray(self.features[i], dtype=np.float32)
        return torch.from_numpy(row), torch.tensor(int(self.labels[i]))

    def __getitems__(self, indices):
        rows = torch.from_numpy(self.features[indices].astype(np.float32))
        labels = torch.tensor(self.labels[indices], dtype=torch.int64)
        return [(rows[k], labels[k]) for k in range(len(indices))]


class Selects(Dataset):
    def __init__(self, features, labels):
        self.columns = torch.as_tensor(features), torch.as_tensor(labels)

    def __len__(self):
        return self.columns[0].size(0)

    def __getitem__(self, i):
        row, label = (column.select(0, i) for column in self.columns)
        return row.float(), label.long()

    def __getitems__(self, indices):
        rows, labels = (column.index_select(0, torch.tensor(indices)) for column in self.columns)
        return list(zip(rows.float().unbind(), labels.long().unbind(), strict=True))


also_right = [KeepsArrays, Selects]


# Mistakes


class WrapsAround(TabularDataset):
    def __getitem__(self, i):
        i = i % len(self.features)
        return self.features[i].to(torch.float32), self.labels[i].to(torch.int64)


class ConvertsFirst(TabularDataset):
    def __getitem__(self, i):
        return self.features.to(torch.float32)[i], self.labels[i].to(torch.int64)


class OneByOne(KeepsArrays):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class GivesABatch(TabularDataset):
    def __getitems__(self, indices):
        return self.features[indices].to(torch.float32), self.labels[indices].to(torch.int64)


mistakes = [
    Edit("keeps float64", "self.features[i].to(torch.float32)", "self.features[i]", told_by="items"),
    Wrong(WrapsAround, told_by="has_an_end"),
    Edit("copies the table", "from_numpy(features)", "tensor(features)", told_by="shows_writes"),
    Edit(
        "copies the row", "[i].to(torch.float32)", "[i].to(torch.float32).contiguous()", told_by="is_a_view"
    ),
    Wrong(ConvertsFirst, told_by="one_row_at_a_time"),
    Wrong(GivesABatch, told_by="serves_a_batch"),
    Wrong(OneByOne, told_by="serves_a_batch"),
    Edit("by row", "return list", "return [self[i] for i in indices] or list", told_by="serves_a_batch"),
]
equivalent = {
    "line 20: `zip(rows, self.labels[indices].to(torch.int64), strict=True)` -> "
    "`zip(rows, self.labels[indices].to(torch.int64))`": "as many rows as labels were indexed",
    "line 20: `True` -> `False`": "as many rows as labels were indexed",
}
not_tried = {"hard numbers": "numbers are converted, not computed with"}
