"""What train, eval and no_grad switch"""

import re

from course_utils.questions import Family

family = Family(
    section="A detector for modes",
    asked="Is a gradient recorded, how many batches has the norm counted, were elements dropped?",
)
KEPT = ".train = lambda mode=True: None"


@family.program
def modes(draw, level):
    width, hidden, many, later = (draw.randint(2, 12) for _ in range(4))

    def batches(count, quiet):
        lines = [f"for _ in range({count}):", f"    out = net(torch.randn(16, {width}))"]
        return ["with torch.no_grad():", *(f"    {line}" for line in lines)] if quiet else lines

    freeze, woken = ["net[1].requires_grad_(False)"], ["net[1].eval()", "net.train()"]
    quiet = draw.random() < 0.6
    switched = ["net.eval()"] * (not quiet or level > 3 and draw.random() < 0.4)
    if level == 1:
        lines = draw.choice([[*freeze, *batches(many, True)], ["net.eval()", *batches(many, False)]])
    elif level == 2:
        lines = draw.choice([freeze, woken]) + batches(many, True)
    else:
        first = draw.choice([freeze, woken]) if level < 5 else freeze + draw.choice([woken, woken[::-1]])
        lines = first + batches(many, False) + switched + batches(later, quiet)
    layers = f"nn.Linear({width}, {hidden}), nn.BatchNorm1d({hidden}), nn.Dropout(0.5)"
    shown = "out.requires_grad, net[1].num_batches_tracked.item(), (out == 0).any().item()"
    return "\n".join([f"net = nn.Sequential({layers})", *lines, shown])


@family.belief
def eval_stops_gradients(run):
    """`eval()` turns off gradients

    It sets a flag that layers like dropout and batch norm read. Whether a gradient is recorded is up to
    `no_grad`, and to what requires one.

        net = nn.Linear(1, 1).eval()
        net(torch.ones(1)).requires_grad
    """
    grad, counted, dropped = run.value
    return grad and run.names["net"].training, counted, dropped


@family.belief
def no_grad_is_evaluation(run):
    """Under `no_grad` dropout and batch norm do what they do in evaluation

    `no_grad` keeps autograd from recording. Layers look at their own `training`: dropout drops, and running
    statistics move.

        norm, drop = nn.BatchNorm1d(2), nn.Dropout(0.5)
        with torch.no_grad():
            norm(torch.randn(8, 2)), (dropped := drop(torch.ones(100)))
        norm.num_batches_tracked.item(), dropped.eq(0).any().item()
    """
    before = "kept = [m.training for m in net.modules()]\nnet.eval()\n"
    after = "for m, mode in zip(net.modules(), kept):\n    m.training = mode\n"
    return run.again(re.sub(r"(with torch.no_grad.*\n(?: .*\n)+)", rf"{before}\1{after}", run.code))


@family.belief
def frozen_norm_stands_still(run):
    """A batch norm with `requires_grad_(False)` keeps its statistics

    That freezes its parameters. The statistics are buffers, which no gradient moves: in training mode
    each call does.

        norm = nn.BatchNorm1d(2).requires_grad_(False)
        norm(torch.randn(8, 2) + 5)
        norm.running_mean
    """
    kept = rf"\1\nnet[1].eval(){KEPT}"
    return run.again(re.sub(r"(net.*requires_grad_\(False\))", kept, run.code))


@family.belief
def eval_is_for_good(run):
    """`net.train()` leaves a layer alone that was put in evaluation mode

    `train()` and `eval()` set the flag of every registered module below. After each `train()`, put a
    layer that is to stay frozen back in evaluation.

        net = nn.Sequential(nn.BatchNorm1d(2))
        net[0].eval()
        net.train()
        net[0].training
    """
    return run.again(run.code.replace("net[1].eval()", f"net[1].eval(){KEPT}"))
