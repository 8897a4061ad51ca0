"""Find the parameters that do not learn

Return the names, as in `named_parameters()`, of all parameters that ask for training and get no gradient: in
training mode (`model.train()`), in each of three steps of `torch.optim.SGD` on this batch, their `.grad` is
`None` or has no element but zeros.

- A loss `loss_fn(model(x), y)` that requires no gradient, and a model without parameters, are no errors.
- A gradient is one, however small, and if it is NaN. What an earlier backward left in `.grad` does not count.
- Model, batch `(x, y)` and random state stay as they were.

`self.head(self.body(x).detach())` in the forward → `["body.weight", "body.bias"]`
"""

from torch import nn

from course_utils.exercise import Exercise
from course_utils.exercise.kits import bugs, numbers
from course_utils.exercise.kits.bugs import net

exercise = Exercise(
    minutes=15,
    hints=[
        "Train a copy of model and batch, and note which parameters get a gradient. What remains is found.",
        "Where nothing in the graph leads to a parameter, its `.grad` is `None`; through a zero, zeros. "
        "`backward` refuses a loss that requires no gradient, and an optimizer an empty list.",
        "Begin with the names of all parameters that require a gradient. In each step clear the gradients, "
        "run backward if you can, and take out each name whose `.grad` has an element that is not zero.",
    ],
)


@exercise.starter
def find_frozen_parameters(model: nn.Module, batch, loss_fn) -> list[str]:
    """Names of the parameters that ask for training and get no gradient"""
    raise NotImplementedError


_NAME = "find_frozen_parameters"
_BODY, _HEAD, _MORE = ([f"{name}.weight", f"{name}.bias"] for name in ("body", "head", "more"))
_THIRD = "self.more = nn.Linear(4, 1)"


def _two(hidden="h = self.body(x)", init="", out="self.head(h)", **more):
    """A model of a body and a head"""
    layers = "self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)"
    return net(f"{layers}\n{init}", f"{hidden}\nreturn {out}", **more)


@exercise.check
def cut_off(find_frozen_parameters):
    """Parameters that no gradient can reach are found

    `detach`, `.data`, `no_grad`, a detour through NumPy or numbers, and `argmax` give a tensor without a
    graph. What lies before the cut keeps its first values. A layer that is not used is in no graph at all.
    `named_parameters()` gives each parameter once, under its first name.
    """
    models = {
        "`detach`": (_two("h = self.body(x).detach()"), _BODY),
        "`torch.tensor`": (_two("h = torch.tensor(self.body(x).tolist())"), _BODY),
        "`no_grad`": (_two("with torch.no_grad():\n    h = self.body(x)"), _BODY),
        "`argmax`": (_two("h = F.one_hot(self.body(x).argmax(-1), 4).float()"), _BODY),
        "a layer with two names": (_two("h = self.twin(x).detach()", "self.twin = self.body"), _BODY),
        "a layer that is not called": (_two(init=_THIRD), _MORE),
        "one parameter": (_two("h = F.linear(x, self.body.weight.data, self.body.bias)"), _BODY[:1]),
    }
    bugs.examine(_NAME, find_frozen_parameters, models)


@exercise.check
def nothing_left(find_frozen_parameters):
    """Where no gradient comes back at all, there is an answer too

    A loss of constants requires no gradient, and `backward` raises. If parameters ask for training, all of
    them wait in vain; if all are frozen on purpose, or there are none, everything is as it should be.
    """
    models = {
        "`loss_fn` leaves the graph": (_two(loss="lambda out, y: F.mse_loss(out.data, y)"), _BODY + _HEAD),
        "all frozen": (_two(init="self.requires_grad_(False)"), []),
        "no parameters": (net("self.act = nn.ReLU()", "return self.act(x)"), []),
    }
    bugs.examine(_NAME, find_frozen_parameters, models)


