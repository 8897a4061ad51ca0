"""Grading: an answer in, a report out.

`attempt` is the one route of an answer: here, or by `packing` into a process of its own (`forks`), where
`in_child` runs; `ready_to_compile` and `ready_to_make_kernels` prepare what such processes are forked from.
`check_run` runs one check in a `clean_room`; `tampering` knows what may not change meanwhile; `starter`,
`ranks`, `missing` and `report` say what came of it. `answers` takes answers out of a notebook, of whose
statements `cells` knows what they bind and read, as a `recipe`; `notebooks` and `command` are `course check`.

It may import `exercise`, `lessons`, `processes` and `reader`.
"""
