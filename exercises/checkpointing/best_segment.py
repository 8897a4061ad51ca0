"""The best size of a segment

A stack of layers has a checkpoint around every `size` of them; the last segment may be shorter. Two lists of
bytes tell what each layer keeps for backward, its input included, and how large its input is. Return the
`size` with the lowest peak.

Backward takes the segments from the last to the first, and computes each again. Then all that its layers keep
is alive, and so is the input of each segment that is still waiting. Those after it are done, and freed.

The checks run such a stack and measure. If several sizes have the lowest peak, return any of them.

`best_segment([2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1])` → `2`, with 2 + 4 bytes at the peak.
"""

import functools

from course_utils import measure
from course_utils.exercise import Exercise, Rows, expect

exercise = Exercise(
    minutes=10,
    core=True,
    hints=[
        "For one size, which segments are there, and how many bytes are alive when each is computed again?",
        "While the segment at layer 6 is live, which inputs are waiting, and which layers keep something?",
        "Write `peak(size)`: for each `start` of a segment add up `kept` from there on, `size` entries, and "
        "every `size`-th of `inputs` before it, and take the `max`. Try all sizes from 1 to n.",
    ],
)


@exercise.starter
def best_segment(kept: list[int], inputs: list[int]) -> int:
    raise NotImplementedError


_SETUP = """
from course_utils import measure
from torch.utils.checkpoint import checkpoint

def layer(width, out, n):
    return nn.Sequential(nn.Linear(width, out), *[nn.GELU()] * n)

def step(size):
    layers.zero_grad()
    y = x
    for i in range(0, len(layers), size):
        y = checkpoint(layers[i : i + size], y, use_reentrant=False)
    y.square().mean().backward()

layers = nn.Sequential(*map(layer, widths, widths[1:], gelus)).to(device)
x = torch.randn(128, widths[0], device=device)
"""


@functools.cache
def _measured(widths, gelus, device):
    """What each layer keeps, its input's bytes, and the peak for every size of a segment."""
    t = expect.given(_SETUP, widths=widths, gelus=gelus, device=device)
    kept, inputs, x = [], [], t.x
    for layer in t.layers:
        inputs.append(x.nbytes)
        kept.append(measure.saved_bytes(layer, x).total)
        x = layer(x).detach()
    sizes = range(1, len(kept) + 1)
    return kept, inputs, {size: measure.step_timeline(t.step, size).peak for size in sizes}


def _expect_best(best_segment, device, cases):
    with Rows() as rows:
        for label, (widths, gelus) in cases.items():
            with rows.of(label):
                kept, inputs, peaks = _measured(widths, gelus, device)
                names = {"widths": widths, "gelus": gelus, "kept": [*kept], "inputs": [*inputs]}
                t = expect.given(_SETUP, best_segment=best_segment, device=device, **names)
                t.run("size = best_segment(kept, inputs)")
                known = hasattr(type(t.size), "__index__") and t.size in peaks
                wanted = f"expected: a whole number from 1 to {len(kept)}"
                expect.true(known, f"`size` is {expect.show(t.size)}", wanted)
                what = f"the peak with `size` {t.size} (`measure.step_timeline(step, size).peak`)"
                expect.at_most(peaks[t.size], min(peaks.values()), what, unit="bytes")


@exercise.check(deadline=60)
def equal_layers(best_segment, device):
    """Equal layers, which keep three times their input, or eleven times

    Of n layers in segments of s about n / s inputs are waiting. The live segment keeps all of s layers. If a
    layer keeps k times its input, n / s + k * s is smallest at √(n / k), below √n where k is above 1.
    """
    cases = {
        "10 layers with two GELUs": ((16,) * 11, (2,) * 10),
        "6 layers with ten GELUs": ((16,) * 7, (10,) * 6),
        "one layer": ((16, 16), (1,)),
    }
    _expect_best(best_segment, device, cases)


@exercise.check(deadline=60)
def different_layers(best_segment, device):
    """Layers that differ: neither their mean nor the first or largest of them is enough

    The peak is the highest of the moments at which a segment has been computed again. Its input is among what
    its first layer keeps, and is there once.
    """
    cases = {"8 layers": ((4, 8, 32, 32, 8, 8, 32, 8, 8), (4, 4, 4, 1, 2, 4, 1, 1))}
    _expect_best(best_segment, device, cases)


@exercise.check(deadline=60)
def shorter_last(best_segment, device):
    """The last segment may be shorter than the others

    Segments begin at 0, `size`, 2 * `size` and so on, for sizes that don't divide the number of layers, too.
    What is over comes at the end, and is computed again while the most inputs are waiting.
    """
    cases = {
        "11 equal layers": ((16,) * 12, (3,) * 11),
        "7 layers, the last ones large": ((8, 16, 16, 16, 16, 32, 32, 4), (2, 1, 2, 1, 1, 4, 4)),
    }
    _expect_best(best_segment, device, cases)


@exercise.check(deadline=60)
def freed_by_then(best_segment, device):
    """The inputs of segments that are done don't count

    When the last segment is live, all inputs are there; when the first is, no others are. So the largest
    segment has beside it the inputs before it alone.
    """
    cases = {"5 layers": ((8, 32, 4, 8, 32, 16), (2, 2, 1, 1, 4))}
    _expect_best(best_segment, device, cases)
