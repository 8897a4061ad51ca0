"""Each look on models: one that is sick is named by its cause, and two that look like it are left alone."""

import copy
import importlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils.diagnosis import diagnose
from course_utils.diagnosis.looks import gradients, graphs, optimizers, precision, registration

X, Y = torch.randn(16, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
LOSS = nn.CrossEntropyLoss()


class Net(nn.Module):
    """A body, an activation and a head; `forward(net, x)` says how they are called."""

    def __init__(self, forward=None, **parts):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)
        for name, part in parts.items():
            setattr(self, name, part)
        self.calls = [forward or (lambda net, x: net.head(net.hidden(x)))]

    def hidden(self, x):
        return self.act(self.body(x))

    def forward(self, x):
        return self.calls[0](self, x)


def found(model, optimizer=torch.optim.SGD, batch=(X, Y), loss=LOSS, **settings):
    """The report on a model with an optimizer for its parameters, or with one that is there."""
    if isinstance(optimizer, type):
        optimizer = optimizer(model.parameters(), **{"lr": 0.1, **settings})
    report = diagnose(model, batch, loss, optimizer)
    assert not report.unseen
    return report


def named(report, cause, *words, rank="fault"):
    """It has this cause, says these words about it, and has no other fault."""
    finding = next((one for one in report.findings if one.cause == cause), None)
    assert finding is not None, report
    assert finding.rank == rank
    told = "\n".join([finding.said, *finding.evidence])
    assert [word for word in words if word not in told] == [], told
    assert [one.cause for one in report.faults if one is not finding] == []


def quiet(report, cause, *ranks):
    """There is no fault, and nothing of this cause, or nothing of it in these ranks."""
    assert report.faults == []
    assert [one for one in report.findings if one.cause == cause and one.rank in (ranks or (one.rank,))] == []


@pytest.fixture(autouse=True)
def these_looks(monkeypatch):
    """The looks that are tried here, and no others beside them."""
    torch.manual_seed(0)
    module = importlib.import_module("course_utils.diagnosis.diagnose")
    files = (graphs, precision, gradients, registration, optimizers)
    monkeypatch.setattr(module, "LOOKS", [look for file in files for look in file.LOOKS])
    monkeypatch.setattr(module, "TRIALS", [look for file in files for look in file.TRIALS])


def test_a_healthy_model():
    report = found(Net())
    assert report.findings == []


def test_cut_graph():
    sick = Net(lambda net, x: net.head(torch.tensor(net.hidden(x).tolist())))
    named(found(sick), "cut_graph", "2 parameters", "`body.weight`", "`act`", "`head` gets one without")
    own = Net(lambda net, x: F.linear(net.hidden(x), net.head.weight.data, net.head.bias))
    named(found(own), "cut_graph", "1 parameter ", "`head.weight`")

    frozen = Net()
    frozen.body.requires_grad_(False)
    quiet(found(frozen), "cut_graph")
    both = Net(lambda net, x: net.head(net.hidden(x)) + net.head(net.hidden(x).detach()))
    quiet(found(both), "cut_graph")


def test_a_graph_that_is_cut_on_purpose_is_a_doubt():
    def under_no_grad(net, x):
        with torch.no_grad():
            hidden = net.hidden(x)
        return net.head(hidden)

    named(found(Net(under_no_grad)), "cut_graph", "called under `no_grad`", rank="doubt")
    probe = Net(lambda net, x: net.head(net.hidden(x).detach()))
    report = found(probe, torch.optim.SGD(probe.head.parameters(), lr=0.1))
    named(report, "cut_graph", "The optimizer has none of them.", rank="doubt")
    named(found(probe, None), "cut_graph", "no optimizer to say what is to be trained", rank="doubt")
    numbers = Net(lambda net, x: net.head(torch.from_numpy(net.hidden(x).detach().numpy())))
    named(found(numbers, None), "cut_graph")
    follows = Net(lambda net, x: net.head(net.hidden(x) + net.teacher(x).detach()))
    follows.teacher = copy.deepcopy(follows.body)
    named(found(follows), "cut_graph", "a copy that follows it", rank="doubt")


