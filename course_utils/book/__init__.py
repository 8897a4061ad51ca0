"""The course as a static site, made by Sphinx from the built notebooks, which are read and not run (`build`):
a page a lesson (`pages`), the front page (`front`), how Sphinx is set (`conf`), where a section is
(`addresses`); and the pages collected from all lessons.

It may import `draw`, `exercise` and `lessons`. It alone imports Sphinx, which the extra `book` brings.
"""
