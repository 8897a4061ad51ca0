"""An image as a grid of patches

Cut an image of shape (C, H, W) into patches of p × p pixels, side by side, without a copy. The result has
shape (rows, columns, C, p, p): `result[r, c]` is the patch in row `r` and column `c` of the grid, itself a
small image of shape (C, p, p). Pixels at the bottom and at the right that do not fill a patch are left out.

The patches **share storage** with the image, whatever its strides are: it may be a crop, a transposed image,
or an image whose channels lie last in memory. A gradient that reaches them goes on to the image. `p` is at
least 1, at most H and at most W. Any operator of torch's is welcome.

`image_patches(torch.arange(12).reshape(1, 2, 6), 2)` has shape (1, 3, 1, 2, 2), and at `[0, 1]` is
`[[[2, 3], [8, 9]]]`
"""

import torch
from torch import Tensor

from course_utils import expect
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=20,
    hints=[
        "Look at one row of pixels, `W` of them in a line. Cut into pieces of `p`, each pixel has two "
        "coordinates: which piece, and where in the piece. How far is one step of each in storage?",
        "A dimension that is split in two needs no copy, whatever its stride `s`: the piece gets the stride "
        "`p * s`, the place in it keeps `s`. With H and W split there are five dimensions to put in order.",
        "Two ways to go on. Five sizes and five strides for `as_strided`. Or drop the pixels that are left "
        "over, split with `view` or `unflatten`, and order the dimensions with `permute`. Neither copies.",
    ],
)


@exercise.starter
def image_patches(x: Tensor, p: int) -> Tensor:
    """(C, H, W) -> (rows, columns, C, p, p)"""
    raise NotImplementedError


def _patches(x, p):
    """Every patch, cut out of the image."""
    rows, columns = x.shape[1] // p, x.shape[2] // p
    result = torch.zeros(rows, columns, x.shape[0], p, p, dtype=x.dtype, device=x.device)
    for r in range(rows):
        for c in range(columns):
            result[r, c] = x[:, r * p : r * p + p, c * p : c * p + p]
    return result


def _expect_patches(image_patches, setup, p):
    """The patches of the `x` that `setup` makes; beside a first difference stand the strides."""
    t = expect.given(setup, image_patches=image_patches)
    wanted, stride = _patches(t.x.detach(), p), t.x.stride()
    patches = t.call(f"image_patches(x, {p})")
    try:
        expect.equal(patches, wanted)
    except expect.Mismatch as found:
        if isinstance(patches, Tensor) and patches.shape == wanted.shape and patches.dtype == wanted.dtype:
            found.lines.append(f"its strides are {patches.stride()}; `x.stride()` is {stride}")
        raise


@exercise.check
def right_pixels(image_patches):
    """Every patch holds its own pixels"""
    _expect_patches(image_patches, "x = torch.arange(12).reshape(1, 2, 6)", 2)
    _expect_patches(image_patches, "x = torch.arange(72).reshape(3, 4, 6)", 2)
    _expect_patches(image_patches, "x = torch.arange(90).reshape(2, 9, 5)", 1)


@exercise.check
def pixels_left_over(image_patches):
    """Pixels that do not fill a patch are left out, and stay in the image"""
    _expect_patches(image_patches, "x = torch.arange(70).reshape(2, 5, 7)", 2)
    _expect_patches(image_patches, "x = torch.arange(88).reshape(1, 8, 11)", 3)
    _expect_patches(image_patches, "x = torch.arange(60).reshape(2, 5, 6)", 2)
    _expect_patches(image_patches, "x = torch.arange(60).reshape(2, 6, 5)", 2)
    t = expect.given("x = torch.arange(1., 71.).reshape(2, 5, 7)", image_patches=image_patches)
    with expect.left_alone(t.x, what="the image"):
        t.call("image_patches(x, 2)")


@exercise.check
def any_strides(image_patches):
    """A transposed image, one with its channels last, a grey one shown in colour"""
    _expect_patches(image_patches, "x = torch.arange(72).reshape(3, 4, 6).transpose(1, 2)", 2)
    _expect_patches(image_patches, "x = torch.arange(72).reshape(4, 6, 3).permute(2, 0, 1)", 2)
    _expect_patches(image_patches, "x = torch.arange(24).reshape(1, 4, 6).expand(3, 4, 6)", 2)