def test_unused_parameter():
    def pools(net, x):
        net.pooler(net.hidden(x))
        return net.head(net.hidden(x))

    named(found(Net(pools, pooler=nn.Linear(16, 2))), "unused_parameter", "`pooler.weight`", rank="doubt")
    named(found(Net(pooler=nn.Linear(16, 2))), "unused_parameter", "not called", rank="note")
    quiet(found(Net(pooler=nn.Linear(16, 2).requires_grad_(False))), "unused_parameter")


def mixture(net, x):
    """Experts by turns, the last of which gets no row."""
    hidden = net.hidden(x)
    out = torch.zeros_like(hidden)
    for number, expert in enumerate(net.experts):
        rows = torch.where(torch.arange(len(x)) % 2 == number)[0]
        out = out.index_add(0, rows, expert(hidden[rows]))
    return net.head(out)


def test_zero_gradients():
    shut = Net(lambda net, x: net.head(net.hidden(x) + 0 * net.more(x)), more=nn.Linear(8, 16))
    named(found(shut), "zero_gradients", "2 parameters", "`more.weight`", rank="doubt")

    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    quiet(found(Net(mixture, experts=experts)), "zero_gradients")
    down, up = nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False)
    nn.init.zeros_(up.weight)
    lora = Net(lambda net, x: net.head(net.hidden(x) + net.up(net.down(x))), down=down, up=up)
    lora.body.requires_grad_(False)
    quiet(found(lora), "zero_gradients")
    quiet(found(lora, None), "zero_gradients")


def test_dead_relus():
    dead = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(dead[2].bias, -30.0)
    named(found(dead), "dead_relus", "5 parameters", "`0.weight`", "a ReLU in `3`: all 256")
    functional = Net(lambda net, x: net.head(F.relu(net.body(x) - 6)))
    named(found(functional), "dead_relus", "3 parameters", "in the model's forward")

    rezero = Net(lambda net, x: net.head(x.repeat(1, 2) + net.gate * net.hidden(x)))
    rezero.gate = nn.Parameter(torch.zeros(16))
    quiet(found(rezero), "dead_relus")
    half = Net()
    nn.init.constant_(half.body.bias[:8].data, -30.0)
    quiet(found(half), "dead_relus")


def test_frozen_weight():
    def deep():
        return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.ReLU())))

    one, biases, backbone = deep(), deep(), deep()
    one[2].weight.requires_grad_(False)
    named(found(one), "frozen_weight", "`2.weight`", "layers all of whose parameters train: 3", rank="doubt")
    for name, parameter in biases.named_parameters():
        parameter.requires_grad_("bias" in name)
    quiet(found(biases), "frozen_weight")
    backbone[:6].requires_grad_(False)
    quiet(found(backbone), "frozen_weight")


def stack(act, init=lambda weight: None):
    layers = [layer for _ in range(10) for layer in (nn.Linear(8, 8), act())]
    for layer in layers[::2]:
        init(layer.weight)
    return nn.Sequential(*layers, nn.Linear(8, 3))


def test_vanishing_and_exploding():
    report = found(stack(nn.Sigmoid))
    assert "vanishing" in report.causes
    large = stack(nn.Identity, lambda weight: nn.init.normal_(weight, std=10.0))
    assert {"exploding", "nan_loss"} & set(found(large, loss=lambda out, y: F.mse_loss(out, out * 0)).causes)

    he = stack(nn.ReLU, lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"))
    quiet(found(he), "vanishing")
    layers = [layer for _ in range(10) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())]
    norms = nn.Sequential(*layers, nn.Linear(8, 3))
    quiet(found(norms), "vanishing")


def through_blocks(net, x):
    hidden = net.hidden(x)
    for block in net.blocks:
        hidden = hidden + block(hidden) * net.scale
    return net.head(hidden)


