"""The reader's own things: what they have done (`record`, `progress`), their copies of the lessons
(`workspace`), where they work (`lab`, `doctor`), answers that stay folded (`folded`), and what they see while
a report takes its time (`waiting`).

It may import `exercise`, `lessons` and `draw`.
"""
