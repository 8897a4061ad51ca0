"""Proves the graders: right answers pass, wrong ones are rejected by the check that should.

`mutants` changes a reference mechanically, `wrappers` wraps it, `written` makes answers of source text,
`grade_mutants` grades them. `laws` says what every exercise keeps, and is `course prove`: `texts` what the
course's voice allows, `named` that what is named is there, `hard_input` what is tried that people forget,
`stale` what has to follow. `new` is `course new`. For authors and tests: no reader's code imports it.

It may import `exercise`, `grading`, `lessons` and `processes`.
"""