def test_list_of_layers():
    sick = Net(through_blocks, blocks=[nn.Linear(16, 16), nn.Linear(16, 16)], scale=1.0)
    named(found(sick), "list_of_layers", "4 tensors", "`blocks[0].weight`", "in the optimizer: 0")
    plain = Net(through_blocks, blocks=nn.ModuleList(), scale=1.0)
    plain.calls = [lambda net, x: net.head(net.hidden(x) * net.own["scale"])]
    plain.own = {"scale": torch.ones(16, requires_grad=True)}
    named(found(plain), "list_of_layers", "1 tensor ", "`own['scale']`")
    given = torch.optim.SGD([*plain.parameters(), plain.own["scale"]], lr=0.1)
    named(found(plain, given), "list_of_layers", "in the optimizer: 1", rank="doubt")

    registered = nn.ModuleList([nn.Linear(16, 16)])
    index = Net(through_blocks, blocks=registered, scale=1.0)
    index.by_name = {"first": registered[0]}
    quiet(found(index), "list_of_layers")
    teacher = Net(through_blocks, blocks=[nn.Linear(16, 16).requires_grad_(False)], scale=1.0)
    quiet(found(teacher), "list_of_layers")


def words(tie):
    embed, head = nn.Embedding(30, 8), nn.Linear(8, 30, bias=False)
    tie(embed, head)
    ids = torch.randint(30, (4, 5))
    return (
        nn.Sequential(embed, head),
        (ids, ids),
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    )


def found_words(tie):
    model, batch, loss = words(tie)
    return found(model, batch=batch, loss=loss)


def test_tied_apart():
    def stepped_twice(embed, head):
        head.weight = nn.Parameter(embed.weight.data)

    def copied(embed, head):
        head.weight.data.copy_(embed.weight.data)

    def tied(embed, head):
        head.weight = embed.weight

    named(found_words(stepped_twice), "tied_apart", "`0.weight`, `1.weight`", "2 parameters on one memory")
    named(found_words(copied), "tied_apart", "hold the same numbers", rank="doubt")
    quiet(found_words(tied), "tied_apart")
    quiet(found_words(lambda embed, head: None), "tied_apart")


def test_stale_optimizer():
    sick = Net()
    optimizer = torch.optim.SGD(sick.parameters(), lr=0.1, momentum=0.9)
    sick.head = nn.Linear(16, 3)
    named(found(sick, optimizer), "stale_optimizer", "2 tensors", "`head.weight`, `head.bias`", "(3, 16)")
    of_another = found(Net(), torch.optim.SGD(Net().parameters(), lr=0.1))
    assert of_another.causes == ["stale_optimizer"]  # that nothing moves is no cause of its own

    net, judge = Net(), nn.Linear(3, 1)
    quiet(
        found(net, torch.optim.SGD([*net.parameters(), *judge.parameters()], lr=0.1)),
        "stale_optimizer",
        "doubt",
    )
    probe = Net()
    probe.body.requires_grad_(False)
    quiet(found(probe, torch.optim.SGD(probe.head.parameters(), lr=0.1)), "missing_from_optimizer")
    report = found(net, torch.optim.SGD(net.head.parameters(), lr=0.1))
    named(report, "missing_from_optimizer", "2 parameters", "`body.weight`", rank="doubt")


