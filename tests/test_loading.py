"""A watched loader: what is said of it is what it did, with items and steps of known times."""

import inspect
import multiprocessing
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from course_utils import draw, explore, measure
from course_utils.measure.loading import length

ITEM, STEP = 0.004, 0.02


class Slow(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        time.sleep(ITEM)
        return torch.tensor(i)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def loader(workers=0, ahead=None, **how):
    return DataLoader(Slow(), batch_size=4, num_workers=workers, prefetch_factor=ahead, **how)


@pytest.fixture(scope="module")
def found():
    seen = []
    recording = measure.loading(loader(2), lambda batch: (seen.append(batch.tolist()), time.sleep(STEP)))
    assert seen == [list(range(i, i + 4)) for i in range(0, 24, 4)]
    return recording


def test_known_times_are_found_again(found):
    assert [batch.worker for batch in found.batches] == [0, 1, 0, 1, 0, 1]
    for batch in found.batches:
        assert length(batch.fetched) >= 4 * ITEM and length(batch.step) >= STEP
        assert batch.fetched[1] == batch.collated[0] and batch.collated[1] <= batch.waited[1]
        assert batch.waited[1] == batch.step[0]
    assert not multiprocessing.active_children()


def test_the_loader_is_left_as_it_was():
    started = []
    own = loader(1, persistent_workers=True, worker_init_fn=started.append)
    before = dict(vars(own))
    measure.loading(own, lambda batch: None, batches=2)
    assert vars(own) == before and isinstance(next(iter(own)), torch.Tensor)


def test_streams_batches_that_are_dicts_and_errors():
    found = measure.loading(DataLoader(Stream(), batch_size=4, num_workers=1), lambda batch: None)
    assert len(found.batches) == 3
    dicts = DataLoader([{"a": 1}] * 3, batch_size=2)
    assert len(measure.loading(dicts, lambda batch: batch["a"]).batches) == 2
    with pytest.raises(ZeroDivisionError):
        measure.loading(loader(1), lambda batch: 1 / 0)
    assert not multiprocessing.active_children()
    with pytest.raises(TypeError, match="needs a DataLoader as `loader`; given was a list"):
        measure.loading([1], print)
    with pytest.raises(ValueError, match="no batch"):
        measure.loading(DataLoader([]), print)


class Doubles(DataLoader):
    """A loader with an iterator of its own, over that of every loader."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch.double()


class Alone(DataLoader):
    def __iter__(self):
        return iter([1, 2])


def test_a_loader_with_an_iterator_of_its_own():
    for workers in (0, 1):
        seen = []
        found = measure.loading(Doubles(torch.arange(12.0), 4, num_workers=workers), seen.append)
        assert [batch.dtype for batch in seen] == [torch.float64] * 3
        assert [batch.worker for batch in found.batches] == [workers - 1] * 3
        assert found.start_up <= found.batches[0].waited[1]
    with pytest.raises(ValueError, match="doesn't use DataLoader's"):
        measure.loading(Alone(torch.arange(12.0)), print)


class Ahead(DataLoader):
    """Gives a batch when the next one is there, as what copies to a GPU in between does."""

    def __iter__(self):
        batches = super().__iter__()
        ahead = next(batches)
        for following in batches:
            yield ahead
            ahead = following
        yield ahead


class Halves(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield from batch.chunk(2)


class Pairs(DataLoader):
    def __iter__(self):
        batches = super().__iter__()
        return map(torch.cat, zip(batches, batches, strict=True))


def test_batches_that_come_one_ahead_have_their_own_times():
    plain, ahead = (measure.loading(kind(list(range(8)), 2), lambda b: None) for kind in (DataLoader, Ahead))
    assert [len(one.batches) for one in (plain, ahead)] == [4, 4]
    fetched = [batch.fetched for batch in ahead.batches]
    assert fetched == sorted(fetched) and fetched[1] < ahead.batches[0].step


@pytest.mark.parametrize(("kind", "count"), [(Halves, "no batches"), (Pairs, "2 batches")])
def test_batches_that_are_split_or_joined_are_told(kind, count):
    with pytest.raises(ValueError, match=f"own `__iter__` fetched {count} before it gave its batch 2"):
        measure.loading(kind(torch.arange(8), 2), lambda b: None)


def test_the_chart_has_a_row_for_each_worker_and_what_they_did(found):
    scene = inspect.unwrap(explore.loading).__globals__["compose"](found)
    assert {"fetched", "collated", "waited", "step", "queued"} <= {box.part for box in scene.boxes}
    assert {"worker 0", "worker 1", "the loop"} <= {words.text for words in scene.words}
    steps = [box for box in scene.boxes if box.part == "step"]
    widths = [box.width / length(batch.step) for box, batch in zip(steps, found.batches, strict=True)]
    assert max(widths) == pytest.approx(min(widths))
    assert "6 batches, 2 workers" in repr(draw.loading(found))


def test_the_explorer_watches_again_at_every_move():
    explorer = explore.loading(loader, lambda batch: None, batches=3)
    assert explorer.found.workers == 2 and "worker 1" in explorer.picture.value
    explorer.workers.value = 0
    assert explorer.found.workers == 0 and explorer.ahead.disabled
    assert {one.worker for one in explorer.found.batches} == {-1}
    assert "worker 1" not in explorer.picture.value and len(explorer.found.batches) == 3
    assert not multiprocessing.active_children()
