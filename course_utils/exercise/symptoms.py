"""What is known of a wrong value: one true sentence on how it relates to the expected one.

A symptom is a predicate that was evaluated after a comparison failed; it names no cause. It is said only
where it holds much more closely than the values differ: small numbers lie within the tolerance of all others.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from course_utils import torch_private

# So many times more closely than the values differ must hold what is said of them.
CLOSER = 100
# By how much a number of bytes may be off, by a name for a sentence (as `factors` has it).
BYTES = {
    "the number of bytes of a float32 element": 4,
    "the number of bytes in a KiB": 1024,
    "the number of bytes in a kB": 1000,
    "the number of bytes in a MiB": 1024**2,
}


def of_tensor(
    actual: Tensor,
    expected: Tensor,
    *,
    what: str = "the result",
    rtol: float,
    atol: float,
    eps: float = 0.0,
    like: Mapping[str, Tensor] = {},
    known: Mapping[str, Tensor] = {},
    numbers: Mapping[str, float] = {},
    factors: Mapping[str, float] = {},
) -> str:
    """How the wrong tensor relates to the expected one, in a sentence; no text where nothing is known.

    `eps`: how finely the values are rounded, where that is coarser than their dtypes say. `like`: other
    values that it may have, by what they are. `known`: tensors of the example, by their names in code;
    `numbers`: those of its numbers that a factor may come from. `factors`: numbers that it is known to come
    from where it fits, by a name for a sentence. Nothing is changed and nothing raised.
    """
    alone = torch_private.DisableTorchFunctionSubclass
    try:
        with torch.no_grad(), alone():
            p = _Pair(actual, expected, what, rtol, atol, eps, known, numbers, factors)
            if p.right.all():  # another value may be the same number
                return _not_the_values(p) or _is_like(p, like)
            asked = SAME_SHAPE if p.alike else OTHER_SHAPE
            return _is_like(p, like) or next(filter(None, (says(p) for says in asked)), "")
    except Exception:  # no values to read (empty, meta, nested, fake): the failure is told without a symptom
        return ""


def of_number(
    actual: float,
    expected: float,
    *,
    what: str = "the result",
    numbers: Mapping[str, float] = {},
    factors: Mapping[str, float] = {},
) -> str:
    """How a wrong number relates to the expected one, in a sentence; no text where nothing is known."""
    if not all(type(n) in (int, float) and abs(n) < 1e300 for n in (actual, expected)):
        return ""
    a, e = (torch.tensor(float(n), dtype=torch.float64, device="cpu") for n in (actual, expected))
    p = _Pair(a, e, what, 1e-6, 0.0, 0.0, {}, numbers, factors)
    by_one = math.isclose(abs(a - e), 1, rel_tol=1e-9)
    more = f"{p.The} is 1 {'more' if a > e else 'less'} than what was expected." if by_one else ""
    return "" if p.right.all() else _factor(p) or more


def of_unit(pairs: Sequence[tuple[Any, Any]]) -> str:
    """In which other unit these numbers, (what came, bytes), count: all that are wrong, and most of those
    that are not 0. No text where that is not so."""
    pairs = [(a, e) for a, e in pairs if type(a) in (int, float) and type(e) is int and e]
    wrong = [(a, e) for a, e in pairs if not math.isclose(a, e)]
    if len(wrong) > max(1, len(pairs) / 2):
        off = {name: max(abs(a * size / e - 1) for a, e in wrong) for name, size in BYTES.items()}
        name = min(off, key=off.get)
        # In larger units they may be rounded to two digits.
        if off[name] <= (0 if BYTES[name] == 4 else 0.03):
            return f"Times {BYTES[name]:,} they are right: that is {name}, and what is asked for is bytes."
    return ""


def differing(actual: Tensor, expected: Tensor, *, rtol: float, atol: float, eps: float = 0.0) -> Tensor:
    """Which elements of two tensors of rounded numbers differ: by more than the tolerance, or where some do,
    by no less than a hundredth of that. `eps`: see `of_tensor`."""
    eps = max(eps, *(torch.finfo(t.dtype).eps for t in (actual, expected)))
    a, e = _values(actual), _values(expected)
    beyond = ~torch.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)
    return beyond | ~_each_near(a, e, _slack(a, e, beyond, eps))


def _slack(a: Tensor, e: Tensor, beyond: Tensor, eps: float) -> float:
    """How closely something must hold that is said of two tensors, of which some elements differ: `CLOSER`
    times more closely than they do. Where rounding alone is more than that: ten times."""
    top = _size(e).max().item()
    off = (a - e).abs()[beyond] if a.shape == e.shape else e.new_empty(0).real
    off = off[off.isfinite()]
    gap = off.max().item() if len(off) else top
    return max(gap / CLOSER, min(gap / 10, 2 * eps * top))


class _Pair:
    """What the predicates are asked about. `a` and `e` are the values of both in double precision."""

    def __init__(self, actual, expected, what, rtol, atol, eps, known, numbers, factors):
        self.actual, self.expected, self.what = actual, expected, what
        self.The = what[:1].upper() + what[1:]
        self.Every = f"Every element of {what}" if actual.dim() else self.The
        kind = torch.complex128 if actual.is_complex() or expected.is_complex() else torch.float64
        self.a, self.e = _values(actual).to(kind), _values(expected).to(kind)
        self.a_varies, self.e_varies = (bool((t != t.flatten()[0]).any()) for t in (self.a, self.e))
        self.alike = self.a.shape == self.e.shape
        self.strict = {"rtol": rtol, "atol": atol, "equal_nan": True}
        eps = [torch.finfo(t.dtype).eps for t in (actual, expected) if t.is_floating_point()] + [eps]
        self.eps = max(eps)
        beyond = ~torch.isclose(self.a, self.e, **self.strict) if self.alike else torch.tensor(True)
        self.slack = _slack(self.a, self.e, beyond, self.eps)
        self.right = ~beyond & _each_near(self.a, self.e, self.slack) if self.alike else ~beyond
        # What was computed in another way differs by more than what was moved.
        self.rtol, self.atol = max(rtol, 1e-12, 2 * self.eps), atol
        tensors = [(name.strip("`"), t) for name, t in known.items() if issubclass(type(t), Tensor)]
        self.known = [(name, t) for name, t in tensors if t.shape == actual.shape and not t.is_meta]
        self.all_known = [t for _, t in tensors]
        # A small number is soon the size of something, and one that several things have is no name for any.
        sizes = [(n, f"`{name}.shape[{d}]`") for name, t in tensors for d, n in enumerate(t.shape)]
        numels = [(t.numel(), f"`{name}.numel()`") for name, t in tensors if t.dim() > 1]
        found = [*sizes, *numels, *((n, label) for label, n in numbers.items())]
        often = Counter(n for n, _ in found)
        self.found = [(n, label) for n, label in found if n >= 5 and often[n] == 1]
        self.factors = [(n, label) for label, n in factors.items() if 1 < n < math.inf]
        # How large the finite expected elements are; the largest of them, and what came there.
        self.size = _size(self.e)
        self.top, at = self.size.max().item(), self.size.argmax()
        self.came, self.wanted = (t.flatten()[at].item() if self.alike else 0.0 for t in (self.a, self.e))

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Equal by the tolerance of the comparison that failed, and much more closely than that failed."""
        if (a.shape, a.dtype) != (b.shape, b.dtype) or not torch.isclose(a, b, **self.strict).all():
            return False
        return _near(a, b, self.slack)

    def are_places(self) -> bool:
        """Whether a tensor of the example is an arithmetic progression, and both hold numbers of it. These
        tell which places were read: a factor or an offset between them is one between places."""
        plain = [t for t in self.all_known if type(t) in (Tensor, torch.nn.Parameter)]
        rows = [row for t in plain if t.layout is torch.strided and not t.is_meta for row in _rows(t)]
        return any(_are_on(row, self.a) and _are_on(row, self.e) for row in rows)


