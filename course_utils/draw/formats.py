"""The floating-point formats of deep learning as bits: what a pattern means, what a number becomes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

_INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


@dataclass(frozen=True)
class Format:
    """A format of a sign, `exponent` and `mantissa` bits. A pattern is a number from 0, its sign bit first.

    tf32 has no dtype in torch: it is a float32 for which a matrix product reads 19 of the 32 bits. Here a
    float32 is rounded to it by its low 13 bits, to nearest, ties to even, as torch rounds to its own dtypes.
    What is in this class of all others is what torch says of them.
    """

    name: str
    exponent: int
    mantissa: int
    dtype: torch.dtype | None

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        """What the exponent bits of 1.0 say."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def has_inf(self) -> bool:
        """Exponent bits that are all 1 mean inf and nan; without inf, nan is the one pattern of all 1."""
        return self.dtype is not torch.float8_e4m3fn

    @cached_property
    def largest(self) -> float:
        return torch.finfo(self.dtype).max if self.dtype else 2.0**self.bias * (2 - self.eps)

    @cached_property
    def smallest_normal(self) -> float:
        return torch.finfo(self.dtype or torch.float32).smallest_normal

    @cached_property
    def eps(self) -> float:
        """The spacing from 1 to the next larger number."""
        return torch.finfo(self.dtype).eps if self.dtype else 2.0**-self.mantissa

    @property
    def smallest(self) -> float:
        """The smallest subnormal number."""
        return self.smallest_normal * self.eps

    @cached_property
    def beyond(self) -> float:
        """What a number becomes that is too large."""
        return self.decode(self.encode(2 * self.largest))

    @property
    def vanishing(self) -> float:
        """The largest number that becomes 0."""
        return self.smallest / 2

    @property
    def overflowing(self) -> float:
        """Where overflow begins: half a step above the largest number."""
        return self.largest + self.eps * 2.0 ** (math.frexp(self.largest)[1] - 1) / 2

    def fields(self, bits: int) -> tuple[int, int, int]:
        """Sign, exponent and mantissa bits."""
        exponent = bits >> self.mantissa & (1 << self.exponent) - 1
        return bits >> self.width - 1, exponent, bits & (1 << self.mantissa) - 1

    def kind(self, bits: int) -> str:
        """ "zero", "subnormal", "normal", "inf" or "nan"."""
        _, exponent, mantissa = self.fields(bits)
        full = exponent == (1 << self.exponent) - 1
        if not self.has_inf:
            full = full and mantissa == (1 << self.mantissa) - 1
        if full:
            return "nan" if mantissa else "inf"
        return "normal" if exponent else "subnormal" if mantissa else "zero"

    def power(self, bits: int) -> int:
        """The exponent of 2 in a number: that of the smallest normal one for those below it."""
        return max(self.fields(bits)[1], 1) - self.bias

    def decode(self, bits: int) -> float:
        """The number that a pattern means."""
        sign, exponent, mantissa = self.fields(bits)
        kind = self.kind(bits)
        if kind in ("nan", "inf"):
            return math.copysign(float(kind), -sign or 1)
        ones = (exponent > 0) + mantissa / (1 << self.mantissa)
        return math.copysign(math.ldexp(ones, self.power(bits)), -sign or 1)

    def encode(self, value: float) -> int:
        """The pattern of what `value` is rounded to. As in torch, by way of float32."""
        tensor = torch.tensor(value, dtype=torch.float64).to(torch.float32)
        if self.dtype:
            bits = tensor.to(self.dtype).view(_INTEGERS[self.width]).item()
            return bits & (1 << self.width) - 1
        bits = tensor.view(torch.int32).item() & 0xFFFFFFFF
        low = 32 - self.width
        if math.isnan(value):
            return bits >> low
        return bits + (1 << low - 1) - 1 + (bits >> low & 1) >> low

    def neighbours(self, bits: int) -> tuple[float | None, float | None]:
        """The next smaller and the next larger number; None where there is none."""
        place = bits & (1 << self.width - 1) - 1
        place = -place if self.fields(bits)[0] else place
        around = [abs(one) | (one < 0) << self.width - 1 for one in (place - 1, place + 1)]
        if self.kind(bits) == "nan":
            return None, None
        found = [None if self.kind(one) == "nan" else self.decode(one) for one in around]
        return found[0], found[1]


FORMATS = {
    one.name: one
    for one in (
        Format("float32", 8, 23, torch.float32),
        Format("tf32", 8, 10, None),
        Format("bfloat16", 8, 7, torch.bfloat16),
        Format("float16", 5, 10, torch.float16),
        Format("float8 e4m3", 4, 3, torch.float8_e4m3fn),
        Format("float8 e5m2", 5, 2, torch.float8_e5m2),
    )
}
