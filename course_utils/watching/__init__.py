"""What a lesson records and looks at: what `torch.compile` makes of a function (`compiled`), and what each
rank did when (`lanes`, recorded by `lane_watch`; `run_ranks` is what a lesson calls).

It may import `measure` and `processes`.
"""