def _is_like(p: _Pair, like: Mapping[str, Tensor]) -> str:
    others = [(name, t) for name, t in like.items() if issubclass(type(t), Tensor) and not t.is_meta]
    for name, t in (x for x in others if x[1].shape == p.actual.shape):
        other, rtol = _values(t).to(p.a.dtype), max(p.strict["rtol"], 1e-5)
        if torch.allclose(p.a, other, rtol, p.strict["atol"]) and _near(p.a, other, p.slack):
            return f"{p.The} is {name}."
    return ""


def _not_the_values(p: _Pair) -> str:
    if p.expected.requires_grad and not p.actual.requires_grad:
        return f"The values are right, but {p.what} has no graph behind it: its `requires_grad` is `False`."
    came, wanted = p.actual.dtype, p.expected.dtype
    return f"The values are right; the dtype is `{came}`, expected `{wanted}`." if came != wanted else ""


def _not_finite(p: _Pair) -> str:
    for word, test in (("NaN", torch.isnan), ("infinite", torch.isinf)):
        bad = test(p.a) & (p.e.isfinite() if p.alike else p.e.isfinite().all())
        count, total = int(bad.sum()), p.a.numel()
        if count == total:
            return f"{p.Every} is {word}."
        if count:
            marks = itertools.product(p.known, (0, math.inf, -math.inf))
            at = [f", exactly where `{name}` is {n}" for (name, t), n in marks if _values(t).eq(n).equal(bad)]
            rest = "; the others are right" if p.alike and bool((p.right | bad).all()) else ""
            told = f"{count} of {total} elements of {p.what} {'are' if count > 1 else 'is'} {word}"
            return f"{told} in place of a finite number{at[0] if at else ''}{rest}."
    return ""


