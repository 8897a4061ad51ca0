"""The reader's own things: what they have done (`record`, `progress`), their copies of the lessons
(`workspace`), where they work (`lab`, `doctor`), and answers that stay folded (`folded`).

It may import `exercise`, `lessons` and `draw`.
"""
