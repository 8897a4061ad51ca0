"""Questions without end, judged by torch: what a family of them is made of, which is all that its file in
`practice/` imports (`family`); where they are found (`families`); one question (`question`), made in a warm
process (`maker`).

It may import `lessons` and `processes`.
"""

from course_utils.questions.family import RAISES, Family, Run

__all__ = ["RAISES", "Family", "Run"]
