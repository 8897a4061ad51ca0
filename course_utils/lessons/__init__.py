"""Lessons: found and read (`catalog`, with `solutions`; `above` an exercise), made into notebooks (`source`,
`build`, `notebook_files`), known to be older than what they are made from (`freshness`), what cells showed on
a GPU (`gpu_outputs`), what shows their claims (`claims`), and what stands in all of them (`glossary`).

It may import `exercise`.
"""