def _is_known(p: _Pair) -> str:
    others = [(name, t) for name, t in p.known if f"`{name}" not in p.what]  # not what is compared itself
    for name, t in (x for x in others if x[1].layout is p.actual.layout is torch.strided):
        if len({(x.device, x.dtype, x.stride(), x.data_ptr()) for x in (t, p.actual)}) == 1:
            return f"{p.The} is `{name}` itself."
    # Equal numbers everywhere are no sign that a tensor comes from another.
    names = [name for name, t in others if p.same(p.a, _values(t))] if p.a_varies else []
    return f"{p.The} has the values of `{names[0]}`." if names else ""


def _constant(p: _Pair) -> str:
    value = p.a.flatten()[0].item()
    if p.a_varies or (p.a.numel() < 3 or not p.e_varies if value else not p.e.any()):
        return ""
    return f"{p.Every} is {f'`{bool(value)}`' if p.actual.dtype is torch.bool else _brief(value)}."


def _factor(p: _Pair) -> str:
    # Elements within the tolerance of zero are any multiple of each other.
    if p.top <= 100 * p.atol or not p.came:
        return ""
    c, off = (p.came / p.wanted).real, p.rtol + p.atol / p.top
    if not math.isfinite(c) or math.isclose(c, 1, rel_tol=off) or _brief(c) == "1":
        return ""
    within = torch.minimum(p.atol + p.rtol * p.e.abs(), torch.clamp(p.size / CLOSER, min=4 * p.eps * p.top))
    if not _near(p.a, c * p.e, abs(c) * within):
        return ""
    if math.isclose(c, -1, rel_tol=off):
        return f"{p.The} is the negative of what was expected."
    said = _by_name(c, off, p.factors)
    if not said and not p.are_places():
        # One number is always a multiple of another: there it takes a factor that is known.
        apart = (p.e - p.wanted)[p.size > 10 * p.atol].abs() > 10 * (p.atol + p.rtol * p.top)
        plain = bool(apart.any()) or any(math.isclose(c, n, rel_tol=off) for n in (2, 0.5))
        said = _by_name(c, off, p.found) or (f"{_brief(c)} times what was expected" if plain else "")
    return f"{p.Every} is {said}." if said else ""


def _by_name(c: float, off: float, named: list[tuple[float, str]]) -> str:
    """The factor as `n`, `1/n`, or the root of one of them, where `n` has a name; the nearest counts."""
    ways = []
    for n, label in named:
        forms = [(n, f"{_brief(n)} times"), (1 / n, f"1/{_brief(n)} of")]
        if not math.sqrt(n).is_integer():  # a factor of 2 is no sign of a 4
            forms += [(n**0.5, f"√{_brief(n)} times"), (n**-0.5, f"1/√{_brief(n)} of")]
        ways += [(abs(abs(c) / v - 1), f"{by} what was expected; {_brief(n)} is {label}") for v, by in forms]
    apart, said = min(ways, key=lambda way: way[0], default=(math.inf, ""))
    return ("-" if c < 0 else "") + said if apart <= off else ""


