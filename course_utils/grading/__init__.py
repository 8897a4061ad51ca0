"""Grading: an answer in, a report out.

`attempt` is the one route of an answer: here, or by `packing` into a process of its own, where `in_child`
runs. `check_run` runs one check in a `clean_room`; `tampering` knows what may not change meanwhile;
`starter`, `ranks`, `missing` and `report` say what came of it. `answers` takes answers out of a notebook,
`notebooks` and `command` are `course check`. It may import all but `draw`, `explore`, `watching`.
"""
