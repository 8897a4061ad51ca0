"""Find what ignores eval()

Return those words that hold:

- `"differs"`: after `model.eval()`, two calls on `x` give different outputs.
- `"mixes"`: it does not differ, and after `model.eval()` the output for some example depends on the other
  examples in `x`. Examples lie along dimension 0, of `x` and of the output.
- `"thawed"`: in the modes in which the model is given, a call changes a buffer, however little, of a module
  that has parameters of its own (`recurse=False`), all of them frozen.

Outputs, tensors or dicts of them, may be tiny or large: rounding is relative to the largest, and no
difference. All numbers are finite.
Model, batch `(x, y)` and random state stay as they were.

`F.dropout(x)` in the forward → `["differs"]`
"""

from torch import nn

from course_utils.exercise import Exercise
from course_utils.exercise.kits import bugs, numbers
from course_utils.exercise.kits.bugs import net

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Copy model and batch, and call the copy inside `torch.random.fork_rng()`. Compare its output with a "
        "second one, then with that for another batch, and its buffers with those before the call.",
        "Batch norm in training mode may refuse an example that is alone. Leave the batch as long as it is, "
        "and put something else into all places but one; do so for each example.",
        "`x[[i] * len(x)]` is a batch of copies of example `i`: compare element `i` of its output with that "
        "for `x`. Keep a `clone` of each buffer by its name, since a forward may assign a new tensor.",
    ],
)


@exercise.starter
def find_mode_mistakes(model: nn.Module, batch, loss_fn) -> list[str]:
    """Of "differs", "mixes" and "thawed", those that hold"""
    raise NotImplementedError


_NAME, _STEPS = "find_mode_mistakes", "torch.randn(6, 3, 4)"
_NORM, _FROZEN = "self.norm = nn.BatchNorm1d(4)", "self.norm.requires_grad_(False)"
_MC = "def train(self, mode=True):\n    super().train(mode)\n    self.drop.train()\n    return self"
_TINY = numbers.hard("6, 4", "a tiny scale")["a tiny scale"]
_OWN = "self.gain = nn.Parameter(torch.ones(4))\nself.register_buffer('mean', torch.zeros(4))"


def _head(hidden, *init, first="", **more):
    """A model with a linear head over what stands in `hidden`"""
    layers = "\n".join(["self.head = nn.Linear(4, 1)", *init])
    return net(layers, f"{first}\nreturn self.head({hidden})", **more)


def _own_norm(condition, after=""):
    """A norm whose buffer is assigned anew where the condition holds"""
    moves = f"if {condition}:\n    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)"
    return _head("(x - self.mean) * self.gain", _OWN, first=moves, after=after)


@exercise.check
def healthy(find_mode_mistakes):
    """It keeps quiet where the mode is followed

    In training mode dropout may draw. "thawed" asks for the modes in which the model came, and for parameters
    of the module's own, all frozen: `all` of none is true, and a norm that trains one should learn its
    statistics. The largest number, taken away before `exp`, cancels out but for the last digits.
    """
    attends = "self.norm, self.mix = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, 0.5, batch_first=True)"
    counts = "self.count = nn.Identity()\nself.count.register_buffer('calls', torch.tensor(0))"
    gain = "self.gain = nn.Parameter(torch.ones(4), requires_grad=False)"
    rnn = "self.rnn = nn.LSTM(4, 4, batch_first=True)"
    wide = "self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))"
    softmax = "h = self.body(x)\nh = (h - h.max()).exp()\nreturn h / h.sum(1, keepdim=True) * "
    codes = {
        "dropout and batch norm": _head("F.dropout(self.norm(x), 0.5, self.training)", _NORM),
        "a frozen batch norm in evaluation mode": _head("self.norm(x)", _NORM, f"{_FROZEN}.eval()"),
        "a norm with a frozen weight": _head("self.norm(x)", _NORM, "self.norm.weight.requires_grad_(False)"),
        "a frozen gain and a batch norm": _head("self.norm(x) * self.gain", _NORM, gain),
        "a counter without parameters": _head("x", counts, first="self.count.calls += self.training"),
        "statistics that stop with training": _own_norm("self.training"),
        "frozen, in evaluation mode": _own_norm("self.training", "model.eval().gain.requires_grad_(False)"),
        "layer norm and attention": net(attends, "h = self.norm(x)\nreturn self.mix(h, h, h)[0]", x=_STEPS),
        "an LSTM with `batch_first`": _head("self.rnn(x)[0].mean(1)", rnn, x=_STEPS),
        "a dict": net(
            f"{_NORM}\nself.head = nn.Linear(4, 1)", "return {'h': x.sum(1), 'y': self.head(self.norm(x))}"
        ),
        "no parameters": net("self.drop = nn.Dropout(0.5)", "return self.drop(x)"),
        "a softmax, less the largest of all": net(wide, f"{softmax}1", x="torch.randn(6, 64)"),
        "the same, times 1e6": net(wide, f"{softmax}1e6", x="torch.randn(6, 64)"),
        "one example": _head("x", x="torch.randn(1, 4)", y="torch.randn(1, 1)"),
        "float64": _head("self.norm(x)", _NORM, after="model.double()\nbatch = [t.double() for t in batch]"),
        **{label: _head("x", x=code) for label, code in numbers.hard("6, 4").items()},
    }
    bugs.quiet(_NAME, find_mode_mistakes, codes)


