"""Formats as bits, the float explorer, and gradients by layer in the axis of a format: against torch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from drawn import assert_no_text_is_cut_off_or_covers_another
from torch import nn
from torch.nn import functional as F

from course_utils import draw, explore
from course_utils.draw.floats import meaning, table
from course_utils.draw.formats import FORMATS
from course_utils.draw.gradients import record
from course_utils.draw.shapes import to_picture

INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
ALL = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
SOME = (0.0, -0.0, 0.1, 1.0, -3.0, 1e-8, 1e-41, 464.0, 464.5, 70000.0, 3.4e38, 1e39, math.inf, -math.inf)
SOME += (2**-25, 2**-25 * 1.01, 65519.9, 65520.0, 1 + 2**-11, 1 + 3 * 2**-11, 256.5, 2049.0)


def patterns(form):
    """All patterns of up to 16 bits; of more, a sample and the ends of the exponents."""
    if form.width <= 16:
        return range(1 << form.width)
    torch.manual_seed(0)
    found = torch.randint(1 << form.width, (500,)).tolist()
    ends = (n << form.mantissa for n in range(1 << form.exponent + 1))
    return found + [n & (1 << form.width) - 1 for end in ends for n in (end - 1, end, end + 1)]


def as_torch(form, bits):
    """What torch makes of patterns; for tf32 of a float32 with 13 zeros more."""
    bits = torch.tensor(list(bits)) << (0 if form.dtype else 13)
    width = form.width if form.dtype else 32
    return bits.to(INTEGERS[width]).view(form.dtype or torch.float32).double()


def same(a, b):
    return torch.equal(
        a.nan_to_num(-0.125, 1e300, -1e300), b.nan_to_num(-0.125, 1e300, -1e300)
    ) and torch.equal(a.nan_to_num(1).signbit(), b.nan_to_num(1).signbit())


@ALL
def test_every_pattern_means_what_torch_says(form):
    bits = list(patterns(form))
    means = torch.tensor([form.decode(one) for one in bits], dtype=torch.float64)
    assert same(means, as_torch(form, bits))
    kinds = [form.kind(one) for one in bits]
    small = (means.abs() < form.smallest_normal) & (means != 0)
    assert [kind == "subnormal" for kind in kinds] == small.tolist()
    numbers = [one for one in means.tolist() if not math.isnan(one)]
    assert [form.decode(form.encode(one)) for one in numbers] == numbers


@ALL
def test_neighbours_are_those_of_nextafter(form):
    bits = [one for one in patterns(form) if form.kind(one) not in ("inf", "nan")]
    around = [form.neighbours(one) for one in bits]
    if form.dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = as_torch(form, bits).to(form.dtype)
        for side, end in enumerate((-math.inf, math.inf)):
            found = torch.tensor([one[side] for one in around], dtype=torch.float64)
            assert torch.equal(found, torch.nextafter(values, torch.full_like(values, end)).double())
    else:
        every = {form.decode(one) for one in range(1 << form.width) if form.kind(one) != "nan"}
        after = dict(itertools.pairwise(sorted(every)))
        for one, (below, above) in zip(bits, around, strict=True):
            assert after.get(form.decode(one)) == above
            assert below is None or after[below] == form.decode(one)
    assert form.neighbours(form.encode(math.nan)) == (None, None)


@ALL
def test_a_number_is_rounded_as_torch_rounds(form):
    if form.dtype:
        rounded = [torch.tensor(one, dtype=form.dtype).double().item() for one in SOME]
    else:  # by hand: ten bits of the mantissa, ties to even
        rounded = []
        for one in torch.tensor(SOME).double().tolist():
            step = 2.0 ** (max(math.frexp(one)[1] - 1, -126) - 10) if math.isfinite(one) else 1.0
            rounded.append(round(one / step) * step if math.isfinite(one) else one)
    assert [form.decode(form.encode(one)) for one in SOME] == pytest.approx(
        rounded, rel=0, abs=0, nan_ok=True
    )
    assert form.kind(form.encode(math.nan)) == "nan"


def test_the_table_says_what_finfo_says():
    scene = table(None)
    words = [one.text for one in scene.words]
    for form in FORMATS.values():
        if form.dtype:
            info = torch.finfo(form.dtype)
            assert (form.largest, form.eps, form.smallest_normal) == (
                info.max,
                info.eps,
                info.smallest_normal,
            )
            assert {
                f"{info.max:.3g}" if info.max > 1e6 else f"{info.max:g}",
                f"{info.eps:.3g}",
                f"{info.smallest_normal:.3g}",
            } <= set(words)
        patterns = {form.decode(one) for one in ((1 << form.mantissa) - 1, 1, 1 << form.mantissa)}
        assert {form.smallest, form.smallest_normal} <= patterns
    tf32 = FORMATS["tf32"]
    assert tf32.largest == form_max(tf32) and tf32.eps == 2**-10 and tf32.width == 19
    assert sum(box.part == "bit" for box in scene.boxes) == sum(one.width for one in FORMATS.values())
    told = [one.text for one in table(0.1).words]
    assert "0.1015625" in told and "0.09375" in told and "1 + 5 + 10 = 16" in told


def form_max(form):
    bits = range(1 << form.width - 1)
    return max(one for n in bits if math.isfinite(one := form.decode(n)))


def test_a_pattern_is_told_as_what_it_is():
    half, eight = FORMATS["float16"], FORMATS["float8 e4m3"]
    assert meaning(half, half.encode(0.1)).endswith("+2⁻⁴ × (1 + 614/1024) = +2⁻⁴ × 1.59960938")
    assert meaning(half, 0x8003).endswith("−2⁻¹⁴ × (0 + 3/1024) = −2⁻¹⁴ × 0.0029296875")
    assert meaning(half, 0x7C00).endswith("mantissa 0: inf") and meaning(half, 0x7C01).endswith(
        "other than 0: nan"
    )
    assert meaning(eight, 0x7F).endswith("mantissa all 1: nan") and "× 1.75" in meaning(eight, 0x7E)


# --- the explorer ------------------------------------------------------------------------------------


def pressed(e):
    return "".join(one.description for one in e.bit_row.children)


def test_bits_are_clicked_and_numbers_typed():
    e = explore.floats()
    e.field.value = "1"
    assert pressed(e) == "0011110000000000" and "float16: 1.0" in e.picture.value
    e.bit_row.children[-1].click()
    assert e.value == 1 + 2**-10 and e.given is None and e.field.value == "1.0009765625"
    e.bit_row.children[0].click()
    e.up_button.click()
    assert e.value == -1.0
    e.field.value = "2^-24"
    assert e.value == 2**-24 and "is exact in float16" in e.picture.value
    e.field.value = "1e-8"
    assert e.value == 0 and "1e-08 becomes 0.0, off by -1e-08, 100 %: underflow" in e.picture.value
    e.formats.value = "bfloat16"
    assert e.value == torch.tensor(1e-8, dtype=torch.bfloat16).item() and len(pressed(e)) == 16
    e.field.value = "a lot"
    assert "is no number; type one such as 0.1" in e.picture.value and e.given == 1e-8
    e.field.value = "1e39"
    assert e.value == math.inf and e.up_button.disabled and not e.down_button.disabled
    e.formats.value = "tf32"
    assert pressed(e) == "0" + "1" * 8 + "0" * 10 and "1e+39 becomes inf: overflow" in e.picture.value


@ALL
def test_every_kind_of_number_can_be_shown(form):
    e = explore.floats()
    e.formats.value = form.name
    for bits in (0, 1, (1 << form.mantissa) - 1, (1 << form.width - 1) - 1, form.encode(form.largest)):
        for sign in (0, 1 << form.width - 1):
            e._set(bits | sign)
            below, above = form.neighbours(bits | sign)
            assert f"{form.name}: {e.value!r}" in e.picture.value
            assert e.down_button.disabled == (below is None) and e.up_button.disabled == (above is None)


def model_and_batch():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Sigmoid()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(16, 5))
    return model, torch.randn(64, 16), torch.randint(5, (64,))


def gradients(model, x, y):
    """Of the outputs of linear layers and of their weights, taken by hand."""
    outputs, value = [], x
    for module in (one for one in model.modules() if not isinstance(one, nn.Sequential)):
        value = module(value)
        outputs += [value] * isinstance(module, nn.Linear)
    weights = [one for one in model.parameters() if one.dim() > 1]
    return [
        torch.autograd.grad(F.cross_entropy(value, y), of, retain_graph=True) for of in (outputs, weights)
    ]


@ALL
def test_shares_are_those_that_the_dtype_makes(form):
    model, x, y = model_and_batch()
    with torch.no_grad():
        model[0][0].weight *= 1e4
    rows = record(model, x, lambda output: F.cross_entropy(output, y), "test")
    both = gradients(model, x, y)
    assert [len(one) for one in rows.values()] == [5, 5]
    for (name, layers), grads in zip(rows.items(), both, strict=True):
        for row, grad in zip(layers, grads, strict=True):
            assert len(row.sizes) + row.zeros == grad.numel(), name
            for power in (0, 5, 11, 17, 24):
                some = torch.from_numpy(row.sizes).float() * 2.0**power
                became = cast(form, some)
                # Without inf, what is too large becomes the largest number; 256 times smaller, it does not.
                large = cast(form, some / 256) > form.largest / 256 if not form.has_inf else became.isinf()
                small = (became != 0) & (became < form.smallest_normal)
                shares = row.shares(form, 2**power)
                counted = [int(one.sum()) / len(some) for one in (became == 0, small, large)]
                assert [shares.zero, shares.subnormal, shares.overflow] == pytest.approx(counted, abs=1e-12)
    # Saturated sigmoids make much of a last digit, which differs with the number of threads.
    sizes = [one.abs().flatten().double().sort().values for one in both[0]]
    for row, size in zip(rows["outputs"], sizes, strict=True):
        assert torch.allclose(torch.from_numpy(row.sizes), size[size > 0], rtol=1e-2, atol=1e-6)


def cast(form, values):
    if form.dtype:
        return values.to(form.dtype).float()
    return torch.tensor([form.decode(form.encode(one)) for one in values.tolist()])


def test_the_shares_on_the_page_follow_the_slider():
    model, x, y = model_and_batch()
    e = explore.floats(model, x, lambda output: F.cross_entropy(output, y))
    e.formats.value = "float8 e4m3"
    row = e.rows["outputs"][0]
    for power in (0, 12, 24):
        e.scale.value = power
        shares = row.shares(e.form, 2**power)
        told = repr(to_picture(e.scene()))
        zero = math.floor(100 * shares.zero)
        some, most = f"0.0 (Linear): {zero} % to 0", f"0.0 (Linear): {'all' if zero else '0'} to 0"
        assert some in told or most in told or not zero
        assert f"loss × {2**power:,}" in e.picture.value
    assert "too large" in e.picture.value and "→ " in e.picture.value
    e.kind.value = "weights"
    assert "gradients of the weights of each layer" in e.picture.value and ">0.0.weight<" in e.picture.value


def test_the_model_stays_as_it_was():
    model, x, y = model_and_batch()
    F.cross_entropy(model(x), y).backward()

    def state():
        tensors = (*model.parameters(), *model.buffers(), *(one.grad for one in model.parameters()))
        hooks = [list(v) for m in model.modules() for k, v in vars(m).items() if k.endswith("hooks")]
        return [(one.clone(), one._version) for one in tensors], hooks, torch.get_rng_state().tolist()

    before = state()
    explore.floats(model, x, lambda output: F.cross_entropy(output, y))
    with pytest.raises(ValueError, match="raised ZeroDivisionError"):
        explore.floats(model, x, lambda output: 1 / 0)
    assert str(state()) == str(before)


def test_of_a_sparse_gradient_the_other_rows_are_zeros():
    table = nn.Embedding(5, 4, sparse=True)
    rows = record(table, torch.tensor([1, 3]), lambda out: out.sum(), "here")["weights"]
    assert [(len(one.sizes), one.zeros) for one in rows] == [(8, 12)]


def test_zeros_nan_and_inf_are_told():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))

        def forward(self, x):
            a, b, c = self.a(x), self.b(x), self.c(x)
            return a.sum() * 0 + (b * torch.tensor([1.0, 0, math.inf, math.nan])).sum() + c.detach().sum()

    rows = record(Odd(), torch.ones(2, 4), None, "test")
    assert [(one.name, one.zeros, one.nans, one.sizes.tolist()) for one in rows["outputs"][:2]] == [
        ("a", 8, 0, []),
        ("b", 2, 2, [1.0, 1.0, math.inf, math.inf]),
    ]
    told = repr(to_picture(explore.floats(Odd(), torch.ones(2, 4)).scene()))
    assert "8 are 0" in told and "2 are nan" in told and "50 % too large" in told


def test_a_model_that_is_none_or_cannot_be_run_is_refused_in_words():
    with pytest.raises(TypeError, match="needs a model, an nn.Module, .*given was the class Linear"):
        explore.floats(nn.Linear, 1)
    with pytest.raises(ValueError, match=r"forward on a tensor of shape \(3,\), float32 raised RuntimeError"):
        explore.floats(nn.Linear(2, 2), torch.ones(3))


def still(name, number="0.1"):
    model, x, y = model_and_batch()
    e = explore.floats(model, x, lambda output: F.cross_entropy(output, y))
    e.formats.value, e.field.value, e.scale.value = name, number, 20
    return e._still()


PICTURES = {
    "formats": draw.floats,
    "a value": lambda: draw.floats(-1e-41),
    **{f"model {name}": lambda name=name: still(name) for name in FORMATS},
    "largest": lambda: still("float8 e4m3", "500"),
    "inf": lambda: still("float16", "7e4"),
}


@pytest.mark.parametrize("make", PICTURES.values(), ids=PICTURES.keys())
def test_no_text_runs_out_of_its_picture_or_over_another(make):
    picture = make()
    assert_no_text_is_cut_off_or_covers_another(picture)
