"""Proves the graders: right answers pass, wrong ones are rejected by the check that should.

`mutants` changes a reference mechanically, `around` puts changes around it, `bench` grades the mutants,
`laws` says what every exercise keeps, `texts` what the course's voice allows. For authors and tests: nothing
that a reader uses imports it.
"""
