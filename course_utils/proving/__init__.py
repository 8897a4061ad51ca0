"""Proves the graders: right answers pass, wrong ones are rejected by the check that should.

`mutants` changes a reference mechanically (`places`: where), `around` puts changes around it, `written` makes
answers of source text, `bench` grades mutants, `laws` says what every exercise keeps, `texts` what the
course's voice allows, `command` is `course prove`. For authors and tests: no reader's code imports it.
"""
