"""Find what ignores eval()

Return those of these words that hold for the model:

- `"differs"`: after `model.eval()`, two calls on `x` give different outputs.
- `"mixes"`: it does not differ, and after `model.eval()` the output for some example depends on the other
  examples in `x`. Examples lie along dimension 0, of `x` and of the output.
- `"thawed"`: in the modes in which the model is given, a call changes a buffer of a module that has
  parameters of its own (`recurse=False`), all of them frozen.

Call it and compare; rounding is no difference. Model, batch `(x, y)` and random state stay as they were.

`F.dropout(x)` in the forward → `["differs"]`
"""

from torch import nn

from course_utils.exercise import Exercise
from course_utils.exercise.kits import patients
from course_utils.exercise.kits.patients import net

exercise = Exercise(
    minutes=20,
    core=True,
    hints=[
        "Copy model and batch, and call the copy inside `torch.random.fork_rng()`. Compare its output with a "
        "second one, then with that for another batch, and its buffers with those before the call.",
        "Batch norm in training mode refuses an example that is alone. So leave the batch as long as it is, "
        "keep one example in its place, and put something else into the other places. Do so for each "
        "example, not only for the first.",
        "`x[[i] * len(x)]` is a batch of copies of example `i`: compare element `i` of its output with that "
        "for `x`. For the buffers, keep a `clone` of each by its name, since a forward may assign a new "
        "tensor.",
    ],
)


@exercise.starter
def find_mode_mistakes(model: nn.Module, batch, loss_fn) -> list[str]:
    """Of "differs", "mixes" and "thawed", those that hold"""
    raise NotImplementedError


_NAME = "find_mode_mistakes"
_HEAD = "self.head = nn.Linear(4, 1)"
_NORM = f"{_HEAD}\nself.norm = nn.BatchNorm1d(4)"
_OUT = "return self.head(self.norm(x))"
_FROZEN = "self.norm.requires_grad_(False)"
_RNN = f"{_HEAD}\nself.rnn = nn.LSTM(4, 4)", "return self.head(self.rnn(x)[0]).mean(1)"
_OWN = "self.gain = nn.Parameter(torch.ones(4))\nself.register_buffer('mean', torch.zeros(4))"
_STEPS = "torch.randn(6, 3, 4)"


def _own_norm(condition, after=""):
    """A norm whose buffer is assigned anew where the condition holds"""
    moves = f"if {condition}:\n    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)"
    return net(f"{_HEAD}\n{_OWN}", f"{moves}\nreturn self.head((x - self.mean) * self.gain)", after=after)


@exercise.check
def healthy(find_mode_mistakes):
    """It keeps quiet where the mode is followed

    In training mode dropout draws and batch norm mixes: that is their work. Layer norm and attention mix
    within one example. A frozen batch norm in evaluation mode is frozen on purpose; one that is not frozen,
    or half of it, should learn, also inside a module whose own parameters are frozen. The largest number of
    the batch, taken away before `exp`, cancels out: it moves the last digits only.
    """
    attends = "self.norm, self.mix = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, 0.5, batch_first=True)"
    counts = f"{_HEAD}\nself.count = nn.Identity()\nself.count.register_buffer('calls', torch.tensor(0))"
    counted = "self.count.calls += self.training\nreturn self.head(x)"
    gain = "self.gain = nn.Parameter(torch.ones(4), requires_grad=False)"
    wide = "self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))"
    softmax = "h = self.body(x)\nh = (h - h.max()).exp()\nreturn h / h.sum(1, keepdim=True)"
    codes = {
        "dropout and batch norm": net(_NORM, "return self.head(F.dropout(self.norm(x), 0.5, self.training))"),
        "a frozen batch norm in evaluation mode": net(f"{_NORM}\n{_FROZEN}.eval()", _OUT),
        "a batch norm with a frozen weight": net(f"{_NORM}\nself.norm.weight.requires_grad_(False)", _OUT),
        "a frozen gain and a batch norm": net(
            f"{_NORM}\n{gain}", "return self.head(self.norm(x) * self.gain)"
        ),
        "a counter without parameters": net(counts, counted),
        "statistics that stop with training": _own_norm("self.training"),
        "frozen, in evaluation mode": _own_norm("self.training", "model.eval().gain.requires_grad_(False)"),
        "layer norm and attention": net(attends, "h = self.norm(x)\nreturn self.mix(h, h, h)[0]", x=_STEPS),
        "an LSTM with `batch_first`": net(
            _RNN[0].replace("M(4, 4", "M(4, 4, batch_first=True"), _RNN[1], x=_STEPS
        ),
        "no parameters": net("self.drop = nn.Dropout(0.5)", "return self.drop(x)"),
        "a softmax, less the largest of all": net(wide, softmax, x="torch.randn(6, 64)"),
    }
    patients.examine(_NAME, find_mode_mistakes, {label: (code, []) for label, code in codes.items()})


