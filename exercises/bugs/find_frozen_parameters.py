"""Find the parameters that do not learn

Return the names, as in `named_parameters()`, of all parameters that ask for training and get no gradient: in
training mode (`model.train()`), in each of three steps of `torch.optim.SGD` on this batch, their `.grad` is
`None` or has no element but zeros.

- A loss that requires no gradient, and a model without parameters, are no errors.
- A gradient is one, however small. What an earlier backward left in `.grad` does not count.
- Model, batch `(x, y)` and random state stay as they were.

`loss_fn(model(x), y)` is the loss.

`self.head(self.body(x).detach())` in the forward → `["body.weight", "body.bias"]`
"""

from torch import nn

from course_utils.exercise import Exercise
from course_utils.exercise.kits import patients
from course_utils.exercise.kits.patients import net

exercise = Exercise(
    minutes=15,
    hints=[
        "Train a copy of model and batch, and write down which parameters had a gradient in some step. The "
        "answer is what remains.",
        "Which parameters does nothing in the graph lead to? Their `.grad` is `None`. Where the graph leads "
        "to them through a zero, it is zeros. `backward` refuses a loss that requires no gradient, and an "
        "optimizer refuses an empty list.",
        "Begin with the names of all parameters that require a gradient, and end there if there are none. In "
        "each step clear the gradients, run backward if the loss requires a gradient, and take out every "
        "name whose `.grad` has an element that is not zero; `any` tells.",
    ],
)


@exercise.starter
def find_frozen_parameters(model: nn.Module, batch, loss_fn) -> list[str]:
    """Names of the parameters that ask for training and get no gradient"""
    raise NotImplementedError


_NAME = "find_frozen_parameters"
_TWO = "self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)"
_OUT = "return self.head(self.body(x))"
_BODY, _HEAD = (["body.weight", "body.bias"], ["head.weight", "head.bias"])


@exercise.check
def cut_off(find_frozen_parameters):
    """Parameters that no gradient can reach are found

    `detach`, `.data`, `no_grad`, a detour through NumPy or through numbers, and `argmax` give a tensor
    without a graph. The values are right, and the loss may fall as the rest learns; what lies before the cut
    keeps its first values. A layer that the forward does not call has no place in the graph at all.
    """
    hard = "i = self.body(x).argmax(-1)\nreturn self.head(F.one_hot(i, 4).float())"
    unused = f"{_TWO}\nself.more = nn.Linear(4, 1)"
    models = {
        "`detach`": (net(_TWO, "return self.head(self.body(x).detach())"), _BODY),
        "`torch.tensor`": (net(_TWO, "return self.head(torch.tensor(self.body(x).tolist()))"), _BODY),
        "`no_grad`": (net(_TWO, "with torch.no_grad():\n    h = self.body(x)\nreturn self.head(h)"), _BODY),
        "`argmax`": (net(_TWO, hard), _BODY),
        "a layer that is not called": (net(unused, _OUT), ["more.weight", "more.bias"]),
        "one parameter": (
            net(_TWO, "h = F.linear(x, self.body.weight.data, self.body.bias)\nreturn self.head(h)"),
            ["body.weight"],
        ),
    }
    patients.examine(_NAME, find_frozen_parameters, models)


@exercise.check
def nothing_left(find_frozen_parameters):
    """Where no gradient comes back at all, there is an answer too

    A loss of constants requires no gradient, and `backward` raises. If parameters ask for training, all of
    them wait in vain; if all are frozen on purpose, or there are none, everything is as it should be.
    """
    frozen = net(f"{_TWO}\nself.requires_grad_(False)", _OUT)
    models = {
        "a loss that left the graph": (net(_TWO, "return self.head(self.body(x)).detach()"), _BODY + _HEAD),
        "`loss_fn` leaves the graph": (
            net(_TWO, _OUT, loss="lambda out, y: F.mse_loss(out.data, y)"),
            _BODY + _HEAD,
        ),
        "all frozen": (frozen, []),
        "no parameters": (net("self.act = nn.ReLU()", "return self.act(x)"), []),
    }
    patients.examine(_NAME, find_frozen_parameters, models)