@exercise.check
def part_of_a_storage(image_patches):
    """A crop of a larger image, every second channel or pixel of one"""
    _expect_patches(image_patches, "x = torch.arange(120).reshape(2, 6, 10)[:, 1:5, 3:9]", 2)
    _expect_patches(image_patches, "x = torch.arange(96).reshape(4, 4, 6)[1::2]", 2)
    _expect_patches(image_patches, "x = torch.arange(160).reshape(2, 8, 10)[:, 1::2, 1::2]", 2)


@exercise.check
def shares_storage(image_patches):
    """Nothing is copied: the patches read the storage of the image"""
    for setup in (
        "x = torch.zeros(3, 4, 6)",
        "x = torch.zeros(3, 5, 7)",
        "x = torch.zeros(4, 6, 3).permute(2, 0, 1)",
        "x = torch.zeros(2, 6, 10)[:, 1:5, 3:9]",
    ):
        t = expect.given(setup, image_patches=image_patches)
        # `x` itself could be made to read the storage of a copy; this stays where it is.
        witness = t.x.detach()
        patches = t.call("image_patches(x, 2)")
        expect.same_storage(patches, witness, of="the image")
        witness.fill_(1)
        expect.true(bool((patches == 1).all()), "after `x.fill_(1)` not every element of the result is 1")


@exercise.check
def leaves_the_image_alone(image_patches):
    """The image stays what it was"""
    for setup in (
        "x = torch.arange(1., 49.).reshape(2, 4, 6)",
        "x = torch.arange(1., 49.).reshape(2, 4, 6)[1:]",
    ):
        t = expect.given(setup, image_patches=image_patches)
        with expect.left_alone(t.x, what="the image"):
            patches = t.call("image_patches(x, 2)")
        expect.a_tensor(patches)


@exercise.check
def any_dtype(image_patches, device):
    """Every dtype and every device"""
    for dtype in (torch.float32, torch.uint8, torch.bool):
        image = f"torch.arange(32, device='{device.type}').remainder(3).to({dtype}).reshape(2, 4, 4)"
        _expect_patches(image_patches, f"x = {image}", 2)


@exercise.check
def gradients(image_patches):
    """A gradient reaches every pixel that is in a patch, and no other"""
    t = expect.given("x = torch.zeros(1, 3, 5, requires_grad=True)", image_patches=image_patches)
    wanted = torch.zeros(1, 3, 5)
    wanted[:, :2, :4] = 1
    _expect_gradient(t.call("image_patches(x, 2)"), "x", t.x, wanted)
    setup = "whole = torch.zeros(2, 5, 6, requires_grad=True)\nx = whole[1:, 1:, 2:]"
    t = expect.given(setup, image_patches=image_patches)
    wanted = torch.zeros(2, 5, 6)
    wanted[1, 1:, 2:] = 1
    _expect_gradient(t.call("image_patches(x, 2)"), "whole", t.whole, wanted)


def _expect_gradient(patches, name, leaf, wanted):
    expect.in_graph(patches, of="the image")
    patches.backward(torch.ones_like(patches))
    expect.equal(leaf.grad, wanted, what=f"`{name}.grad`")


@exercise.mistake
def copies_by_merging(x, p):
    """The values are right, and they are a copy. Splitting a dimension never copies; what copies is merging
    when a step of the outer is not a run of the inner (as in the list of all patches, and in `flatten`),
    putting patches together with `stack` or `cat`, indexing with a list or a tensor, `F.unfold`,
    `.contiguous()` and `.clone()`."""
    c, (rows, columns) = x.shape[0], (x.shape[1] // p, x.shape[2] // p)
    grid = x[:, : rows * p, : columns * p].reshape(c, rows, p, columns, p)
    patches = grid.permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
    return patches.reshape(rows, columns, c, p, p)


@copies_by_merging.variant
def stacks_patches(x, p):
    rows = []
    for top in range(0, x.shape[1] - p + 1, p):
        lefts = range(0, x.shape[2] - p + 1, p)
        rows.append(torch.stack([x[:, top : top + p, left : left + p] for left in lefts]))
    return torch.stack(rows)


@copies_by_merging.variant
def tidies_up(x, p):
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4).contiguous()


