"""Asks, when it is imported, what Inductor asks before it makes or loads its first kernel: which vector
instructions a program can be built with and run here, and a hash of torch's own source.

The answers are kept by torch in the process. They take longer than loading a kernel that was made before.
"""

import contextlib

from course_utils import torch_private

with contextlib.suppress(Exception):  # where it cannot be found out, the checks will say so
    torch_private.pick_vec_isa()
    torch_private.torch_key()
