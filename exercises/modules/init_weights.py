"""Weights that keep a signal alive

`init_weights(model)` draws the weights of every `nn.Linear` and `nn.Conv2d` in `model` anew and sets their
biases to zero. Each of these layers is followed by a ReLU. Behind the ReLU the mean square is to be that of
the layer's input, up to chance: in layers that narrow or widen, for every kernel, stride and number of
groups, without padding. Then the signal is alive after 30 layers.

- All other parameters and all buffers stay as they are.
- The parameters stay the same objects, outside of any graph: an optimizer that was made before trains them.

`torch.nn.init` is welcome.

`F.relu(model(x)).square().mean() / x.square().mean()` is about 1 then, for `model = nn.Linear(512, 64)`
"""

import torch
from torch import nn

from course_utils.exercise import Exercise, expect

exercise = Exercise(
    minutes=12,
    hints=[
        "One output of a layer is a sum of products, each with a weight of its own. How many terms has it? "
        "How much of the mean square does a ReLU keep, if positive and negative are equally likely?",
        "The mean square of a sum of `fan_in` independent terms is `fan_in` times that of one term. The "
        "ReLU halves it. `weight[0]` holds the weights of one output, in every layer here.",
        "`model.modules()` gives the model and all modules inside it. `nn.init.normal_` and "
        "`nn.init.zeros_` write in place and outside of the graph; `nn.init.kaiming_normal_` works the "
        "deviation out, if you tell it the right nonlinearity.",
    ],
)


@exercise.starter
def init_weights(model: nn.Module) -> None:
    raise NotImplementedError


# A layer and the shape of its input, large enough that chance moves the ratio by a few percent.
_LAYERS = {
    "narrows": ("nn.Linear(512, 64)", (1024, 512)),
    "widens": ("nn.Linear(64, 512)", (1024, 64)),
    "a convolution that widens": ("nn.Conv2d(16, 128, 3)", (8, 16, 9, 9)),
    "one with a stride of 2": ("nn.Conv2d(16, 128, 3, stride=2)", (8, 16, 17, 17)),
    "a kernel of 1 by 5": ("nn.Conv2d(128, 32, (1, 5))", (8, 128, 6, 10)),
    "64 groups": ("nn.Conv2d(256, 256, 3, groups=64)", (8, 256, 6, 6)),
}


@exercise.check(
    given="""
        torch.manual_seed(0)
        model = nn.Sequential({}, nn.ReLU()).to(device)
        init_weights(model)
        x = torch.randn{}.to(device)
    """.format,
    cases=_LAYERS,
)
def each_layer(t, device):
    """One layer and its ReLU keep the mean square

    An output is a sum over `fan_in` inputs: `in_features`, or the channels of one group times the area of the
    kernel, whatever the stride. Its mean square is `fan_in` times the variance of a weight times that of the
    input, and a ReLU keeps half. `fan_out` counts the outputs that one input reaches: its place is the
    gradient's. The variance is that of the numbers that are drawn: a normal distribution that is cut at two
    deviations has 0.77 of it left.
    """
    ratio = t.call("(model(x).square().mean() / x.square().mean()).item()")
    expect.true(0.85 < ratio < 1.18, f"the ratio is {ratio:.3g}", "expected: 0.85 to 1.18")


@exercise.check(
    given="model = {}".format,
    cases={
        "inside a part of the model": "nn.Sequential(nn.Sequential(nn.Linear(20, 20)), nn.Linear(20, 1))",
        "the model itself": "nn.Conv2d(4, 4, 3)",
        "without a bias": "nn.Sequential(nn.Linear(20, 20, bias=False), nn.Conv2d(4, 4, 3, bias=False))",
        "frozen": "nn.Sequential(nn.Linear(20, 20), nn.Conv2d(4, 4, 3)).requires_grad_(False)",
        "a class of its own": "type('Mine', (nn.Linear,), {})(20, 20)",
    },
)
def every_layer(t):
    """Every layer is found; its weights differ from each other, and its bias is zero

    `children()` gives the parts of a module, `modules()` also the parts of the parts and the module itself. A
    frozen layer is a layer too: `requires_grad` says who trains, not who is drawn. Where all weights of the
    layers are equal, and all biases, the units of a hidden layer compute the same and get the same gradient.
    Weights that are scaled and not drawn anew stay equal where they were.
    """
    t.run("for p in model.parameters():\n    nn.init.constant_(p, 7.)\ninit_weights(model)")
    for name, p in t.model.named_parameters():
        if name.endswith("bias"):
            expect.equal(p.detach(), torch.zeros_like(p), what=f"`{name}`")
        else:
            expect.true(not (p == 7).any(), f"weights of `{name}` are what they were before")
            units = len(p.detach().flatten(1).unique(dim=0))
            expect.equal(units, len(p), what=f"the number of different rows of `{name}`")


@exercise.check(
    given="""
        model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.BatchNorm2d(4), nn.GroupNorm(2, 4))
        model.extend([nn.Bilinear(4, 4, 3), nn.Conv1d(4, 4, 3), nn.Conv3d(4, 4, 3)])
        model.extend([nn.ConvTranspose2d(4, 4, 3), nn.LSTM(4, 4), nn.PReLU()]).eval()
        for tensor in model.state_dict().values():
            tensor.fill_(3)
        model.bias = nn.Parameter(torch.ones(4, 3), requires_grad=False)
        model.register_buffer("weight", torch.ones(4, 3), persistent=False)
    """
)
def others_left_alone(t):
    """Everything else stays: normalisation layers, embeddings, parameters of your own

    What makes a weight is the layer it belongs to, not its name nor its number of dimensions: the `weight` of
    a BatchNorm is a scale that starts at 1, the rows of an embedding have no `fan_in`, a transposed
    convolution has another, and a parameter may be called `bias` anywhere.
    """
    with expect.left_alone(t.model, what="`model`"):
        t.run("init_weights(model)")


@exercise.check(
    given="""
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        model[0].requires_grad_(False)
        before = dict(model.named_parameters())
        init_weights(model)
    """
)
def same_objects(t):
    """The parameters are the objects that they were

    An optimizer holds the parameters that it was given. A new `nn.Parameter` in a layer is not among them,
    and what shared the old one shares nothing with it. A parameter that was computed from others is no leaf,
    and by default gets no `.grad`.
    """
    for name, p in t.before.items():
        same = t.model.get_parameter(name) is p
        expect.true(same, f"`{name}` is another object than before", "expected: the same one")
        expect.true(p.is_leaf, f"`{name}` was computed from others: it is no leaf now")
        expect.equal(p.requires_grad, not name.startswith("0."), what=f"`{name}.requires_grad`")
