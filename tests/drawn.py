"""What holds for every picture."""

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from course_utils.draw import palette
from course_utils.draw.picture import Picture


def linear(colour) -> list[float]:
    """The shares of red, green and blue light."""
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]


def contrast(a, b) -> float:
    """Between two colours, by WCAG 2.1: text needs 4.5, lines 3."""
    weights = (0.2126, 0.7152, 0.0722)
    dark, light = sorted(sum(w * c for w, c in zip(weights, linear(one), strict=True)) for one in (a, b))
    return (light + 0.05) / (dark + 0.05)


def assert_words_can_be_read(picture: Picture) -> None:
    """All text has enough contrast to what it is written on: the page, or the last filled shape under it."""
    canvas = FigureCanvasAgg(picture)
    if picture.get_layout_engine():  # places, and the numbers at axes, are found as it is drawn
        canvas.draw()
    renderer = canvas.get_renderer()
    patches = [patch for axes in picture.axes for patch in axes.patches]
    fills = [patch.get_facecolor() for patch in patches]
    filled = [
        (patch.get_window_extent(renderer), fill)
        for patch, fill in zip(patches, fills, strict=True)
        if fill[3] == 1
    ]
    found = [text for text in picture.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert found
    for text in found:
        box = text.get_window_extent(renderer)
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        below = next((fill for room, fill in reversed(filled) if room.contains(x, y)), palette.PAGE)
        assert contrast(text.get_color(), below) >= 4.5, text.get_text()


def assert_no_text_is_cut_off_or_covers_another(picture: Picture) -> None:
    """All text lies inside the picture, within a pixel, can be read, and no two texts lie on each other."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in picture.axes[0].texts]
    for text, box in boxes:
        assert picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1, text
        assert picture.bbox.y0 - 1 <= box.y0 and box.y1 <= picture.bbox.y1 + 1, text
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        over = min(first.y1, second.y1) - max(first.y0, second.y0)
        beside = min(first.x1, second.x1) - max(first.x0, second.x0)
        assert over <= 2 or beside <= 0, f"{a} and {b}"
    assert_words_can_be_read(picture)
