"""Find what the optimizer will not see

Return the names of all tensors that ask for training and that `model.parameters()` does not yield: leaves
with `requires_grad=True` in attributes and buffers of the model and of all modules in it, and in lists,
tuples and dicts there, however nested. A list may hold the model, or itself.

- A name is the path to the tensor, with dots, as if everything on the way were registered: `layers.0.weight`
  for `model.layers[0].weight`, `heads.a.bias` for `model.heads["a"].bias`.
- Each tensor is named once.
- Model, batch `(x, y)` and random state stay as they were.

`self.layers = [nn.Linear(4, 4)]` → `["layers.0.weight", "layers.0.bias"]`
"""

from torch import nn

from course_utils.exercise import Exercise
from course_utils.exercise.kits import bugs

exercise = Exercise(
    minutes=15,
    core=True,
    hints=[
        "Two questions: which tensors does the model hold, and which of those does `parameters()` yield? "
        "Compare tensors by `id`: `==` and `in` compare their elements.",
        "`vars(module)` holds the plain attributes, and `_parameters`, `_buffers` and `_modules`. Write a "
        "function that is given an object and its name, and that calls itself for what is inside.",
        "Begin a set of seen ids with those of `model.parameters()`. The function ends at what was seen, and "
        "notes a leaf that requires a gradient; it goes on into modules, lists, tuples and dicts.",
    ],
)


@exercise.starter
def find_untracked_parameters(model: nn.Module, batch, loss_fn) -> list[str]:
    """Names of tensors that ask for training and that no optimizer will be given"""
    raise NotImplementedError


_NAME = "find_untracked_parameters"


def _net(init, **more):
    """A model with a linear head; the rest of it is not used in its forward."""
    forward = more.pop("forward", "return self.head(x)")
    return bugs.net(f"self.head = nn.Linear(4, 1)\n{init}", forward, **more)


def _layer(name):
    return [f"{name}.weight", f"{name}.bias"]


@exercise.check
def in_containers(find_untracked_parameters):
    """Layers in plain lists, tuples and dicts are found, at any depth

    A module registers what is assigned to it if that is a parameter or a module. A list is neither, so what
    it alone holds is not trained, moved or saved. `id` tells one tensor from another; `in` compares numbers.
    """
    blocks = "self._blocks = [nn.Sequential(nn.ReLU(), nn.Linear(4, 4))]"
    inside = "self.body = nn.Sequential(nn.ReLU())\nself.body[0].more = [[], [nn.Linear(4, 4)]]"
    deep = "self.a = [nn.Identity()]\nself.a[0].b = [nn.Linear(4, 4)]"
    models = {
        "a list": (_net("self.layers = [nn.Linear(4, 4)]"), _layer("layers.0")),
        "a dict of tuples": (_net("self.own = {7: (nn.ReLU(), nn.Linear(4, 1))}"), _layer("own.7.1")),
        "a list of `nn.Sequential`": (_net(blocks), _layer("_blocks.0.1")),
        "a list inside a registered module": (_net(inside), _layer("body.0.more.1.0")),
        "a list in a layer that stands in a list": (_net(deep), _layer("a.0.b.0")),
    }
    bugs.examine(_NAME, find_untracked_parameters, models)


@exercise.check
def without_a_module(find_untracked_parameters):
    """Tensors that ask for training are found without a layer around them

    `backward` fills the `.grad` of leaves that require a gradient, whether anybody updates it or not. Only
    an `nn.Parameter` is registered as one; a buffer that requires a gradient gets it, and is no parameter.
    """
    own = "def parameters(self, recurse=True):\n    return self.head.parameters()"
    buffer = "register_buffer('gain', torch.ones(1, requires_grad=True))"
    models = {
        "a plain tensor": (_net("self.scale = torch.ones(1, requires_grad=True)"), ["scale"]),
        "a parameter in a dict": (_net("self.own = {'w': nn.Parameter(torch.ones(4)), 'n': 3}"), ["own.w"]),
        "a buffer": (_net(f"self.head.{buffer}"), ["head.gain"]),
        "a `parameters()` of its own": (_net("self.more = nn.Linear(4, 4)", methods=own), _layer("more")),
        "a buffer in a list": (_net(f"self.a = [nn.Identity()]\nself.a[0].{buffer}"), ["a.0.gain"]),
    }
    bugs.examine(_NAME, find_untracked_parameters, models)


@exercise.check
def shared(find_untracked_parameters):
    """What is shared is judged by itself, not by where it stands

    One tensor or module may stand in several places, under several names. `parameters()` goes through the
    registered ones and yields each tensor once; whether it yields one is a matter of identity. A list may
    hold itself, or the model: who doesn't remember where they have been walks in circles.
    """
    tied = "self.out = [nn.Linear(4, 1)]\nself.out[0].weight = self.head.weight"
    equal = "self.b = [nn.Parameter(self.head.bias.detach().clone())]"
    itself = "self.a = [nn.Linear(4, 4), self]\nself.a.append(self.a)"
    both = "self.scale = torch.ones(1, requires_grad=True)\nself.both = (self.scale, self.scale)"
    twice = [f"a.0.{p} or b.0.{p} or b.1.{p}" for p in ("weight", "bias")]
    models = {
        "one layer in two lists": (_net("a = nn.Linear(4, 4)\nself.a, self.b = [a], [a, a]"), twice),
        "a weight tied to a registered one": (_net(tied), ["out.0.bias"]),
        "equal numbers in two parameters": (_net(equal), ["b.0"]),
        "a list that holds the model and itself": (_net(itself), _layer("a.0")),
        "one tensor in two places": (_net(both), ["scale or both.0 or both.1"]),
    }
    bugs.examine(_NAME, find_untracked_parameters, models)


@exercise.check
def healthy(find_untracked_parameters):
    """It keeps quiet where what stands in a list is registered too, or is not to be trained

    A list beside `nn.ModuleList` is a harmless index; `nn.LSTM` keeps one of all its parameters. A frozen
    teacher is often hidden in a list on purpose. A tensor with a `grad_fn` is no leaf, and nothing to train.
    """
    both = "self.all = nn.ModuleList([self.head])\nself.by_name = {'h': self.head}"
    buffers = "self.register_buffer('mask', torch.ones(4))\nself.masks = [self.mask]"
    tied = "self.body = nn.Linear(4, 1)\nself.body.weight = self.head.weight"
    last = "self.last = self.head(x)\nreturn self.last"
    codes = {
        "`nn.ModuleList`, and a dict of its layers": _net(both),
        "registered after the list": _net("self.all = [[nn.Linear(4, 4)]]\nself.first = self.all[0][0]"),
        "a frozen teacher in a list": _net("self.own = [nn.Linear(4, 1).requires_grad_(False)]"),
        "`nn.LSTM`": _net("self.rnn = nn.LSTM(4, 4)", forward="return self.head(self.rnn(x)[0])"),
        "a buffer that stands in a list too": _net(buffers),
        "tied weights": _net(tied),
        "a result kept by the forward": _net("self.last = None", forward=last, after="model(batch[0])"),
        "no parameters": bugs.net("self.layers = [nn.ReLU()]", "return x"),
    }
    bugs.quiet(_NAME, find_untracked_parameters, codes)


@exercise.check(cases=bugs.LIVELY)
def left_alone(t):
    """Looking changes nothing

    A detector runs between two training steps. Whatever it changes makes the run another one.
    """
    bugs.left_alone(t, _NAME)
