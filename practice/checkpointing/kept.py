"""Bytes that are kept with checkpoints in segments"""

import re

from course_utils.questions import Family

family = Family(
    section="What a forward keeps",
    asked="How many bytes does the forward keep for backward? Parameters don't count, inputs do.",
    slow=True,
)


@family.program
def segments(draw, level):
    pairs, batch = [2, 3, 3, 4, 4][level - 1], draw.choice([10, 20, 50, 100])
    sizes = draw.sample([2, 4, 5, 8, 10, 20, 30], pairs + 1)
    lines = [
        "from course_utils import measure",
        "from torch.utils.checkpoint import checkpoint\n",
        f"sizes = {sizes}",
        "net = nn.Sequential()",
        f"for i in range({pairs}):",
        "    net.extend([nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()])",
    ]
    if level > 3:
        lines.append(f"net[{2 * draw.randrange(1, pairs)}].requires_grad_(False)")
    lines.append("\ndef f(x):")
    cuts = sorted(draw.sample(range(1, pairs), [1, 1, 2, 2, 3][level - 1]))
    plain = draw.randrange(len(cuts) + 1)  # one segment has no checkpoint
    for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, pairs], strict=True)):
        part = f"net[{2 * a}:{2 * b}]"
        call = f"{part}(x)" if i == plain else f"checkpoint({part}, x, use_reentrant=False)"
        lines.append(f"    x = {call}")
    lines += ["    return x\n", f"measure.saved_bytes(f, torch.randn({batch}, sizes[0])).total"]
    return "\n".join(lines)


CHECKPOINT = r"checkpoint\((net\[\d:\d\]), x, use_reentrant=False\)"


@family.belief
def keeps_nothing(run):
    """A checkpoint keeps nothing

    It keeps its input: from that it computes the rest again.

        from course_utils import measure
        from torch.utils.checkpoint import checkpoint
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        measure.saved_bytes(checkpoint, net, torch.ones(100, 4), use_reentrant=False).total
    """
    # Nothing is kept of what is detached; the segment without a checkpoint is held by its own result.
    code = re.sub(CHECKPOINT, r"\1(x).detach().requires_grad_()", run.code)
    code = re.sub(r"x = (net.*\(x\))$", r"x = held = \1", code, flags=re.M)
    return run.again(code.replace("return x", "return x, held"))


@family.belief
def keeps_everything(run):
    """After the forward there is as much as without checkpoints; it is backward that saves

    It is the forward that saves. Backward computes a segment again, and then its bytes are there for a while.

        from course_utils import measure
        from torch.utils.checkpoint import checkpoint
        net, x = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 4)), torch.ones(100, 4)
        plain = measure.saved_bytes(net, x).total
        plain, measure.saved_bytes(checkpoint, net, x, use_reentrant=False).total
    """
    return run.again(re.sub(CHECKPOINT, r"\1(x)", run.code))


@family.belief
def output_too(run):
    """A checkpoint keeps its input and its output, beside what the layers around it keep

    It keeps its input alone, and no copy of it. Its output is kept where something needs it: it's the next
    layer's input mostly, and is there once. After the last segment nothing needs it.

        from course_utils import measure
        from torch.utils.checkpoint import checkpoint
        net, x = nn.Sequential(nn.Linear(4, 400), nn.ReLU()), torch.ones(100, 4)
        measure.saved_bytes(checkpoint, net, x, use_reentrant=False).total, x.nbytes, net(x).nbytes
    """
    batch = int(re.search(r"randn\((\d+)", run.code)[1])
    ends = re.findall(r"checkpoint\(net\[\d:(\d)\]", run.code)
    return run.value + sum(4 * batch * run.names["sizes"][int(end) // 2] for end in ends)
