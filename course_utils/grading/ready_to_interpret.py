"""Imports Triton, when it is imported itself, so that it interprets kernels."""

import contextlib
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
# Where there is a GPU it may have been imported, to compile. Its extension module stays: it loads once.
for name in [name for name in sys.modules if name.partition(".")[0] == "triton" and "._C" not in name]:
    del sys.modules[name]
with contextlib.suppress(ImportError):  # where it is missing, the checks will say so
    import triton.experimental.gluon  # noqa: F401  what the first launch would import
