"""What exercises on ranks look at: whether messages were waited for, and gradients against those of a single
process."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import measure, torch_private
from course_utils.exercise import Rows, expect
from course_utils.exercise.given import example_of_its_own
from course_utils.measure.traffic import Call, CollectiveWatch

# Several functions make each of these.
_IN_WORDS = {"send": "a send", "recv": "a receive"}


def given(setup: str, **names: Any) -> expect.Given:
    """An example that is the same code on every rank: `dist` is known in it."""
    return expect.given(setup, dist=dist, **names)


def on_rank_0(setup: str) -> expect.Given:
    """What the same code makes on rank 0; messages go on to show the example of this rank."""
    with example_of_its_own():
        return expect.given(setup, rank=0)


def all_through(
    t: expect.Given, call: str, watch: list[measure.Traffic] | None = None
) -> tuple[Any, list[Call]]:
    """What `call` gave, and the messages and collectives of this rank, when all ranks are through. `watch`: a
    list that the traffic is put into before the call, so that other things can be noted among its calls.

    What was begun and not waited for is a mismatch: what such a call gives would be chance. A message that
    nobody keeps may get lost; here each is kept until it has arrived.
    """
    with measure.traffic() as seen:
        (watch if watch is not None else []).append(seen)
        result = t.call(call)
        seen_here = measure.Traffic(list(seen.calls), list(seen.order))
        dist.barrier()
    expect_waited(seen_here)
    return result, seen_here.calls


def expect_waited(seen: measure.Traffic) -> None:
    """This rank has waited for each call. A `DistributedDataParallel` waits by itself, which isn't seen: its
    calls must not be among them."""
    calls, order = seen.calls, set(seen.order)
    waited = [one.functional or bool({"wait", f"wait {i}"} & order) for i, one in enumerate(calls)]
    left = [one.name for one, done in zip(calls, waited, strict=True) if not done]
    told = f"this rank began {len(calls)} calls and waited for {len(calls) - len(left)}"
    told += f"; the first of the rest is {_IN_WORDS.get(left[0], f'`{left[0]}`')}" if left else ""
    expect.true(not left, told, "expected: it has waited for each by the end of the call")


def messages(calls: list[Call]) -> dict[str, list[Call]]:
    """The sends and the receives of this rank, by name, where there are any: those of a thread that was there
    before are not seen, and each message has another end that may be."""
    found = {name: [call for call in calls if call.name == name] for name in _IN_WORDS}
    return {name: those for name, those in found.items() if those}


def expect_messages_only(calls: list[Call]) -> None:
    """There is nothing but sends and receives among the calls of this rank."""
    names = sorted({call.name for call in calls} - {"send", "recv"})
    told = f"these were called: {', '.join(f'`{name}`' for name in names)}"
    expect.true(not names, told, "expected: `send`, `recv`, `isend` and `irecv` alone")


class BeforeOthers(CollectiveWatch):
    """A hook of the reader's for `DistributedDataParallel`, called on rank 0 before the others call theirs:
    these are held until it has returned, or waits for them. `waited`: it did."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        super().__init__()
        self.waited, self._calls, self._thread = False, 0, threading.get_ident()
        self._store = dist.PrefixStore("before others", torch_private.default_store())

        @functools.wraps(hook)
        def called(state: Any, bucket: Any) -> Any:
            self._calls += 1
            if dist.get_rank() > 0:
                self._store.wait([f"{self._calls}"])
                return hook(state, bucket)
            try:
                with self:
                    return hook(state, bucket)
            finally:
                self._let_others_go()

        self.called = called

    def waits(self, number: int | None, wait: Callable[[], Any]) -> Any:
        if threading.get_ident() == self._thread:  # not of a thread that the hook leaves behind
            self.waited = True
            self._let_others_go()
        return wait()

    def _let_others_go(self) -> None:
        self._store.set(f"{self._calls}", "")


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """The gradients of a model, by name."""
    return {name: p.grad for name, p in model.named_parameters()}


def expect_gradients(
    model: nn.Module,
    whole: Mapping[str, Tensor | None],
    alone: Mapping[str, Tensor | None],
    when: str = "after backward",
) -> None:
    """Every `.grad` is that of one process with the whole batch. `alone`: what this rank has by itself."""
    with Rows() as rows:
        for name, grad in gradients(model).items():
            with rows.of(f"`{name}`"):
                what = f"the `.grad` of `{name}` {when}"
                if whole[name] is None:
                    expect.true(grad is None, f"{what} is {expect.show(grad)}", "expected: None")
                    continue
                like = {"what this rank alone computed": alone[name]}
                factors = {"the number of ranks": dist.get_world_size()}
                # Where float64 is asked for, its digits are.
                double = whole[name].dtype == torch.float64
                near = {"rtol": 1e-12, "atol": 0} if double else {"rtol": 1e-4, "atol": 1e-6}
                expect.equal(grad, whole[name], what=what, like=like, factors=factors, **near)


class NotToBeUsed(Exception):
    """What isn't to be used was taken from torch. No `RuntimeError`: no rule of torch's explains it."""


@contextlib.contextmanager
def torchs_own_refused(told: str) -> Iterator[None]:
    """A `DistributedDataParallel` that is made in here raises, with these words."""

    def refused(*args: Any, **kwargs: Any) -> None:
        raise NotToBeUsed(told)

    with mock.patch.object(DistributedDataParallel, "__init__", refused):
        yield


def without_torchs_own(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """The reader's wrapper of a module, which must not be made of `DistributedDataParallel`."""

    told = "DistributedDataParallel is the one thing not to use here: write hooks of your own"

    @functools.wraps(wrapper, updated=())
    def made(*args: Any) -> Any:
        with torchs_own_refused(told):
            return wrapper(*args)

    return made
