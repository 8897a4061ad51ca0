"""Widgets over live objects: controls of ipywidgets, a picture that follows them, a still for places without
a kernel.

`explorer` and `controls` are what all are made of. It may import `draw`, `lessons`, `measure` and `watching`.
"""

from course_utils.explore.allocator import allocator
from course_utils.explore.checkpoints import checkpoints
from course_utils.explore.compiled import compiled
from course_utils.explore.floats import floats
from course_utils.explore.graph import graph
from course_utils.explore.inplace import inplace
from course_utils.explore.kernel import kernel
from course_utils.explore.lanes import lanes
from course_utils.explore.loading import loading
from course_utils.explore.modules import modules
from course_utils.explore.run import run
from course_utils.explore.signal import signal
from course_utils.explore.strides import strides

__all__ = [
    "allocator",
    "checkpoints",
    "compiled",
    "floats",
    "graph",
    "inplace",
    "kernel",
    "lanes",
    "loading",
    "modules",
    "run",
    "signal",
    "strides",
]
