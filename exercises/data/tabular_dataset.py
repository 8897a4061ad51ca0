"""A table without a copy

Write a map-style dataset over NumPy arrays of positive strides: `features` (rows, columns), `labels` (rows,).

- Item `i` is a pair: row `i` of the features as a float32 tensor, and its label as a 0-d int64 tensor. -1 is
  the last item. An index past either end raises `IndexError`.
- Nothing is copied when the dataset is made: a later write to an array shows in the items. `data[i]` of
  float32 features is a view of the array. Other dtypes are converted on reading, that row alone.
- `__getitems__(indices)`, which a loader calls for a batch, returns a list of the items, and indexes each
  array once.

`TabularDataset(np.ones((5, 2)), np.arange(5))[3]` → `(tensor([1., 1.]), tensor(3))`
"""

import tracemalloc

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect
from course_utils.measure.modes import Watch

exercise = Exercise(
    minutes=10,
    hints=[
        "Which call makes a tensor over the memory of an array? And what does indexing a tensor give?",
        "`tensor.to(dtype)` returns the tensor itself if it has that dtype. Apply it to the row, not to the "
        "table. A tensor can be indexed with a list, too.",
        "Keep two tensors made by `torch.from_numpy`. An item is an indexed row and an indexed label, each "
        "taken to its dtype. For a batch do the same with the list of indices, then pair rows with labels.",
    ],
)


@exercise.starter
class TabularDataset(Dataset):
    """Rows of `features` (rows, columns) with `labels` (rows,)"""

    def __init__(self, features: np.ndarray, labels: np.ndarray) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        raise NotImplementedError


_TABLE = """import numpy as np
features = np.arange(12, dtype={!r}).reshape(4, 3)
labels = np.array([7, 5, 3, 1], dtype={!r})
data = TabularDataset(features, labels)"""

_GAPS = """import numpy as np
features, labels = np.ones((8, 6), dtype="float32")[::2, ::2], np.arange(8)[::2]
data = TabularDataset(features, labels)"""


@exercise.check
def items(TabularDataset):
    """An item is a row as float32 and a label as int64

    Layers have float32 parameters by default, and NumPy's `ones` makes float64. `F.cross_entropy` takes class
    numbers as int64.
    """
    with Rows() as rows:
        for features, labels in (("float32", "int64"), ("float64", "int32"), ("int16", "uint8")):
            with rows.of(f"features of {features}, labels of {labels}"):
                t = expect.given(_TABLE.format(features, labels), TabularDataset=TabularDataset)
                for i, first, label in ((1, 3.0, 5), (3, 9.0, 1)):
                    row = torch.arange(first, first + 3)
                    expect.equal(t.call(f"data[{i}]"), (row, torch.tensor(label)), what=f"`data[{i}]`")


@exercise.check(given=_TABLE.format("float32", "int64"))
def has_an_end(t):
    """It has a length and ends there, and -1 is its last item

    By default a loader asks for `len`. Python's `for` asks such a class for items until `IndexError`.
    Negative indices count from the end, in a list and in a tensor; the slice `x[-1:0]` is empty.
    """
    expect.equal(t.call("len(data)"), 4, what="the length")
    expect.equal(t.call("data[-1]"), (torch.tensor([9.0, 10, 11]), torch.tensor(1)), what="`data[-1]`")
    for i in (4, -5):
        expect.raises(IndexError, lambda i=i: t.call(f"data[{i}]"), what=f"`data[{i}]` of 4 rows")


@exercise.check(
    cases={
        "float64 and int32": (_TABLE.format("float64", "int32"), 60),
        "every second row and column of a table": (_GAPS, 2**40 + 1),
    }
)
def shows_writes(t, number):
    """What is written to an array later shows in the items

    `torch.tensor(array)` copies, and so does `astype` unless told otherwise; `ascontiguousarray` may where
    there are gaps. `torch.from_numpy` makes a tensor over the memory of the array, however large that is.
    """
    t.run(f"features[2], labels[2] = 50, {number}")
    wanted = torch.full((3,), 50.0), torch.tensor(number)
    expect.equal(t.call("data[2]"), wanted, what="`data[2]`")


@exercise.check(given=_GAPS)
def is_a_view(t):
    """A float32 row is a view of the array

    Indexing a tensor with an index like 1 gives a view: an offset and fewer dimensions. `.to` with the dtype
    alone that a tensor has returns the tensor itself. `torch.tensor` and `clone` copy each time; `contiguous`
    and `ascontiguousarray` may where there are gaps. What is written to this view is written to the array.
    """
    t.run("features[1, 0] = np.nan")
    with expect.left_alone(torch.from_numpy(t.features), what="`features`"):
        t.run("x, y = data[1]")
    expect.same_storage(t.x, torch.from_numpy(t.features), what="`x`", of="`features`")


_COUNTED = """import numpy as np
class Counted(np.ndarray):
    reads = 0
    def __getitem__(self, i):
        self.reads += 1
        return super().__getitem__(i)
features = np.arange(12.0).reshape(4, 3).view(Counted)
labels = np.array([7, 5, 3, 1]).view(Counted)
data = TabularDataset(features, labels)"""


class _Reads(Watch):
    """Writes down the memory of each tensor that is indexed."""

    def __init__(self):
        super().__init__()
        self.of = []

    def saw(self, op, args, kwargs, run):
        if op.overloadpacket.__name__ in ("select", "slice", "index", "index_select", "gather"):
            self.of.append(args[0].untyped_storage().data_ptr())
        return run()


@exercise.check(given=_COUNTED)
def serves_a_batch(t):
    """`__getitems__` gives a list of items

    A loader calls `__getitems__` with the indices of a batch if the dataset has it, and hands what it returns
    to the collate function, which makes a batch of a list of items. Indexing with a list reads many rows at
    once; a loop in Python takes the way through Python for each row.
    """
    wanted = [(torch.tensor([9.0, 10, 11]), torch.tensor(1)), (torch.tensor([0.0, 1, 2]), torch.tensor(7))]
    expect.equal(t.call("data.__getitems__([3, 0])"), wanted, what="`data.__getitems__([3, 0])`")
    t.run("features.reads = labels.reads = 0")
    with _Reads() as by_torch:
        t.call("data.__getitems__([3, 0, 2, 1] * 10)")
    for name, array in (("features", t.features), ("labels", t.labels)):
        reads = array.reads + by_torch.of.count(array.ctypes.data)
        expect.at_most(reads, 1, f"times that `{name}` was indexed for 40 items")


@exercise.check(
    given="""import numpy as np
features = np.ones((100_000, 3))
labels = np.ones(100_000, dtype=np.int32)"""
)
def one_row_at_a_time(t):
    """Of other dtypes one row is converted, not the table

    A table on disk (`np.memmap`) may be larger than memory. Converting it, or turning it into a list, reads
    it whole; a row costs a row.
    """
    item = torch.ones(3), torch.tensor(1)
    for read, wanted in (("[70_000]", item), (".__getitems__([70_000])", [item])):
        read = f"TabularDataset(features, labels){read}"
        expect.equal(t.call(read), wanted)
        by_torch = measure.peak_bytes(t.call, read).total
        by_numpy = _numpy_bytes(lambda read=read: t.call(read))
        # Python's own objects vary by some hundred bytes, so no number is told.
        said = "for one row, of 24 bytes in the array, more than 100,000 bytes were allocated"
        expect.true(max(by_torch, by_numpy) < 100_000, said, "expected: about as many as a row has")


def _numpy_bytes(call):
    """The most bytes that NumPy and Python held more than before; torch's own are not among them."""
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
