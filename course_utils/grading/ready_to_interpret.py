"""Imports Triton, when it is imported itself, so that it interprets kernels."""

import contextlib
import os

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
with contextlib.suppress(ImportError):  # where it is missing, the checks will say so
    import triton.experimental.gluon  # noqa: F401  what the first launch would import
