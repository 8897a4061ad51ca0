"""Three numbers of a format decide all lines. How far it reaches up: 65504 for float16, 448 for float8 e4m3,
3e38 for bfloat16. How far down: `2**-24` for float16, 9e-41 for bfloat16. And the spacing: with m bits of
mantissa, normal numbers have `2**m` steps from each power of two to the next.

Each operator here rounds its result to the dtype of that result. So the order matters: what went to infinity
or to zero in between stays there. A product with 65536 saves `1e-8` if it comes before the cast.

Halfway between two neighbours the one with the even mantissa wins. So bfloat16 has 256 + 1 = 256, but
258 + 1 = 260. A running sum in bfloat16 stops at 256; `sum` adds in float32 and gets to 1000.
"""

import torch


def predict_formats() -> dict:
    return {
        "t(70000.).half()": torch.inf,
        "t(300.).half() * 300 / 300": torch.inf,
        "t(440.).to(torch.float8_e4m3fn)": 448,
        "t(4e-8).half()": 2**-24,
        "t(4e-8).bfloat16()": 4e-8,
        "t(1e-8).half() * 65536": 0,
        "(t(1e-8) * 65536).half()": 6.55e-4,
        "t(1.).bfloat16() + 0.003": 1,
        "t(258.).bfloat16() + 1": 260,
        "t(2049.).half()": 2048,
        "t([256.]).bfloat16() + t([1.])": 257,
        "sum([t(1.).half()] * 1000)": 1000,
        "sum([t(1.).bfloat16()] * 1000)": 256,
        "torch.ones(1000).bfloat16().sum()": 1000,
    }


# Other right answers

from course_utils.exercise import Edit, Wrong


def _as_floats():
    return {line: float(value) for line, value in predict_formats().items()}


also_right = [_as_floats]

# Mistakes


def _asks_torch():
    known = predict_formats()
    return {line: eval(line, {"torch": torch, "t": torch.tensor}).float().item() for line in known}


mistakes = [
    Wrong(_asks_torch, told_by="written_down"),
    Edit("forgets what lies between", '300 / 300": torch.inf', '300 / 300": 300', told_by="large"),
    Edit("float8 keeps all digits", "_e4m3fn)\": 448", "_e4m3fn)\": 440", told_by="large"),
    Edit("below the smallest is zero", "2**-24", "0", told_by="tiny"),
    Edit("the factor saves it late", '65536": 0', '65536": 6.55e-4', told_by="tiny"),
    Edit("halfway goes down", "260", "258", told_by="rounded"),
    Edit("always the narrower dtype", "257", "256", told_by="rounded"),
    Edit("a sum gets stuck too", 'sum()": 1000', 'sum()": 256', told_by="added_up"),
]