def _offset(p: _Pair) -> str:
    c = p.came - p.wanted
    apart = torch.where(p.e.isfinite(), (p.e - p.wanted).abs(), 0.0).max()
    slack = p.atol + p.rtol * (p.top + abs(c))
    slack = min(slack, max(abs(c) / CLOSER, 2 * p.eps * (p.top + abs(c))))
    if c.imag or not 10 * slack < min(abs(c), apart) or not _near(p.a, p.e + c, slack) or p.are_places():
        return ""
    return f"{p.Every} is {_brief(abs(c))} {'more' if c.real > 0 else 'less'} than what was expected."


def _expected_but(p: _Pair) -> str:
    ways = itertools.chain(_moved(p.e), () if p.e.is_complex() else _changed(p))
    return next((f"{p.The} is what was expected, {how}." for how, t in ways if p.same(p.a, t)), "")


def _moved(e: Tensor) -> Iterator[tuple[str, Tensor]]:
    dims = range(e.dim())
    for i, j in itertools.combinations(dims, 2):
        yield "transposed" if e.dim() == 2 else f"with dimensions {i} and {j} swapped", e.transpose(i, j)
    yield "with its dimensions in reverse order", e.permute(tuple(reversed(dims)))
    for d, along in ((d, f" along dimension {d}" if e.dim() > 1 else "") for d in dims):
        yield f"reversed{along}", e.flip(d)
        yield from ((f"rolled by {by}{along}", e.roll(by, d)) for by in (1, -1))


def _changed(p: _Pair) -> Iterator[tuple[str, Tensor]]:
    if p.actual.dtype is p.expected.dtype is torch.bool:
        yield "with `True` and `False` swapped", 1 - p.e
    if int((p.e < 0).sum()) > 1:  # where one element is wrong, that is the plainer thing to say
        yield "without its signs (`abs`)", p.e.abs()
        yield "with 0 in place of what is negative", p.e.relu()
    for name in ("trunc", "floor", "round", "float32", "float16", "bfloat16"):
        to = getattr(torch, name)
        t = to(p.e) if callable(to) else p.e.to(to).double()
        if torch.equal(p.a, t):  # the tolerance may be wider than what is rounded off
            yield f"rounded to {'whole numbers by ' if callable(to) else ''}`{name}`", t


def _parts(p: _Pair) -> str:
    """One element, row or column is wrong and all others right, or the other way round."""
    n = p.right.dim()
    for d, unit in enumerate({1: ["element"], 2: ["row", "column"]}.get(n, ["slice"] * n)):
        rows = p.right.movedim(d, 0).reshape(p.right.shape[d], -1).all(1)
        for word, those in (("wrong", ~rows), ("right", rows)):
            i, index = int(those.int().argmax()), ":, " * d
            one = p.e.select(d, i).flatten()
            # A zero, or one whole number many times, is soon right by chance.
            telling = one.ne(0 if p.expected.is_floating_point() else one[0]).any() or word == "wrong"
            if int(those.sum()) == 1 and len(rows) > 2 and telling:  # of two, one is soon alone
                ends = {0: f"the first {unit}", len(rows) - 1: f"the last {unit}"} if n < 3 else {}
                return f"Only {ends.get(i, f'{unit} `[{index}{i}]`')} of {p.what} is {word}."
    return ""


def _reordered(p: _Pair) -> str:
    # Exact: many numbers in order are near to many others in order. Complex ones have no order.
    a, e = ([] if t.is_complex() else t.flatten().sort().values for t in (p.a, p.e))
    moved = len(a) == len(e) > 2 and torch.equal(a, e) and len(e.unique()) > 2
    return f"{p.The} has the expected elements in another order." if moved else ""


