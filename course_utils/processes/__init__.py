"""Warm processes: code that may hang, crash or fill memory runs in one, and never in the reader's.

`workers`: the client's side (`client`: its server, and what a new worker is given);
`worker_server` forks, `worker_process` is the inside, `transport` what travels.
`fork`: a call in a fork of a worker. `ranks`: one process group of several. `stacks`: where code was. `tree`:
the processes below one, and their end. It imports no other room.
"""
