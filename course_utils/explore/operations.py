"""Operations as the code that a reader would write: what comes after the name of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

STRIDED = ".as_strided("


def transpose(dimensions: int, a: int, b: int) -> str:
    return ".t()" if dimensions == 2 and {a, b} == {0, 1} else f".transpose({a}, {b})"


def slice_of(dim: int, start: int, stop: int, step: int, size: int) -> str:
    """The slice of dimension `dim`, which has `size` elements; what needs not be said is left out."""
    begin = str(start) if start else ""
    end = str(stop) if stop < size else ""
    return f"[{':, ' * dim}{begin}:{end}{f':{step}' if step != 1 else ''}]"


def shaped(method: str, text: str) -> str:
    """`expand`, `reshape` or `view` to a shape that is written as `3, -1`, `(3, -1)` or `3 -1`. Raises
    `ValueError` for other things."""
    words = text.replace("(", " ").replace(")", " ").replace(",", " ").split()
    shape = ", ".join(str(int(word)) for word in words)
    return f".{method}({shape or '()'})"


def as_strided(size: Sequence[int], stride: Sequence[int], offset: int) -> str:
    return f"{STRIDED}{tuple(size)}, {tuple(stride)}, {offset})"
