"""Hard numbers: inputs on which arithmetic breaks that is right for `torch.randn`. What is computed from them
is compared with an oracle in float64, by `expect.close`, whose tolerance follows the size of the result.

They are code for an example that can be pasted, by what is hard about them:

    with Rows() as rows:
        for label, code in numbers.hard("8, 3").items():
            with rows.of(label):
                t = expect.given(f"x = {code}", answer=answer)
                expect.close(t.call("answer(x)"), oracle(t.x.double()))
"""

import builtins
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

# What a difference of two large numbers, a square or an exponential makes of each:
_HARD = {
    "a large mean": "torch.randn({shape}) + 1e4",  # E[x²] - mean² has no digit left
    "large numbers": "torch.randn({shape}) * 1e4",  # exp is inf, or 0
    "one giant": "torch.cat([torch.full((1, {rest}), 3e4), torch.randn({less}, {rest})])",
    "a tiny scale": "torch.randn({shape}) * 1e-12",  # an eps of 1e-5 counts, one of 1e-8 too
    "numbers whose squares are 0": "torch.randn({shape}) * 1e-25",
    "subnormal numbers": "torch.randn({shape}) * 1e-40",
}
# Random draws that a verdict must not hang on: a check tries each of these.
SEEDS = (0, 1, 2)
# What is to be left alone is left alone here too: a factor that is undone, a clamp, a flush to zero, a trip
# through a narrower dtype or `nan_to_num_` shows in one of these.
ODD = "torch.tensor([1.5, -0.0, 1e-40, 7e4, float('inf'), -float('inf'), float('nan'), 0.1])"


def hard(shape: str, *labels: str) -> dict[str, str]:
    """Code for a tensor of this shape, of at least one row, for each label; for all where none is named.

    `shape`: the sizes as they stand in a call, such as `"8, 3"`. Raises `KeyError` for a label that there is
    not.
    """
    first, _, rest = shape.partition(",")
    names = {"shape": shape, "rest": rest.strip() or "1", "less": int(first) - 1}
    found = {label: _HARD[label].format(**names) for label in labels or _HARD}
    if not rest and "one giant" in found:
        found["one giant"] = f"torch.cat([torch.tensor([3e4]), torch.randn({names['less']})])"
    return found


@contextlib.contextmanager
def another_process() -> Iterator[None]:
    """Inside, the hash of what has a text in it is another number, as in a process that is started anew.
    Python salts it, and forks share their salt."""
    plain = builtins.hash

    def has_text(thing: Any) -> bool:
        several = isinstance(thing, (tuple, frozenset))
        return isinstance(thing, (str, bytes)) or several and any(map(has_text, thing))

    with mock.patch.object(builtins, "hash", lambda thing: plain(thing) ^ (9973 if has_text(thing) else 0)):
        yield
