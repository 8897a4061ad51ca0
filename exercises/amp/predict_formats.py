"""Predict: what a format makes of a number

`t = torch.tensor`. For each line write down the number that it returns, as a Python number or `torch.inf`.
The first line is answered. Replace every `...`, before you run any of the lines.

- float16 has 10 bits of mantissa and goes from 6e-8 to 65504; bfloat16 has 7 and goes from 9e-41 to 3e38.
- `float8_e4m3fn` has 3 bits of mantissa and goes up to 448.

Ordinary numbers must be exact. For tiny ones, such as `1e-8`, 1 percent is near enough.
"""

import torch

from course_utils.exercise import Exercise, predict

exercise = Exercise(
    minutes=8,
    core=True,
    hints=[
        "For each step of a line: which dtype does its result have? That dtype has a largest number, a "
        "smallest one, and a spacing. A Python float doesn't change the dtype of a float tensor.",
        "With m bits of mantissa there are `2**m` equal steps from 1 to 2, and as many from 2 to 4. Between "
        "256 and 512 the numbers are `256 / 2**m` apart. Halfway, the even mantissa wins.",
        "The numbers of float16 next to zero are multiples of `2**-24`, about 6e-8, and half of that is the "
        "border to zero. A loop rounds after each addition; `sum` adds in float32 here, rounding last.",
    ],
)


@exercise.starter
def predict_formats() -> dict:
    return {
        "t(70000.).half()": torch.inf,  # an example: this one is answered
        # large
        "t(300.).half() * 300 / 300": ...,
        "t(440.).to(torch.float8_e4m3fn)": ...,
        # tiny
        "t(4e-8).half()": ...,
        "t(4e-8).bfloat16()": ...,
        "t(1e-8).half() * 65536": ...,
        "(t(1e-8) * 65536).half()": ...,
        # rounded
        "t(1.).bfloat16() + 0.003": ...,
        "t(258.).bfloat16() + 1": ...,
        "t(2049.).half()": ...,
        "t([256.]).bfloat16() + t([1.])": ...,
        # added up
        "sum([t(1.).half()] * 1000)": ...,
        "sum([t(1.).bfloat16()] * 1000)": ...,
        "torch.ones(1000).bfloat16().sum()": ...,
    }


_WHYS = {
    "t(70000.).half()": "float16 ends at 65504. What lies well beyond becomes infinite.",
    "t(300.).half() * 300 / 300": "Each operator here rounds its result. 90000 is beyond float16, and no "
    "division brings an infinity back.",
    "t(440.).to(torch.float8_e4m3fn)": "From 256 to 448, its last number, float8 e4m3 has steps of 32.",
    "t(4e-8).half()": "The result is the nearest multiple of `2**-24`, about 6e-8.",
    "t(4e-8).bfloat16()": "bfloat16 has the exponent of float32: normal numbers go down to 1e-38.",
    "t(1e-8).half() * 65536": "Less than half of `2**-24` is zero in float16. The factor comes too late.",
    "(t(1e-8) * 65536).half()": "Scaled first, in float32, the number lies well inside float16.",
    "t(1.).bfloat16() + 0.003": "From 1 to 2 bfloat16 has steps of 1/128; half of that is 0.0039.",
    "t(258.).bfloat16() + 1": "From 256 to 512 bfloat16 has steps of 2. Halfway, even wins.",
    "t(2049.).half()": "From 2048 to 4096 float16 has steps of 2. Halfway, the even mantissa wins.",
    "t([256.]).bfloat16() + t([1.])": "A bfloat16 and a float32 vector have a float32 sum.",
    "sum([t(1.).half()] * 1000)": "Each addition rounds. float16 has all whole numbers up to 2048.",
    "sum([t(1.).bfloat16()] * 1000)": "Once the spacing is 2, adding 1 ends halfway, and even wins.",
    "torch.ones(1000).bfloat16().sum()": "`sum` adds in float32 here, and rounds to bfloat16 once, at the "
    "end. Between 512 and 1024 the numbers of bfloat16 are 4 apart.",
}


def _compare(predict_formats, *lines):
    predictions = predict.written_down(predict_formats)
    truths = {line: eval(line, {"torch": torch, "t": torch.tensor}).float().item() for line in lines}
    predict.compare(predictions, truths, _WHYS, all_lines=_WHYS)


predict.add_check(exercise)


@exercise.check
def large(predict_formats):
    """Large numbers: how far each format reaches

    The exponent decides the range. Every result in a chain of operators has to fit, not the last one alone.
    """
    _compare(predict_formats, *list(_WHYS)[:3])


@exercise.check
def tiny(predict_formats):
    """Tiny numbers: what becomes zero

    Below half of the format's smallest number there is zero left. A factor must come before, in float32.
    """
    _compare(predict_formats, *list(_WHYS)[3:7])


@exercise.check
def rounded(predict_formats):
    """What is rounded away

    The mantissa decides the spacing: from 256 to 512 bfloat16 has steps of 2, and float16 of a quarter. A
    result between two neighbours goes to the nearer one, and halfway to the one whose mantissa is even.
    """
    _compare(predict_formats, *list(_WHYS)[7:11])


@exercise.check
def added_up(predict_formats):
    """A thousand ones: where a sum gets stuck

    A running sum in 16 bits stands still once what is added is lost. Here `sum` uses float32.
    """
    _compare(predict_formats, *list(_WHYS)[11:])