@exercise.check
def differs(find_mode_mistakes):
    """What draws or moves in evaluation mode is found

    `eval()` sets `training` in registered modules: it reaches no list, no plain `F.dropout(x)` and no
    `dropout_p`. Two calls from one random state draw the same, and nothing shows. A fixed tolerance is blind
    to tiny outputs: take one that is relative to the largest.
    """
    attends = "h = x.unsqueeze(1)\nh = F.scaled_dot_product_attention(h, h, h, dropout_p=0.5)"
    codes = {
        "`F.dropout`": _head("F.dropout(x)"),
        "in the second of a dict": net("self.i = nn.Identity()", "return {'h': x, 'y': F.dropout(x)}"),
        "attention with `dropout_p`": _head("h[:, 0]", first=attends),
        "dropout in a list": _head("self.own[0](x)", "self.own = [nn.Dropout(0.5)]"),
        "a little noise, in evaluation mode": _head("x + 0.01 * torch.randn_like(x)", after="model.eval()"),
        "a running mean that moves in every mode": _own_norm("True"),
        "dropout on tiny numbers": net("self.act = nn.ReLU()", "return F.dropout(x)", x=_TINY),
        "a `train()` that leaves dropout on": _head("self.drop(x)", "self.drop = nn.Dropout()", methods=_MC),
    }
    bugs.examine(_NAME, find_mode_mistakes, {label: (code, ["differs"]) for label, code in codes.items()})


@exercise.check
def mixes(find_mode_mistakes):
    """What makes an example depend on its neighbours in evaluation mode is found

    Batch norm without a running mean takes that of the batch. It may refuse an example that is alone, and is
    the same in any order: leave the batch as long as it is, and replace the others. An LSTM without
    `batch_first=True` takes examples for steps in time: in one direction the first depends on none.
    """
    no_mean, lstm = "self.norm = nn.BatchNorm1d(4, track_running_stats=False)", "self.rnn = nn.LSTM(4, 4)"
    f_norm = "F.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)"
    embed, words = "self.embed = nn.Embedding(9, 4)", "h = self.embed(x).mean(1)\nreturn h - h.mean(0)"
    codes = {
        "batch norm that tracks nothing": _head("self.norm(x)", no_mean),
        "batch norm in a list": _head("self.own[0](x)", "self.own = [nn.BatchNorm1d(4)]"),
        "`F.batch_norm(training=True)`": _head(f_norm, _NORM),
        "a softmax over dimension 0": _head("x.softmax(0)"),
        "an LSTM without `batch_first`": _head("self.rnn(x)[0].mean(1)", lstm, x=_STEPS),
        "words, less their mean": net(embed, words, x="torch.arange(9).view(3, 3)"),
        "tiny numbers, less their mean": net("self.act = nn.ReLU()", "return x - x.mean(0)", x=_TINY),
    }
    bugs.examine(_NAME, find_mode_mistakes, {label: (code, ["mixes"]) for label, code in codes.items()})


@exercise.check
def thawed(find_mode_mistakes):
    """A frozen layer that still learns its statistics is found

    `requires_grad_(False)` stops gradients of parameters. A running mean is a buffer, and moves in the calls
    in training mode. Compare buffers, whatever the class; what a module's children hold is not its own.
    """
    other = "self.other = nn.BatchNorm1d(4).requires_grad_(False).eval()"
    learns, drops = (_head(h, _NORM, _FROZEN, other) for h in ("self.norm(x)", "F.dropout(self.norm(x))"))
    own = _own_norm("self.training", "model.gain.requires_grad_(False)")
    more = f"{_FROZEN}.eval()\nself.norm.register_buffer("
    counts = f"{more}'calls', torch.tensor(0))"
    adds = "self.norm.little = self.norm.little + 1e-12 * self.training"
    little = f"{more}'little', torch.zeros(()), persistent=False)"
    models = {
        "a frozen batch norm in training mode": (learns, ["thawed"]),
        "the same in a model in evaluation mode": (f"{learns}\nmodel.eval()\nmodel.norm.train()", ["thawed"]),
        "a frozen norm of one's own": (own, ["thawed"]),
        "with dropout that stays on": (drops, ["thawed", "differs"]),
        "a counter": (_head("x", _NORM, counts, first="self.norm.calls += self.training"), ["thawed"]),
        "what isn't saved, by 1e-12": (_head("x", _NORM, little, first=adds), ["thawed"]),
    }
    bugs.examine(_NAME, find_mode_mistakes, models)


@exercise.check(cases=bugs.LIVELY)
def left_alone(t):
    """After looking, all is as it was

    `eval()` and `train()` set the mode of every module inside; where modes differ, one `train()` does not
    bring them back. A call in training mode moves running statistics, also under `no_grad`, and draws.
    """
    bugs.left_alone(t, _NAME)
