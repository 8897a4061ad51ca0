"""Questions asked of a reader: what they answered (`answers`), where they begin (`placement`, by what
`readers` may know), what is due (`cards`); a sitting of questions (`sitting`), what is said in it (`told`),
in a notebook (`card`) and in a terminal (`terminal`).

It may import `draw`, `exercise`, `lessons`, `questions` and `reader`.
"""
