"""The diagnosis on whole models: it is quiet on healthy ones, and names what sick ones have.

What single looks do is in the files beside this one.
"""

import random

import numpy as np
import pytest
import torch

from course_utils import torch_private
from course_utils.diagnosis import Report, diagnose
from tests.sets import HEALTHY, Given
from tests.sets.healthy_loops import HEALTHY_LOOPS
from tests.sets.sick import SICK
from tests.sets.sick_fourteen import FOURTEEN

ARCHITECTURES = (
    "gpt2", "llama", "mamba", "t5", "vit", "whisper", "mixtral", "resnet", "convnext", "efficientnet", "swin"
)  # fmt: skip
ALL_SICK = SICK | {f"fourteen-{name}": one for name, one in FOURTEEN.items()}

# What no look can see, and why.
UNSEEN = {
    "leaking_statistics": "the data was normalized before it reached the loop",
    "shuffled_labels": "an input may have another label on purpose: noise, augmentation, several annotators",
}


def diagnosed(given: Given) -> Report:
    report = diagnose(given.model, given.batch, given.loss_fn, given.optimizer, loop=given.loop)
    # An error of a look's own is told with the name of its class.
    assert not [said for said in report.unseen if "Error:" in said], report.unseen
    return report


def architecture(name: str) -> Given:
    """By its name, so that `transformers` is imported by the tests that need it, and no earlier."""
    from tests.sets.architectures import ARCHITECTURES as made

    assert list(made) == list(ARCHITECTURES)
    return made[name]()


# --- quiet ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_fault_is_found_in_a_real_architecture(name):
    report = diagnosed(architecture(name))
    assert report.steps == 3
    assert not report.faults, report


@pytest.mark.parametrize("name", HEALTHY)
def test_no_fault_is_found_in_a_healthy_model(name):
    report = diagnosed(HEALTHY[name]())
    assert report.steps == 3
    assert not report.faults, report


@pytest.mark.parametrize("name", HEALTHY_LOOPS)
def test_no_fault_is_found_in_a_healthy_loop(name):
    report = diagnosed(HEALTHY_LOOPS[name]())
    assert not report.faults, report


# --- right ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL_SICK)
def test_a_sick_model_is_told_what_it_has_and_nothing_else(name):
    cause, make = ALL_SICK[name]
    report = diagnosed(make())
    assert not [one for one in report.faults if one.cause != cause], report
    if cause in UNSEEN:
        assert cause not in report.causes, "it is seen now: take it out of UNSEEN"
    else:
        assert cause in report.causes, report


def test_at_most_a_tenth_of_what_is_sick_is_not_seen():
    unseen = [name for name, sick in ALL_SICK.items() if sick.cause in UNSEEN]
    assert len(unseen) <= len(ALL_SICK) / 10


# --- as it was --------------------------------------------------------------------------------------


def everything(given: Given) -> list[object]:
    """All that a diagnosis could leave changed: tensors as copies, and who is whose."""
    model, optimizer = given.model, given.optimizer
    kept: list[object] = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        grad = None if tensor.grad is None else tensor.grad.clone()
        kept += [
            name,
            id(tensor),
            tensor.data_ptr(),
            torch_private.version(tensor),
            tensor.detach().clone(),
            grad,
        ]
    kept += [(name, module.training, sorted(vars(module))) for name, module in model.named_modules()]
    kept += [(name, value.clone()) for name, value in model.state_dict().items()]
    kept += [(name, value.clone()) for name, value in given.batch.items()]
    kept += [
        torch_private.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, part)
        for part in (optimizer.state_dict()["state"], optimizer.state_dict()["param_groups"])
    ]
    return [*kept, torch.get_rng_state(), random.getstate(), np.random.get_state()]


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(*pair) for pair in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_real_architecture_is_afterwards_as_it_was(name):
    given = architecture(name)
    given.model(**given.batch).loss.backward()  # gradients and a state that are to stay
    given.optimizer.step()
    before = everything(given)
    diagnosed(given)
    after = everything(given)
    for was, is_now in zip(before, after, strict=True):
        assert same(was, is_now), was
