"""Which layers run again, and when"""

import re

from course_utils.questions import Family

family = Family(section="What runs twice", asked="In which order did the layers run?")


@family.program
def segments(draw, level):
    depth = draw.randrange(6, 13)
    cuts = sorted(draw.sample(range(1, depth), min(level, 3)))
    lines = []
    if draw.random() < [0.5, 0.5, 0.5, 0.7, 1][level - 1]:
        lines.append(f"net[:{draw.choice(cuts[:2])}].requires_grad_(False)")
    plain = draw.randrange(len(cuts) + 2)  # the part without a checkpoint, where there is one
    for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, depth], strict=True)):
        part = f"net[{a}:{b}]"
        lines.append(f"x = {part}(x)" if i == plain else f"x = checkpoint({part}, x, use_reentrant=False)")
    head = [
        "from torch.utils.checkpoint import checkpoint\n",
        f"net = nn.Sequential(*[nn.Linear(4, 4) for _ in range({depth})])",
        "ran, x = [], torch.randn(2, 4)",
        "for i, layer in enumerate(net):",
        "    layer.register_forward_pre_hook(lambda *_, i=i: ran.append(i))",
    ]
    return "\n".join([*head, *lines, "x.sum().backward()", "ran"])


def parts(run):
    """The layers of each checkpoint, in the order of the forward."""
    return [[*range(int(a), int(b))] for a, b in re.findall(r"checkpoint\(net\[(\d+):(\d+)\]", run.code)]


def repeated(run):
    """Those of the checkpoints that backward comes to."""
    return [part for part in parts(run) if part[0] in run.value[len(run.names["net"]) :]]


def after_forward(run, again):
    return [*range(len(run.names["net"])), *(i for one in again for i in one)]


@family.belief
def first_segment_first(run):
    """Backward computes the segments again from the first to the last

    Backward starts at the end. It runs a segment again when it gets there: the last one first.

        from torch.utils.checkpoint import checkpoint
        ran, x = [], torch.ones(1, requires_grad=True)
        noted = lambda x, name: ran.append(name) or x.sin()
        y = checkpoint(noted, x, "a", use_reentrant=False)
        checkpoint(noted, y, "b", use_reentrant=False).backward()
        ran
    """
    return after_forward(run, repeated(run))


@family.belief
def layers_backwards(run):
    """In a segment the layers run again from the last to the first, as backward goes

    A segment is a forward: it runs from its input on, and then backward goes through what it has kept.

        from torch.utils.checkpoint import checkpoint
        ran, x = [], torch.ones(1, requires_grad=True)
        noted = lambda x, name: ran.append(name) or x.sin()
        checkpoint(lambda x: noted(noted(x, "a"), "b"), x, use_reentrant=False).backward()
        ran
    """
    return after_forward(run, [one[::-1] for one in repeated(run)[::-1]])


@family.belief
def the_whole_forward(run):
    """With a checkpoint the whole forward runs again

    Only what is in checkpoints does. The rest has kept what its backward needs.

        from torch.utils.checkpoint import checkpoint
        ran, x = [], torch.ones(1, requires_grad=True)
        noted = lambda x, name: ran.append(name) or x.sin()
        y = noted(x, "a")
        checkpoint(noted, y, "b", use_reentrant=False).backward()
        ran
    """
    return after_forward(run, [range(len(run.names["net"]))])


@family.belief
def every_checkpoint(run):
    """Every checkpoint runs again in backward, frozen or not

    It runs again when backward asks for what it would have kept. Backward doesn't come to a segment where
    nothing needs a gradient.

        from torch.utils.checkpoint import checkpoint
        ran, x = [], torch.ones(1, requires_grad=True)
        noted = lambda x, name: ran.append(name) or x.sin()
        y = checkpoint(noted, torch.ones(1), "a", use_reentrant=False)
        checkpoint(noted, x + y, "b", use_reentrant=False).backward()
        ran
    """
    return after_forward(run, parts(run)[::-1])