def test_unmoved():
    named(found(Net(), lr=0.0), "unmoved", "4 parameters", "the learning rate is 0", rank="doubt")
    narrow, batch = Net().bfloat16(), (X.bfloat16(), Y)
    report = found(narrow, torch.optim.AdamW, batch, lr=1e-6)
    named(report, "unmoved", "rounded away", "100% are unchanged")

    quiet(found(narrow, torch.optim.AdamW, batch, lr=1e-2), "unmoved")
    starts = Net()
    optimizer = torch.optim.SGD(starts.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    quiet(found(starts, optimizer), "unmoved", "fault", "doubt")


def test_decayed_norms():
    def normed():
        return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3))

    def groups(model, decayed):
        inside = {id(one) for one in decayed}
        others = [p for p in model.parameters() if id(p) not in inside]
        settings = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(settings, lr=1e-3)

    sick, healthy = normed(), normed()
    report = found(sick, groups(sick, [sick[0].weight, sick[1].weight]))
    named(report, "decayed_norms", "`1.weight`", "another group has a decay of 0", rank="doubt")
    named(
        found(normed(), torch.optim.AdamW, lr=0.02, weight_decay=2.0), "decayed_norms", "0.04", rank="doubt"
    )
    named(found(normed(), torch.optim.AdamW, lr=1e-3), "decayed_norms", rank="note")
    quiet(found(healthy, groups(healthy, [healthy[0].weight, healthy[2].weight])), "decayed_norms")
    quiet(found(normed(), torch.optim.AdamW, weight_decay=0.0), "decayed_norms")


def carries(net, x):
    net.state = torch.tanh(net.cell(net.state) + net.body(x))
    return net.head(net.state)


def carries_numbers(net, x):
    out = carries(net, x)
    net.state = net.state.detach()
    return out


def carrying(forward):
    return Net(forward, cell=nn.Linear(16, 16), state=torch.ones(16, 16))


def test_carried_state():
    named(found(carrying(carries)), "carried_state", "backward of step 2", "`state`", "a second time")
    quiet(found(carrying(carries_numbers)), "carried_state")

    def inside_a_step(net, x):
        state = torch.zeros(16, 16)
        for _ in range(3):
            state = torch.tanh(net.cell(state) + net.body(x))
        return net.head(state)

    quiet(found(carrying(inside_a_step)), "carried_state")


def keeping(keep):
    def forward(net, x):
        out = net.head(net.hidden(x))
        keep(net, out)
        return out

    return Net(forward, kept=[])


def test_growing_history():
    report = found(keeping(lambda net, out: net.kept.append(out)))
    named(report, "hoarded_predictions", "5 of 5 calls", "`kept`")
    report = found(keeping(lambda net, out: net.kept.append(out.mean())))
    named(report, "growing_history", "5 of 5 calls", "`kept`")

    quiet(found(keeping(lambda net, out: net.kept.append(out.detach()))), "hoarded_predictions")
    quiet(found(keeping(lambda net, out: setattr(net, "kept", [*net.kept, out][-3:]))), "hoarded_predictions")


def two_parts(order, inplace=True):
    def forward(net, x):
        code = net.body(x)
        return sum(getattr(net, part)(code) for part in order)

    return Net(
        forward, first=nn.Sequential(nn.ReLU(inplace=inplace), nn.Linear(16, 3)), second=nn.Linear(16, 3)
    )


def test_version_conflict():
    report = found(two_parts(["second", "first"]))
    named(report, "version_conflict", "step 1", "saved in `second`, written to by `first.0`")
    quiet(found(two_parts(["second", "first"], inplace=False)), "version_conflict")

    def adds(net, x):
        hidden = net.body(x)
        hidden += 1
        return net.head(hidden)

    quiet(found(Net(adds)), "version_conflict")


def test_overwritten_activation():
    report = found(two_parts(["first", "second"]))
    named(report, "overwritten_activation", "`first.0` writes over its input, and `second` reads it")

    def through_data(net, x):
        hidden = net.body(x).exp()
        out = net.head(hidden)
        hidden.data.mul_(2)
        return out

    named(found(Net(through_data)), "overwritten_activation", "2 tensors", "saved in `head`")

    layers = [nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 16), nn.BatchNorm1d(16)]
    chain = nn.Sequential(*layers, nn.LeakyReLU(inplace=True), nn.Dropout(0.5), nn.Linear(16, 3))
    quiet(found(chain), "overwritten_activation")

    def residual(net, x):
        hidden = net.body(x)
        return net.head(net.act(net.norm(hidden)) + hidden)

    quiet(found(Net(residual, norm=nn.BatchNorm1d(16), act=nn.ReLU(inplace=True))), "overwritten_activation")


