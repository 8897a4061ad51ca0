"""What an answer must leave alone is looked at down to its bits."""

import math

import pytest
import torch
from torch import nn

from course_utils.exercise import expect

ODD = [1.5, -0.0, 1e-40, 7e4, math.inf, -math.inf, math.nan, 0.1]


@pytest.mark.parametrize(
    "done",
    [
        lambda t: t.mul_(2),
        lambda t: t.add_(0.0),  # -0.0 becomes 0.0
        lambda t: t.nan_to_num_(),
        lambda t: t.copy_(t.half().float()),
        lambda t: t.copy_(torch.where(t.abs() < 1e-38, 0.0, t)),
        lambda t: (t.mul_(2), t.div_(2)),  # the same bits again: only the version counter tells
        lambda t: t.unsqueeze_(0),
        lambda t: t.requires_grad_(),
        lambda t: setattr(t, "data", t.double()),
    ],
)
def test_a_tensor_that_was_changed_in_any_way_was_not_left_alone(done):
    tensor = torch.tensor(ODD)
    with expect.looking(), pytest.raises(expect.Mismatch), expect.left_alone(tensor):
        done(tensor)
    with expect.looking(), expect.left_alone(tensor):
        tensor.exp(), tensor.clone().zero_(), tensor.view(2, 4)


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (lambda m: m(torch.ones(4, 2)), "`model.1.running_mean` was changed"),
        (lambda m: m.eval(), "`model.training` was True and is False now"),
        (lambda m: m[1].eval(), "`model.1.training` was True and is False now"),
        (lambda m: m[0](torch.ones(4, 2)).sum().backward(), "`model.0.weight.grad` was None and is a tensor"),
        (lambda m: setattr(m[0], "bias", nn.Parameter(torch.ones(3))), "`model.0.bias` is another tensor"),
        (lambda m: m.double(), "`model.0.weight` was changed: its dtype was float32"),
        (lambda m: m.register_buffer("seen", torch.ones(1)), "`model.seen` is new"),
        (lambda m: m[0].register_forward_hook(print), "`model.0._forward_hooks` held 0 before"),
        (lambda m: m[0].register_full_backward_hook(print), "`model.0._backward_hooks` held 0 before"),
        (lambda m: m[0].weight.register_hook(print), "`model.0.weight._backward_hooks` held 0 before"),
        (lambda m: m[1]._forward_pre_hooks.clear(), "`model.1._forward_pre_hooks` held 1 before"),
        (
            lambda m: (m[1]._forward_pre_hooks.clear(), m[1].register_forward_pre_hook(repr)),
            "`model.1._forward_pre_hooks` holds another hook",
        ),
    ],
)
def test_a_module_is_left_alone_with_its_buffers_modes_gradients_and_hooks(done, told):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[1].register_forward_pre_hook(lambda *_: None)
    looked_at = expect.left_alone(model, what="`model`", gradients=True)
    with expect.looking(), pytest.raises(expect.Mismatch) as error, looked_at:
        done(model)
    assert error.value.lines[0].startswith(told)
