"""A plugin for pytest with nbval: pictures are compared as well, without what programs remark in them."""

from course_utils.lessons.notebook_files import plain_png


def pytest_collection_modifyitems(items):
    for cell in items:
        skipped = cell.parent.skip_compare
        cell.parent.skip_compare = tuple(kind for kind in skipped if kind != "image/png")
        cell.sanitize = lambda text, others=cell.sanitize: others(plain_png(text))