class Scaled(nn.Module):
    def forward(self, hidden):
        std = hidden.square().mean(dim=1, keepdim=True).sqrt()
        return torch.where(std == 0, 0.0, hidden / std)


def test_nan_loss():
    logs = Net(lambda net, x: net.head(net.norm(x)), norm=nn.Sequential(nn.Linear(8, 16), nn.Identity()))
    logs.norm[1].forward = lambda hidden: hidden.log()
    named(found(logs), "nan_loss", "`log`, in `norm.1`", "its inputs are finite")
    zeros = (X.clone().index_fill_(0, torch.tensor([0]), 0.0), Y)
    backward = Net(lambda net, x: net.head(net.scaled(net.body(x))), scaled=Scaled())
    nn.init.zeros_(backward.body.bias)
    named(found(backward, batch=zeros), "nan_loss", "`DivBackward0`", "torch.where(std == 0", "`body.weight`")
    named(found(Net(), lr=1e30), "nan_loss", "finite for 1 step", "learning rate: 1e+30")
    named(found(Net(), batch=(X.log(), Y)), "nan_loss", "The batch has NaN or inf in the model's input")

    def masked(net, x):
        mask = torch.full((3,), -torch.inf)
        mask[:2] = 0
        return (net.head(net.hidden(x)) + mask).softmax(1)

    quiet(found(Net(masked), loss=lambda out, y: out.square().mean()), "nan_loss")
    quiet(found(backward), "nan_loss")


def test_half_without_scaler():
    def half(net, x):
        with torch.autocast("cpu", torch.float16):
            return net.head(net.hidden(x)).float()

    def small(out, y):
        return F.cross_entropy(out, y) * 1e-6

    report = found(Net(half), loss=small)
    named(report, "half_without_scaler", "lost as zeros", "with the loss times 1024", rank="doubt")
    narrow = Net().half()
    report = found(narrow, batch=(X.half(), Y), loss=lambda out, y: small(out.float(), y), lr=1e4)
    named(report, "half_without_scaler", "lost as zeros")

    quiet(found(Net(half)), "half_without_scaler", "fault", "doubt")
    quiet(found(Net(), loss=small), "half_without_scaler")


def test_raised():
    named(found(Net(), batch=(X[:, :5], Y)), "raised", "The forward of step 1", "in the module `body`")
    named(found(Net(), batch=(X, Y + 5)), "raised", "The loss of step 1 raised IndexError")

    def tries(net, x):
        try:
            net.head(x)
        except RuntimeError:
            return net.head(net.hidden(x))

    quiet(found(Net(tries)), "raised")


def test_what_takes_its_own_steps():
    """An optimizer that asks for the loss again, sparse gradients, and a model without an optimizer."""
    net = Net()
    quiet(found(net, torch.optim.LBFGS(net.parameters())), "raised")
    model = nn.Sequential(nn.Embedding(30, 8, sparse=True), nn.Linear(8, 3))
    report = found(model, torch.optim.SGD, (torch.arange(16), Y))
    assert report.findings == []
    assert found(Net(), None).findings == []


def test_models_that_take_no_hooks_or_no_batch_yet():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 3)))
    assert found(scripted).findings == []
    with pytest.raises(ValueError, match="has been called once"):
        diagnose(nn.LazyLinear(3), (X, Y), LOSS)


def test_a_forward_that_computes_gradients_itself():
    def penalized(net, x):
        x = x.detach().requires_grad_()
        out = net.head(net.hidden(x))
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out * (1 + slope.square().mean())

    unused = Net(penalized, more=nn.Linear(2, 2), act=nn.Tanh())
    named(found(unused), "unused_parameter", "`more.weight`", rank="note")