@exercise.check
def differs(find_mode_mistakes):
    """What draws or moves in evaluation mode is found

    `eval()` sets `training` to `False` in all registered modules, and does nothing more. `F.dropout` is no
    module: it drops unless it is given `training=self.training`. The `dropout_p` of
    `F.scaled_dot_product_attention` has no mode at all. A module in a plain list is not reached. Two calls
    that begin with the same random state draw the same numbers.
    """
    attends = "h = x.unsqueeze(1)\nh = F.scaled_dot_product_attention(h, h, h, dropout_p=0.5)"
    codes = {
        "`F.dropout`": net(_HEAD, "return self.head(F.dropout(x))"),
        "attention with `dropout_p`": net(_HEAD, f"{attends}\nreturn self.head(h[:, 0])"),
        "dropout in a list": net(
            f"{_HEAD}\nself.own = [nn.Dropout(0.5)]", "return self.head(self.own[0](x))"
        ),
        "a little noise, in evaluation mode": net(
            _HEAD, "return self.head(x + 0.01 * torch.randn_like(x))", after="model.eval()"
        ),
        "a running mean that moves in every mode": _own_norm("True"),
    }
    patients.examine(_NAME, find_mode_mistakes, {label: (code, ["differs"]) for label, code in codes.items()})


@exercise.check
def mixes(find_mode_mistakes):
    """What makes an example depend on its neighbours in evaluation mode is found

    Batch norm takes the mean over the batch in training mode, and in evaluation mode the running one, if it
    has one: with `track_running_stats=False` it has none. A softmax over dimension 0 mixes, and so does an
    LSTM without `batch_first=True`, which takes examples for steps in time: there the first depends on none.
    A mean is the same in any order of the batch.
    """
    tracks_none = "self.norm = nn.BatchNorm1d(4, track_running_stats=False)"
    f_norm = "x = F.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)"
    in_list = f"{_HEAD}\nself.own = [nn.BatchNorm1d(4)]"
    of_words = "h = self.embed(x).mean(1)\nreturn h - h.mean(0)"
    codes = {
        "batch norm that tracks nothing": net(f"{_HEAD}\n{tracks_none}", _OUT),
        "batch norm in a list": net(in_list, "return self.head(self.own[0](x))"),
        "`F.batch_norm(training=True)`": net(_NORM, f"{f_norm}\nreturn self.head(x)"),
        "a softmax over dimension 0": net(_HEAD, "return self.head(x.softmax(0))"),
        "an LSTM without `batch_first`": net(*_RNN, x=_STEPS),
        "words, less their mean": net(
            "self.embed = nn.Embedding(9, 4)", of_words, x="torch.arange(9).view(3, 3)"
        ),
    }
    patients.examine(_NAME, find_mode_mistakes, {label: (code, ["mixes"]) for label, code in codes.items()})


@exercise.check
def thawed(find_mode_mistakes):
    """A frozen layer that still learns its statistics is found

    `requires_grad_(False)` stops the gradients. The running mean of a batch norm is a buffer: it moves in
    every call in training mode. Whether a layer learns shows in its buffers after a call, whatever its class.
    """
    learns = net(f"{_NORM}\n{_FROZEN}", _OUT)
    models = {
        "a frozen batch norm in training mode": (learns, ["thawed"]),
        "the same in a model in evaluation mode": (f"{learns}\nmodel.eval()\nmodel.norm.train()", ["thawed"]),
        "a frozen norm of one's own": (
            _own_norm("self.training", "model.gain.requires_grad_(False)"),
            ["thawed"],
        ),
        "with dropout that stays on": (
            net(f"{_NORM}\n{_FROZEN}", "return self.head(F.dropout(self.norm(x)))"),
            ["thawed", "differs"],
        ),
    }
    patients.examine(_NAME, find_mode_mistakes, models)


@exercise.check
def left_alone(find_mode_mistakes):
    """After looking, all is as it was

    `eval()` and `train()` set the mode of every module inside. Modes may differ from part to part, and one
    `train()` afterwards does not bring them back. A call in training mode moves running statistics, also
    under `no_grad`, and draws random numbers.
    """
    patients.left_alone(_NAME, find_mode_mistakes)
