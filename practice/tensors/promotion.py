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


def dtypes(run, tensors=None, number=None, divided=None):
    """The dtypes: what these give for two tensors, a tensor and a number, a division; torch's if None."""
    found = []
    for line in run.code.splitlines()[-1 - len(run.value) : -1]:
        name, _, *operands = line.split(" ")
        left, right = (eval(one, {}, run.names) for one in operands[::2])
        says = divided if "/" in line else tensors if isinstance(right, torch.Tensor) else number
        found.append(str(says and says(left, right) or run.names[name].dtype)[6:])
    return found


@family.belief
def like_numpy(run):
    """Integers that are divided, or meet a Python float, become float64, as in NumPy

    Both give the default floating-point dtype, float32.

        a = torch.ones(3, dtype=torch.int64)
        (a / 2).dtype, (a + 0.5).dtype, (a.numpy() / 2).dtype.name
    """

    def becomes(whole, number):
        return None if whole.is_floating_point() or isinstance(number, int) else torch.float64

    return dtypes(run, number=becomes, divided=lambda *_: torch.float64)


@family.belief
def more_bits_count(run):
    """Of two tensors the one with more bits decides: int64 beside float16 gives float64

    Floating point beside integers: the result has the dtype of the former, however many bits an integer has.

        i, h = torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.float16)
        (i + h).dtype, (i.numpy() + h.numpy()).dtype.name
    """

    def longer(left, right):
        bits = 8 * max(left.element_size(), right.element_size())
        mixed = left.is_floating_point() != right.is_floating_point()
        return getattr(torch, f"float{bits}") if mixed and bits > 16 else None

    return dtypes(run, tensors=longer)


@family.belief
def no_dimensions_counts(run):
    """A tensor without dimensions counts like any other tensor

    Beside one with dimensions and of the same kind its dtype doesn't count. If its kind is higher, it wins
    with its own dtype: float64 beside int32 gives float64.

        h, i = torch.ones(3, dtype=torch.float16), torch.ones(3, dtype=torch.int32)
        s = torch.tensor(2.0, dtype=torch.float64)
        (h + s).dtype, (i + s).dtype
    """
    return dtypes(run, tensors=lambda left, right: torch.promote_types(left.dtype, right.dtype))


@family.belief
def number_counts(run):
    """A Python number has a dtype of its own: float32 or int64

    It counts by its kind alone. It widens no tensor of its own kind or a higher one.

        (torch.ones(3, dtype=torch.float16) * 0.5).dtype, (torch.ones(3, dtype=torch.int8) + 1).dtype
    """
    return dtypes(run, number=lambda x, n: torch.promote_types(x.dtype, torch.as_tensor(n).dtype))


@family.belief
def division_keeps(run):
    """A division of integers gives integers

    `/` is true division: of two integers it gives the default floating-point dtype. `//` keeps integers.

        (torch.tensor([7, 8]) / 2).dtype, (torch.tensor([7, 8]) // 2).dtype
    """
    return dtypes(run, divided=lambda whole, number: whole.dtype)
