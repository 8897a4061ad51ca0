"""What holds for every picture that is drawn from words and shapes."""

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg

from course_utils.draw.picture import Picture


def assert_no_text_is_cut_off_or_covers_another(picture: Picture) -> None:
    """All text lies inside the picture, within a pixel, and no two texts lie on each other."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in picture.axes[0].texts]
    for text, box in boxes:
        assert picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1, text
        assert picture.bbox.y0 - 1 <= box.y0 and box.y1 <= picture.bbox.y1 + 1, text
    for (a, first), (b, second) in itertools.combinations(boxes, 2):
        over = min(first.y1, second.y1) - max(first.y0, second.y0)
        beside = min(first.x1, second.x1) - max(first.x0, second.x0)
        assert over <= 2 or beside <= 0, f"{a} and {b}"
