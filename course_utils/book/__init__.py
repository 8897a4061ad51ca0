"""The course as a static site, made by Sphinx from the built notebooks, which are read and not run (`build`):
a page a lesson (`pages`), the front page and the ways to a lesson (`ways`), how Sphinx is set (`conf`), where
a section is (`addresses`); pages collected from all lessons (`claims`, `errors`, `sheets`, `interview`,
`glossary_page`, with `stored`), and explorers that work without a kernel (`explorers`).

It may import `draw`, `explore` and `lessons`. It alone imports Sphinx, which the extra `book` brings.
"""