def _reshaped(p: _Pair) -> str:
    if p.a.numel() == p.e.numel() and p.same(p.a.reshape(p.e.shape), p.e):
        return f"The elements of {p.what} are right and in order; only the shape is another."
    small, big = sorted((p.a, p.e), key=Tensor.numel)
    sizes = zip(reversed(small.shape), reversed(big.shape), strict=False)
    fits = small.dim() <= big.dim() and all(n in (1, m) for n, m in sizes)
    equal = fits and p.same(small.expand_as(big), big)
    return f"Broadcast to one shape, {p.what} and what was expected are equal." if equal else ""


def _reduced(p: _Pair) -> str:
    its = (p.e, p.a, f"{p.The} is the {{}} of what was expected{{}}.")
    of_it = (p.a, p.e, f"The {{}} of {p.what}{{}} is what was expected.")
    for (long, short, told), k in itertools.product((its, of_it), range(1, 5)):
        # A sum over one element is that element.
        several = [d for d in range(long.dim()) if long.shape[d] > 1]
        for name in ("sum", "mean"):
            found = [d for d in itertools.combinations(several, k) if _is_reduction(p, name, long, short, d)]
            if found:
                # Of what is symmetric, sums over two dimensions are equal: then neither is named.
                over = f" over dimension {' and '.join(map(str, found[0]))}"
                return told.format(name, over if len(found) == 1 and k < long.dim() else "")
    return ""


def _is_reduction(p: _Pair, name: str, long: Tensor, short: Tensor, dims: tuple[int, ...]) -> bool:
    t, slack = (getattr(x, name)(dims).squeeze() for x in (long, p.atol + p.rtol * long.abs()))
    telling = t.shape == short.squeeze().shape and t.abs().max() > 10 * slack.max()
    return bool(telling and _near(short.squeeze(), t, slack.clamp(max=t.abs().max() / CLOSER)))


# In the order in which they are asked; the first that has something to say is told.
SAME_SHAPE = (_not_finite, _is_known, _constant, _factor, _offset, _expected_but, _parts, _reordered)
OTHER_SHAPE = (_not_finite, _is_known, _constant, _reshaped, _expected_but, _reduced)


def _values(t: Tensor) -> Tensor:
    t = t.detach().cpu().to_dense()
    values = t.to(torch.complex128 if t.is_complex() else torch.float64)
    if not t.is_floating_point() and t.numel() and values.abs().max() >= 2.0**53:
        raise OverflowError("whole numbers that double precision rounds")
    return values


def _size(e: Tensor) -> Tensor:
    return torch.where(e.isfinite(), e.abs(), 0.0)


def _rows(t: Tensor) -> Iterator[Tensor]:
    """The elements in the order of reading, and all that is in the storage behind them."""
    t = t.detach()
    if there := t.untyped_storage().nbytes() // t.element_size():
        yield t.flatten()
        yield t.as_strided((there,), (1,), 0)


def _are_on(row: Tensor, t: Tensor) -> bool:
    """Whether the row is an arithmetic progression, and all finite elements of the tensor would be in it if
    it went on."""
    if row.dtype is torch.bool or row.is_complex() or t.is_complex() or not 4 <= len(row) <= 2**20:
        return False
    row = _values(row)
    steps = row.diff()
    if not steps[0] or not _near(steps, steps[0].expand_as(steps), abs(steps[0]) / 1000):
        return False
    place = (t[t.isfinite()] - row[0]) / steps[0]
    return _near(place, place.round(), 1e-3)


def _near(a: Tensor, b: Tensor, slack: Tensor | float) -> bool:
    return bool(_each_near(a, b, slack).all())


def _each_near(a: Tensor, b: Tensor, slack: Tensor | float) -> Tensor:
    return ((a - b).abs() <= slack) & b.isfinite() | (a == b) | (a.isnan() & b.isnan())


def _brief(x: float | complex) -> str:
    """`0.5`, `1/3`, `1e+04`; more digits where four would make it another whole number."""
    short = f"{x:.4g}"
    if isinstance(x, complex) or not math.isfinite(x) or math.isclose(float(short), x, rel_tol=1e-6):
        return short
    nearby = Fraction(x).limit_denominator(12)
    found = abs(x) < 1e6 and math.isclose(nearby, x, rel_tol=1e-6)
    return str(nearby) if found else f"{x:.8g}" if float(short).is_integer() else short
