"""Repair: drawings that stay blurred

The model below makes a code of 16 numbers of each image. One part tells the shape from it, another draws the
image again. The shapes come out well. The drawings have a squared error of 0.19 on new images, a colleague's
have 0.13 with the same layers. And there is something odd: with `decoder` called before `classifier`,
backward raises a `RuntimeError`. Mend it.

- `model(x)` returns scores `(n, 3)` and drawings `(n, 64)`. Each part computes from the code what its layers
  say.
- These layers stay, and so do the loss, the optimizer with its settings, the batches and the number of steps.

`repair_overwritten_activation(x, y, seed=0)` → `model`, `[3.12, 2.98, …]`: images `x` are `(n, 1, 8, 8)`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs

exercise = Exercise(
    minutes=5,
    hints=[
        "Print `code.min()` in `forward`, before and after `classifier` is called.",
        "`inplace=True` writes the result of a ReLU over its input. Who else needs that input here?",
        "The decoder needs the code with its negative numbers. Let the ReLU return a tensor of its own.",
    ],
)


@exercise.starter
def repair_overwritten_activation(
    x: Tensor, y: Tensor, seed: int
) -> tuple[nn.Module, list[float]]:
    """(n, 1, 8, 8), (n,) -> the model, the loss of each step"""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
            self.classifier = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 3))
            self.decoder = nn.Linear(16, 64)

        def forward(self, x):
            code = self.encoder(x)
            scores = self.classifier(code)
            return scores, self.decoder(code)

    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            scores, drawn = model(x[batch])
            pixels = x[batch].flatten(1)
            loss = F.cross_entropy(scores, y[batch]) + 5 * F.mse_loss(drawn, pixels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


_LINEAR = {"encoder": (16, 64), "classifier": (3, 16), "decoder": (64, 16)}


def _loss(outputs, x, y):
    return F.cross_entropy(outputs[0], y) + 5 * F.mse_loss(outputs[1], x.flatten(1))


class _Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(n, m) for name, (m, n) in _LINEAR.items()})

    def forward(self, x):
        code = self.parts["encoder"](x.flatten(1))
        return self.parts["classifier"](code.clamp(min=0)), self.parts["decoder"](code)


def _healthy(t, seed):
    torch.manual_seed(seed)
    rows = torch.arange(len(t.x))
    return training_runs.trained(_Plain(), lambda out, i: _loss(out, t.x[i], t.y[i]), t.x, rows)


_X = training_runs.shapes(300, seed=100)[0]
_CASE = training_runs.Case(
    exercise,
    train=_healthy,
    held=training_runs.on_held((_X, _X.flatten(1)), lambda outputs, drawn: F.mse_loss(outputs[1], drawn)),
    room=1.2,
)


@exercise.check
def one_code_for_two(repair_overwritten_activation):
    """Both parts compute from the code that the encoder made, and both send their gradient back

    A ReLU with `inplace=True` writes over its input. What reads it later gets the result of the ReLU, and
    no error. What has saved it before makes backward raise, or, if the write went through `.data`, give wrong
    gradients; so does a `detach` before one part. The classifier keeps its ReLU.
    """
    t, plain = _CASE.treated(repair_overwritten_activation), _Plain()
    own = {tuple(m.weight.shape): m for m in t.model.modules() if isinstance(m, nn.Linear)}
    for name, shape in _LINEAR.items():
        told = f"the returned model has no linear layer with a weight of shape {shape}"
        expect.true(shape in own, told, "expected: the layers stay")
        plain.parts[name].load_state_dict(own[shape].state_dict())
    outputs, wanted = t.model(t.x), plain(t.x)
    pair = isinstance(outputs, (tuple, list)) and len(outputs) == 2
    expect.true(pair, "`model(x)` does not return two results", "expected: scores and drawings")
    cut = plain.parts["decoder"](plain.parts["encoder"](t.x.flatten(1)).clamp(min=0))
    like = {"what `decoder` makes of the code after a ReLU": cut}
    expect.equal(outputs[0], wanted[0], what="the scores of the returned model", rtol=1e-4, atol=1e-4)
    what = "the drawing of the returned model"
    expect.equal(outputs[1], wanted[1], what=what, rtol=1e-4, atol=1e-4, like=like)
    t.model.zero_grad()
    for model_outputs in (outputs, wanted):
        _loss(model_outputs, t.x, t.y).backward()
    for name, shape in _LINEAR.items():
        for kind, right in plain.parts[name].named_parameters():
            came, what = own[shape].get_parameter(kind).grad, f"the gradient of the {kind} of the {name}"
            expect.equal(came, right.grad, what=what, rtol=1e-3, atol=1e-5)


@exercise.check
def what_stays(repair_overwritten_activation):
    """The linear layers, the loss, the batches, the optimizer and the steps stay

    A larger share of the drawings in the loss makes them better at the cost of the shapes.
    """
    t = _CASE.stays(repair_overwritten_activation, but=("ReLU", "Linear"), loss=False)
    for forward, rows, loss in t.batches():
        linear = [layer for layer in forward.layers if isinstance(layer.module, nn.Linear)]
        made = {tuple(layer.module.weight.shape): layer.output for layer in linear}
        what = "the shapes of the weights of the linear layers that train"
        expect.equal(sorted(made), sorted(_LINEAR.values()), what=what)
        outputs = [made[_LINEAR[part]] for part in ("classifier", "decoder")]
        wanted, what = _loss(outputs, t.x[rows], t.y[rows]).item(), f"the loss of step {forward.step}"
        expect.equal(loss, wanted, what=what, rtol=1e-4)


_CASE.learns(
    "From a code without negative numbers the decoder learns to draw too, but it has less to draw from.",
    "the drawings are",
)