@exercise.check
def zeros(find_frozen_parameters):
    """Gradients that are zeros in every step are none

    A ReLU whose input is negative for all examples hands back zeros, and so does a product with a zero that
    is not trained. The `.grad` is there, and plain SGD changes nothing. What an earlier backward left there
    stays until it is cleared, and is no gradient of these steps.
    """
    dead = _two("h = self.body(x).relu()", "nn.init.constant_(self.body.bias, -100.)")
    shut = _two("h = x + self.gate * self.body(x)", "self.register_buffer('gate', torch.zeros(4))")
    stale = _two(init=_THIRD, after="for p in model.parameters(): p.grad = torch.ones_like(p)")
    models = {
        "dead ReLUs": (dead, [*_BODY, "head.weight"]),
        "a gate that is shut": (shut, _BODY),
        "gradients from before": (stale, _MORE),
    }
    bugs.examine(_NAME, find_frozen_parameters, models)


@exercise.check
def healthy(find_frozen_parameters):
    """It keeps quiet where parameters wait for the second step, or are frozen on purpose

    In LoRA the second matrix begins with zeros: in the first step the first one gets zeros, and later it
    learns. Layers may take turns, or run in training mode only: one step with a gradient is enough, after
    `model.train()`, which a model may have written anew.
    """
    lora = "self.head = nn.Linear(4, 1).requires_grad_(False)\nself.a = nn.Linear(4, 2, bias=False)\n"
    lora += "self.b = nn.Linear(2, 1, bias=False)\nnn.init.zeros_(self.b.weight)"
    gate = "self.gate = nn.Parameter(torch.zeros(4))\nnn.init.zeros_(self.head.weight)"
    turns = "self.calls += 1\nif self.calls % 3: return self.body(x).mean()"
    trains = "h = self.body(x) if self.training else x"
    both = "lambda out, y: F.mse_loss(out[0], y) + out[1].mean()"
    pauses = "self.calls += 1\nif self.calls % 2: return x[:, :1]\nh = self.body(x)"
    own = "def train(self, mode=True):\n    super().train(mode)\n    self.drop.eval()\n    return self"
    waits = "h = x if self.drop.training else self.body(x)"
    codes = {
        "LoRA": net(lora, "return self.head(x) + self.b(self.a(x))"),
        "a gate and a head of zeros": _two("h = x + self.gate * self.body(x)", gate),
        "layers that take turns": _two(turns, "self.calls = 0", "self.head(x)"),
        "no graph in the first step": _two(pauses, "self.calls = 0"),
        "a `train()` of its own": _two(waits, "self.drop = nn.Dropout()", methods=own),
        "an embedding": net("self.embed = nn.Embedding(9, 1)", "return self.embed(x)", x="torch.arange(6)"),
        "a layer used in training only": _two(trains, after="model.eval()"),
        "two outputs": _two(out="self.head(x), h", loss=both),
    }
    bugs.quiet(_NAME, find_frozen_parameters, codes)


@exercise.check
def any_gradient(find_frozen_parameters):
    """It keeps quiet where gradients are tiny, add up to zero, or are NaN

    A loss scaled up makes a large gradient of one of 1e-30, whose square is 0 in float32, and so is a
    sum of squares. Elements of both signs can have a sum of 0. NaN is neither zero nor larger than zero.
    """
    tiny = numbers.hard("6, 4", "numbers whose squares are 0", "subnormal numbers")
    plain = "self.head = nn.Linear(4, 1, bias=False)"
    apart = "self.both = nn.Parameter(torch.zeros(2))"
    codes = {label: net(plain, "return self.head(x)", x=x) for label, x in tiny.items()} | {
        "a loss scaled down": _two(loss="lambda out, y: 1e-30 * F.mse_loss(out, y)"),
        "gradients that add up to 0": _two(init=apart, out="self.head(h) + self.both[0] - self.both[1]"),
        "NaN": _two("h = (0 * self.body(x)).sqrt()"),
        "float64": _two(after="model.double()\nbatch = [t.double() for t in batch]"),
    }
    bugs.quiet(_NAME, find_frozen_parameters, codes)


@exercise.check(cases=bugs.LIVELY)
def left_alone(t):
    """After looking, all is as it was

    A step changes parameters; a backward adds to `.grad`, also to that of an input that requires a gradient;
    a call in training mode moves running statistics, dropout draws, and a layer may write to its input.
    """
    bugs.left_alone(t, _NAME)