@exercise.check
def zeros(find_frozen_parameters):
    """Gradients that are zeros in every step are none

    A ReLU whose input is negative for all examples hands back zeros, and so does a product with a zero that
    is not trained. The `.grad` is there, and no step changes anything. What an earlier backward left there
    stays until it is cleared, and is no gradient of these steps.
    """
    models = {
        "dead ReLUs": (
            net(f"{_TWO}\nnn.init.constant_(self.body.bias, -100.)", "return self.head(self.body(x).relu())"),
            [*_BODY, "head.weight"],
        ),
        "a gate that is shut": (
            net(
                f"{_TWO}\nself.register_buffer('gate', torch.zeros(4))",
                "return self.head(x + self.gate * self.body(x))",
            ),
            _BODY,
        ),
        "gradients from before": (
            net(
                f"{_TWO}\nself.more = nn.Linear(4, 1)",
                _OUT,
                after="for p in model.parameters(): p.grad = torch.ones_like(p)",
            ),
            ["more.weight", "more.bias"],
        ),
    }
    patients.examine(_NAME, find_frozen_parameters, models)


@exercise.check
def healthy(find_frozen_parameters):
    """It keeps quiet where parameters wait for the second step, or are frozen on purpose

    In LoRA the second matrix begins with zeros: in the first step the first one gets zeros, and later it
    learns. Behind a head that begins with zeros, too, it takes one step more. Layers may take turns: one step
    with a gradient is enough. Of an embedding only the rows in the batch get one. A head may be used in
    training mode alone. And a gradient of 1e-12 is small, but it is not zero: a loss that is scaled up makes
    a large one of it.
    """
    lora = "self.head = nn.Linear(4, 1).requires_grad_(False)\nself.a = nn.Linear(4, 2, bias=False)\n"
    lora += "self.b = nn.Linear(2, 1, bias=False)\nnn.init.zeros_(self.b.weight)"
    words = {"x": "torch.arange(6)", "y": "torch.arange(6)", "loss": "F.cross_entropy"}
    tied = "self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)\nself.head.weight = self.embed.weight"
    in_training = "out = self.head(x)\nreturn out + self.body(x).mean() if self.training else out"
    gated = f"{_TWO}\nself.gate = nn.Parameter(torch.zeros(4))\nnn.init.zeros_(self.head.weight)"
    turns = "self.calls += 1\nreturn self.body(x).mean() if self.calls % 2 else self.head(x)"
    codes = {
        "LoRA": net(lora, "return self.head(x) + self.b(self.a(x))"),
        "a gate and a head of zeros": net(gated, "return self.head(x + self.gate * self.body(x))"),
        "layers that take turns": net(f"{_TWO}\nself.calls = 0", turns),
        "a frozen backbone": net(f"{_TWO}\nself.body.requires_grad_(False)", _OUT),
        "an embedding with tied weights": net(tied, "return self.head(self.embed(x))", **words),
        "a layer used in training only": net(_TWO, in_training, after="model.eval()"),
        "tiny gradients": net(_TWO, _OUT, loss="lambda out, y: 1e-12 * F.mse_loss(out, y)"),
        "two outputs": net(
            _TWO,
            "return self.head(x), self.body(x)",
            loss="lambda out, y: F.mse_loss(out[0], y) + out[1].mean()",
        ),
    }
    patients.examine(_NAME, find_frozen_parameters, {label: (code, []) for label, code in codes.items()})


@exercise.check
def left_alone(find_frozen_parameters):
    """After looking, all is as it was

    A step changes parameters; a backward adds to `.grad`, also to that of an input that requires a gradient;
    a call in training mode moves running statistics, and dropout draws.
    """
    patients.left_alone(_NAME, find_frozen_parameters)
