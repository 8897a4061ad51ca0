"""An image as a grid of patches

Cut an image of shape (C, H, W) into patches of p × p pixels, side by side. Return a tensor of shape
(rows, columns, C, p, p): `result[r, c]` is the patch in row `r` and column `c` of the grid, a small image of
shape (C, p, p). Leave out pixels at the bottom and at the right that don't fill a patch. At least one patch
fits.

The patches **share storage** with the image, whatever its strides: it may be a crop, transposed, or have its
channels last in memory. The image stays as it is, and gradients of the patches must reach it.

`image_patches(torch.arange(12).reshape(1, 2, 6), 2)` has shape (1, 3, 1, 2, 2), and at `[0, 1]` is
`[[[2, 3], [8, 9]]]`
"""

import torch
from torch import Tensor

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import strides

exercise = Exercise(
    minutes=20,
    hints=[
        "Look at one row of `W` pixels. Cut it into pieces of `p`. Now each pixel has two coordinates: which "
        "piece, and where in the piece. How far is one step of each in storage?",
        "Splitting a dimension needs no copy, whatever its stride `s`: a step from piece to piece is `p * "
        "s`, a step inside a piece stays `s`. Split H and W, and put the five dimensions in order.",
        "Here are two ways. Give `as_strided` five sizes and five strides. Or drop the pixels that are left "
        "over, split with `view` or `unflatten`, and order the dimensions with `permute`. Neither copies.",
    ],
)


@exercise.starter
def image_patches(x: Tensor, p: int) -> Tensor:
    """(C, H, W) -> (rows, columns, C, p, p)"""
    raise NotImplementedError


def _expect_patches(t, p):
    """The patches, against those that are cut out of the image one by one."""
    rows, columns = t.x.shape[1] // p, t.x.shape[2] // p
    wanted = torch.zeros(rows, columns, t.x.shape[0], p, p, dtype=t.x.dtype)
    for r in range(rows):
        for c in range(columns):
            wanted[r, c] = t.x[:, r * p : r * p + p, c * p : c * p + p]
    expect.equal(t.call(f"image_patches(x, {p})"), wanted)


@exercise.check(
    given="x = {}".format,
    cases=[
        (strides.squares(2, 4, 6), 2),
        (strides.squares(1, 2, 6), 2),
        (strides.squares(2, 9, 6), 3),
        (strides.squares(3, 2, 4), 1),
    ],
)
def right_pixels(t, p):
    """Every patch holds its own pixels

    Split H into rows of the grid and rows inside a patch, and W into columns of the grid and columns inside.
    That gives (C, rows, p, columns, p). Then put the five dimensions in order; `reshape` to the final shape
    would move pixels into other patches. (If nothing is left over, cut nothing off: `x[:, :-0]` is empty.)
    """
    _expect_patches(t, p)


@exercise.check(
    given="x = {}".format,
    cases={
        f"`p = {p}` on {h} × {w} pixels": (strides.squares(2, h, w), p)
        for h, w, p in [(5, 7, 2), (8, 11, 3), (5, 6, 2), (6, 5, 2)]
    },
)
def pixels_left_over(t, p):
    """Pixels that do not fill a patch are left out

    There are `H // p` rows and `W // p` columns. Cut off the rest at the bottom and at the right before you
    split a dimension; a slice is a view too.
    """
    _expect_patches(t, p)


# Images that are views of something else.
_VIEWS = {
    "transposed": f"{strides.squares(3, 4, 6)}.transpose(1, 2)",
    "with its channels last": f"{strides.squares(4, 6, 3)}.permute(2, 0, 1)",
    "grey as colour": f"{strides.squares(1, 4, 6)}.expand(3, 4, 6)",
    "a crop": f"{strides.squares(2, 6, 10)}[:, 1:5, 3:9]",
    "every second channel": f"{strides.squares(4, 4, 6)}[1::2]",
    "every second pixel": f"{strides.squares(2, 8, 10)}[:, 1::2, 1::2]",
}


@exercise.check(given="x = {}".format, cases=_VIEWS)
def any_strides(t):
    """The image may be a view itself

    The strides of the image say how far away the next channel, row and pixel are. They follow from the sizes
    only if the image is contiguous. It may begin anywhere in its storage: `as_strided` begins where the image
    does if you give no offset.
    """
    _expect_patches(t, 2)


@exercise.check(given="x = {}".format, cases={"contiguous": strides.squares(2, 5, 7), **_VIEWS})
def shares_storage(t):
    """Nothing is copied: the patches share storage with the image, which stays as it is

    Splitting and reordering dimensions need no copy, whatever the strides. Merging may copy, as in `reshape`
    and `flatten`. `stack`, `cat`, indexing with a tensor of indices and `F.unfold` copy, and so does
    `contiguous` if the tensor isn't contiguous. `as_strided_`, with an underscore, changes the image itself.
    """
    witness = t.x.detach()  # `x` itself could be made to read the storage of a copy
    with expect.left_alone(t.x, what="the image"):
        patches = t.call("image_patches(x, 2)")
    expect.same_storage(patches, witness, of="the image")


@exercise.check(given="x = torch.zeros(1, 3, 5, requires_grad=True)")
def gradients(t):
    """A gradient reaches every pixel that is in a patch, and no other

    `as_strided`, slices and `permute` are recorded. `detach`, `.data`, `no_grad` and NumPy leave the graph,
    and `requires_grad_` begins another one, which doesn't lead back.
    """
    patches = t.call("image_patches(x, 2)")
    expect.in_graph(patches, of="the image")
    patches.backward(torch.ones_like(patches))
    wanted = torch.zeros(1, 3, 5)
    wanted[:, :2, :4] = 1
    expect.equal(t.x.grad, wanted, what="`x.grad` after backward from ones")
