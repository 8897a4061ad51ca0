"""Warm processes: code that may hang, crash or fill memory runs in one, and never in the reader's.

`workers`: calls in processes, and what becomes of them (`result`, `streams`, `limits`); `client` starts the
warm server, `forkserver` is its inside and forks them, `worker_process` the inside of one, `transport` what
travels, `tree` the processes below one, and their end. `ranks`: one process group of several.

It may import `measure`.
"""
