"""The dtype of a result"""

import torch

from course_utils.questions import Family

family = Family(section="Dtypes", asked="Which dtypes does the last line show?")


@family.program
def arithmetic(draw, level):
    size = draw.randint(2, 9)
    whole = [draw.choice(["uint8", "int8", "int16", "int32"]), draw.choice(["uint8", "int8", "int64"])]
    real = [draw.choice(["float16", "bfloat16"]), draw.choice(["float32", "float64", "float16"])]
    without = draw.choice([*whole, *real, "float64", "int64"])
    lines = [
        f"i = torch.ones({size}, dtype=torch.{whole[0]})",
        f"h = torch.ones({size}, dtype=torch.{real[0]})",
        f"s = torch.tensor({draw.randint(2, 9)}, dtype=torch.{without})",
        f"k = torch.ones({size}, dtype=torch.{draw.choice([whole[1], real[1], 'bool'])})",
    ][: 2 + (level > 1) + (level > 3)]
    forms = ["i {} h", "h {} 0.5", "i {} 0.5", "i {} 2", "i / 3"]
    forms += ["h {} s", "s {} i"] if level > 1 else []
    forms += ["k {} h", "i {} k", "k {} s", "k {} 0.1"] if level > 3 else []
    names = "pqrtu"[: (4 + level) // 2 + (level > 4)]
    forms = [form.format(draw.choice("+*")) for form in draw.sample(forms, len(names))]
    lines = [line for line in lines if any(line[0] in form for form in forms)]
    lines += [f"{name} = {form}" for name, form in zip(names, forms, strict=True)]
    return "\n".join([*lines, f"[str(y.dtype)[6:] for y in ({', '.join(names)})]"])


def dtypes(run, combine):
    """The dtypes, where `combine` gives that of an operator and its operands: None for torch's own."""
    found = []
    for line in run.code.splitlines()[-1 - len(run.value) : -1]:
        name, _, left, operator, right = line.split(" ")
        dtype = combine(operator, eval(left, {}, run.names), eval(right, {}, run.names))
        found.append(str(dtype or run.names[name].dtype)[6:])
    return found


@family.belief
def like_numpy(run):
    """Integers that are divided, or meet a Python float, become float64, as in NumPy

    Both give the default floating-point dtype, float32. A tensor of floating point beside them wins as it is.

        a, h = torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.float16)
        (a + h).dtype, (a / 2).dtype, (a + 0.5).dtype, (a.numpy() / 2).dtype.name
    """

    def combine(operator, left, right):
        becomes = operator == "/" or isinstance(right, float)
        return torch.float64 if becomes and not left.is_floating_point() else None

    return dtypes(run, combine)


@family.belief
def no_dimensions_counts(run):
    """A tensor without dimensions counts like any other tensor

    Beside one with dimensions and of the same kind its dtype doesn't count. If its kind is higher, it wins
    with its own dtype: float64 beside int32 gives float64.

        h, i = torch.ones(3, dtype=torch.float16), torch.ones(3, dtype=torch.int32)
        s = torch.tensor(2.0, dtype=torch.float64)
        (h + s).dtype, (i + s).dtype
    """

    def combine(operator, left, right):
        if operator != "/" and isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            return torch.promote_types(left.dtype, right.dtype)
        return None

    return dtypes(run, combine)


@family.belief
def number_counts(run):
    """A Python number has a dtype of its own: float32 or int64

    It counts by its kind alone. It widens no tensor of its own kind or a higher one.

        (torch.ones(3, dtype=torch.float16) * 0.5).dtype, (torch.ones(3, dtype=torch.int8) + 1).dtype
    """

    def combine(operator, left, right):
        number = not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor))
        both = (torch.as_tensor(one).dtype for one in (left, right))
        return torch.promote_types(*both) if number and operator != "/" else None

    return dtypes(run, combine)


@family.belief
def division_keeps(run):
    """A division of integers gives integers

    `/` is true division: of two integers it gives the default floating-point dtype. `//` keeps integers.

        a = torch.tensor([7, 8])
        (a / 2).dtype, (a // 2).dtype
    """

    return dtypes(run, lambda operator, *both: torch.add(*both).dtype if operator == "/" else None)