@exercise.mistake
def copies_what_is_not_contiguous(x, p):
    """Where the image is not contiguous you copied it, and the patches share storage with that copy:
    `.contiguous()` does so, and `.reshape` may. Splitting and reordering dimensions needs no contiguity."""
    x = x.contiguous()
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


@copies_what_is_not_contiguous.variant
def strides_of_a_copy(x, p):
    channels, height, width = x.shape
    image = x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)
    size = (height // p, width // p, channels, p, p)
    return image.as_strided(size, (p * width, p, height * width, width, 1), image.storage_offset())


@exercise.mistake
def only_reshapes(x, p):
    """The shape is right and the pixels are not where they belong. `reshape` keeps the elements in the
    order in which they are read and only counts them differently. Split each dimension where it stands, into
    (C, rows, p, columns, p), and then put the dimensions in order: that takes a `permute`."""
    rows, columns = x.shape[1] // p, x.shape[2] // p
    return x[:, : rows * p, : columns * p].reshape(rows, columns, x.shape[0], p, p)


@only_reshapes.variant
def reads_them_off(x, p):
    channels, height, width = x.shape
    cropped = x[..., : height - height % p, : width - width % p]
    if not cropped.is_contiguous():
        cropped = cropped.contiguous()
    return cropped.view(height // p, width // p, channels, p, p)


@exercise.mistake
def only_views(x, p):
    """`view` reads the elements in the same order as before and only counts them differently, so the pixels
    are not where they belong; and it needs all of them, also those that are left over. Drop these, split
    each dimension where it stands, into (C, rows, p, columns, p), and put the dimensions in order."""
    return x.view(x.shape[1] // p, x.shape[2] // p, x.shape[0], p, p)


@exercise.mistake
def reshapes_all_pixels(x, p):
    """`reshape` keeps the elements in the order in which they are read and only counts them differently, so
    the pixels are not where they belong; and it needs all of them, also those that are left over. Drop
    these, split each dimension where it stands, into (C, rows, p, columns, p), and put the dimensions in
    order."""
    return x.reshape(x.shape[1] // p, x.shape[2] // p, x.shape[0], p, p)


@exercise.mistake
def swaps_rows_and_columns(x, p):
    """Rows and columns of the grid are swapped: `result[r, c]` is the patch in row `c` and column `r`."""
    return x.unfold(1, p, p).unfold(2, p, p).permute(2, 1, 0, 3, 4)


@swaps_rows_and_columns.variant
def columns_come_first(x, p):
    channels, height, width = x.stride()
    size = (x.shape[2] // p, x.shape[1] // p, x.shape[0], p, p)
    return x.as_strided(size, (width * p, height * p, channels, height, width))


@exercise.mistake
def turns_every_patch(x, p):
    """Each patch is where it belongs, and is transposed: inside a patch the row comes before the column, as
    in the image."""
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 4, 3)


@turns_every_patch.variant
def splits_and_turns(x, p):
    rows, columns = x.shape[1] // p, x.shape[2] // p
    grid = x[:, : rows * p, : columns * p].unflatten(2, (columns, p)).unflatten(1, (rows, p))
    return torch.einsum("criwj->rwcji", grid)


@exercise.mistake
def channels_last(x, p):
    """In your patches the channels come last, as NumPy and image files have them. Here a patch is an image
    as torch has it: (C, p, p)."""
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 3, 4, 0)


@exercise.mistake
def channels_first(x, p):
    """Your result begins with the channels: it is a grid of patches for each of them. All channels of one
    patch belong together: (rows, columns, C, p, p)."""
    return x.unfold(1, p, p).unfold(2, p, p)


@channels_first.variant
def one_grid_for_each_channel(x, p):
    rows, columns = x.shape[1] // p, x.shape[2] // p
    cropped = x[:, : rows * p, : columns * p]
    return cropped.unflatten(2, (columns, p)).unflatten(1, (rows, p)).transpose(2, 3)


@exercise.mistake
def assumes_contiguous(x, p):
    """Your strides are computed from the sizes, as if the image were contiguous. A crop, a transposed image,
    one with its channels last have strides of their own: take them from `x.stride()`."""
    c, h, w = x.shape
    return x.as_strided((h // p, w // p, c, p, p), (p * w, p, h * w, w, 1))


@assumes_contiguous.variant
def strides_from_sizes(x, p):
    size = [x.size(1) // p, x.size(2) // p, x.size(0), p, p]
    row = x.size(2)
    plane = row * x.size(1)
    return torch.as_strided(x, size, [row * p, p, plane, row, 1], x.storage_offset())


@exercise.mistake
def ignores_offset(x, p):
    """Your patches begin at the first element of the storage. A crop begins later: at `x.storage_offset()`,
    which is what `as_strided` takes when it is given no offset."""
    (c, h, w), (sc, sh, sw) = x.shape, x.stride()
    return x.as_strided((h // p, w // p, c, p, p), (p * sh, p * sw, sc, sh, sw), 0)


@exercise.mistake
def patches_overlap(x, p):
    """Your patches overlap: each begins one pixel after its neighbour. They lie side by side, `p` pixels
    apart."""
    return x.unfold(1, p, 1).unfold(2, p, 1).permute(1, 2, 0, 3, 4)


@exercise.mistake
def does_not_crop(x, p):
    """You split H and W as they are, which only works where `p` divides them. Drop the pixels that are left
    over first: slicing makes a view too."""
    c, h, w = x.shape
    return x.view(c, h // p, p, w // p, p).permute(1, 3, 0, 2, 4)


@exercise.mistake
def through_fold(x, p):
    """`F.unfold` is made for convolutions: it writes the patches into a new tensor, and only knows floating
    point."""
    c, (rows, columns) = x.shape[0], (x.shape[1] // p, x.shape[2] // p)
    pixels = torch.nn.functional.unfold(x[None], p, stride=p)
    return pixels.reshape(c, p, p, rows, columns).permute(3, 4, 0, 1, 2)


@exercise.mistake
def leaves_the_graph(x, p):
    """The patches share the storage of the image, but autograd does not know where they come from:
    `.detach()`, `.data`, `set_`, `torch.no_grad()` and the way through NumPy leave the graph, so no gradient
    reaches the image. `requires_grad_()` afterwards begins a new graph, and does not lead back."""
    return x.detach().unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


@leaves_the_graph.variant
def without_gradients(x, p):
    with torch.no_grad():
        return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


@leaves_the_graph.variant
def asks_for_a_new_graph(x, p):
    patches = x.data.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)
    return patches.requires_grad_(x.requires_grad)


@exercise.mistake
def changes_the_image_itself(x, p):
    """`transpose_` and the other operators with an underscore change the image itself, and the caller's
    tensor has another shape now. Without the underscore they make a new view."""
    x.transpose_(1, 2)
    return x.unfold(2, p, p).unfold(1, p, p).permute(2, 1, 0, 3, 4)


@exercise.mistake
def square_images_only(x, p):
    """Your grid has as many columns as rows. An image need not be square: `H // p` rows, `W // p` columns."""
    n = x.shape[1] // p
    return x[:, : n * p, : n * p].unflatten(1, (n, p)).unflatten(3, (n, p)).permute(1, 3, 0, 2, 4)


@exercise.mistake
def width_before_height(x, p):
    """You read the shape as (C, W, H). It is (C, H, W): the rows come first, as in a matrix."""
    (channels, width, height), (sc, sh, sw) = x.shape, x.stride()
    return x.as_strided((height // p, width // p, channels, p, p), (p * sh, p * sw, sc, sh, sw))


@exercise.mistake
def crops_by_minus_nothing(x, p):
    """You cut off `H % p` rows with a negative slice. Where nothing is left over that is `x[:, :-0]`, which
    is empty: minus nothing is 0, the beginning. `x[:, : H - H % p]` says the same without the trap."""
    x = x[:, : -(x.shape[1] % p), : -(x.shape[2] % p)]
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


@exercise.mistake
def crops_at_the_top(x, p):
    """You leave out pixels at the top and at the left. Those at the bottom and at the right were to go: the
    first patch begins with pixel `[0, 0]`."""
    x = x[:, x.shape[1] % p :, x.shape[2] % p :]
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


@exercise.mistake
def fills_up_the_last_patch(x, p):
    """You filled up the last patches with zeros. Pixels that do not fill a patch are left out here, and
    padding copies the whole image."""
    x = torch.nn.functional.pad(x, (0, -x.shape[2] % p, 0, -x.shape[1] % p))
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


@exercise.mistake
def unflattens_what_does_not_divide(x, p):
    """`unflatten` splits a dimension into parts whose product is its size; where `p` does not divide H or W
    there are none. Drop the pixels that are left over first: slicing makes a view too."""
    c, h, w = x.shape
    return x.unflatten(1, (h // p, p)).unflatten(3, (w // p, p)).permute(1, 3, 0, 2, 4)


@exercise.mistake
def insists_on_division(x, p):
    """You refuse images that `p` does not divide. They are allowed: the pixels that are left over at the
    bottom and at the right are dropped."""
    assert x.shape[1] % p == 0 and x.shape[2] % p == 0
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)


@exercise.mistake
def last_stride_is_one(x, p):
    """You took 1 as the distance from pixel to pixel. It is `x.stride(2)`: in a transposed image, or in one
    whose channels lie last, neighbours in a row are further apart."""
    (c, h, w), (sc, sh, _) = x.shape, x.stride()
    return x.as_strided((h // p, w // p, c, p, p), (p * sh, p, sc, sh, 1))


@exercise.mistake
def grid_steps_of_one_pixel(x, p):
    """From patch to patch you go as far as from pixel to pixel. The next patch begins `p` pixels further on:
    the first two strides need the factor `p`."""
    (c, h, w), (sc, sh, sw) = x.shape, x.stride()
    return x.as_strided((h // p, w // p, c, p, p), (sh, sw, sc, sh, sw))


@exercise.mistake
def splits_the_other_way_round(x, p):
    """You split H into (p, rows) and W into (p, columns). The outer part is which patch, the inner part where
    in the patch: (rows, p) and (columns, p). The other way round a patch takes pixels from all over."""
    rows, columns = x.shape[1] // p, x.shape[2] // p
    grid = x[:, : rows * p, : columns * p].unflatten(2, (p, columns)).unflatten(1, (p, rows))
    return grid.permute(2, 4, 0, 1, 3)


@exercise.mistake
def splits_only_in_name(x, p):
    """Your sizes are in the order (C, rows, columns, p, p) before the dimensions have been put in order, and
    `reshape` fills them in the order of reading. H has to become (rows, p) where it stands, and W (columns,
    p): (C, rows, p, columns, p). The order comes afterwards."""
    c, (rows, columns) = x.shape[0], (x.shape[1] // p, x.shape[2] // p)
    cropped = x[:, : rows * p, : columns * p]
    return cropped.reshape(c, rows, columns, p, p).permute(1, 2, 0, 3, 4)


@exercise.mistake
def permutes_backwards(x, p):
    """Your `permute` says where each dimension is to go. It asks the other way round: for each place, which
    dimension comes there. Rows are dimension 1 and come first."""
    return x.unfold(1, p, p).unfold(2, p, p).permute(2, 0, 1, 3, 4)


@exercise.mistake
def unfolds_the_channels(x, p):
    """You cut along dimensions 0 and 1, the channels and the rows. The image is (C, H, W): H is dimension 1,
    W is dimension 2."""
    return x.unfold(0, p, p).unfold(1, p, p)


@exercise.mistake
def a_list_of_patches(x, p):
    """You return the patches in one long row. They were to stay in their grid, rows and columns; and putting
    two dimensions into one copies here."""
    patches = x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4)
    return patches.reshape(-1, x.shape[0], p, p)


@exercise.mistake
def squeezes(x, p):
    """`squeeze` drops every dimension of size 1, and which these are depends on the image: with one channel,
    or one row of patches, the result has fewer dimensions than five."""
    return x.unfold(1, p, p).unfold(2, p, p).permute(1, 2, 0, 3, 4).squeeze()
