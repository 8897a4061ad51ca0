"""What a number becomes in float16 or bfloat16"""

import re

from course_utils.questions import Family

family = Family(section="What the bits are for")
OTHER = {"half": "bfloat16", "bfloat16": "half"}
FULL = {"bfloat16": 256, "half": 2048}  # up to here all whole numbers are exact
BASES = {"bfloat16": (600, 800, 1000, 1200, 1600, 2000), "half": (5000, 6000, 8000, 10_000, 12_000, 16_000)}


@family.program
def rounding(draw, level):
    cast = draw.choice([*OTHER])
    # No ties but those right above a power of two: the steps at the other numbers are 4 and 8.
    large = draw.choice(BASES[cast]) + draw.choice([1, 3, 5, 7])
    if draw.random() < 0.3:
        large = FULL[cast] + draw.choice([0, 1])
    values = [large, draw.choice([1, 2, 3, 5, 10, 20, 50, 100, 120])]
    if draw.random() < 0.5:
        values.append(2 ** draw.choice([16, 17, 18]))
    draw.shuffle(values)
    lines = [f"x = torch.tensor({values}, dtype=torch.float32)", f"x = x.{cast}()"]
    small = draw.choice([0.25, 0.5, 1])
    if level == 2:
        lines.append(f"x = x + {small}")
    elif level > 2:
        lines += [f"for _ in range({draw.choice([10, 20, 100])}):", f"    x = x + {small}"]
    if level > 3:
        lines.append(f"x = x.float() + {draw.choice([1, 2, 3])}")
    if level > 4:
        lines.append(f"x = x.{OTHER[cast]}()")
    return "\n".join([*lines, "x.tolist()"])


@family.belief
def nothing_is_lost(run):
    """A conversion to 16 bits changes only the memory, not the numbers

    bfloat16 has 8 significant bits, 7 of them stored; float16 has 11, 10 of them stored. So whole numbers are
    exact up to 256 and up to 2,048. Above that the steps are 2, then 4, then 8. And float16 ends at 65504:
    what is 65520 or more becomes inf.

        x = torch.tensor([255.0, 257.0, 2047.0, 2049.0, 2.0**18])
        x.bfloat16().tolist(), x.half().tolist()
    """
    return run.again(re.sub(r"\.(half|bfloat16)\(\)", ".float()", run.code))


@family.belief
def the_other_format(run):
    """bfloat16 is the finer of the two, float16 the one with the wide range

    float16 stores 10 significant bits and ends at 65504, bfloat16 7, and it ends nearly where float32 does.

        x = torch.tensor([1025.0, 2.0**17])
        x.half().tolist(), x.bfloat16().tolist()
    """
    return run.again(re.sub(r"(half|bfloat16)", lambda found: OTHER[found[1]], run.code))


@family.belief
def clamped(run):
    """What is too large for float16 becomes its largest number, 65504

    Rounding goes to inf, from 65520 on. torch doesn't clamp.

        torch.tensor([65519.0, 65520.0]).half().tolist()
    """
    return run.again(run.code.replace(".half()", ".clamp(max=65504).half()"))


@family.belief
def small_ones_add_up(run):
    """Many small additions add up, as they would at once

    Each sum is rounded to 16 bits by itself. What is less than half a step is lost every time.

        x = torch.tensor(256.0).bfloat16()
        for _ in range(100):
            x = x + 0.5
        x.item(), (torch.tensor(256.0).bfloat16() + 100 * 0.5).item()
    """
    return run.again(re.sub(r"for _ in range\((.*)\):\n    x = x \+ (.*)", r"x = x + \1 * \2", run.code))
