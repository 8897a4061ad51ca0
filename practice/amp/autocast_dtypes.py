"""Dtypes under autocast"""

import re

from course_utils.questions import Family

family = Family(
    section="Autocast",
    asked="What does the last line show on the CPU? Bytes of an element: bfloat16 2, float32 4, float64 8.",
)
MADE = {"linear": "nn.Linear(4, 4)", "norm": "nn.LayerNorm(4)"}
SQUARE = ("{} @ x", "{}.softmax(-1)", "norm({})", "{} + x", "{}.relu()", "{}.exp()")
OTHER = ("F.mse_loss({}, x)", "torch.cat([{}, x])", "{}.double() @ x.double()")
OFF = ("linear(x)", "x @ x", "{}.relu()", "{} + x")
AFTER = ("{}.relu()", "{} + x", "linear(x)", "{}.softmax(-1)")


@family.program
def region(draw, level):
    first = draw.choice(["linear(x)", "x @ x", "norm(x)"]) if level < 4 else "linear(x)"
    lines = ['with torch.autocast("cpu", dtype=torch.bfloat16):', f"    h = {first}"]
    names, squares = ["h"], ["h"]  # squares: what can go into the next line
    for name in "ab" if level < 3 else "abc":
        what = draw.choice(SQUARE * 2 + OTHER)
        lines.append(f"    {name} = {what.format(draw.choice(squares))}")
        names.append(name)
        if what in SQUARE:
            squares.append(name)
    if level > 4:
        off = draw.choice(OFF).format(draw.choice(squares))
        lines += ['    with torch.autocast("cpu", enabled=False):', f"        off = {off}"]
        names.append("off")
    if level > 1:
        lines.append(f"after = {draw.choice(AFTER).format(draw.choice(squares))}")
        names.append("after")
    if level > 3:
        lines.append("h.sum().backward()")
        names.append("linear.weight.grad")
    modules = [f"{name} = {made}" for name, made in MADE.items() if f"{name}(" in "".join(lines)]
    asked = f"[t.element_size() for t in ({', '.join(names)})]"
    return "\n".join(["x = torch.randn(4, 4)", *modules, *lines, asked])


@family.belief
def all_in_16(run):
    """In the region every result is bfloat16

    Autocast casts what goes into the operators on its lists: products down, many losses up. `cat` and `stack`
    of mixed dtypes take the wider. What is on no list computes in what it gets, and float64 is not cast.

        x = torch.randn(4, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = (h := x @ x).dtype, x.exp().dtype, F.mse_loss(h, h).dtype, torch.cat([h, x]).dtype
        found
    """
    made = re.findall(r"^    (\w) = ", run.code, re.MULTILINE)
    return [2] * len(made) + run.value[len(made) :]


@family.belief
def softmax_in_32(run):
    """`softmax`, `exp` and the layer norm give float32

    They do on CUDA, where they are on a list. On the CPU they are on none: bfloat16 in, bfloat16 out.

        h = torch.randn(4, 4).bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = h.softmax(-1).dtype, h.exp().dtype, nn.LayerNorm(4)(h).dtype
        found
    """
    wide = re.sub(r"(\w)\.(softmax|exp)\(", r"\1.float().\2(", run.code)
    return run.again(re.sub(r"norm\((\w)\)", r"norm(\1.float())", wide))


@family.belief
def back_at_the_end(run):
    """When the region ends, its results are float32 again

    A tensor keeps its dtype. The region decides how operators in it compute.

        x = torch.randn(4, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x @ x
        h.dtype, (x @ x).dtype
    """
    return [4 if size == 2 else size for size in run.value]


@family.belief
def gradients_in_16(run):
    """Gradients of the weights are bfloat16, as the forward was

    The weights stay float32, and their cast is in the graph: its backward gives the gradient their dtype.

        linear = nn.Linear(4, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = linear(torch.randn(2, 4))
        h.sum().backward()
        h.dtype, linear.weight.grad.dtype
    """
    return [*run.value[:-1], 2] if "backward" in run.code else None
